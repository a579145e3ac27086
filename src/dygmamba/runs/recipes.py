"""Recipes: how a run (its stream, its model with initial weights, its target) follows from its configuration.

There are three: a link predictor (a blend is one, of a model that contains others), a head on the encoder of a finished
link run, and a model that learns labels of nodes without a backbone. A run is started, resumed and opened with the same
recipe; only what happens to the weights afterwards differs.

In node tasks labels are hidden from models, or shown as columns behind the edge features. A model that may read labels
sees those of strictly earlier events only, as it does edge features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dygmamba.config import get_default_settings, to_settings
from dygmamba.core.errors import ConfigError, EventError, FileError, Interrupted
from dygmamba.core.memory_budget import limit_tensor_memory
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import PUBLISHED_SPLIT, Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig, NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.history.view import PairBatch
from dygmamba.models.base import DatasetFacts, Encoder, EncoderWrapper, TargetFacts
from dygmamba.models.classifiers import FrozenClassifier, NodeClassifier, SourceEmbedding
from dygmamba.runs.run_config import RunConfig
from dygmamba.runs.stored_facts import read_facts
from dygmamba.tasks.link import LinkTask
from dygmamba.tasks.node import NodeTask, split_for_nodes
from dygmamba.tasks.node_targets import NodeTarget, create_target

# tensors per weight in training: itself, its gradient, Adam's two moments, the best value
TRAINING_COPIES = 5


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An opened run: its configuration, its dataset, its stream, and a scorer."""

    config: RunConfig
    dataset: Dataset
    stream: Stream
    scorer: Any  # a Scorer: with a link head, a node classifier, or one without an encoder
    target: NodeTarget | None = None  # of a node task
    shown: NodeTarget | None = None  # the target, if the model reads labels of earlier events

    @property
    def folder(self) -> RunDirectory:
        return self.config.folder

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.config.run.model

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def rule(self) -> VisibilityRule:
        """Rule for which events its node memory had observed in training."""
        return self.config.train.rule

    @property
    def activity(self) -> bool:
        """Whether its scores include the activity of the source."""
        return isinstance(self.config.train, LinkFitConfig) and self.config.train.activity

    def build_trainer(
        self, advance: Advance = no_advance, task: LinkTask | NodeTask | None = None
    ) -> Trainer:
        """Return a trainer with the weights of the scorer, at the first step; `task` is its task if that exists.

        The embeddings of a frozen backbone are computed here, once; `advance` counts their events.
        """
        config, scorer = self.config, self.scorer.to(self.stream.device)
        task = create_task(config.train, self.dataset, self.stream, self.target) if task is None else task
        if config.recipe == "node_head":
            # a classifier learns from the whole training period, so its memory must observe it from the first event on
            scorer.encoder.delete_saved_memory()
        if isinstance(scorer, FrozenClassifier):
            assert isinstance(task, NodeTask)
            try:
                embedding = embed_sources(scorer.encoder, self.stream, config.train, self.seed, advance)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"stopped while computing embeddings; continue with `dygmamba.resume({str(self.folder.path)!r})`"
                ) from None
            task = task.with_embeddings(embedding.to(self.stream.device))
            scorer.read_columns()
        return Trainer(task, scorer, self.stream, config.train, self.folder, self.seed)


def build_link(config: RunConfig, dataset: Dataset, device: torch.device, copies: int = 1) -> OpenRun:
    """Build a link predictor; raise before allocating if memory does not hold `copies` of its weights."""
    stream = build_link_stream(dataset, device, config.rule)
    _require_events(stream.split, config.rule)
    return OpenRun(config, dataset, stream, build_scorer(config, stream, copies))


def build_node_head(config: RunConfig, dataset: Dataset, device: torch.device, copies: int = 1) -> OpenRun:
    """Build a head on an encoder; the weights of a backbone are loaded by `load_backbone`."""
    scorer = build_scorer(config, build_link_stream(dataset, device, config.rule), copies)
    stream = build_node_stream(dataset, device, config.rule)
    target, finetune = _choose_run_target(config, dataset, stream.split), config.run.finetune
    torch.manual_seed(config.seed)
    encoder = get_encoder(scorer, Path(str(config.run.backbone)))
    classifier = (NodeClassifier if finetune else FrozenClassifier)(encoder, target.outputs)
    return OpenRun(config, dataset, stream, classifier, target)


def build_node_direct(config: RunConfig, dataset: Dataset, device: torch.device, copies: int = 1) -> OpenRun:
    """Build a model without a backbone; it knows time statistics of the training period."""
    own, split = config.model_config, split_for_nodes(dataset.store, config.rule)
    target = _choose_run_target(config, dataset, split)
    shown = target if getattr(own, "labels", False) else None
    facts = TargetFacts(target.kind, target.outputs, target.weights, 0 if shown is None else target.outputs)
    torch.manual_seed(config.seed)
    scorer = config.node_spec.build(own, DatasetFacts.of(dataset.store, split.train), facts)
    stream = Stream(hide_labels(dataset.store, shown), split, device, current_group())
    return OpenRun(config, dataset, stream, scorer, target, shown)


RECIPES: dict[str, Callable[[RunConfig, Dataset, torch.device, int], OpenRun]] = {
    "link": build_link,
    "node_head": build_node_head,
    "node_direct": build_node_direct,
}


def build_run(config: RunConfig, dataset: Dataset, device: torch.device, copies: int = 1) -> OpenRun:
    """Build a run with initial weights, on the CPU, as its recipe says."""
    return RECIPES[config.recipe](config, dataset, device, copies)


def load_backbone(config: RunConfig, scorer: Any) -> None:
    """Load the best weights of its backbone into the encoder of a new node head."""
    load_best(RunDirectory(Path(str(config.run.backbone))), scorer.encoder, "encoder.")


