"""Blending: several finished link runs as one run whose logit is the weighted sum of theirs; nothing is trained.

The weights are multiples of a twentieth (a tenth for four runs) that add up to 1, chosen by validation AP with random
negatives; among equally good ones, those nearest to equal weights. The new run contains copies of the weights of its
parts and does not need their directories.
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.config import to_settings
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.blend import BlendConfig
from dygmamba.runs.link_training import build_link_fit
from dygmamba.runs.opening import (
    OpenRun,
    build_link_stream,
    build_scorer,
    build_seeded_scorer,
    describe_dataset,
    open_link_dataset,
    read_split,
)
from dygmamba.runs.provenance import describe_environment
from dygmamba.runs.stored_facts import copy_facts, read_facts
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import link_metrics
from dygmamba.tasks.training_negatives import RANKING_NEGATIVES

BLEND = "blend"
MIN_RUNS, MAX_RUNS = 2, 4
SHARE_STEPS = {2: 20, 3: 20, 4: 10}  # by number of runs: a weight is a multiple of 1 / steps


def blend_runs(
    paths: list[Path],
    device: torch.device,
    root: Path,
    data_dir: Path | None = None,
    progress: Progress = SILENT,
) -> tuple[Trainer, Dataset]:
    """Create a run with the best weighted sum of these runs, ready to be evaluated.

    Returns:
        A trainer that has nothing left to train, and the dataset.
    """
    folders = [RunDirectory(path) for path in paths]
    check_blendable(folders)
    dataset = open_link_dataset(folders[0], data_dir)
    stream = build_link_stream(dataset, device, read_split(folders[0]))
    runs = [open_part(folder, dataset, stream) for folder in folders]
    evaluation_set = build_link_set(stream.store, stream.split, "val")
    scores = [score_validation(run, evaluation_set, progress) for run in runs]
    return create_blend(runs, *find_best_weights(scores, evaluation_set), root), dataset


def score_validation(run: OpenRun, evaluation_set: EvaluationSet, progress: Progress = SILENT) -> Tensor:
    """Return the logits of a run for the pairs of the validation period."""
    with progress.stage(f"validation, {run.about['model']}", len(evaluation_set.pairs)) as stage:
        score = score_evaluation_set(
            run.scorer, run.stream, evaluation_set, run.rule, run.seed, stage.advance
        )
    return score.double()


def create_blend(
    runs: list[OpenRun], weights: tuple[float, ...], metrics: dict[str, Any], root: Path
) -> Trainer:
    """Create the run of these weights, ready to be evaluated; `metrics` are those of the validation period."""
    # a run of weight 0 costs its time in every prediction; a blend has at least two runs
    used = [number for number, weight in enumerate(weights) if weight]
    unused = [number for number, weight in enumerate(weights) if not weight]
    kept = sorted([*used, *unused[: max(0, MIN_RUNS - len(used))]])
    runs, weights = [runs[number] for number in kept], tuple(weights[number] for number in kept)
    fit = _build_blend_fit(runs, weights, runs[0].dataset, runs[0].stream, root)
    fit.finish_epoch(metrics)
    return fit


def rebuild_blend(
    parts: list[Path], origin: RunDirectory, device: torch.device, data_dir: Path | None = None
) -> tuple[Trainer, Dataset]:
    """Create a blend of refitted runs with the weights of the blend `origin`; nothing is left to train.

    The runs are those that `origin` blends, in the same order, trained again on every event.
    """
    folders = [RunDirectory(path) for path in parts]
    dataset = open_link_dataset(folders[0], data_dir)
    stream = build_link_stream(dataset, device, read_split(folders[0]))
    runs = [open_part(folder, dataset, stream) for folder in folders]
    weights = tuple(origin.config()["model"]["weights"])
    root = origin.path.parent.parent.parent
    fit = _build_blend_fit(runs, weights, dataset, stream, root, refit_of=origin.path)
    fit.finish_epoch({})
    return fit, dataset


def open_part(folder: RunDirectory, dataset: Dataset, stream: Stream) -> OpenRun:
    """Open a run on a stream that all parts share."""
    open_link_dataset(folder, None, dataset)  # checks that the dataset is the one of the run
    scorer = build_scorer(folder, stream)
    load_best(folder, scorer)
    return OpenRun(folder, dataset, stream, scorer.to(stream.device).eval())


def find_best_weights(
    scores: list[Tensor], evaluation_set: EvaluationSet
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the weights with the highest AP on an evaluation set, and the metrics that they reach."""

    def evaluate(weights: tuple[float, ...]) -> dict[str, Any]:
        total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
        assert isinstance(total, Tensor)
        metrics = link_metrics(total, evaluation_set.pairs.label, evaluation_set.pairs.group)
        return {"ap": metrics.ap, "auc": metrics.auc}

    def unevenness(weights: tuple[float, ...]) -> float:
        return sum((weight - 1 / len(weights)) ** 2 for weight in weights)

    results = {weights: evaluate(weights) for weights in enumerate_shares(len(scores))}
    best = max(results, key=lambda weights: (results[weights]["ap"], -unevenness(weights)))
    return best, results[best]


def enumerate_shares(count: int) -> list[tuple[float, ...]]:
    """List all weights of `count` runs that add up to 1."""
    steps = SHARE_STEPS[count]
    rest = itertools.product(range(steps + 1), repeat=count - 1)
    return [
        tuple(share / steps for share in (*first, steps - sum(first)))
        for first in rest
        if sum(first) <= steps
    ]


