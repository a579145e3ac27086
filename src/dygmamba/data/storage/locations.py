"""Where datasets are, found out without reading any: in the folder that is given, $DYGMAMBA_DATA, the user's cache."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from dygmamba.core.errors import ConfigError, FileError, NotFoundError
from dygmamba.core.files.untrusted import MAX_NAME_BYTES
from dygmamba.data.catalogue.known_datasets import load_catalogue

SUFFIX = ".safetensors"  # of a dataset's own file
INDEX_FOLDER = ".index"  # in a data folder, look-ups into its large datasets
GENERATED = "generated"  # the embedded default stream, unless a file of that name is found
TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".feather", ".gz"}


def data_folders(data_dir: Path | None = None) -> list[Path]:
    """The folders to look in, in this order."""
    folders = [] if data_dir is None else [data_dir]
    if chosen := os.environ.get("DYGMAMBA_DATA"):
        folders.append(Path(chosen))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [folder.expanduser() for folder in [*folders, Path(cache) / "dygmamba"]]


def data_folder(data_dir: Path | None = None) -> Path:
    """Where to write: the first of the folders that are looked in."""
    return data_folders(data_dir)[0]


def find_dataset_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of every dataset in a folder, the better form of a name first."""
    patterns = (f"*{SUFFIX}", "*.npz", "ml_*.csv", "*/ml_*.csv")
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            name = path.stem.removeprefix("ml_") if path.suffix == ".csv" else path.stem
            if pattern != "*/ml_*.csv" or path.parent.name == name:
                yield name, path


def has_dataset(folders: Iterable[Path], *names: str) -> bool:
    """Whether a dataset in these folders has one of these names."""
    return any(name in names for folder in folders for name, _ in find_dataset_files(folder))


def find_index_files(folder: Path, digest: str) -> list[Path]:
    """What was made for looking into the events of this digest: nothing that cannot be made again."""
    return sorted((folder / INDEX_FOLDER).glob(f"{digest[:16]}-*"))


def checked_name(name: str) -> str:
    """The name, if it can be a file's: letters, digits, '.', '_', '-', not starting with a dot or dash."""
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{name[:60]!r} cannot name a dataset; use letters, digits, '.', '_' and '-', "
            f"at most {MAX_NAME_BYTES} bytes (set it with `name`)"
        )
    return name


def require_dataset(name_or_path: str, data_dir: Path | None = None) -> None:
    """Refuse a name that leads to no dataset and a file that is not there; what it holds is seen when it is read."""
    folders = data_folders(data_dir)
    path = Path(name_or_path).expanduser()
    names = (name_or_path, name_or_path.partition("@")[0])  # an older version is behind an @
    if name_or_path == GENERATED or _is_file(path):
        return
    if has_dataset(folders, *names):
        return
    if path.name != name_or_path or path.suffix in {SUFFIX, ".npz", *TABLE_SUFFIXES}:
        raise FileError(
            f"{path} is {'a folder' if path.is_dir() else 'missing'}; give a file, or the name of a dataset"
        )
    raise make_unknown_dataset_error(name_or_path, folders)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file can have
        return False


def make_unknown_dataset_error(name: str, folders: list[Path]) -> NotFoundError:
    """The sentence for a name that no dataset has."""
    known = {known for folder in folders for known, _ in find_dataset_files(folder)}
    by_lower = {entry.lower(): entry for entry in sorted(known)}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    looked = ", ".join(str(folder) for folder in folders)
    public = {entry.lower(): entry for entry in load_catalogue()}.get(name.lower())
    get = f"get it with 'dygmamba data fetch {public}', or " if public else ""
    return NotFoundError(
        f"there is no dataset {name!r} in {looked}{meant}; {get}bring your own with `dygmamba.read('FILE')`"
    )
