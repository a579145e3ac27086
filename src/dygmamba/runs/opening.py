"""How a run refers to its data, and finds them again: wherever it is opened, whatever was imported since.

From a run folder to things that run: its data, its stream, its model.

Where training ends and the test begins, in the user's words: three shares, or two of the stream's own times.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from dygmamba.config import build_config, check_device, to_settings
from dygmamba.core.errors import ConfigError, DygError, FileError, NotFoundError
from dygmamba.core.memory_budget import limit_tensor_memory
from dygmamba.data.events.split_spec import (
    LEADERBOARD_SPLIT,
    SPLIT_SPEC_HELP,
    SplitSpec,
    parse_parts,
    parse_shares,
)
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.readers import ReadOptions
from dygmamba.data.readers.queries import read_query_times
from dygmamba.data.readers.values import ColumnLocation
from dygmamba.data.storage.dataset import SUFFIX, Dataset, load_dataset, save_dataset
from dygmamba.data.storage.leaderboard import (
    get_default_split,
    load_leaderboard,
    read_published_leaderboard,
    save_leaderboard,
)
from dygmamba.data.storage.library import data_folders, find_dataset, is_table_file, open_dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Encoder, EncoderWrapper, ModelSpec
from dygmamba.runs.queries import QueryParser
from dygmamba.tasks.losses import LOSSES


def open_run_dataset(folder: RunDirectory, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """The dataset a run was trained on, or the given one if it is that."""
    about = folder.config().get("run", {})
    if not {"data", "digest", "model", "seed"} <= set(about):
        raise FileError(f"{folder.path}/config.toml lacks its [run] section; restore it or train again")
    if dataset is None:
        dataset = _find_run_dataset(folder, about, data_dir)
    if dataset.digest != about["digest"]:
        raise FileError(
            f"dataset '{about['data']}' is not the one this run was trained on (its events differ); "
            "point `data_dir` at the original"
        )
    return dataset


def _find_run_dataset(folder: RunDirectory, about: dict[str, Any], data_dir: Path | None) -> Dataset:
    """The data of a run: kept beside it, among all versions under its name, or where they were when it began."""
    for kept in _stored_paths(folder.path.parent.parent, about["digest"], about.get("version", "")):
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


def describe_dataset(dataset: Dataset, root: Path) -> dict[str, str]:
    """How a new run under `root` refers to its data; those of a table are kept beside the runs, for tables change."""
    if dataset.path is not None and is_table_file(dataset.path):
        store_run_dataset(dataset, root)
    where = {} if dataset.path is None else {"file": str(dataset.path.absolute())}
    return {"data": dataset.name, "digest": dataset.digest, "version": dataset.version} | where


def store_run_dataset(dataset: Dataset, root: Path, data_dir: Path | None = None) -> Path | None:
    """See to it that runs under `root` find their data again: what no name leads to is stored beside them, once.

    Where that is; None where the name does.
    """
    try:
        if open_dataset(dataset.name, data_dir).content == dataset.content:
            return None
    except DygError:
        pass
    path = _stored_paths(root / dataset.name, dataset.digest, dataset.version)[0]
    if not path.exists():
        kept = replace(dataset, name=path.stem)
        if (board := read_published_leaderboard(dataset)) is not None:
            save_leaderboard(board, kept, path.parent)
        save_dataset(kept, path.parent)
    return path


def _stored_paths(folder: Path, digest: str, version: str) -> tuple[Path, Path]:
    """Where the data of runs are that no name leads to, and where they were before there were versions."""
    return folder / f"{digest[:16]}-{version}{SUFFIX}", folder / f"{digest[:16]}{SUFFIX}"


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one; a GPU asked for and missing is an error, never a silent CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("`device='cuda'` was asked for, but torch sees no GPU; use cpu or auto")
    return torch.device(name)


def build_link_stream(dataset: Dataset, device: torch.device, by: SplitRule = PUBLISHED_SPLIT) -> Stream:
    """A dataset split as link prediction is, as published unless told."""
    return Stream(dataset.store, by.split(dataset.store), device, current_group())


def read_split(folder: RunDirectory) -> SplitRule:
    """How the stream of a run is cut."""
    try:
        return SplitRule.read(folder.config().get("run", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{folder.path}/config.toml says no whole split ({error!r}); restore it or train again"
        ) from error


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run opened again: its folder, its data with the user's ids, and its best weights on a stream."""

    folder: RunDirectory
    dataset: Dataset
    stream: Stream
    scorer: Any  # a Scorer with weights: with a link head, a classifier, or one that has no encoder

    @property
    def about(self) -> dict[str, Any]:
        """The [run] section of its configuration."""
        return self.folder.config()["run"]

    @property
    def seed(self) -> int:
        """What its draws are a function of."""
        return int(self.about["seed"])

    @property
    def rule(self) -> VisibilityRule:
        """What its memory was told in training."""
        return self.how.rule

    @property
    def activity(self) -> bool:
        """Whether its scores count how active a source is, where sources compete."""
        return bool(self.folder.config()["train"].get("activity", False))

    @property
    def how(self) -> FitConfig:
        """How it was trained."""
        kind = LinkFitConfig if self.folder.task == "link" else FitConfig
        return build_config(kind, self.folder.config()["train"])


