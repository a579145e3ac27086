"""Several files of one dataset: read the first one, then append the others, which are read in the same way."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.readers import ReadOptions, read_dataset, read_more_events

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset


def read_files(
    paths: Sequence[Path], options: ReadOptions, *, format: str = "auto", name: str | None = None
) -> "Dataset":
    """Read files with the same columns as one dataset; the arguments are those of `read_dataset`."""
    first, *more = paths
    dataset = read_dataset(first, options, format=format, name=name)
    for path in more:
        dataset = append_file(dataset, path, options)
    return dataset


def append_file(dataset: "Dataset", path: Path, options: ReadOptions) -> "Dataset":
    """Return the dataset with the events of another file, which is read as its own file was."""
    from dygmamba.data.storage.extension import check_time_scale, extend_dataset

    label = options.label or dataset.origin.label or None
    more = read_more_events(path, replace(options, label=label), dataset)
    check_time_scale(dataset, str(path), bool(more.origin.time_origin), more.store.time.numpy())
    try:
        return replace(extend_dataset(dataset, more), path=dataset.path)
    except EventError as error:
        raise FileError(f"{path}: {error}", code=error.code) from error
