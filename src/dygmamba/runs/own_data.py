"""How a run refers to its data, and finds them again: wherever it is opened, whatever was imported since."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dygmamba.data.boards import as_published, save_board
from dygmamba.data.library import data_folders, find_dataset, is_table, open_dataset
from dygmamba.data.store import SUFFIX, Dataset, load_dataset, save_dataset
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import DygError, FileError, NotFoundError


def open_data(folder: RunFolder, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """The dataset a run was trained on, or the given one if it is that."""
    about = folder.config().get("run", {})
    if not {"data", "digest", "model", "seed"} <= set(about):
        raise FileError(f"{folder.path}/config.toml lacks its [run] section; restore it or train again")
    if dataset is None:
        dataset = _own_data(folder, about, data_dir)
    if dataset.digest != about["digest"]:
        raise FileError(
            f"dataset '{about['data']}' is not the one this run was trained on (its events differ); "
            "point `data_dir` at the original"
        )
    return dataset


def _own_data(folder: RunFolder, about: dict[str, Any], data_dir: Path | None) -> Dataset:
    """The data of a run: kept beside it, among all versions under its name, or where they were when it began."""
    for kept in _kept(folder.path.parent.parent, about["digest"], about.get("version", "")):
        if kept.exists():
            return replace(load_dataset(kept), name=about["data"])
    file = Path(about["file"]) if about.get("file") else None
    folders = [*data_folders(data_dir), *([] if file is None else [file.parent])]
    found = find_dataset(about["data"], about["digest"], folders, about.get("version", ""))
    if found is not None:
        return found
    if file is not None and file.is_file() and file.parent not in data_folders(data_dir):
        changed = open_dataset(str(file))
        if changed.digest != about["digest"]:
            raise FileError(
                f"{file} has changed since {folder.path} was trained on it; restore it, or train again"
            )
        return changed
    try:
        return open_dataset(about["data"], data_dir)
    except NotFoundError as error:
        raise NotFoundError(
            f"{folder.path} needs the data it was trained on, '{about['data']}' with digest "
            f"{about['digest'][:16]}: {error}"
        ) from error


def data_of(dataset: Dataset, root: Path) -> dict[str, str]:
    """How a new run under `root` refers to its data; those of a table are kept beside the runs, for tables change."""
    if dataset.path is not None and is_table(dataset.path):
        keep_dataset(dataset, root)
    where = {} if dataset.path is None else {"file": str(dataset.path.absolute())}
    return {"data": dataset.name, "digest": dataset.digest, "version": dataset.version} | where


def keep_dataset(dataset: Dataset, root: Path, data_dir: Path | None = None) -> Path | None:
    """See to it that runs under `root` find their data again: what no name leads to is stored beside them, once.

    Where that is; None where the name does.
    """
    try:
        if open_dataset(dataset.name, data_dir).content == dataset.content:
            return None
    except DygError:
        pass
    path = _kept(root / dataset.name, dataset.digest, dataset.version)[0]
    if not path.exists():
        kept = replace(dataset, name=path.stem)
        if (board := as_published(dataset)) is not None:
            save_board(board, kept, path.parent)
        save_dataset(kept, path.parent)
    return path


def _kept(folder: Path, digest: str, version: str) -> tuple[Path, Path]:
    """Where the data of runs are that no name leads to, and where they were before there were versions."""
    return folder / f"{digest[:16]}-{version}{SUFFIX}", folder / f"{digest[:16]}{SUFFIX}"