def check_blendable(folders: list[RunDirectory], *, is_evaluated: bool = True) -> None:
    """Raise ConfigError unless all runs predict the same thing on the same stream, and are evaluated if need be."""
    if not MIN_RUNS <= len(folders) <= MAX_RUNS:
        raise ConfigError(
            f"a blend takes {MIN_RUNS} to {MAX_RUNS} runs; got {len(folders)}", code="blend-run-count"
        )
    if len({folder.path.resolve() for folder in folders}) < len(folders):
        raise ConfigError("the same run is given twice; give each run once", code="blend-repeated-run")
    first = folders[0]
    for folder in folders:
        path = folder.path
        about = folder.config().get("run", {})
        if about.get("model") == BLEND:
            raise ConfigError(f"{path} is a blend; give the runs it was made of", code="blend-of-blend")
        if is_evaluated and not folder.finished:
            raise ConfigError(
                f"{path} is not finished; continue it with `dygmamba.resume({str(path)!r})`",
                code="unfinished-run",
            )
        if not read_split(folder).numbers:
            raise ConfigError(
                f"{path} was trained on all events and has no validation period; give the run it was made of",
                code="no-validation-period",
            )
        _check_same_stream(folder, first)
    _check_memories(folders)


def _check_same_stream(folder: RunDirectory, first: RunDirectory) -> None:
    """Raise ConfigError unless both runs have the same dataset, split, visibility and dataset facts."""
    path = folder.path
    about, first_about = folder.config().get("run", {}), first.config().get("run", {})
    if about.get("digest") != first_about.get("digest"):
        raise ConfigError(
            f"{path} was trained on another dataset than {first.path}; give runs with the same dataset",
            code="blend-other-dataset",
        )
    if read_split(folder) != read_split(first):
        raise ConfigError(
            f"{path} has another split than {first.path}; give runs with the same split",
            code="blend-other-split",
        )
    if _read_visibility(folder) != _read_visibility(first):
        raise ConfigError(
            f"{path} was trained with another `visible` or `batch` than {first.path}; give runs with the same",
            code="blend-other-visibility",
        )
    if copy_facts(folder) != copy_facts(first):
        raise ConfigError(
            f"{path} and {first.path} did not start from the same run, so their time scales differ; give runs with "
            "the same `start_from`, or without",
            code="blend-other-start",
        )


def _check_memories(folders: list[RunDirectory]) -> None:
    # a carried memory starts from its state after training, a replayed one from the first event: at the same step of
    # an evaluation they have observed different events
    if {"carried", "replayed"} <= {str(folder.config().get("model", {}).get("memory")) for folder in folders}:
        raise ConfigError(
            "some runs have `memory='carried'` and some 'replayed'; give runs with the same",
            code="blend-other-memory",
        )


def _read_visibility(folder: RunDirectory) -> tuple[Any, Any]:
    settings = folder.config().get("train", {})
    return settings.get("visible"), settings.get("batch")


def _build_blend_fit(
    runs: list[OpenRun],
    weights: tuple[float, ...],
    dataset: Dataset,
    stream: Stream,
    root: Path,
    refit_of: Path | None = None,
) -> Trainer:
    """Create the run directory of a blend and copy the weights of its parts."""
    config = BlendConfig(
        tuple(run.about["model"] for run in runs),
        tuple(json.dumps(run.folder.config()["model"]) for run in runs),
        tuple(run.about.get("source", "") for run in runs),
        weights,
    )
    seed = runs[0].seed
    folder = RunDirectory.create(root, dataset.name, BLEND, seed, "" if refit_of is None else "-all")
    names = [
        f"{part} (seed {run.seed})" if config.parts.count(part) > 1 else part
        for part, run in zip(config.parts, runs, strict=True)
    ]
    formula = " + ".join(f"{weight:g} {name}" for weight, name in zip(weights, names, strict=True))
    folder.write_config(
        {
            "run": {
                **describe_dataset(dataset, root),
                "split": stream.split.digest,
                "model": BLEND,
                "seed": seed,
                "blend_of": [str(run.folder.path.resolve()) for run in runs],
            }
            | read_split(runs[0].folder).section
            | ({} if refit_of is None else {"refit_of": str(refit_of)}),
            "train": to_settings(_build_fit_config(runs)),
            "model": to_settings(config),
            "chosen": {"weights": f"{formula}: best on the validation period"},
            "made_with": describe_environment(stream.device),
        }
        | copy_facts(runs[0].folder)
    )
    facts = read_facts(folder, stream.store)
    scorer: Any = build_seeded_scorer(find_model(BLEND), config, seed, stream, facts=facts)
    for part, run in zip(scorer.parts, runs, strict=True):
        part.load_state_dict(run.scorer.state_dict())
    return build_link_fit(folder, stream, scorer)


def _build_fit_config(runs: list[OpenRun]) -> LinkFitConfig:
    """Return the settings of the first run, for one epoch; negatives that differ between runs become mixed.

    A loss that differs becomes pairwise, as the weights are chosen by AP.
    """
    config: Any = runs[0].fit_config
    trained = [run.folder.config()["train"] for run in runs]
    negatives = {settings.get("train_negatives", "random") for settings in trained}
    train_negatives = negatives.pop() if len(negatives) == 1 else "mixed"
    losses = {settings.get("loss", "pairwise") for settings in trained}
    loss = losses.pop() if len(losses) == 1 and train_negatives in RANKING_NEGATIVES else "pairwise"
    changes = {"epochs": 1, "train_negatives": train_negatives, "loss": loss, "best_metric": "ap"}
    return replace(config, **changes, graphs=False)