def describe_node_run(config: RunConfig) -> str:
    """Say that a run cannot score links, and which run can."""
    backbone = config.run.backbone
    hint = "" if backbone is None else f", such as its backbone {backbone}"
    return f"{config.path} classifies nodes; give a link run{hint}"


def create_task(
    config: FitConfig, dataset: Dataset, stream: Stream, target: NodeTarget | None = None
) -> LinkTask | NodeTask:
    """Create the task of a run; one of nodes has a target."""
    if target is not None:
        return NodeTask.create(dataset.store, stream.split, stream.device, target)
    assert isinstance(config, LinkFitConfig)
    negatives, loss, metric = config.train_negatives, config.loss_function, config.best_metric
    return LinkTask.create(stream.store, stream.split, stream.device, negatives, loss, metric)


def build_link_stream(dataset: Dataset, device: torch.device, rule: SplitRule | None = None) -> Stream:
    """Split a dataset by a rule, or by its default one."""
    rule = get_default_split(dataset) if rule is None else rule
    return Stream(dataset.store, rule.split(dataset.store), device, current_group())


def build_node_stream(dataset: Dataset, device: torch.device, rule: SplitRule = PUBLISHED_SPLIT) -> Stream:
    """Build a stream without labels, in which no node is held out of training."""
    return Stream(hide_labels(dataset.store), split_for_nodes(dataset.store, rule), device, current_group())


def build_scorer(config: RunConfig, stream: Stream, copies: int = 1) -> nn.Module:
    """Initialize a link model from its seed, on the CPU; `stream` has the split of link prediction."""
    if config.facts is None:
        facts = stream.facts
    else:  # of an earlier run, but for the number of events that are learned from
        stored = read_facts(config.facts, stream.store, config.path)
        facts = replace(stored, num_events=len(stream.split.train))
    own = config.model_config
    torch.manual_seed(config.seed)
    with limit_tensor_memory(f"a model with {_describe_model_size(own)}", 1 / copies):
        scorer: Any = config.spec.build(own, facts)
    if not isinstance(scorer, nn.Module):
        raise FileError(
            f"{config.path} is of the model '{config.run.model}', which has no weights to load; restore its "
            "config.toml",
            code="model-without-weights",
        )
    return scorer


def _describe_model_size(config: Any) -> str:
    """Name the integer settings above their defaults, or all integer settings if none is; a seed is no size."""
    settings, defaults = to_settings(config).items(), get_default_settings(config)
    numbers = {name: value for name, value in settings if type(value) is int and name != "walk_seed"}
    large = {name: value for name, value in numbers.items() if value > defaults[name]} or numbers
    return ", ".join(f"{name}={value}" for name, value in large.items()) or "these settings"


def get_encoder(scorer: Any, path: Path) -> Encoder:
    """Return the encoder of a run's scorer.

    Raises:
        ConfigError: The model has none, such as boosted trees.
    """
    if not isinstance(scorer, EncoderWrapper):
        raise ConfigError(
            f"the model of {path} has no node embeddings; give a run of dyg-mamba",
            code="model-without-encoder",
        )
    return scorer.encoder


def embed_sources(
    encoder: Encoder, stream: Stream, config: FitConfig, seed: int, advance: Advance = no_advance
) -> Tensor:
    """Compute the embedding of every event's source just before the event: [e d], on the CPU."""
    store, split = stream.store, stream.split
    everything = torch.arange(len(store))
    schedule = MemorySchedule.from_periods(store, (split.train, split.val, split.test), config.batch)
    visible = schedule.count_visible(config.visible, everything, store.time)
    table_times = schedule.table_times(config.visible, everything, store.time)
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time).with_table_time(table_times)
    return StreamScorer(SourceEmbedding(encoder), stream, seed, schedule)(pairs, visible, advance)


def choose_target(dataset: Dataset, split: Split, kind: str = "auto", balance: bool = False) -> NodeTarget:
    """Create the target of a dataset (`create_target`); three or more text labels are classes, however many."""
    if kind == "auto" and len(dataset.origin.classes) > 2:
        kind = "classes"
    return create_target(dataset.store, split, kind, balance)


def hide_labels(store: EventStore, shown: NodeTarget | None = None) -> EventStore:
    """Return the events without labels; with a target, encoded labels are columns behind the edge features."""
    if shown is None or store.label is None:
        return store.without_labels()
    edge = torch.cat([store.features.edge, _encode_label_columns(shown, store.label)], dim=1)
    # the label columns have no names, so the others lose theirs
    return store.derive(label=None, features=replace(store.features, edge=edge, names=()))


def _encode_label_columns(target: NodeTarget, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e c"]:
    """Encode labels as numbers, classes as one column each; an unknown label (nan) is 0 in every column."""
    known = torch.isfinite(label)
    encoded = torch.where(known, target.encode(torch.nan_to_num(label)), 0.0)
    if target.outputs == 1:
        return encoded[:, None]
    classes = one_hot(encoded.long(), target.outputs + 1)[:, : target.outputs]
    return classes.float() * known[:, None]


def _choose_run_target(config: RunConfig, dataset: Dataset, split: Split) -> NodeTarget:
    assert isinstance(config.train, NodeFitConfig)
    return choose_target(dataset, split, config.train.target, config.train.balance)


def _require_events(split: Split, rule: SplitRule) -> None:
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    if not all(sizes[: 3 if rule.numbers else 1]):
        hint = "use a longer stream" if rule.has_published_shares else "choose another `split`"
        raise EventError(
            "training, validation and test have {}, {} and {} events, but each needs some; {}".format(
                *sizes, hint
            ),
            code="empty-split",
        )
