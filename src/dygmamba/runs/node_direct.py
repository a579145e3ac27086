"""Training and opening of models that learn labels of nodes without a backbone (`ModelSpec.for_nodes`)."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dygmamba.config import build_config, to_settings
from dygmamba.core.errors import FileError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.splits import Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.distributed import current_group
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, TargetFacts
from dygmamba.models.spec import NodeSpec
from dygmamba.runs.link_training import TableSize
from dygmamba.runs.node_streams import build_node_stream, choose_target, count_label_columns
from dygmamba.runs.opening import OpenRun, describe_dataset, read_split
from dygmamba.runs.provenance import create_run, describe_environment
from dygmamba.tasks.node import NodeTask, split_for_nodes
from dygmamba.tasks.node_targets import NodeTarget

RUN_SETTINGS = ("balance", "target")  # stored in [run], not in [train]: they say what the run is


@dataclass(frozen=True, slots=True)
class DirectNodeRun:
    """The parts of a run: events, target, and the model with its initial weights."""

    run: RunDirectory
    dataset: Dataset
    config: NodeFitConfig
    target: NodeTarget
    scorer: nn.Module
    shown: NodeTarget | None  # the target, if the model reads labels of earlier events

    def build_trainer(self, device: torch.device) -> Trainer:
        """Return a trainer at the first step."""
        stream = build_node_stream(self.dataset, device, read_split(self.run), self.shown)
        task = NodeTask.create(
            self.dataset.store, stream.split, device, self.config.balance, self.target.kind
        )
        seed = int(self.run.config()["run"]["seed"])
        return Trainer(task, self.scorer.to(device), stream, self.config, self.run, seed)

    def open(self, device: torch.device) -> OpenRun:
        """Return the run with its best weights, for queries about any node at any time."""
        load_best(self.run, self.scorer)
        stream = build_node_stream(self.dataset, device, read_split(self.run), self.shown)
        scorer = self.scorer.to(device).eval()
        return OpenRun(self.run, self.dataset, stream, scorer, target=self.target, shown=self.shown)


def learns_directly(run: RunDirectory) -> bool:
    """Return whether the run of a node task has no backbone."""
    return "backbone" not in run.config().get("run", {})


def start_direct_node_run(
    dataset: Dataset,
    model: str,
    settings: dict[str, Any],
    seed: int,
    device: torch.device,
    root: Path,
    rule: SplitRule,
) -> Trainer:
    """Create a run directory under `root` and return a trainer of a model without a backbone."""
    spec = find_model(model)
    assert spec.for_nodes is not None
    names = {field.name for field in fields(NodeFitConfig)}
    config = build_config(NodeFitConfig, {name: settings[name] for name in settings if name in names})
    own = build_config(
        spec.for_nodes.config, {name: settings[name] for name in settings if name not in names}
    )
    split = split_for_nodes(dataset.store, rule)
    target = choose_target(dataset, split, config.target, config.balance)
    # before a run directory is created for nothing
    scorer = build_node_scorer(spec.for_nodes, own, seed, dataset, split, target)
    check_distributable(scorer, current_group(), config.batch)
    table = TableSize.of(scorer, len(split.train))
    if table is not None:
        require_memory(table.peak_bytes, f"a training table with {table}")
    about = current_group().run_on_first(lambda: describe_dataset(dataset, root))
    loop = to_settings(replace(config, target=target.kind))
    loop.pop("finetune")  # there is no backbone to train
    run = create_run(
        lambda: RunDirectory.create(root, dataset.name, f"{model}-node", seed),
        {
            "run": {"task": "node", **about, "split": split.digest, "model": model, "seed": seed}
            | rule.section
            | ({} if spec.source is None else {"source": spec.source})
            | {name: loop.pop(name) for name in RUN_SETTINGS},
            "train": loop,
            "model": to_settings(own),
            "made_with": describe_environment(device),
        },
    )
    return read_direct_run(run, dataset).build_trainer(device)


def read_direct_run(run: RunDirectory, dataset: Dataset) -> DirectNodeRun:
    """Read the configuration of a run and build its model with initial weights, on the CPU."""
    sections = run.config()
    about = sections.get("run", {})
    spec = find_model(about["model"], about.get("source")).for_nodes
    if spec is None or not ({"train", "model"} <= set(sections) and set(RUN_SETTINGS) <= set(about)):
        raise FileError(
            f"{run.path}/config.toml is incomplete; restore it or train again", code="damaged-config"
        )
    config = build_config(NodeFitConfig, sections["train"] | {name: about[name] for name in RUN_SETTINGS})
    split = split_for_nodes(dataset.store, read_split(run))
    target = choose_target(dataset, split, config.target, config.balance)
    own = build_config(spec.config, sections["model"])
    shown = target if _reads_labels(own) else None
    scorer = build_node_scorer(spec, own, int(about["seed"]), dataset, split, target)
    return DirectNodeRun(run, dataset, config, target, scorer, shown)


def build_node_scorer(
    spec: NodeSpec, config: Any, seed: int, dataset: Dataset, split: Split, target: NodeTarget
) -> Any:
    """Initialize a model from a seed; it knows time statistics of the training period."""
    torch.manual_seed(seed)
    columns = count_label_columns(target) if _reads_labels(config) else 0
    facts = DatasetFacts.of(dataset.store, split.train)
    return spec.build(config, facts, TargetFacts(target.kind, target.outputs, target.weights, columns))


def _reads_labels(config: Any) -> bool:
    return bool(getattr(config, "labels", False))
