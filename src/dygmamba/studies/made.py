"""A stream that a study makes for itself where nobody has it."""

from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.generate import GeneratorConfig
from dygmamba.data.library import data_folder, generated_as
from dygmamba.data.places import data_folders, dataset_files
from dygmamba.data.store import save_dataset


@dataclass(frozen=True, slots=True)
class Made:
    """A generated stream by its name and its size."""

    name: str
    config: GeneratorConfig

    def there(self, data_dir: Path | None) -> bool:
        """Whether a dataset has this name already."""
        return any(self.name in dict(dataset_files(folder)) for folder in data_folders(data_dir))

    def make(self, data_dir: Path | None) -> Path:
        """Generate and keep it, on the disk where it is large."""
        folder = data_folder(data_dir)
        return save_dataset(generated_as(self.name, self.config, folder), folder)

    def __str__(self) -> str:
        return f"{self.name}, {self.config.events:,} events among {self.config.nodes:,} nodes"
