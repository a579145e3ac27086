"""From a link run to a node classifier on it, and back from its folder."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.config import build_config, find_node_preset, to_settings
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import load_best, load_newest
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit import Interrupted, Trainer
from dygmamba.engine.fit_config import FitConfig, NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Advance, StreamScorer, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.models.base import Encoder
from dygmamba.models.classifiers import FrozenClassifier, NodeClassifier, SourceEmbedding
from dygmamba.runs.link_training import compute_calibration_errors
from dygmamba.runs.opening import (
    OpenRun,
    build_link_stream,
    build_scorer,
    describe_dataset,
    get_encoder,
    open_run,
    open_run_dataset,
    read_split,
)
from dygmamba.runs.provenance import check_environment, create_run, describe_environment
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.link import SPLITS
from dygmamba.tasks.node import NodeTask, split_for_nodes

CLASSIFIER_SETTINGS = (
    "finetune",
    "balance",
)  # of a classifier's configuration: what the run is, not how long it runs


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The user's settings by stage: those both stages know of, such as epochs, go to both."""

    link: dict[str, Any]
    node: NodeFitConfig

    @staticmethod
    def of(dataset: str, model: str, settings: dict[str, Any]) -> "NodeSettings":
        """For a backbone that is trained first, with the task's presets."""
        known = {field.name for field in fields(NodeFitConfig)}
        node = {key: value for key, value in settings.items() if key in known}
        shared = {field.name for field in fields(FitConfig)}
        link = {key: value for key, value in settings.items() if key not in known or key in shared}
        return NodeSettings(find_node_preset(model, dataset) | link, build_config(NodeFitConfig, node))


def build_node_stream(dataset: Dataset, device: torch.device, by: SplitRule = PUBLISHED_SPLIT) -> Stream:
    """A dataset with every node in training, its labels apart: what a backbone is shown holds none."""
    return Stream(dataset.store, split_for_nodes(dataset.store, by), device, current_group()).without_labels()


def check_backbone(path: Path, dataset: Dataset, model: str | None) -> None:
    """Refuse a run that cannot carry a classifier of this dataset."""
    about = RunDirectory(path).config().get("run", {})
    if about.get("digest") != dataset.digest:
        raise ConfigError(
            f"{path} was trained on '{about.get('data')}', not on '{dataset.name}'; "
            f"give a run of '{dataset.name}' or leave out `backbone` to train one"
        )
    if model is not None and model != about.get("model"):
        raise ConfigError(f"{path} is a run of '{about.get('model')}', not '{model}'; leave out `model`")
    if not SplitRule.read(about).numbers:
        raise ConfigError(f"{path} was trained on every event, the test's too; give the run it was made of")
    if not RunDirectory(path).finished:
        raise ConfigError(f"{path} is not finished; go on with: `dygmamba.resume('{path}')`")


def start_node_run(
    dataset: Dataset,
    backbone: Path,
    config: NodeFitConfig,
    seed: int,
    device: torch.device,
    root: Path,
    advance: Advance = unwatched,
) -> Trainer:
    """A new run folder with its configuration written, ready to train on a finished link run."""
    trained = open_run(backbone, device, dataset=dataset)
    model, by = trained.about["model"], read_split(trained.folder)
    about = current_group().led(lambda: describe_dataset(dataset, root))
    settings = to_settings(config)
    run = create_run(
        lambda: RunDirectory.create(root, dataset.name, f"{model}-node", seed),
        {
            "run": {
                "task": "node",
                **about,
                "split": split_for_nodes(dataset.store, by).digest,
                "model": model,
                "seed": seed,
                "backbone": str(backbone),
            }
            | by.section
            | {key: value for key, value in trained.about.items() if key == "source"}
            | {name: settings.pop(name) for name in CLASSIFIER_SETTINGS},
            "train": settings,
            "model": trained.folder.config()["model"],
            "made_with": describe_environment(device),
        },
    )
    return _build_node_fit(run, dataset, get_encoder(trained.scorer, trained.folder), device, None, advance)


def resume_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = unwatched
) -> Trainer:
    """A classifier standing where it was stopped; one that was stopped before it saved starts on its backbone again."""
    run, dataset, encoder = _open_parts(path, device, data_dir)
    current_group().led(run.lock)
    check_environment(run, device)
    if not run.started:
        backbone = Path(run.config()["run"]["backbone"])
        encoder = get_encoder(open_run(backbone, device, dataset=dataset).scorer, run)
        return _build_node_fit(run, dataset, encoder, device, None, advance)
    fit = _build_node_fit(run, dataset, encoder, device, load_newest, advance)
    fit.resume()
    return fit


