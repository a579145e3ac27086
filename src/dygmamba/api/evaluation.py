"""Evaluation by the published protocol: of a trained run, or of a heuristic."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.api.argument_types import check_arguments
from dygmamba.api.datasets import Source, resolve_data
from dygmamba.api.processes import process_group
from dygmamba.api.validation import (
    Names,
    check_run_protocol,
    check_visible,
    parse_metrics,
    parse_names,
)
from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.core.errors import ConfigError, DygWarning, EventError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.evaluation import STRICT_RULE
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.negatives import SAMPLERS
from dygmamba.models import find_model
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.calibration import load_calibration, load_link_calibration
from dygmamba.runs.evaluation import (
    PAIR_METRICS,
    ActivityFactor,
    EvaluationKey,
    Ranking,
    evaluate_link_scorer,
)
from dygmamba.runs.node_training import evaluate_node_fit
from dygmamba.runs.opening import as_directory, choose_device, open_run
from dygmamba.runs.run_config import read_split
from dygmamba.tasks.link import SETTINGS, SPLITS, build_event_set, has_events

Row = dict[str, Any]


@check_arguments
def evaluate(
    data: "Dataset | Source",
    model: str = "edgebank",
    *,
    negatives: Names = "random",
    split: Names = "test",
    setting: Names = SETTINGS,
    visible: str | None = None,
    metrics: Names | None = None,
    candidates: int | str | None = None,
    filtered: bool = False,
    seeds: Sequence[int] | None = None,
    activity: bool = False,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
    **settings: Any,
) -> pa.Table:
    """Evaluate a model that needs no training (edgebank, recency, ...): a row per negatives, split and setting.

    Args:
        data: A dataset, its name, or anything that `read` takes.
        model: A heuristic.
        negatives: Negative samplers: random, historical, inductive.
        split: "val", "test" or both.
        setting: "transductive" (all nodes), "inductive" (new nodes) or both.
        visible: "strict" (only strictly earlier events are visible) or "batch" (the published rule).
        metrics: "ap", "auc" (the default), or ranking metrics such as "mrr,hits@10".
        candidates: What ranking metrics rank among: a number of destinations, "all", or "board" (the candidates of the
            dataset's leaderboard).
        filtered: Leave out candidates that are true destinations of the same source and time.
        seeds: Draw other negatives than the published ones, once per seed.
        activity: Add the source's activity rate to the score where negatives replace the source; its weight is fitted
            on the validation period.
        protocol: "time" (new nodes are those without an event in the training period), "benchmark" (also a sample of
            the other nodes, as in DyGLib), or "auto": "benchmark" for the datasets of DyGLib, else "time".
        data_dir: Where datasets are.
        **settings: Settings of the model.

    >>> import dygmamba as dm
    >>> table = dm.evaluate(dm.generate(nodes=40, events=800, communities=4), "recency")
    >>> table.column_names[:3], table.num_rows
    (['dataset', 'model', 'seed'], 1)
    """
    request = EvaluationRequest(
        negatives, split, setting, visible, metrics, candidates, filtered, activity, seeds, protocol,
        data_dir=None if data_dir is None else Path(data_dir),
    )  # fmt: skip
    return rows_to_table(evaluate_untrained(resolve_data(data), model, request, settings))


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Arguments of `evaluate`; with `negatives=None` the default samplers are used.

    Seeds, protocol and stored negatives are those of a model without training, the device is that of a run.
    """

    negatives: Names | None = None
    split: Names = "test"
    setting: Names = SETTINGS
    visible: str | None = None
    metrics: Names | None = None
    candidates: int | str | None = None
    filtered: bool = False
    activity: bool = False
    seeds: Sequence[int] | None = None
    protocol: str = AUTO_PROTOCOL
    stored_negatives: Path | None = None  # folder that keeps drawn negatives for the next time
    device: str = "auto"
    data_dir: Path | None = None

    def list_choices(self, usual: Names) -> list[EvaluationKey]:
        """Return every combination of negatives, split and setting, in this order."""
        return [
            (strategy, name, kind)
            for strategy in parse_names("negatives", self.negatives or usual, SAMPLERS)
            for name in parse_names("split", self.split, SPLITS)
            for kind in parse_names("setting", self.setting, SETTINGS)
        ]

    def parse_metrics(self) -> tuple[bool, Ranking | None]:
        """Return whether AP and AUC are wanted, and which ranking metrics."""
        pairwise, ranks, count = parse_metrics(self.metrics, self.candidates, self.filtered)
        return pairwise, Ranking(ranks, count, self.filtered) if ranks else None

    def apply_visibility(self, rule: VisibilityRule) -> VisibilityRule:
        """Return the rule, with the visibility that the user chose."""
        check_visible(self.visible)
        return replace(rule, visible=self.visible or rule.visible)


def evaluate_target(
    target: str,
    model: str,
    request: EvaluationRequest,
    settings: dict[str, Any],
    progress: Progress = SILENT,
) -> list[Row]:
    """Evaluate the run in a directory, or a model without training and its settings on a dataset."""
    if (Path(target) / "config.toml").is_file():
        check_run_protocol(request.protocol)
        return evaluate_run(Path(target), request)
    return evaluate_untrained(target, model, request, settings, progress)


def evaluate_run(path: Path, request: EvaluationRequest) -> list[Row]:
    """Evaluate a trained run. A node classifier has a row per split, without setting and negatives."""
    choices = request.list_choices(PUBLISHED_NEGATIVES)
    request.apply_visibility(STRICT_RULE)
    pairwise, ranking = request.parse_metrics()
    folder = RunDirectory(path)
    require_test_split(folder, "evaluate")
    warn_if_unfinished(folder)
    if folder.task == "link":
        with process_group(where := choose_device(request.device)):
            run = open_run(folder, where, request.data_dir)
            about = {"dataset": run.dataset.name, "model": run.model, "seed": run.seed}
            about |= run.config.training_columns
            given, visibility = (run.scorer, run.stream), request.apply_visibility(run.rule)
            rows = []
            if pairwise:
                calibration = load_link_calibration(run.folder, run.stream)
                factor = ActivityFactor.from_stream(run.stream) if request.activity or run.activity else None
                rows = evaluate_link_scorer(*given, about, choices, visibility, calibration, factor)
            if ranking is not None:
                ranking, store = ranking.with_board(run.dataset), run.stream.store
                for where in dict.fromkeys(choice[1:] for choice in choices):
                    if has_events(store, run.stream.split, *where):
                        pairs = build_event_set(store, run.stream.split, *where)
                        rows.append(about | ranking.rank(*given, pairs, visibility, run.seed))
            return _require_rows(rows)
    _check_node_request(path, request, ranking)
    fit = open_run(path, choose_device(request.device), request.data_dir, task="node").build_trainer()
    splits = tuple(dict.fromkeys(split for _, split, _ in choices))
    return _require_rows(evaluate_node_fit(fit, splits, load_calibration(fit.run)))


def _check_node_request(path: Path, request: EvaluationRequest, ranking: Ranking | None) -> None:
    """Raise ConfigError if the request has options that only link prediction has."""
    given = {
        "activity": request.activity,
        "metrics": ranking is not None,
        "negatives": request.negatives is not None,
        "visible": request.visible is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{path} is a node classification run, for which `{name}` has no meaning; leave it out",
                code="option-of-link-task",
            )


def evaluate_untrained(
    data: Dataset | str,
    model: str,
    request: EvaluationRequest,
    settings: dict[str, Any],
    progress: Progress = SILENT,
) -> list[Row]:
    """Evaluate a model that needs no training, once per draw of the negatives or the candidates."""
    require_untrained(model, data if isinstance(data, str) else data.name)
    dataset = open_dataset(data, request.data_dir) if isinstance(data, str) else data
    choices, (pairwise, ranking) = request.list_choices("random"), request.parse_metrics()
    split_rule = get_default_split(dataset, request.protocol)
    baselines = Baselines.from_dataset(dataset, request.apply_visibility(STRICT_RULE), split_rule)
    activity = ActivityFactor.from_stream(baselines.stream) if request.activity else None
    choices = [choice for choice in choices if baselines.has_events(choice)]
    draws, rows = (None,) if request.seeds is None else tuple(request.seeds), []
    for choice in choices if pairwise else ():
        for seed in draws:
            with progress.stage(" ".join(choice)) as stage:
                options: dict[str, Any] = {"folder": request.stored_negatives, "activity": activity}
                scored = baselines.evaluate(model, settings, choice, seed, **options, advance=stage.advance)
                rows.append(scored.about | scored.row(PAIR_METRICS) | _describe_draw(seed))
    if ranking is not None:
        ranking = ranking.with_board(dataset)
        for choice in {choice[1:]: choice for choice in choices}.values():
            for seed in draws if ranking.is_sampled else (None,):
                with progress.stage(" ".join(("ranks", *choice[1:]))) as stage:
                    drawn = replace(ranking, seed=seed)
                    row = baselines.rank(model, settings, choice, drawn, stage.advance)
                    rows.append(row | _describe_draw(seed))
    given = split_rule.stamp | ({"settings": settings} if settings else {})
    return _require_rows([row | given for row in rows])


def _describe_draw(seed: int | None) -> Row:
    """Return the field of a row whose negatives or candidates are not the published draw."""
    return {} if seed is None else {"drawn_with_seed": seed}


def require_untrained(model: str, data: str) -> None:
    """Raise ConfigError if the model must be trained first."""
    if find_model(model).trainable:
        raise ConfigError(
            f"model '{model}' must be trained first: `dygmamba.train({data!r}, {model!r})`",
            code="model-needs-training",
        )


def warn_if_unfinished(run: Path | RunDirectory) -> None:
    """Warn of a run that was stopped; raise ConfigError if it has no weights yet."""
    folder = as_directory(run)
    path, sections = folder.path, folder.config()
    if folder.finished or "train" not in sections:
        return
    epochs, hint = sections["train"]["epochs"], f"resume it with `dygmamba.resume({str(path)!r})`"
    if not folder.best.exists():
        raise ConfigError(
            f"{path} was stopped in its first epoch and has no weights yet; {hint}",
            code="run-without-weights",
        )
    done = len(folder.metrics())
    state = (
        "trained, but not evaluated" if done >= epochs else f"stopped after {done} of at most {epochs} epochs"
    )
    warnings.warn(DygWarning(f"{path} is not finished ({state}); {hint}"), stacklevel=3)


def require_test_split(run: Path | RunDirectory, action: str) -> None:
    """Raise ConfigError for a run that was trained on every event, so that nothing is left to test it on."""
    folder = as_directory(run)
    if not read_split(folder).numbers:
        origin = folder.config()["run"].get("refit_of", "another run")
        raise ConfigError(
            f"{folder.path} was trained on every event and has no test; {action} {origin}, which has the same settings",
            code="run-without-test",
        )


def rows_to_table(rows: list[Row]) -> pa.Table:
    """Return rows as a table with every column that any of them has, null where a row lacks it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])


def _require_rows(rows: list[Row]) -> list[Row]:
    if not rows:
        raise EventError(
            "none of the chosen splits and settings has an event; choose others or use a longer stream",
            code="no-events-in-split",
        )
    return rows
