"""Checks of the arguments of `dygmamba data`, without torch, pyarrow and numba, as those of `precheck.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dygmamba.api.argument_checks import check_choice, require_file, require_writable
from dygmamba.config import validate_settings
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import get_setting_hints
from dygmamba.data.catalogue.known_datasets import find_entry
from dygmamba.data.catalogue.leaderboard_folders import detect_folder_format
from dygmamba.data.generate.config import GeneratorConfig
from dygmamba.data.storage.locations import check_dataset_name
from dygmamba.data.storage.locations import require_dataset as require_dataset

GENERATOR_DEFAULTS = GeneratorConfig()


def check_import(
    files: Sequence[Path],
    *,
    format: str,
    time_unit: str,
    name: str | None,
    append: str | None = None,
    data_dir: Path | None = None,
) -> None:
    """Check the arguments of a data import."""
    is_alone = len(files) == 1 and append is None
    for file in files:
        if not is_alone or detect_folder_format(file.expanduser()) is None:
            require_file(file, "")
    if append is not None and name is not None:
        raise ConfigError(
            "`append` adds to a dataset and keeps its name; leave out `name`", code="append-and-name"
        )
    if append is not None:
        require_dataset(append, data_dir)
    check_choice("format", format)
    check_choice("time_unit", time_unit)
    if name is not None:
        check_dataset_name(name)


def check_export_data(data: str, to: Path, data_dir: Path | None) -> None:
    """Check the arguments of a data export."""
    require_writable(to, "to")
    require_dataset(data, data_dir)


def check_fetch(name: str) -> None:
    """Check the name of a public dataset."""
    find_entry(name)


def check_generate(name: str, settings: dict[str, Any]) -> None:
    """Check the arguments of a generated dataset."""
    validate_settings(GeneratorConfig.__name__, get_setting_hints(GeneratorConfig), settings)
    check_dataset_name(name)
