"""From a link run to a node classifier on it, and back from its folder."""

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, node_preset, to_settings
from dygmamba.data.splits import chronological_split
from dygmamba.data.store import Dataset
from dygmamba.engine.checkpoint import load_checkpoint
from dygmamba.engine.classification import NodeTrainConfig, NodeTraining
from dygmamba.engine.embedding import LabelledStream
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.work import TrainConfig
from dygmamba.errors import ConfigError, FileError
from dygmamba.experiment import build_scorer, made_with, open_data, open_trained
from dygmamba.models.base import NodeClassifier

PARTS = ("finetune", "balance")  # of a classifier's configuration: what the run is, not how long it runs
SPLITS = ("val", "test")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The user's settings by stage: those both stages know of, such as epochs, go to both."""

    link: dict[str, Any]
    node: NodeTrainConfig

    @staticmethod
    def of(dataset: str, model: str, settings: dict[str, Any]) -> "NodeSettings":
        """For a backbone that is trained first, with the task's presets."""
        known = {field.name for field in fields(NodeTrainConfig)}
        node = {key: value for key, value in settings.items() if key in known}
        shared = known & {field.name for field in fields(TrainConfig)}
        link = {key: value for key, value in settings.items() if key not in known or key in shared}
        return NodeSettings(node_preset(model, dataset) | link, build_config(NodeTrainConfig, node))


def check_backbone(path: Path, dataset: Dataset, model: str | None) -> None:
    """Refuse a run that cannot carry a classifier of this dataset."""
    run = RunFolder(path)
    about = run.config().get("run", {})
    if about.get("digest") != dataset.digest:
        raise ConfigError(
            f"{path} was trained on '{about.get('data')}', not on '{dataset.name}'; "
            f"give a run of '{dataset.name}' or leave out --backbone to train one"
        )
    if model is not None and model != about.get("model"):
        raise ConfigError(f"{path} is a run of '{about.get('model')}', not '{model}'; leave out --model")
    if not (path / "results.json").exists():
        raise ConfigError(f"{path} is not finished; go on with: dygmamba train --resume {path}")


def start_node_run(
    dataset: Dataset, data: LabelledStream, backbone: Path, config: NodeTrainConfig, seed: int, root: Path
) -> NodeTraining:
    """A new run folder with its configuration written, ready to train on a finished link run."""
    device = data.label.device
    trained = open_trained(backbone, device, dataset=dataset)
    run = RunFolder.create(root, dataset.name, f"{trained.model}-node", seed)
    settings = to_settings(config)
    run.write_config(
        {
            "run": {
                "task": "node",
                "data": dataset.name,
                "digest": dataset.digest,
                "split": data.split.digest,
                "model": trained.model,
                "seed": seed,
                "backbone": str(backbone),
            }
            | {name: settings.pop(name) for name in PARTS},
            "train": settings,
            "model": trained.run.config()["model"],
            "made_with": made_with(device),
        }
    )
    torch.manual_seed(seed)
    model = NodeClassifier(trained.scorer.encoder).to(device)
    return NodeTraining(model, data, config, run, seed)


def reopen_node_run(path: Path, device: torch.device, data_dir: Path | None = None) -> NodeTraining:
    """A classifier with its best weights; its folder is all it needs beside the data."""
    run = RunFolder(path)
    sections = run.config()
    about = sections.get("run", {})
    if not ({"train", "model"} <= set(sections) and {"backbone", *PARTS} <= set(about)):
        raise FileError(f"{path}/config.toml lacks a part of what was written; restore it or train again")
    dataset = open_data(run, data_dir)
    scorer, seed = build_scorer(run, dataset, chronological_split(dataset.store))
    model = NodeClassifier(scorer.encoder)
    load_checkpoint(run.best, model)
    config = build_config(NodeTrainConfig, sections["train"] | {name: about[name] for name in PARTS})
    return NodeTraining(model.to(device), LabelledStream.of(dataset.store, device), config, run, seed)


def node_rows(training: NodeTraining, names: tuple[str, ...] = SPLITS) -> list[dict[str, Any]]:
    """One result row per period; a metric that a period without positives lacks is None."""
    about = training.run.config()["run"]
    rows = []
    for name in names:
        found = asdict(training.evaluate(training.data.period(name)))
        rows.append(
            {
                "dataset": about["data"],
                "model": about["model"],
                "task": "node",
                "seed": about["seed"],
                "run": str(training.run.path),
                **{key: about[key] for key in ("backbone", *PARTS)},
                "split": name,
            }
            | {key: None if math.isnan(value) else value for key, value in found.items()}
        )
    return rows
