"""Find datasets by name without reading them.

Datasets are searched in the given folder, in $DYGMAMBA_DATA, in the user's data folder and in the user's cache. Free of
torch, so that the command line can report an unknown name at once.
"""

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from dygmamba.core.errors import ConfigError, FileError, NotFoundError, make_package_error
from dygmamba.core.files.untrusted import MAX_NAME_BYTES
from dygmamba.data.catalogue.known_datasets import load_catalogue

DATASET_SUFFIX = ".safetensors"
INDEX_FOLDER = ".index"  # subfolder of a data folder with the disk indices of its large datasets
GENERATED = "generated"  # name of the built-in synthetic dataset; a file of that name takes precedence
# formats of tables that are written, by suffix; text may be compressed, which adds .gz
TABLE_ENDINGS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xlsx": "xlsx",
}
GZIP_SUFFIX = ".gz"
TEXT_FORMATS = ("csv", "jsonl")
TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".feather", ".gz"}


def parse_table_format(path: Path, *others: str) -> tuple[str, bool]:
    """Return the format of a table to write by the suffix of its file, and whether it is compressed.

    A file without a suffix, such as /dev/stdout, is CSV. An unknown suffix raises ConfigError, which also lists the
    suffixes `others`; so does one whose package is not installed.
    """
    if not path.suffix:
        return "csv", False
    is_compressed = path.suffix.lower() == GZIP_SUFFIX
    kind = TABLE_ENDINGS.get((path.with_suffix("") if is_compressed else path).suffix.lower())
    if kind is None or (is_compressed and kind not in TEXT_FORMATS):
        endings = ", ".join([*TABLE_ENDINGS, *others, ".csv.gz", ".jsonl.gz"])
        excel = "; spreadsheets open .xlsx and .csv" if path.suffix.lower() in (".xls", ".ods") else ""
        raise ConfigError(
            f"the suffix of {path} is not a format that can be written; use one of {endings}{excel}",
            code="unknown-file-suffix",
        )
    if kind == "xlsx" and find_spec("openpyxl") is None:
        raise make_package_error(str(path), "openpyxl", "'dyg-mamba[xlsx]'")
    return kind, is_compressed


def data_folders(data_dir: Path | None = None) -> list[Path]:
    """Return the folders to search, in order."""
    folders = [] if data_dir is None else [data_dir]
    if chosen := os.environ.get("DYGMAMBA_DATA"):
        folders.append(Path(chosen))
    return [folder.expanduser() for folder in [*folders, get_user_data_folder(), get_former_data_folder()]]


def data_folder(data_dir: Path | None = None) -> Path:
    """Return the folder to write to: the first of `data_folders`."""
    return data_folders(data_dir)[0]


def get_user_data_folder() -> Path:
    """Return the folder for data in the user's home: $XDG_DATA_HOME, or where the platform has it."""
    if chosen := os.environ.get("XDG_DATA_HOME"):
        return Path(chosen) / "dygmamba"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dygmamba"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dygmamba"
    return Path.home() / ".local" / "share" / "dygmamba"


def get_former_data_folder() -> Path:
    """Return the folder in the user's cache where datasets were saved before: still searched, no longer written to.

    Programs that clean up empty a cache, and with it the versions that runs need.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dygmamba"


def find_dataset_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of every dataset in a folder; of several files with one name the preferred one first."""
    patterns = (f"*{DATASET_SUFFIX}", "*.npz", "ml_*.csv", "*/ml_*.csv")
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            name = path.stem.removeprefix("ml_") if path.suffix == ".csv" else path.stem
            if pattern != "*/ml_*.csv" or path.parent.name == name:
                yield name, path


def has_dataset(folders: Iterable[Path], *names: str) -> bool:
    """Return whether the folders hold a dataset of one of these names."""
    return any(name in names for folder in folders for name, _ in find_dataset_files(folder))


def find_index_files(folder: Path, digest: str) -> list[Path]:
    """Return the disk indices of the dataset with this digest; they can be deleted and rebuilt at any time."""
    return sorted((folder / INDEX_FOLDER).glob(f"{digest[:16]}-*"))


def check_dataset_name(name: str) -> str:
    """Return the name if it can be a file name: letters, digits, '.', '_', '-', not starting with '.' or '-'."""
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{name[:60]!r} cannot name a dataset; use letters, digits, '.', '_' and '-', "
            f"at most {MAX_NAME_BYTES} bytes (set it with `name`)",
            code="invalid-dataset-name",
        )
    return name


def looks_like_path(name_or_path: str) -> bool:
    """Return whether this is the path of a file rather than the name of a dataset."""
    path = Path(name_or_path).expanduser()
    return path.name != name_or_path or path.suffix in {DATASET_SUFFIX, ".npz", *TABLE_SUFFIXES}


def require_dataset(name_or_path: str, data_dir: Path | None = None) -> None:
    """Raise an error unless this is a dataset or an existing file; the content is checked when it is read."""
    folders = data_folders(data_dir)
    path = Path(name_or_path).expanduser()
    names = (name_or_path, name_or_path.partition("@")[0])  # NAME@VERSION
    if name_or_path == GENERATED or _is_file(path):
        return
    if has_dataset(folders, *names):
        return
    if looks_like_path(name_or_path):
        raise FileError(
            f"{path} is {'a folder' if path.is_dir() else 'missing'}; give a file, or the name of a dataset",
            code="is-a-folder" if path.is_dir() else "file-missing",
        )
    raise make_unknown_dataset_error(name_or_path, folders)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a possible file name
        return False


def make_unknown_dataset_error(name: str, folders: list[Path]) -> NotFoundError:
    """Create the error for an unknown dataset name, with similar names and how to get the dataset."""
    known = {known for folder in folders for known, _ in find_dataset_files(folder)}
    by_lower = {entry.lower(): entry for entry in sorted(known)}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    suggestion = f"; did you mean {' or '.join(close)}?" if close else ""
    searched = ", ".join(str(folder) for folder in folders)
    public = {entry.lower(): entry for entry in load_catalogue()}.get(name.lower())
    download = f"download it with 'dygmamba data fetch {public}', or " if public else ""
    return NotFoundError(
        f"there is no dataset {name!r} in {searched}{suggestion}; {download}import your own with "
        "`dygmamba.read('FILE')`",
        code="unknown-dataset",
    )