def describe_training(folder: RunDirectory) -> dict[str, Any]:
    """What a result row says of a link run's training; runs that do not say were trained against random pairs."""
    how = folder.config()["train"]
    against, judge = how.get("train_negatives", "random"), LOSSES[how.get("loss", "pairwise")]
    told = judge.of(int(how.get("train_candidates", 1))).about
    return {"train_negatives": against, **told, **read_split(folder).stamp}


def read_task(path: Path) -> str:
    """What the run in this folder was trained for: link or node."""
    return RunDirectory(path).task


def open_run(
    path: Path, device: torch.device, data_dir: Path | None = None, dataset: Dataset | None = None
) -> OpenRun:
    """A run with its best weights loaded; `dataset` is its data where that is open already."""
    folder = RunDirectory(path)
    dataset = open_link_dataset(folder, data_dir, dataset)
    stream = build_link_stream(dataset, device, read_split(folder))
    scorer = build_scorer(folder, stream)
    load_best(folder, scorer)
    return OpenRun(folder, dataset, stream, scorer.to(device).eval())


def open_link_dataset(folder: RunDirectory, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """The data of a link run; a classifier's folder is refused."""
    if folder.task == "node":
        backbone = folder.config()["run"].get("backbone")
        raise ConfigError(f"{folder.path} classifies nodes; give a link run, such as its backbone {backbone}")
    return open_run_dataset(folder, data_dir, dataset)


def build_scorer(folder: RunDirectory, stream: Stream) -> nn.Module:
    """The model of a run as its seed initialises it, on the host; the stream's split is that of link prediction."""
    sections = folder.config()
    name, seed = sections["run"]["model"], int(sections["run"]["seed"])
    spec = find_model(name, sections["run"].get("source"))
    scorer = build_seeded_scorer(spec, build_config(spec.config, sections["model"]), seed, stream)
    if not isinstance(scorer, nn.Module):
        raise FileError(f"{folder.path} names the model '{name}', which has no weights to load")
    return scorer


def build_seeded_scorer(spec: ModelSpec, config: Any, seed: int, stream: Stream, copies: int = 1) -> Any:
    """A model as a seed initialises it; refused before it is made where the memory does not hold so many copies."""
    torch.manual_seed(seed)
    facts = DatasetFacts.of(stream.store, stream.split.train)
    with limit_tensor_memory(f"a model with {_describe_model_size(config)}", 1 / copies):
        return spec.build(config, facts)


def _describe_model_size(config: Any) -> str:
    """The settings that make a model large: the numbers above their defaults, or all."""
    numbers = {name: value for name, value in to_settings(config).items() if type(value) is int}
    usual: dict[str, Any] = {field.name: field.default for field in fields(config)}
    chosen = {name: value for name, value in numbers.items() if value > usual[name]} or numbers
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "these settings"


def get_encoder(scorer: Any, folder: RunDirectory) -> Encoder:
    """What turns nodes into vectors in this run, or a sentence: not every model does."""
    if not isinstance(scorer, EncoderWrapper):
        raise ConfigError(
            f"{folder.path} is a run of a model that makes no vectors of nodes; give one of dyg-mamba"
        )
    return scorer.encoder


def parse_split(dataset: Dataset, given: SplitSpec | None) -> SplitRule:
    """How a dataset is cut; where nothing is said as its scoreboard does, or as published."""
    if given is None:
        return get_default_split(dataset)
    if given == LEADERBOARD_SPLIT:
        return load_leaderboard(dataset).split
    words = parse_parts(given)
    said = ",".join(words)
    found = parse_shares(words)
    return SplitRule(_parse_split_times(dataset, words, said) if found is None else found, said)


def _parse_split_times(dataset: Dataset, words: list[str], said: str) -> tuple[float, ...]:
    try:
        times = read_query_times(
            pa.array(words), ColumnLocation("`split`", "time", 0), ReadOptions(), dataset.origin
        )
    except (FileError, UnicodeEncodeError) as error:
        raise ConfigError(f"{SPLIT_SPEC_HELP}; got '{said[:80]}'") from error
    QueryParser(dataset, ReadOptions(), integers=False).check_times("`split`", times.epoch, times.value)
    first, second = (float(time) for time in times.value)
    if not first < second:
        raise ConfigError(
            f"validation begins before the test does; got '{said[:80]}', give the earlier time first"
        )
    begin, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if not begin < first or not second <= end:
        raise ConfigError(
            f"`split` must leave events to each period, but the stream goes from {begin:.12g} to {end:.12g} and the "
            f"periods begin at {first:.12g} and {second:.12g}; choose times inside"
        )
    return first, second