def open_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = unwatched
) -> Trainer:
    """A classifier with its best weights; its folder is all it needs beside the data."""
    run, dataset, encoder = _open_parts(path, device, data_dir)
    return _build_node_fit(run, dataset, encoder, device, load_best, advance)


def open_classifier(path: Path, device: torch.device, data_dir: Path | None = None) -> OpenRun:
    """A classifier with its best weights, to be asked about any node at any time."""
    run, dataset, encoder = _open_parts(path, device, data_dir)
    finetune = bool(run.config()["run"]["finetune"])
    model = (NodeClassifier if finetune else FrozenClassifier)(encoder)
    load_best(run, model)
    return OpenRun(run, dataset, build_node_stream(dataset, device, read_split(run)), model.to(device).eval())


def _open_parts(
    path: Path, device: torch.device, data_dir: Path | None
) -> tuple[RunDirectory, Dataset, Encoder]:
    run = RunDirectory(path, current_group().leads)
    sections = run.config()
    about = sections.get("run", {})
    if not ({"train", "model"} <= set(sections) and {"backbone", *CLASSIFIER_SETTINGS} <= set(about)):
        raise FileError(f"{path}/config.toml lacks a part of what was written; restore it or train again")
    dataset = open_run_dataset(run, data_dir)
    return (
        run,
        dataset,
        get_encoder(build_scorer(run, build_link_stream(dataset, device, read_split(run))), run),
    )


def _build_node_fit(
    run: RunDirectory,
    dataset: Dataset,
    encoder: Encoder,
    device: torch.device,
    weights: Callable[[RunDirectory, nn.Module], object] | None,
    advance: Advance,
) -> Trainer:
    """The classifier on its stream; a frozen backbone's embeddings are computed here, once."""
    sections = run.config()
    about, seed = sections["run"], int(sections["run"]["seed"])
    config = build_config(
        NodeFitConfig, sections["train"] | {name: about[name] for name in CLASSIFIER_SETTINGS}
    )
    stream = build_node_stream(dataset, device, read_split(run))
    task = NodeTask.of(dataset.store, stream.split, device, config.balance)
    torch.manual_seed(seed)
    model = (NodeClassifier if config.finetune else FrozenClassifier)(encoder).to(device)
    if weights is not None:
        weights(run, model)
    encoder.let_go()  # a classifier learns from all of the training period: its memory is told from the first event
    if isinstance(model, FrozenClassifier):
        try:
            model.use(embed_sources(model.encoder, stream, config, seed, advance).to(device))
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while embedding; go on with: `dygmamba.resume('{run.path}')`"
            ) from None
    return Trainer(task, model, stream, config, run, seed)


def embed_sources(
    encoder: Encoder, stream: Stream, config: FitConfig, seed: int, advance: Advance = unwatched
) -> torch.Tensor:
    """Every event's source as the encoder sees it just before the event: [e d], on the host."""
    store, split = stream.store, stream.split
    everything = torch.arange(len(store))
    clock = MemorySchedule.of(store, (split.train, split.val, split.test), config.batch)
    seen = clock.seen(config.visible, everything, store.time)
    walk = StreamScorer(SourceEmbedding(encoder), stream, seed, clock)
    asked = PairBatch.of(store.src, store.dst, store.time)
    return walk(asked.as_of(clock.known(config.visible, everything, store.time)), seen, advance)


def evaluate_node_fit(
    fit: Trainer, names: tuple[str, ...] = SPLITS, calibration: Calibration | None = None
) -> list[dict[str, Any]]:
    """One result row per period."""
    assert isinstance(fit.task, NodeTask)
    evaluation_sets = [fit.task.evaluation_set(name) for name in names]
    return [
        build_node_row(fit, evaluation_set, fit.examine(evaluation_set), calibration)
        for evaluation_set in evaluation_sets
    ]


def build_node_row(
    fit: Trainer, evaluation_set: EvaluationSet, score: Tensor, calibration: Calibration | None
) -> dict[str, Any]:
    """A result row; a metric that a period without positives lacks is None."""
    about = fit.run.config()["run"]
    found = fit.task.metrics(score, evaluation_set)
    found |= {} if calibration is None else compute_calibration_errors(score, evaluation_set, calibration)
    return {
        "dataset": about["data"],
        "model": about["model"],
        "task": "node",
        "seed": about["seed"],
        "run": str(fit.run.path),
        **{key: about[key] for key in ("backbone", *CLASSIFIER_SETTINGS)},
        **read_split(fit.run).stamp,
        **evaluation_set.about,
        **fit.config.rule.about,
    } | {
        key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()
    }
