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
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models.configs import BlendConfig
from dygmamba.runs.opening import create_run_from, open_run
from dygmamba.runs.recipes import OpenRun, build_scorer
from dygmamba.runs.run_config import RunConfig, describe_run
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import link_metrics
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES

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
    runs = open_parts(folders, device, data_dir)
    stream = runs[0].stream
    evaluation_set = build_link_set(stream.store, stream.split, "val")
    scores = [score_validation(run, evaluation_set, progress) for run in runs]
    return create_blend(runs, *find_best_weights(scores, evaluation_set), root), runs[0].dataset


def score_validation(run: OpenRun, evaluation_set: EvaluationSet, progress: Progress = SILENT) -> Tensor:
    """Return the logits of a run for the pairs of the validation period."""
    with progress.stage(f"validation, {run.model}", len(evaluation_set.pairs)) as stage:
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
    trainer = _start_blend(runs, weights, root)
    trainer.finish_epoch(metrics)
    return trainer


def rebuild_blend(
    parts: list[Path], origin: RunDirectory, device: torch.device, data_dir: Path | None = None
) -> tuple[Trainer, Dataset]:
    """Create a blend of refitted runs with the weights of the blend `origin`; nothing is left to train.

    The runs are those that `origin` blends, in the same order, trained again on every event.
    """
    runs = open_parts([RunDirectory(path) for path in parts], device, data_dir)
    root = origin.path.parent.parent.parent
    trainer = _start_blend(runs, tuple(origin.config()["model"]["weights"]), root, refit_of=origin.path)
    trainer.finish_epoch({})
    return trainer, runs[0].dataset


def open_parts(
    folders: list[RunDirectory], device: torch.device, data_dir: Path | None = None
) -> list[OpenRun]:
    """Open runs on the same dataset, on one stream that all of them share."""
    first = open_run(folders[0], device, data_dir)
    return [first, *(open_part(folder, first.dataset, first.stream) for folder in folders[1:])]


def open_part(folder: RunDirectory, dataset: Dataset, stream: Stream) -> OpenRun:
    """Open a run on a stream that is built already."""
    return replace(open_run(folder, stream.device, dataset=dataset), stream=stream)


def find_best_weights(
    scores: list[Tensor], evaluation_set: EvaluationSet
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the weights with the highest AP on an evaluation set, and the metrics that they reach."""

    def evaluate(weights: tuple[float, ...]) -> dict[str, Any]:
        total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
        assert isinstance(total, Tensor)
        metrics = link_metrics(total, evaluation_set.pairs.label, evaluation_set.pairs.group)
        return {name: metrics[name] for name in ("ap", "auc")}

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
    configs = [RunConfig.read(folder) for folder in folders]
    for config in configs:
        path = config.path
        if config.run.model == BLEND:
            raise ConfigError(f"{path} is a blend; give the runs it was made of", code="blend-of-blend")
        if is_evaluated:
            config.require_finished()
        if not config.rule.numbers:
            raise ConfigError(
                f"{path} was trained on all events and has no validation period; give the run it was made of",
                code="no-validation-period",
            )
        _check_same_stream(config, configs[0])
    # a carried memory starts from its state after training, a replayed one from the first event: at the same step of
    # an evaluation they have observed different events
    if {"carried", "replayed"} <= {str(config.model.get("memory")) for config in configs}:
        raise ConfigError(
            "some runs have `memory='carried'` and some 'replayed'; give runs with the same",
            code="blend-other-memory",
        )


def _check_same_stream(config: RunConfig, first: RunConfig) -> None:
    """Raise ConfigError unless both runs have the same dataset, split, visibility and dataset facts."""
    path, other = config.path, first.path
    if config.run.digest != first.run.digest:
        raise ConfigError(
            f"{path} was trained on another dataset than {other}; give runs with the same dataset",
            code="blend-other-dataset",
        )
    if config.rule != first.rule:
        raise ConfigError(
            f"{path} has another split than {other}; give runs with the same split", code="blend-other-split"
        )
    if config.train.training_rule != first.train.training_rule:
        raise ConfigError(
            f"{path} was trained with another `visible` or `batch` than {other}; give runs with the same",
            code="blend-other-visibility",
        )
    if config.facts != first.facts:
        raise ConfigError(
            f"{path} and {other} did not start from the same run, so their time scales differ; give runs with the same "
            "`start_from`, or without",
            code="blend-other-start",
        )


def _start_blend(
    runs: list[OpenRun], weights: tuple[float, ...], root: Path, refit_of: Path | None = None
) -> Trainer:
    """Create the run directory of a blend and copy the weights of its parts."""
    first, configs = runs[0], [run.config for run in runs]
    own = BlendConfig(
        tuple(config.run.model for config in configs),
        tuple(json.dumps(config.model) for config in configs),
        tuple(config.run.source or "" for config in configs),
        weights,
    )
    names = [
        f"{part} (seed {config.seed})" if own.parts.count(part) > 1 else part
        for part, config in zip(own.parts, configs, strict=True)
    ]
    formula = " + ".join(f"{weight:g} {name}" for weight, name in zip(weights, names, strict=True))
    about = describe_run(
        first.dataset,
        configs[0].rule,
        BLEND,
        first.seed,
        split=first.stream.split.digest,
        blend_of=[str(run.folder.path.resolve()) for run in runs],
        refit_of=None if refit_of is None else str(refit_of),
    )
    chosen = {"weights": f"{formula}: best on the validation period"}
    config = RunConfig(about, _build_fit_config(configs), to_settings(own), configs[0].facts, chosen)
    suffix = "" if refit_of is None else "-all"
    config = create_run_from(config, first.dataset, root, BLEND, first.stream.device, suffix)
    scorer: Any = build_scorer(config, first.stream)
    for part, run in zip(scorer.parts, runs, strict=True):
        part.load_state_dict(run.scorer.state_dict())
    return OpenRun(config, first.dataset, first.stream, scorer).build_trainer()


def _build_fit_config(configs: list[RunConfig]) -> LinkFitConfig:
    """Return the settings of the first run, for one epoch; negatives that differ between runs become mixed.

    A loss that differs becomes pairwise, as the weights are chosen by AP.
    """
    trained: list[Any] = [config.train for config in configs]
    negatives = {settings.train_negatives for settings in trained}
    is_same = len(negatives) == 1 and negatives <= TRAINING_NEGATIVES.keys()
    train_negatives = negatives.pop() if is_same else "mixed"
    losses = {settings.loss for settings in trained}
    loss = losses.pop() if len(losses) == 1 and train_negatives == "random" else "pairwise"
    changes = {"epochs": 1, "train_negatives": train_negatives, "loss": loss, "best_metric": "ap"}
    return replace(trained[0], **changes, graphs=False)
