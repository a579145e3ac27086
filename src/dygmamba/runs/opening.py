"""Opening of a run directory: its dataset, its split, its stream of events, and its model with the best weights.

Also here: how a new run records its dataset so that it can be found again, and how a user writes a split.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from dygmamba.config import build_config, check_device, to_settings
from dygmamba.core.errors import ConfigError, DygError, FileError, NotFoundError
from dygmamba.core.memory_budget import limit_tensor_memory
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
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Encoder, EncoderWrapper, ModelSpec
from dygmamba.models.stored_settings import update_stored_settings
from dygmamba.runs.stored_facts import read_facts
from dygmamba.tasks.losses import LOSSES
from dygmamba.tasks.node_targets import NodeTarget


@dataclass(frozen=True)  # not slotted: `about` and `fit_config` are computed once, on demand
class OpenRun:
    """An opened run: its directory, its dataset, its stream, and a scorer with its best weights."""

    folder: RunDirectory
    dataset: Dataset
    stream: Stream
    scorer: Any  # a Scorer: with a link head, a node classifier, or one without an encoder
    target: NodeTarget | None = None  # of a node task
    shown: NodeTarget | None = None  # the target, if the model reads labels of earlier events

    @cached_property
    def about(self) -> dict[str, Any]:
        """The [run] section of the configuration."""
        return self.folder.config()["run"]

    @cached_property
    def fit_config(self) -> FitConfig:
        """The settings that it was trained with."""
        kind = LinkFitConfig if self.folder.task == "link" else FitConfig
        return build_config(kind, self.folder.config()["train"])

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def rule(self) -> VisibilityRule:
        """Rule for which events its node memory had observed in training."""
        return self.fit_config.rule

    @property
    def activity(self) -> bool:
        """Whether its scores include the activity of the source."""
        return bool(self.folder.config()["train"].get("activity", False))


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


def read_split(folder: RunDirectory) -> SplitRule:
    try:
        return SplitRule.read(folder.config().get("run", {}))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{folder.path}/config.toml has an incomplete split ({error!r}); restore it or train again",
            code="damaged-config",
        ) from error


def open_run(
    run: Path | RunDirectory,
    device: torch.device,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
) -> OpenRun:
    """Open a link run with its best weights; `dataset` is its dataset if that is open already."""
    folder = as_directory(run)
    dataset = open_link_dataset(folder, data_dir, dataset)
    stream = build_link_stream(dataset, device, read_split(folder))
    scorer = build_scorer(folder, stream)
    load_best(folder, scorer)
    return OpenRun(folder, dataset, stream, scorer.to(device).eval())


def build_link_stream(dataset: Dataset, device: torch.device, rule: SplitRule | None = None) -> Stream:
    """Split a dataset by a rule, or by its default one."""
    rule = get_default_split(dataset) if rule is None else rule
    return Stream(dataset.store, rule.split(dataset.store), device, current_group())


def build_scorer(folder: RunDirectory, stream: Stream) -> nn.Module:
    """Build the model of a run with its initial weights, on the CPU; `stream` has the split of link prediction."""
    sections = folder.config()
    name, seed = sections["run"]["model"], int(sections["run"]["seed"])
    spec = find_model(name, sections["run"].get("source"))
    config = build_config(spec.config, update_stored_settings(name, sections["model"]))
    scorer = build_seeded_scorer(spec, config, seed, stream, facts=read_facts(folder, stream.store))
    if not isinstance(scorer, nn.Module):
        raise FileError(
            f"{folder.path} is of the model '{name}', which has no weights to load; restore its config.toml",
            code="model-without-weights",
        )
    return scorer


def build_seeded_scorer(
    spec: ModelSpec,
    config: Any,
    seed: int,
    stream: Stream,
    copies: int = 1,
    facts: DatasetFacts | None = None,
) -> Any:
    """Initialize a model from a seed; raise before allocating if memory does not hold `copies` of its weights.

    `facts` replace those of the stream, in a run that started from another one.
    """
    torch.manual_seed(seed)
    facts = facts or stream.facts
    with limit_tensor_memory(f"a model with {_describe_model_size(config)}", 1 / copies):
        return spec.build(config, facts)


def _describe_model_size(config: Any) -> str:
    """Name the integer settings above their defaults, or all integer settings if none is; a seed is no size."""
    settings = to_settings(config).items()
    numbers = {name: value for name, value in settings if type(value) is int and name != "walk_seed"}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(config)}
    large = {name: value for name, value in numbers.items() if value > defaults[name]} or numbers
    return ", ".join(f"{name}={value}" for name, value in large.items()) or "these settings"


def get_encoder(scorer: Any, folder: RunDirectory) -> Encoder:
    """Return the encoder of a run's scorer.

    Raises:
        ConfigError: The model has none, such as boosted trees.
    """
    if not isinstance(scorer, EncoderWrapper):
        raise ConfigError(
            f"the model of {folder.path} has no node embeddings; give a run of dyg-mamba",
            code="model-without-encoder",
        )
    return scorer.encoder


def describe_training(folder: RunDirectory) -> dict[str, Any]:
    """Return the columns of a result row about the training of a link run: negatives, loss and split.

    Runs that were trained before these settings existed have the defaults.
    """
    settings = build_config(LinkFitConfig, require_complete_config(folder)["train"])
    loss = LOSSES[settings.loss].create(settings.train_candidates)
    return {"train_negatives": settings.train_negatives, **loss.about, **read_split(folder).stamp}


def open_link_dataset(folder: RunDirectory, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """Open the dataset of a link run; raise ConfigError for a node classifier."""
    if folder.task == "node":
        raise ConfigError(describe_node_run(folder), code="not-a-link-run")
    return open_run_dataset(folder, data_dir, dataset)


def describe_node_run(folder: RunDirectory) -> str:
    """Say that a run cannot score links, and which run can."""
    backbone = folder.config()["run"].get("backbone")
    hint = "" if backbone is None else f", such as its backbone {backbone}"
    return f"{folder.path} classifies nodes; give a link run{hint}"


def require_complete_config(folder: RunDirectory) -> dict[str, dict[str, Any]]:
    """Return the sections of a run's configuration; raise FileError if one that every run has is missing."""
    sections = folder.config()
    if not {"data", "digest", "model", "seed"} <= set(sections.get("run", {})):
        raise FileError(
            f"{folder.path}/config.toml has no complete [run] section; restore it or train again",
            code="damaged-config",
        )
    for name in ("train", "model"):
        if name not in sections:
            raise FileError(
                f"{folder.path}/config.toml has no section [{name}]; restore it or train again",
                code="damaged-config",
            )
    return sections


