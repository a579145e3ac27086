"""Opening of a run directory, with its best weights or at its last checkpoint, and of its dataset.

Also here: how a new run records its dataset so that it can be found again, and how a user writes a split.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from dygmamba.config import check_device
from dygmamba.core.errors import ConfigError, DygError, DygWarning, FileError, NotFoundError
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.split_spec import (
    AUTO_PROTOCOL,
    LEADERBOARD_SPLIT,
    SPLIT_SPEC_HELP,
    SplitSpec,
    choose_protocol,
    parse_parts,
    parse_shares,
)
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.readers import ReadOptions
from dygmamba.data.readers.bad_rows import ColumnLocation
from dygmamba.data.readers.queries import read_query_times
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.extension import check_time_scale
from dygmamba.data.storage.leaderboard import (
    get_default_split,
    load_leaderboard,
    read_published_leaderboard,
    save_leaderboard,
)
from dygmamba.data.storage.library import find_dataset, is_table_file, open_dataset
from dygmamba.data.storage.locations import DATASET_SUFFIX, data_folders
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.checkpoint import load_best, load_newest
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import Trainer
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.provenance import check_environment, create_run, describe_environment
from dygmamba.runs.recipes import OpenRun, build_run, describe_node_run, load_backbone
from dygmamba.runs.run_config import RunConfig


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is a GPU if there is one. A missing GPU is an error, never silently the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "`device='cuda'` needs a GPU, but torch finds none; use 'cpu' or 'auto'", code="no-gpu"
        )
    return torch.device(name)


def as_directory(run: Path | RunDirectory) -> RunDirectory:
    """Return the run directory; one that was opened before keeps its parsed configuration."""
    return run if isinstance(run, RunDirectory) else RunDirectory(run)


def open_run(
    run: Path | RunDirectory,
    device: torch.device,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    task: str = "link",
) -> OpenRun:
    """Open a run with its best weights, for queries about any node at any time.

    Args:
        run: Its directory.
        device: Where it computes.
        data_dir: Where datasets are.
        dataset: Its dataset, if that is open already.
        task: What it has to predict; a node classifier is not opened as a link predictor.
    """
    config = RunConfig.read(as_directory(run))
    open_own = open_link_dataset if task == "link" else open_run_dataset
    opened = build_run(config, open_own(config, data_dir, dataset), device)
    load_best(config.folder, opened.scorer)
    opened.scorer.to(device).eval()
    return opened


def resume_training(
    path: Path,
    device: torch.device,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    advance: Advance = no_advance,
) -> Trainer:
    """Return a trainer at the last checkpoint of a run; without one it starts again, from its backbone if it has one.

    `dataset` is its dataset if it is open; `advance` counts the events that a frozen backbone embeds first.
    """
    group = current_group()
    folder = RunDirectory(path, group.is_first)
    # raises for a directory that is not a run, before a lock file is left in it
    config = RunConfig.read(folder)
    dataset = open_run_dataset(config, data_dir, dataset)
    group.run_on_first(folder.lock)
    check_environment(folder, device)
    run = build_run(config, dataset, device)
    if config.recipe == "node_head" and folder.started:
        load_newest(folder, run.scorer)  # its encoder computes the embeddings
    elif config.recipe == "node_head":
        load_backbone(config, run.scorer)
    elif config.run.start_from is not None and not folder.started:  # stopped before its first checkpoint
        load_start_weights(config, run.scorer)
    trainer = run.build_trainer(advance)
    trainer.resume()
    return trainer


def load_start_weights(config: RunConfig, scorer: Any) -> None:
    """Load the weights that a run starts with; raise FileError if they are no longer those that it recorded."""
    start = RunDirectory(Path(str(config.run.start_from)))
    if not start.best.exists() or read_seal(start.best) != config.run.start_weights:
        raise FileError(
            f"{config.path} was to start from the weights of {start.path}, which are missing or have changed; "
            "restore them, or start a new run",
            code="start-weights-changed",
        )
    load_best(start, scorer)
    scorer.keep_rounds()


def open_link_dataset(config: RunConfig, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """Open the dataset of a link run; raise ConfigError for a node classifier."""
    if config.run.task == "node":
        raise ConfigError(describe_node_run(config), code="not-a-link-run")
    return open_run_dataset(config, data_dir, dataset)


def open_run_dataset(config: RunConfig, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """Open the dataset that a run was trained on, or check that the given one is that."""
    about = config.run
    if dataset is None:
        dataset = _find_run_dataset(config, data_dir)
    if dataset.digest != about.digest:
        raise FileError(
            f"dataset '{about.data}' is not the one that {config.path} was trained on (its events differ); "
            "point `data_dir` at the original",
            code="dataset-changed",
        )
    return dataset


def _find_run_dataset(config: RunConfig, data_dir: Path | None) -> Dataset:
    """Look under the runs folder, then among all versions of the name, then where the file was at the start."""
    about = config.run
    for stored in _stored_paths(config.path.parent.parent, about.digest, about.version or ""):
        if stored.exists():
            return replace(load_dataset(stored), name=about.data)
    file = Path(about.file) if about.file else None
    folders = [*data_folders(data_dir), *([] if file is None else [file.parent])]
    dataset = find_dataset(about.data, about.digest, folders, about.version or "")
    if dataset is not None:
        return dataset
    if file is not None and file.is_file() and file.parent not in data_folders(data_dir):
        dataset = open_dataset(str(file))
        if dataset.digest != about.digest:
            raise FileError(
                f"{file} has changed since {config.path} was trained on it; restore it, or train again",
                code="dataset-changed",
            )
        return dataset
    try:
        return open_dataset(about.data, data_dir)
    except NotFoundError as error:
        raise NotFoundError(
            f"{config.path} needs the dataset it was trained on, '{about.data}' with digest "
            f"{about.digest[:16]}: {error}",
            code="unknown-dataset",
        ) from error


def create_run_from(
    config: RunConfig, dataset: Dataset, root: Path, name: str, device: torch.device, suffix: str = ""
) -> RunConfig:
    """Create the directory of a new run under `root`, in the folder `name` of its dataset, and store its config.

    Returns:
        The configuration with the run directory and the entries about the dataset and the environment.
    """
    about = current_group().run_on_first(lambda: describe_dataset(dataset, root))
    config = replace(config, run=replace(config.run, **about), made_with=describe_environment(device))
    folder = create_run(
        lambda: RunDirectory.create(root, dataset.name, name, config.seed, suffix), config.sections
    )
    return replace(config, folder=folder)


def describe_dataset(dataset: Dataset, root: Path) -> dict[str, str]:
    """Return the entries of [run] that identify the dataset.

    Events read from a table (CSV, Parquet, ...) are copied below `root`, because such files change.
    """
    if dataset.path is not None and is_table_file(dataset.path):
        store_run_dataset(dataset, root)
    file = {} if dataset.path is None else {"file": str(dataset.path.absolute())}
    return {"data": dataset.name, "digest": dataset.digest, "version": dataset.version} | file


def store_run_dataset(dataset: Dataset, root: Path, data_dir: Path | None = None) -> Path | None:
    """Store a dataset below `root`, where its runs look for it, unless opening it by name gives the same events.

    Returns:
        The path of the copy; None if none is needed.
    """
    try:
        if open_dataset(dataset.name, data_dir).content == dataset.content:
            return None
    except DygError:
        pass
    path = _stored_paths(root / dataset.name, dataset.digest, dataset.version)[0]
    if not path.exists():
        copy = replace(dataset, name=path.stem)
        if (board := read_published_leaderboard(dataset)) is not None:
            save_leaderboard(board, copy, path.parent)
        save_dataset(copy, path.parent)
    return path


@contextmanager
def store_for_training(dataset: Dataset, root: Path, data_dir: Path | None = None) -> Iterator[Path | None]:
    """Store a dataset as `store_run_dataset` does; a training inside that is refused leaves nothing behind."""
    folder = root / dataset.name

    def list_entries() -> set[Path]:
        return {*folder.glob("*"), *folder.glob("*/*")}

    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    before = list_entries()
    try:
        yield current_group().run_on_first(lambda: store_run_dataset(dataset, root, data_dir))
    except DygError:
        new = list_entries() - before
        if all(path.is_file() and path.parent == folder for path in new):  # no run was started
            for path in new:
                path.unlink(missing_ok=True)  # another process of this training may be faster
            with suppress(OSError):
                for path in new_folders:
                    path.rmdir()
        raise


def _stored_paths(folder: Path, digest: str, version: str) -> tuple[Path, Path]:
    """Return where a copied dataset is, and where it was before datasets had versions."""
    return folder / f"{digest[:16]}-{version}{DATASET_SUFFIX}", folder / f"{digest[:16]}{DATASET_SUFFIX}"


def parse_split(dataset: Dataset, spec: SplitSpec | None, protocol: str = AUTO_PROTOCOL) -> SplitRule:
    """Parse the split that a user wrote: three shares, two times, or the name of the leaderboard split.

    Without a spec, the split is the default one of the dataset and the protocol.
    """
    if spec is None:
        return get_default_split(dataset, protocol)
    chosen = choose_protocol(dataset.name, dataset.store, protocol)
    if spec == LEADERBOARD_SPLIT:
        if protocol == "benchmark":
            raise ConfigError(
                "the split of a leaderboard holds no nodes out of training; leave out `protocol='benchmark'`, or "
                f"`split='{LEADERBOARD_SPLIT}'`",
                code="protocol-of-leaderboard",
            )
        return load_leaderboard(dataset).split
    parts = parse_parts(spec)
    text, shares = ",".join(parts), parse_shares(parts)
    numbers = _parse_split_times(dataset, parts, text) if shares is None else shares
    return SplitRule(numbers, text, protocol=chosen)


def parse_times(dataset: Dataset, name: str, parts: list[str], expected: str) -> list[float]:
    """Parse times that a user gave as the argument `name`, as dates or in the unit of the dataset.

    Raises:
        ConfigError: They are neither; `expected` says what to give instead.
    """
    try:
        times = read_query_times(
            pa.array(parts), ColumnLocation(f"`{name}`", "time"), ReadOptions(), dataset.origin
        )
    except (FileError, UnicodeEncodeError) as error:
        text = ",".join(parts)
        raise ConfigError(f"{expected}; got '{text[:80]}'", code=f"invalid-{name}") from error
    check_time_scale(dataset, f"`{name}`", times.is_unix_time, times.value)
    return [float(time) for time in times.value]


def _parse_split_times(dataset: Dataset, parts: list[str], text: str) -> tuple[float, ...]:
    first, second = parse_times(dataset, "split", parts, SPLIT_SPEC_HELP)
    if not first < second:
        raise ConfigError(
            f"`split` takes the time when validation begins, then the later time when the test begins; got "
            f"'{text[:80]}'",
            code="split-order",
        )
    begin, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if not begin < first or not second <= end:
        raise ConfigError(
            f"`split` must leave events in each period: the stream goes from {begin:.12g} to {end:.12g}, but "
            f"validation begins at {first:.12g} and the test at {second:.12g}; choose times inside the stream",
            code="split-outside-stream",
        )
    return first, second


def warn_if_unfinished(run: Path | RunDirectory) -> None:
    """Warn of a run that was stopped; raise ConfigError if it has no weights yet."""
    folder = as_directory(run)
    path, sections = folder.path, folder.config()
    if folder.finished or "train" not in sections:
        return
    epochs, hint = sections["train"]["epochs"], f"resume it with `dygmamba.resume({str(path)!r})`"
    if not folder.best.exists():
        raise ConfigError(
            f"{path} was stopped in its first epoch and has no weights yet; {hint}",
            code="run-without-weights",
        )
    done = len(folder.metrics())
    state = (
        "trained, but not evaluated" if done >= epochs else f"stopped after {done} of at most {epochs} epochs"
    )
    warnings.warn(DygWarning(f"{path} is not finished ({state}); {hint}"), stacklevel=3)
