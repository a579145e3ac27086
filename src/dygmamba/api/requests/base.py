"""Base class of the requests, and checks that several of them share."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dygmamba.core.choices import TIME_UNITS, check_choice
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.catalogue.leaderboard_folders import detect_folder_format
from dygmamba.data.storage.locations import require_dataset

if TYPE_CHECKING:
    from dygmamba.engine.run_directory import RunDirectory

Names = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of a public call. Paths may be given as text, and runs as their directories."""

    data_dir: Path | None = None  # where to look for datasets first

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.type in (Path, Path | None):
                object.__setattr__(self, field.name, Path(getattr(value, "path", value)))

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], **others: Any) -> Self:
        """Make the request of those arguments of a function that it has, and of others."""
        names = cls.names()
        return cls(**{name: value for name, value in arguments.items() if name in names} | others)

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of the arguments."""
        return {field.name for field in dataclasses.fields(cls)}

    def check(self) -> Self:
        """Return the request; raise an error if an argument is wrong or does not go with another."""
        raise NotImplementedError


def parse_names(parameter: str, given: Names, known: Iterable[str]) -> tuple[str, ...]:
    """Return a choice of known names, given as a sequence or as a string with commas."""
    names = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    names = tuple(name for name in names if name)
    if not names or not set(names) <= set(known):
        raise ConfigError(
            f"`{parameter}` takes a comma-separated choice of {', '.join(known)}; got '{given}'",
            code=f"unknown-{parameter.replace('_', '-')}",
        )
    return names


def check_time_unit(given: str) -> None:
    """Raise ConfigError for an unknown unit of numeric times."""
    check_choice("time_unit", given, TIME_UNITS)


def check_data(data: Any, data_dir: Path | None) -> None:
    """Raise an error unless a name or a path leads to events; a dataset or a table is what it is."""
    if isinstance(data, str | Path) and detect_folder_format(Path(data).expanduser()) is None:
        require_dataset(str(data), data_dir)


def is_run_directory(path: Any) -> bool:
    """Return whether a folder is a run directory."""
    return isinstance(path, str | Path) and (Path(path) / "config.toml").is_file()


def require_run(path: str | Path) -> "RunDirectory":
    """Return a run directory; raise an error unless it is one with an undamaged configuration."""
    from dygmamba.engine.run_directory import RunDirectory  # 50 ms that the help need not wait for

    folder = RunDirectory(Path(path))
    folder.config()
    return folder


def require_file(path: Path | None, parameter: str) -> None:
    """Raise FileError if a file is given and does not exist; `parameter` is named in the message, "" if it is alone."""
    if path is None or path.expanduser().is_file():
        return
    if path.is_dir():
        hint = f"give `{parameter}` a file in it" if parameter else "give a file in it"
        raise FileError(f"{path} is a folder; {hint}", code="is-a-folder")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the name and the folder", code="file-missing")


def require_writable(path: Path, parameter: str) -> None:
    """Raise FileError if a file cannot be written, before the work and not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give `{parameter}` a file name in it", code="is-a-folder")
    if not path.parent.is_dir():
        raise FileError(
            f"the folder {path.parent} does not exist; create it, or give `{parameter}` another",
            code="folder-not-found",
        )
