"""Training and opening of models of nodes: a head on the encoder of a finished link run, or a model without one.

A run of the first kind names its backbone in its configuration. A model of the second kind, such as boosted trees,
learns labels directly (`ModelSpec.for_nodes`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.config import build_config, find_node_preset, to_settings
from dygmamba.core.errors import ConfigError, FileError, Interrupted
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import load_best, load_newest
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig, NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.models.base import Encoder
from dygmamba.models.classifiers import FrozenClassifier, NodeClassifier, SourceEmbedding
from dygmamba.runs.evaluation import CALIBRATION_METRICS, Queries, Scored
from dygmamba.runs.node_direct import learns_directly, read_direct_run
from dygmamba.runs.node_streams import build_node_stream, choose_target
from dygmamba.runs.opening import (
    OpenRun,
    as_directory,
    build_link_stream,
    build_scorer,
    describe_dataset,
    get_encoder,
    open_run,
    open_run_dataset,
    read_split,
)
from dygmamba.runs.provenance import check_environment, create_run, describe_environment
from dygmamba.runs.stored_facts import copy_facts
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.link import SPLITS
from dygmamba.tasks.metric_names import CONSTANT_PREFIX
from dygmamba.tasks.node import NodeTask, split_for_nodes
from dygmamba.tasks.node_targets import NodeTarget

CLASSIFIER_SETTINGS = ("finetune", "balance")  # stored in [run], not in [train]: they say what the run is


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of the two training stages, backbone and classifier; common ones, such as epochs, go to both."""

    link: dict[str, Any]
    node: NodeFitConfig

    @staticmethod
    def from_settings(dataset: str, model: str, settings: dict[str, Any]) -> "NodeSettings":
        """Divide the user's settings and add the preset for backbones of this task."""
        node_names = {field.name for field in fields(NodeFitConfig)}
        shared_names = {field.name for field in fields(FitConfig)}
        node = {key: value for key, value in settings.items() if key in node_names}
        link = {key: value for key, value in settings.items() if key not in node_names or key in shared_names}
        return NodeSettings(find_node_preset(model, dataset) | link, build_config(NodeFitConfig, node))


def check_backbone(path: Path, dataset: Dataset, model: str | None) -> None:
    """Raise ConfigError unless the run is a finished link run of this dataset (and model)."""
    folder = RunDirectory(path)
    about = folder.config().get("run", {})
    if about.get("digest") != dataset.digest:
        raise ConfigError(
            f"{path} was trained on '{about.get('data')}', not on '{dataset.name}'; "
            f"give a run of '{dataset.name}', or leave out `backbone` to train one",
            code="backbone-other-dataset",
        )
    if model is not None and model != about.get("model"):
        raise ConfigError(
            f"{path} is a run of '{about.get('model')}', not of '{model}'; leave out `model`",
            code="backbone-other-model",
        )
    if not SplitRule.read(about).numbers:
        raise ConfigError(
            f"{path} was trained on all events, including the test period; give the run it was made of",
            code="backbone-trained-on-all",
        )
    if not folder.finished:
        raise ConfigError(
            f"{path} is not finished; continue it with `dygmamba.resume({str(path)!r})`",
            code="unfinished-run",
        )


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
    trained = open_run(backbone, device, dataset=dataset)
    model, rule = trained.about["model"], read_split(trained.folder)
    about = current_group().run_on_first(lambda: describe_dataset(dataset, root))
    split = split_for_nodes(dataset.store, rule)
    target = choose_target(dataset, split, config.target, config.balance)
    settings = to_settings(replace(config, target=target.kind))
    run = create_run(
        lambda: RunDirectory.create(root, dataset.name, f"{model}-node", seed),
        {
            "run": {
                "task": "node",
                **about,
                "split": split.digest,
                "model": model,
                "seed": seed,
                "backbone": str(backbone.resolve()),
            }
            | rule.section
            | {key: value for key, value in trained.about.items() if key == "source"}
            | {name: settings.pop(name) for name in (*CLASSIFIER_SETTINGS, "target")},
            "train": settings,
            "model": trained.folder.config()["model"],
            "made_with": describe_environment(device),
        }
        | copy_facts(trained.folder),
    )
    return _build_node_fit(run, dataset, get_encoder(trained.scorer, trained.folder), device, None, advance)


def resume_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = no_advance
) -> Trainer:
    """Return a trainer at the last checkpoint of a node run; without one, it starts again, from its backbone if any."""
    folder = RunDirectory(path, current_group().is_first)
    if learns_directly(folder):
        fit = read_direct_run(folder, open_run_dataset(folder, data_dir)).build_trainer(device)
        current_group().run_on_first(folder.lock)
        check_environment(folder, device)
        fit.resume()
        return fit
    run, dataset, encoder = _open_parts(folder, device, data_dir)
    current_group().run_on_first(run.lock)
    check_environment(run, device)
    if not run.started:
        backbone = Path(run.config()["run"]["backbone"])
        encoder = get_encoder(open_run(backbone, device, dataset=dataset).scorer, run)
        return _build_node_fit(run, dataset, encoder, device, None, advance)
    fit = _build_node_fit(run, dataset, encoder, device, load_newest, advance)
    fit.resume()
    return fit


