"""Training of models of nodes: a head on the encoder of a finished link run, or a model without one.

A run of the first kind names its backbone in its configuration. A model of the second kind, such as boosted trees,
learns labels directly (`ModelSpec.for_nodes`).
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.config import build_config, find_node_preset, to_settings
from dygmamba.core.choices import SPLITS
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.distributed import current_group
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig, NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import find_model
from dygmamba.runs.evaluation import CALIBRATION_METRICS, Queries, Scored
from dygmamba.runs.link_training import require_table_memory, separate_settings
from dygmamba.runs.opening import create_run_from, open_link_dataset
from dygmamba.runs.recipes import OpenRun, build_run, load_backbone
from dygmamba.runs.run_config import RunConfig, describe_run
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.metric_names import CONSTANT_PREFIX
from dygmamba.tasks.node import NodeTask

ROW_ENTRIES = ("backbone", "finetune", "balance")  # of [run], in the result rows of a classifier


def divide_node_settings(
    dataset: str, model: str, settings: dict[str, Any]
) -> tuple[dict[str, Any], NodeFitConfig]:
    """Divide the user's settings into those of the backbone, with its preset for this task, and of the classifier.

    Common ones, such as epochs, go to both.
    """
    node, link = separate_settings(settings, NodeFitConfig)
    shared, _ = separate_settings(node, FitConfig)
    return find_node_preset(model, dataset) | link | shared, build_config(NodeFitConfig, node)


def check_backbone(path: Path, dataset: Dataset, model: str | None) -> None:
    """Raise ConfigError unless the run is a finished link run of this dataset (and model)."""
    config = RunConfig.read(RunDirectory(path))
    about = config.run
    if about.digest != dataset.digest:
        raise ConfigError(
            f"{path} was trained on '{about.data}', not on '{dataset.name}'; "
            f"give a run of '{dataset.name}', or leave out `backbone` to train one",
            code="backbone-other-dataset",
        )
    if model is not None and model != about.model:
        raise ConfigError(
            f"{path} is a run of '{about.model}', not of '{model}'; leave out `model`",
            code="backbone-other-model",
        )
    if not config.rule.numbers:
        raise ConfigError(
            f"{path} was trained on all events, including the test period; give the run it was made of",
            code="backbone-trained-on-all",
        )
    config.require_finished()


def start_node_run(
    dataset: Dataset,
    backbone: Path,
    config: NodeFitConfig,
    seed: int,
    device: torch.device,
    root: Path,
    advance: Advance = no_advance,
) -> Trainer:
    """Create a run directory under `root` and return a trainer of a classifier on a finished link run.

    `advance` counts the events whose embedding is computed first, if the backbone is not finetuned.
    """
    trained = RunConfig.read(RunDirectory(backbone.resolve()))
    open_link_dataset(trained, None, dataset)  # checks that the dataset is the one of the backbone
    about = describe_run(
        dataset,
        trained.rule,
        trained.run.model,
        seed,
        task="node",
        backbone=str(trained.path),
        source=trained.run.source,
        finetune=config.finetune,
        balance=config.balance,
    )
    run_config = RunConfig(about, config, trained.model, trained.facts)
    run = build_run(run_config, dataset, device)
    load_backbone(run_config, run.scorer)
    return _create_node_run(run, root).build_trainer(advance)


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
    loop, own = separate_settings(settings, NodeFitConfig)
    config = build_config(NodeFitConfig, loop)
    about = describe_run(dataset, rule, model, seed, task="node", source=spec.source, balance=config.balance)
    run_config = RunConfig(about, config, to_settings(build_config(spec.for_nodes.config, own)))
    run = build_run(run_config, dataset, device)
    check_distributable(run.scorer, current_group(), config.batch)
    require_table_memory(run.scorer, len(run.stream.split.train))
    return _create_node_run(run, root).build_trainer()


def _create_node_run(run: OpenRun, root: Path) -> OpenRun:
    """Create the directory of a node run that is built."""
    config, kind = run.config, getattr(run.target, "kind", None)
    about = replace(config.run, split=run.stream.split.digest, target=kind)
    config = replace(config, run=about, train=replace(config.train, target=kind))
    name = f"{run.model}-node"
    return replace(run, config=create_run_from(config, run.dataset, root, name, run.stream.device))


def evaluate_node_fit(
    fit: Trainer, splits: tuple[str, ...] = SPLITS, calibration: Calibration | None = None
) -> list[dict[str, Any]]:
    """Evaluate a classifier, one result row per split."""
    assert isinstance(fit.task, NodeTask)
    sets = [fit.task.evaluation_set(name) for name in splits]
    return [
        build_node_row(fit, evaluation_set, fit.score(evaluation_set), calibration) for evaluation_set in sets
    ]


def build_node_row(
    fit: Trainer, evaluation_set: EvaluationSet, score: Tensor, calibration: Calibration | None
) -> dict[str, Any]:
    """Compute a result row; a metric is None if the split cannot have it, such as AUC without a positive label."""
    assert isinstance(fit.task, NodeTask)
    config, kind = RunConfig.read(fit.run), fit.task.target.kind
    about = config.run.section
    metrics = fit.task.metrics(score, evaluation_set)
    constant = fit.task.constant_metrics(evaluation_set)
    metrics |= {f"{CONSTANT_PREFIX}{name}": value for name, value in constant.items()}
    if calibration is not None:
        scored = Scored(Queries(evaluation_set), score, calibration.probability(score))
        metrics |= scored.row(CALIBRATION_METRICS)
    return {
        "dataset": about["data"],
        "model": about["model"],
        "task": "node",
        "seed": about["seed"],
        "run": str(fit.run.path),
        **{key: about[key] for key in ROW_ENTRIES if key in about},
        **({} if kind == "binary" else {"target": kind}),
        **config.rule.stamp,
        **evaluation_set.about,
        **fit.config.rule.about,
    } | {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in metrics.items()
    }
