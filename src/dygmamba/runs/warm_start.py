"""Warm start: a new run on newer data that continues from the best weights of a finished run.

The new run has the settings, the node numbers and the dataset facts (time scales, columns) of the earlier one, so that
its inputs mean the same; its optimizer is new. Boosted trees keep the trees of the earlier run and add further ones.
The facts are stored in config.toml, because those of the new events differ. The weights are stored in a checkpoint
before the first step, so the run is resumed like any other.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.runs.opening import open_link_dataset
from dygmamba.runs.recipes import build_link_stream
from dygmamba.runs.run_config import RunConfig
from dygmamba.runs.stored_facts import read_facts


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The finished run that a new run continues from.

    Attributes:
        folder: Its run directory.
        config: Its configuration.
        dataset: Its dataset.
        facts: The facts that its model was built with.
        trained_until: Time of the last event that its weights, or the weights it started with, were fitted to.
        validated_until: The same of the events that chose its best epoch.
        epochs: Number of epochs of its best weights.
    """

    folder: RunDirectory
    config: RunConfig
    dataset: Dataset
    facts: DatasetFacts
    trained_until: float
    validated_until: float
    epochs: int

    @property
    def model(self) -> str:
        return self.config.run.model

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings, those of the training loop and those of the model."""
        return self.config.stored_settings

    @property
    def rule(self) -> SplitRule | None:
        """Its split if that applies to newer data too: by shares. Otherwise None."""
        rule = self.config.rule
        return rule if len(rule.numbers) == 3 and not rule.counted else None

    @property
    def about(self) -> dict[str, Any]:
        """Entries of [run] that say where the weights come from."""
        until = {"start_trained_until": self.trained_until, "start_validated_until": self.validated_until}
        return {
            "start_from": str(self.folder.path),
            "start_weights": read_seal(self.folder.best),
            **{name: time for name, time in until.items() if isfinite(time)},
        }

    def describe(self, store: EventStore) -> str:
        """Describe what the new run starts with."""
        new = store.num_nodes - self.dataset.store.num_nodes
        epochs = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        return f"{self.folder.path}, its weights after {epochs}; {new:,} of {store.num_nodes:,} nodes are new"


def open_warm_start(path: Path, data_dir: Path | None = None, dataset: Dataset | None = None) -> WarmStart:
    """Open the run that a new run continues from; `dataset` is its dataset if that is open already.

    Raises:
        ConfigError: It is a blend or a node classifier, or has no best weights yet.
    """
    folder = RunDirectory(path.resolve())
    config = RunConfig.read(folder)
    dataset = open_link_dataset(config, data_dir, dataset)
    if config.run.blend_of:
        raise ConfigError(f"{path} is a blend; start from one of the runs it blends", code="start-from-blend")
    if not folder.best.exists():
        raise ConfigError(
            f"{path} has no finished epoch to start from; continue it with `dygmamba.resume({str(path)!r})`",
            code="start-from-unfinished",
        )
    stream = build_link_stream(dataset, torch.device("cpu"), config.rule)
    facts = stream.facts if config.facts is None else read_facts(config.facts, stream.store, folder.path)
    _, state = read_checkpoint(folder, folder.best)
    trained, validated = (
        max(_get_last_time(stream.store, events), -inf if before is None else before)
        for events, before in (
            (stream.split.train, config.run.start_trained_until),
            (stream.split.val, config.run.start_validated_until),
        )
    )
    return WarmStart(folder, config, dataset, facts, trained, validated, state.best_epoch + 1)


def _get_last_time(store: EventStore, events: Tensor) -> float:
    return float(store.time[events[-1]]) if len(events) else -inf


def check_warm_start(start: WarmStart, scorer: Scorer, stream: Stream) -> None:
    """Raise ConfigError if the weights of the earlier run cannot be carried over to a new run, or would know its test.

    Args:
        start: The earlier run.
        scorer: The model of the new run.
        stream: The events of the new run.
    """
    _require_same_inputs(start, scorer, stream)
    known = start.dataset.store.num_nodes
    if scorer.stateful and stream.store.num_nodes > known:
        raise ConfigError(
            f"model '{start.model}' has a memory for the {known:,} nodes that {start.folder.path} knows, and this "
            f"dataset has {stream.store.num_nodes - known:,} others; train it anew, without `start_from`",
            code="start-unknown-nodes",
        )
    if scorer.rounds_per_epoch and not scorer.continues_rounds:
        raise ConfigError(
            f"model '{start.model}' cannot add rounds to those of another run; leave out `start_from`",
            code="start-not-supported",
        )
    _require_unseen_periods(start, stream)


def _require_same_inputs(start: WarmStart, scorer: Any, stream: Stream) -> None:
    """Raise ConfigError unless the settings of the new model leave inputs and weights as they were."""
    facts = replace(start.facts, num_nodes=stream.store.num_nodes)
    with torch.random.fork_rng(devices=[]):  # the generator stays as building the new model left it
        earlier: Any = start.config.spec.build(start.config.model_config, facts)
    # also buffers that are not saved, such as the units of edge features
    own, other = (
        {name: tensor.shape for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        for model in (scorer, earlier)
    )
    if own != other or scorer.requests != earlier.requests:
        raise ConfigError(
            f"the settings of the model differ from those of {start.folder.path} in what it reads or in the sizes of "
            "its weights; leave them out, or leave out `start_from`",
            code="start-other-settings",
        )


def _require_unseen_periods(start: WarmStart, stream: Stream) -> None:
    """Raise ConfigError if the earlier run has learned from events that are to judge the new one."""
    for what, until, name, events in (
        ("trained on", start.trained_until, "validation", stream.split.val),
        ("validated on", start.validated_until, "the test", stream.split.test),
    ):
        if len(events) and until >= float(stream.store.time[events[0]]):
            raise ConfigError(
                f"{start.folder.path} was {what} events up to time {until:.12g}, but {name} begins at "
                f"{float(stream.store.time[events[0]]):.12g}, so its results would be too good; choose a later "
                "`split`, or the run that it was refitted from",
                code="start-knows-evaluation",
            )
