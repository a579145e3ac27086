"""A stream that a study makes for itself where nobody has it."""

from dataclasses import dataclass
from pathlib import Path

from dygmamba.data.generate import GeneratorConfig
from dygmamba.data.library import generated_as
from dygmamba.data.places import data_folder, data_folders, has_dataset
from dygmamba.data.store import save_dataset


@dataclass(frozen=True, slots=True)
class Made:
    """A generated stream by its name and its size."""

    name: str
    config: GeneratorConfig

    def there(self, data_dir: Path | None) -> bool:
        """Whether a dataset has this name already."""
        return has_dataset(data_folders(data_dir), self.name)

    def make(self, data_dir: Path | None) -> Path:
        """Generate and keep it, on the disk where it is large."""
        folder = data_folder(data_dir)
        return save_dataset(generated_as(self.name, self.config, folder), folder)

    def __str__(self) -> str:
        return f"{self.name}, {self.config.events:,} events among {self.config.nodes:,} nodes"
