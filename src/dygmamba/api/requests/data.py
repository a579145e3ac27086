"""Requests of `dygmamba data`: `import`, `export` and `generate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dygmamba.api.requests.base import (
    Request,
    check_data,
    check_time_unit,
    require_file,
    require_writable,
)
from dygmamba.config import validate_settings
from dygmamba.core.choices import FORMATS, check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import get_setting_hints
from dygmamba.data.catalogue.known_datasets import find_entry as find_entry
from dygmamba.data.catalogue.leaderboard_folders import detect_folder_format
from dygmamba.data.generate.config import GeneratorConfig
from dygmamba.data.storage.locations import check_dataset_name

GENERATOR_DEFAULTS = GeneratorConfig()


@dataclass(frozen=True, kw_only=True)
class ImportRequest(Request):
    """Arguments of an import.

    Attributes:
        files: A file, several files with the same columns, or the folder of a leaderboard dataset.
        format: "auto", or one of the formats of `dygmamba.read`.
        name: Name of the dataset; by default the leaderboard's, or that of the (first) file.
        memory: GB that rows may take; more are sorted on disk.
        append: Add the events to this dataset, as a new version of it; files are read as its own was.
        drop_duplicates: Leave out events that repeat another one in every column.
        node_features: A table of node features.
        node_time: Its column of times.
        reading: Other fields of `ReadOptions`.
    """

    files: Sequence[Path]
    format: str = "auto"
    name: str | None = None
    memory: float
    append: str | None = None
    drop_duplicates: bool = False
    node_features: Path | None = None
    node_time: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Self:
        is_alone = len(self.files) == 1 and self.append is None
        for file in self.files:
            if not is_alone or detect_folder_format(file.expanduser()) is None:
                require_file(file, "")
        if self.append is not None and self.name is not None:
            raise ConfigError(
                "`append` adds to a dataset and keeps its name; leave out `name`", code="append-and-name"
            )
        check_data(self.append, self.data_dir)
        check_choice("format", self.format, FORMATS)
        check_time_unit(self.reading.get("time_unit", "auto"))
        if self.name is not None:
            check_dataset_name(self.name)
        return self


@dataclass(frozen=True, kw_only=True)
class DataExportRequest(Request):
    """Arguments of a data export; the suffix of `to` is the format."""

    data: str
    to: Path
    raw: bool = False

    def check(self) -> Self:
        require_writable(self.to, "to")
        check_data(self.data, self.data_dir)
        return self


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Request):
    """Arguments of a generated dataset that is saved."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Self:
        hints = get_setting_hints(GeneratorConfig)
        validate_settings("a generated dataset", hints, dict(self.settings))
        check_dataset_name(self.name)
        return self