def open_run_dataset(folder: RunDirectory, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """Open the dataset that a run was trained on, or check that the given one is that."""
    about = require_complete_config(folder)["run"]
    if dataset is None:
        dataset = _find_run_dataset(folder, about, data_dir)
    if dataset.digest != about["digest"]:
        raise FileError(
            f"dataset '{about['data']}' is not the one that {folder.path} was trained on (its events differ); "
            "point `data_dir` at the original",
            code="dataset-changed",
        )
    return dataset


def _find_run_dataset(folder: RunDirectory, about: dict[str, Any], data_dir: Path | None) -> Dataset:
    """Look under the runs folder, then among all versions of the name, then where the file was at the start."""
    for stored in _stored_paths(folder.path.parent.parent, about["digest"], about.get("version", "")):
        if stored.exists():
            return replace(load_dataset(stored), name=about["data"])
    file = Path(about["file"]) if about.get("file") else None
    folders = [*data_folders(data_dir), *([] if file is None else [file.parent])]
    dataset = find_dataset(about["data"], about["digest"], folders, about.get("version", ""))
    if dataset is not None:
        return dataset
    if file is not None and file.is_file() and file.parent not in data_folders(data_dir):
        dataset = open_dataset(str(file))
        if dataset.digest != about["digest"]:
            raise FileError(
                f"{file} has changed since {folder.path} was trained on it; restore it, or train again",
                code="dataset-changed",
            )
        return dataset
    try:
        return open_dataset(about["data"], data_dir)
    except NotFoundError as error:
        raise NotFoundError(
            f"{folder.path} needs the dataset it was trained on, '{about['data']}' with digest "
            f"{about['digest'][:16]}: {error}",
            code="unknown-dataset",
        ) from error


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
