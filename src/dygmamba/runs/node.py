"""From a link run to a node classifier on it, and back from its folder."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.config import build_config, node_preset, to_settings
from dygmamba.data.splits import PUBLISHED, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.engine.checkpoint import load_best, load_newest
from dygmamba.engine.clock import Clock
from dygmamba.engine.fit import Fit, Interrupted
from dygmamba.engine.fit_config import FitConfig, NodeFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, Walk, unwatched
from dygmamba.errors import ConfigError, FileError
from dygmamba.models.base import Encoder
from dygmamba.models.classifiers import FrozenClassifier, NodeClassifier, SourceEmbedding
from dygmamba.runs.link import calibration_errors
from dygmamba.runs.making import begin, go_on_alike, made_with
from dygmamba.runs.opening import (
    OpenRun,
    build_scorer,
    data_of,
    encoder_of,
    link_stream,
    open_data,
    open_run,
    split_of,
)
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import Exam
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.link import SPLITS
from dygmamba.tasks.node import NodeTask, node_split

PARTS = ("finetune", "balance")  # of a classifier's configuration: what the run is, not how long it runs


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
        return NodeSettings(node_preset(model, dataset) | link, build_config(NodeFitConfig, node))


def node_stream(dataset: Dataset, device: torch.device, by: SplitBy = PUBLISHED) -> Stream:
    """A dataset with every node in training, its labels apart: what a backbone is shown holds none."""
    return Stream(dataset.store, node_split(dataset.store, by), device, here()).without_labels()


def check_backbone(path: Path, dataset: Dataset, model: str | None) -> None:
    """Refuse a run that cannot carry a classifier of this dataset."""
    about = RunFolder(path).config().get("run", {})
    if about.get("digest") != dataset.digest:
        raise ConfigError(
            f"{path} was trained on '{about.get('data')}', not on '{dataset.name}'; "
            f"give a run of '{dataset.name}' or leave out `backbone` to train one"
        )
    if model is not None and model != about.get("model"):
        raise ConfigError(f"{path} is a run of '{about.get('model')}', not '{model}'; leave out `model`")
    if not SplitBy.read(about).numbers:
        raise ConfigError(f"{path} was trained on every event, the test's too; give the run it was made of")
    if not RunFolder(path).finished:
        raise ConfigError(f"{path} is not finished; go on with: `dygmamba.resume('{path}')`")


def start_node_run(
    dataset: Dataset,
    backbone: Path,
    config: NodeFitConfig,
    seed: int,
    device: torch.device,
    root: Path,
    advance: Advance = unwatched,
) -> Fit:
    """A new run folder with its configuration written, ready to train on a finished link run."""
    trained = open_run(backbone, device, dataset=dataset)
    model, by = trained.about["model"], split_of(trained.folder)
    about = here().led(lambda: data_of(dataset, root))
    settings = to_settings(config)
    run = begin(
        lambda: RunFolder.create(root, dataset.name, f"{model}-node", seed),
        {
            "run": {
                "task": "node",
                **about,
                "split": node_split(dataset.store, by).digest,
                "model": model,
                "seed": seed,
                "backbone": str(backbone),
            }
            | by.section
            | {key: value for key, value in trained.about.items() if key == "source"}
            | {name: settings.pop(name) for name in PARTS},
            "train": settings,
            "model": trained.folder.config()["model"],
            "made_with": made_with(device),
        },
    )
    return _fit(run, dataset, encoder_of(trained.scorer, trained.folder), device, None, advance)


def resume_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = unwatched
) -> Fit:
    """A classifier standing where it was stopped; one that was stopped before it saved starts on its backbone again."""
    run, dataset, encoder = _reopened(path, device, data_dir)
    here().led(run.lock)
    go_on_alike(run, device)
    if not run.started:
        backbone = Path(run.config()["run"]["backbone"])
        encoder = encoder_of(open_run(backbone, device, dataset=dataset).scorer, run)
        return _fit(run, dataset, encoder, device, None, advance)
    fit = _fit(run, dataset, encoder, device, load_newest, advance)
    fit.resume()
    return fit


def open_node_run(
    path: Path, device: torch.device, data_dir: Path | None = None, advance: Advance = unwatched
) -> Fit:
    """A classifier with its best weights; its folder is all it needs beside the data."""
    run, dataset, encoder = _reopened(path, device, data_dir)
    return _fit(run, dataset, encoder, device, load_best, advance)


def open_classifier(path: Path, device: torch.device, data_dir: Path | None = None) -> OpenRun:
    """A classifier with its best weights, to be asked about any node at any time."""
    run, dataset, encoder = _reopened(path, device, data_dir)
    finetune = bool(run.config()["run"]["finetune"])
    model = (NodeClassifier if finetune else FrozenClassifier)(encoder)
    load_best(run, model)
    return OpenRun(run, dataset, node_stream(dataset, device, split_of(run)), model.to(device).eval())


def _reopened(path: Path, device: torch.device, data_dir: Path | None) -> tuple[RunFolder, Dataset, Encoder]:
    run = RunFolder(path, here().leads)
    sections = run.config()
    about = sections.get("run", {})
    if not ({"train", "model"} <= set(sections) and {"backbone", *PARTS} <= set(about)):
        raise FileError(f"{path}/config.toml lacks a part of what was written; restore it or train again")
    dataset = open_data(run, data_dir)
    return run, dataset, encoder_of(build_scorer(run, link_stream(dataset, device, split_of(run))), run)


def _fit(
    run: RunFolder,
    dataset: Dataset,
    encoder: Encoder,
    device: torch.device,
    weights: Callable[[RunFolder, nn.Module], object] | None,
    advance: Advance,
) -> Fit:
    """The classifier on its stream; a frozen backbone's embeddings are computed here, once."""
    sections = run.config()
    about, seed = sections["run"], int(sections["run"]["seed"])
    config = build_config(NodeFitConfig, sections["train"] | {name: about[name] for name in PARTS})
    stream = node_stream(dataset, device, split_of(run))
    task = NodeTask.of(dataset.store, stream.split, device, config.balance)
    torch.manual_seed(seed)
    model = (NodeClassifier if config.finetune else FrozenClassifier)(encoder).to(device)
    if weights is not None:
        weights(run, model)
    encoder.let_go()  # a classifier learns from all of the training period: its memory is told from the first event
    if isinstance(model, FrozenClassifier):
        try:
            model.use(embed(model.encoder, stream, config, seed, advance).to(device))
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while embedding; go on with: `dygmamba.resume('{run.path}')`"
            ) from None
    return Fit(task, model, stream, config, run, seed)


