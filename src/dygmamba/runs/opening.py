"""From a run folder to things that run: its data, its stream, its model."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dygmamba.config import build_config, check_device, to_settings
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.clock import Rule
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.engine.stream import Stream
from dygmamba.errors import ConfigError, FileError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, OnEncoder
from dygmamba.room import building
from dygmamba.runs.own_data import data_of as data_of
from dygmamba.runs.own_data import keep_dataset as keep_dataset
from dygmamba.runs.own_data import open_data as open_data
from dygmamba.tasks.losses import LOSSES


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one; a GPU asked for and missing is an error, never a silent CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("`device='cuda'` was asked for, but torch sees no GPU; use cpu or auto")
    return torch.device(name)


def link_stream(dataset: Dataset, device: torch.device, by: SplitBy = PUBLISHED) -> Stream:
    """A dataset split as link prediction is, as published unless told."""
    return Stream(dataset.store, by.split(dataset.store), device, here())


def split_of(folder: RunFolder) -> SplitBy:
    """How the stream of a run is cut."""
    try:
        return SplitBy.read(folder.config().get("run", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{folder.path}/config.toml says no whole split ({error!r}); restore it or train again"
        ) from error


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run opened again: its folder, its data with the user's ids, and its best weights on a stream."""

    folder: RunFolder
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
    def rule(self) -> Rule:
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


def trained_against(folder: RunFolder) -> dict[str, Any]:
    """What a result row says of a link run's training; runs that do not say were trained against random pairs."""
    how = folder.config()["train"]
    against, judge = how.get("train_negatives", "random"), LOSSES[how.get("loss", "pairwise")]
    told = judge.of(int(how.get("train_candidates", 1))).about
    return {"train_negatives": against, **told, **split_of(folder).stamp}


def task_of(path: Path) -> str:
    """What the run in this folder was trained for: link or node."""
    return RunFolder(path).task


def open_run(
    path: Path, device: torch.device, data_dir: Path | None = None, dataset: Dataset | None = None
) -> OpenRun:
    """A run with its best weights loaded; `dataset` is its data where that is open already."""
    folder = RunFolder(path)
    dataset = link_data(folder, data_dir, dataset)
    stream = link_stream(dataset, device, split_of(folder))
    scorer = build_scorer(folder, stream)
    load_best(folder, scorer)
    return OpenRun(folder, dataset, stream, scorer.to(device).eval())


def link_data(folder: RunFolder, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """The data of a link run; a classifier's folder is refused."""
    if folder.task == "node":
        backbone = folder.config()["run"].get("backbone")
        raise ConfigError(f"{folder.path} classifies nodes; give a link run, such as its backbone {backbone}")
    return open_data(folder, data_dir, dataset)


def build_scorer(folder: RunFolder, stream: Stream) -> nn.Module:
    """The model of a run as its seed initialises it, on the host; the stream's split is that of link prediction."""
    sections = folder.config()
    name, seed = sections["run"]["model"], int(sections["run"]["seed"])
    spec = find_model(name, sections["run"].get("source"))
    scorer = seeded_scorer(spec, build_config(spec.config, sections["model"]), seed, stream)
    if not isinstance(scorer, nn.Module):
        raise FileError(f"{folder.path} names the model '{name}', which has no weights to load")
    return scorer


def seeded_scorer(spec: ModelSpec, config: Any, seed: int, stream: Stream, copies: int = 1) -> Any:
    """A model as a seed initialises it; refused before it is made where the memory does not hold so many copies."""
    torch.manual_seed(seed)
    facts = DatasetFacts.of(stream.store, stream.split.train)
    with building(f"a model with {_large(config)}", 1 / copies):
        return spec.build(config, facts)


def _large(config: Any) -> str:
    """The settings that make a model large: the numbers above their defaults, or all."""
    numbers = {name: value for name, value in to_settings(config).items() if type(value) is int}
    usual: dict[str, Any] = {field.name: field.default for field in fields(config)}
    chosen = {name: value for name, value in numbers.items() if value > usual[name]} or numbers
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "these settings"


def encoder_of(scorer: Any, folder: RunFolder) -> Encoder:
    """What turns nodes into vectors in this run, or a sentence: not every model does."""
    if not isinstance(scorer, OnEncoder):
        raise ConfigError(
            f"{folder.path} is a run of a model that makes no vectors of nodes; give one of dyg-mamba"
        )
    return scorer.encoder
