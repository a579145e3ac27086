"""From names to things that run: a dataset, a model and a seed become a training run, and back."""

import dataclasses
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dygmamba import __version__
from dygmamba.config import build_config, preset, to_settings
from dygmamba.data.library import open_dataset
from dygmamba.data.splits import Split, chronological_split
from dygmamba.data.store import Dataset
from dygmamba.engine.checkpoint import load_checkpoint
from dygmamba.engine.evaluation import evaluation_set, has_events
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.training import Training, evaluate_weights
from dygmamba.engine.work import TrainConfig, TrainingData
from dygmamba.errors import ConfigError, EventError, FileError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, EncoderScorer


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one; a GPU asked for and missing is an error, never a silent CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"--device takes auto, cpu or cuda, got '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, but torch sees no GPU; use --device cpu or auto")
    return torch.device(name)


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the training loop, and of the model."""
    own = {field.name for field in dataclasses.fields(TrainConfig)}
    train = {key: value for key, value in settings.items() if key in own}
    return train, {key: value for key, value in settings.items() if key not in own}


@dataclass(frozen=True, slots=True)
class Trained:
    """A run opened again: its data and its best weights."""

    run: RunFolder
    dataset: Dataset
    split: Split
    scorer: EncoderScorer
    model: str
    seed: int
    device: torch.device


def start_run(
    dataset: Dataset, model: str, seed: int, settings: dict[str, Any], device: torch.device, root: Path
) -> tuple[Training, Split]:
    """A new run folder with its configuration written, ready to train."""
    spec = find_model(model)
    if not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: dygmamba evaluate {dataset.name} --model {model}"
        )
    train, own = split_settings(preset(model, dataset.name) | settings)
    config, loop = build_config(spec.config, own), build_config(TrainConfig, train)
    split = chronological_split(dataset.store)
    if not (len(split.train) and len(split.val) and len(split.test)):
        sizes = f"{len(split.train)}, {len(split.val)} and {len(split.test)}"
        raise EventError(
            f"training, validation and test get {sizes} events; each needs some, use a longer stream"
        )
    run = RunFolder.create(root, dataset.name, model, seed)
    run.write_config(
        {
            "run": {
                "data": dataset.name,
                "digest": dataset.digest,
                "split": split.digest,
                "model": model,
                "seed": seed,
            },
            "train": to_settings(loop),
            "model": to_settings(config),
            "made_with": made_with(device),
        }
    )
    return _training(run, dataset, split, device), split


def made_with(device: torch.device) -> dict[str, str]:
    """The versions and the device of a run."""
    return {
        "dygmamba": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
    }


def reopen_run(
    path: Path, device: torch.device, data_dir: Path | None = None
) -> tuple[Training, Dataset, Split]:
    """A run folder as it stands, to be resumed."""
    run = RunFolder(path)
    dataset, split = _data_of(run, data_dir)
    training = _training(run, dataset, split, device)
    training.resume()
    return training, dataset, split


def open_trained(
    path: Path, device: torch.device, data_dir: Path | None = None, dataset: Dataset | None = None
) -> Trained:
    """A run with its best weights loaded; `dataset` is its data where that is open already."""
    run = RunFolder(path)
    dataset, split = _data_of(run, data_dir, dataset)
    scorer, seed = build_scorer(run, dataset, split)
    load_checkpoint(run.best, scorer)
    about = run.config()["run"]
    return Trained(run, dataset, split, scorer.to(device).eval(), about["model"], seed, device)


def _data_of(run: RunFolder, data_dir: Path | None, dataset: Dataset | None = None) -> tuple[Dataset, Split]:
    if run.task == "node":
        backbone = run.config()["run"].get("backbone")
        raise ConfigError(f"{run.path} classifies nodes; give a link run, such as its backbone {backbone}")
    dataset = open_data(run, data_dir, dataset)
    return dataset, chronological_split(dataset.store)


def open_data(run: RunFolder, data_dir: Path | None, dataset: Dataset | None = None) -> Dataset:
    """The dataset a run was trained on, or the given one if it is that."""
    about = run.config().get("run", {})
    if not {"data", "digest", "model", "seed"} <= set(about):
        raise FileError(f"{run.path}/config.toml lacks its [run] section; restore it or train again")
    dataset = open_dataset(about["data"], data_dir) if dataset is None else dataset
    if dataset.digest != about["digest"]:
        raise FileError(
            f"dataset '{about['data']}' is not the one this run was trained on (its events differ); "
            "point --data-dir at the original"
        )
    return dataset


def build_scorer(run: RunFolder, dataset: Dataset, split: Split) -> tuple[EncoderScorer, int]:
    """The model of a run as its seed initialises it, and that seed; `split` is that of link prediction."""
    sections = run.config()
    spec, seed = find_model(sections["run"]["model"]), int(sections["run"]["seed"])
    torch.manual_seed(seed)
    facts = DatasetFacts.of(dataset.store, split.train)
    scorer = spec.build(build_config(spec.config, sections["model"]), facts)
    if not isinstance(scorer, EncoderScorer):
        raise FileError(
            f"{run.path} names the model '{sections['run']['model']}', which has no weights to load"
        )
    return scorer, seed


def _training(run: RunFolder, dataset: Dataset, split: Split, device: torch.device) -> Training:
    scorer, seed = build_scorer(run, dataset, split)
    data = TrainingData.of(dataset.store, split, device)
    config = build_config(TrainConfig, run.config()["train"])
    return Training(scorer.to(device), data, config, run, seed)


def final_rows(
    dataset: Dataset,
    split: Split,
    scorer: EncoderScorer,
    data: TrainingData,
    about: dict[str, Any],
    chosen: list[tuple[str, str, str]],
) -> list[dict[str, Any]]:
    """One result row per (negatives, split, setting) that has events."""
    rows = []
    for strategy, name, setting in chosen:
        if not has_events(dataset.store, split, name, setting):
            continue
        asked = evaluation_set(dataset.store, split, name, setting, strategy)
        metrics = evaluate_weights(scorer, data, asked).metrics()
        rows.append({**about, "split": name, "setting": setting, "negatives": strategy, **asdict(metrics)})
    return rows