def embed(
    encoder: Encoder, stream: Stream, config: FitConfig, seed: int, advance: Advance = unwatched
) -> torch.Tensor:
    """Every event's source as the encoder sees it just before the event: [e d], on the host."""
    store, split = stream.store, stream.split
    everything = torch.arange(len(store))
    clock = Clock.of(store, (split.train, split.val, split.test), config.batch)
    seen = clock.seen(config.visible, everything, store.time)
    walk = Walk(SourceEmbedding(encoder), stream, seed, clock)
    asked = PairBatch.of(store.src, store.dst, store.time)
    return walk(asked.as_of(clock.known(config.visible, everything, store.time)), seen, advance)


def node_rows(
    fit: Fit, names: tuple[str, ...] = SPLITS, calibration: Calibration | None = None
) -> list[dict[str, Any]]:
    """One result row per period."""
    assert isinstance(fit.task, NodeTask)
    exams = [fit.task.exam(name) for name in names]
    return [node_row(fit, exam, fit.examine(exam), calibration) for exam in exams]


def node_row(fit: Fit, exam: Exam, score: Tensor, calibration: Calibration | None) -> dict[str, Any]:
    """A result row; a metric that a period without positives lacks is None."""
    about = fit.run.config()["run"]
    found = fit.task.metrics(score, exam)
    found |= {} if calibration is None else calibration_errors(score, exam, calibration)
    return {
        "dataset": about["data"],
        "model": about["model"],
        "task": "node",
        "seed": about["seed"],
        "run": str(fit.run.path),
        **{key: about[key] for key in ("backbone", *PARTS)},
        **split_of(fit.run).stamp,
        **exam.about,
        **fit.config.rule.about,
    } | {
        key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()
    }