def open_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = no_advance
) -> Trainer:
    """Open a node run with its best weights, to evaluate it; its backbone run is not needed."""
    folder = RunDirectory(path, current_group().is_first)
    if learns_directly(folder):
        fit = read_direct_run(folder, open_run_dataset(folder, data_dir)).build_trainer(device)
        load_best(folder, fit.scorer)
        return fit
    run, dataset, encoder = _open_parts(folder, device, data_dir)
    return _build_node_fit(run, dataset, encoder, device, load_best, advance)


def open_classifier(run: Path | RunDirectory, device: torch.device, data_dir: Path | None = None) -> OpenRun:
    """Open a node run with its best weights, for queries about any node at any time."""
    folder = as_directory(run)
    if learns_directly(folder):
        return read_direct_run(folder, open_run_dataset(folder, data_dir)).open(device)
    folder, dataset, encoder = _open_parts(folder, device, data_dir)
    target = read_target(folder, dataset)
    finetune = bool(folder.config()["run"]["finetune"])
    model = (NodeClassifier if finetune else FrozenClassifier)(encoder, target.outputs)
    load_best(folder, model)
    stream = build_node_stream(dataset, device, read_split(folder))
    return OpenRun(folder, dataset, stream, model.to(device).eval(), target=target)


def read_target(run: RunDirectory, dataset: Dataset) -> NodeTarget:
    """Return the target of a node run; a run without one is from before there were others than two states."""
    about = run.config()["run"]
    split = split_for_nodes(dataset.store, read_split(run))
    return choose_target(dataset, split, about.get("target", "binary"), bool(about["balance"]))


def _open_parts(
    run: RunDirectory, device: torch.device, data_dir: Path | None
) -> tuple[RunDirectory, Dataset, Encoder]:
    """Open the dataset of a classifier and build its encoder with initial weights."""
    sections = run.config()
    about = sections.get("run", {})
    if not ({"train", "model"} <= set(sections) and {"backbone", *CLASSIFIER_SETTINGS} <= set(about)):
        raise FileError(
            f"{run.path}/config.toml is incomplete; restore it or train again", code="damaged-config"
        )
    dataset = open_run_dataset(run, data_dir)
    stream = build_link_stream(dataset, device, read_split(run))
    return run, dataset, get_encoder(build_scorer(run, stream), run)


def _build_node_fit(
    run: RunDirectory,
    dataset: Dataset,
    encoder: Encoder,
    device: torch.device,
    load_weights: Callable[[RunDirectory, nn.Module], object] | None,
    advance: Advance,
) -> Trainer:
    """Put a classifier on its stream; the embeddings of a frozen backbone are computed here, once."""
    sections = run.config()
    about, seed = sections["run"], int(sections["run"]["seed"])
    config = build_config(
        NodeFitConfig, sections["train"] | {name: about[name] for name in CLASSIFIER_SETTINGS}
    )
    stream = build_node_stream(dataset, device, read_split(run))
    kind = about.get("target", "binary")  # runs from before there were other targets do not name it
    task = NodeTask.create(dataset.store, stream.split, device, config.balance, kind)
    torch.manual_seed(seed)
    outputs = task.target.outputs
    model = (NodeClassifier if config.finetune else FrozenClassifier)(encoder, outputs).to(device)
    if load_weights is not None:
        load_weights(run, model)
    # a classifier learns from the whole training period, so its memory must observe it from the first event on
    encoder.delete_saved_memory()
    if isinstance(model, FrozenClassifier):
        try:
            embedding = embed_sources(model.encoder, stream, config, seed, advance).to(device)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while computing embeddings; continue with `dygmamba.resume({str(run.path)!r})`"
            ) from None
        task = task.with_embeddings(embedding)
        model.read_columns()
    return Trainer(task, model, stream, config, run, seed)


def embed_sources(
    encoder: Encoder, stream: Stream, config: FitConfig, seed: int, advance: Advance = no_advance
) -> torch.Tensor:
    """Compute the embedding of every event's source just before the event: [e d], on the CPU."""
    store, split = stream.store, stream.split
    everything = torch.arange(len(store))
    schedule = MemorySchedule.from_periods(store, (split.train, split.val, split.test), config.batch)
    visible = schedule.count_visible(config.visible, everything, store.time)
    table_times = schedule.table_times(config.visible, everything, store.time)
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time).with_table_time(table_times)
    return StreamScorer(SourceEmbedding(encoder), stream, seed, schedule)(pairs, visible, advance)


def get_target(fit: Trainer) -> NodeTarget:
    """Return what a node run predicts."""
    assert isinstance(fit.task, NodeTask)
    return fit.task.target


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
    about, kind = fit.run.config()["run"], get_target(fit).kind
    assert isinstance(fit.task, NodeTask)
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
        **{key: about[key] for key in ("backbone", *CLASSIFIER_SETTINGS) if key in about},
        **({} if kind == "binary" else {"target": kind}),
        **read_split(fit.run).stamp,
        **evaluation_set.about,
        **fit.config.rule.about,
    } | {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in metrics.items()
    }
