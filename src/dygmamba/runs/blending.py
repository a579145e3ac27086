"""Finished link runs as one run: the sum of their logits that is best on the validation period, and nothing trained.

The weights are shares in steps of a twentieth, chosen by validation AP with random negatives; among equals the one that
lies nearest to the plain mean. The run holds copies of its parts' weights, so it needs none of their folders.
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
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Stage, Trainer, unfollowed
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
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import link_metrics

BLEND = "blend"
MIN_RUNS, MAX_RUNS = 2, 4  # runs
SHARE_STEPS = {2: 20, 3: 20, 4: 10}  # shares are so many parts of one


def blend_runs(
    paths: list[Path],
    device: torch.device,
    root: Path,
    data_dir: Path | None = None,
    stage: Stage = unfollowed,
) -> tuple[Trainer, Dataset]:
    """A new run folder with the best sum of these runs in it, ready to be evaluated; and its data."""
    _check_runs(paths)
    dataset = open_link_dataset(RunDirectory(paths[0]), data_dir)
    stream = build_link_stream(dataset, device, read_split(RunDirectory(paths[0])))
    runs = [_open_part(path, dataset, stream) for path in paths]
    evaluation_set = build_link_set(stream.store, stream.split, "val")
    scores = []
    for run in runs:
        with stage(f"validation, {run.about['model']}", len(evaluation_set.pairs)) as advance:
            scores.append(
                score_evaluation_set(run.scorer, stream, evaluation_set, run.rule, run.seed, advance).double()
            )
    weights, found = find_best_weights(scores, evaluation_set)
    fit = _build_blend_fit(runs, weights, dataset, stream, root)
    fit.finish_epoch(found)
    return fit, dataset


def _open_part(path: Path, dataset: Dataset, stream: Stream) -> OpenRun:
    folder = RunDirectory(path)
    open_link_dataset(folder, None, dataset)
    scorer = build_scorer(folder, stream)
    load_best(folder, scorer)
    return OpenRun(folder, dataset, stream, scorer.to(stream.device).eval())


def find_best_weights(
    scores: list[Tensor], evaluation_set: EvaluationSet
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Shares of one, and the metrics of the sum they give."""

    def judged(weights: tuple[float, ...]) -> dict[str, Any]:
        total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
        assert isinstance(total, Tensor)
        found = link_metrics(total, evaluation_set.pairs.label, evaluation_set.pairs.group)
        return {"ap": found.ap, "auc": found.auc}

    def unevenness(weights: tuple[float, ...]) -> float:
        return sum((weight - 1 / len(weights)) ** 2 for weight in weights)

    tried = {weights: judged(weights) for weights in _enumerate_shares(len(scores))}
    chosen = max(tried, key=lambda weights: (tried[weights]["ap"], -unevenness(weights)))
    return chosen, tried[chosen]


def _enumerate_shares(count: int) -> list[tuple[float, ...]]:
    steps = SHARE_STEPS[count]
    rest = itertools.product(range(steps + 1), repeat=count - 1)
    return [
        tuple(share / steps for share in (*first, steps - sum(first)))
        for first in rest
        if sum(first) <= steps
    ]


def _check_runs(paths: list[Path]) -> None:
    """Runs of one question on one stream: what was asked of one must mean the same to the other."""
    if not MIN_RUNS <= len(paths) <= MAX_RUNS:
        raise ConfigError(
            f"a blend is made of {MIN_RUNS} to {MAX_RUNS} runs, got {len(paths)}; choose among them"
        )
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("a run is there twice; give each once")
    first = RunDirectory(paths[0])
    for path in paths:
        folder = RunDirectory(path)
        about, own = folder.config().get("run", {}), first.config().get("run", {})
        if about.get("model") == BLEND:
            raise ConfigError(f"{path} is a blend already; give the runs it was made of")
        if not folder.finished:
            raise ConfigError(f"{path} is not finished; go on with: `dygmamba.resume('{path}')`")
        if not read_split(folder).numbers:
            raise ConfigError(
                f"{path} was trained on every event, so no validation is left; give the run it was made of"
            )
        for what, same in (
            ("data", about.get("digest") == own.get("digest")),
            ("split", read_split(folder) == read_split(first)),
        ):
            if not same:
                raise ConfigError(f"{path} has another {what} than {paths[0]}; give runs of the same {what}")
        if _read_visibility(folder) != _read_visibility(first):
            raise ConfigError(f"{path} was trained with another `visible` or `batch`; give runs of the same")
    _check_memories(paths)


def _check_memories(paths: list[Path]) -> None:
    """Memories that go on from training and memories that are told again are not told of the same events at once."""
    found = {RunDirectory(path).config().get("model", {}).get("memory") for path in paths}
    if {"carried", "replayed"} <= found:
        raise ConfigError("some runs have `memory='carried'` and some 'replayed'; give runs of the same")


def _read_visibility(folder: RunDirectory) -> tuple[Any, Any]:
    how = folder.config().get("train", {})
    return how.get("visible"), how.get("batch")


def _build_blend_fit(
    runs: list[OpenRun], weights: tuple[float, ...], dataset: Dataset, stream: Stream, root: Path
) -> Trainer:
    how = _blend_fit_config(runs)
    config = BlendConfig(
        tuple(run.about["model"] for run in runs),
        tuple(json.dumps(run.folder.config()["model"]) for run in runs),
        tuple(run.about.get("source", "") for run in runs),
        weights,
    )
    seed = runs[0].seed
    folder = RunDirectory.create(root, dataset.name, BLEND, seed)
    said = " + ".join(f"{weight:g} {part}" for weight, part in zip(weights, config.parts, strict=True))
    folder.write_config(
        {
            "run": {
                **describe_dataset(dataset, root),
                "split": stream.split.digest,
                "model": BLEND,
                "seed": seed,
            }
            | {"blend_of": [str(run.folder.path) for run in runs]}
            | read_split(runs[0].folder).section,
            "train": to_settings(how),
            "model": to_settings(config),
            "chosen": {"weights": f"{said}: best on the validation period"},
            "made_with": describe_environment(stream.device),
        }
    )
    scorer: Any = build_seeded_scorer(find_model(BLEND), config, seed, stream)
    for part, run in zip(scorer.parts, runs, strict=True):
        part.load_state_dict(run.scorer.state_dict())
    return build_link_fit(folder, stream, scorer)


def _blend_fit_config(runs: list[OpenRun]) -> LinkFitConfig:
    """One epoch, of nothing; trained against what all of its parts were, or against mixed pairs."""
    how: Any = runs[0].how
    against = {run.folder.config()["train"].get("train_negatives", "random") for run in runs}
    return replace(
        how, epochs=1, train_negatives=against.pop() if len(against) == 1 else "mixed", graphs=False
    )
