"""Evaluation by the published protocol, of a run or of a heuristic; and of a run on new events, with limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.api.datasets import Source, open_data, resolve_data
from dygmamba.api.processes import process_group
from dygmamba.api.requests.base import Names, is_run_directory
from dygmamba.api.requests.evaluation import EvaluateRequest, MonitorRequest
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.choices import PUBLISHED_NEGATIVES, SCOPES
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.readers import ReadOptions
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.evaluation import STRICT_RULE
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.report.document import Document
from dygmamba.report.monitoring_document import build_monitoring_document
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.calibration import load_calibration, load_link_calibration
from dygmamba.runs.evaluation import PAIR_METRICS, ActivityFactor, Ranking, evaluate_link_scorer
from dygmamba.runs.monitoring import Monitoring, monitor_run
from dygmamba.runs.node_training import evaluate_node_fit
from dygmamba.runs.opening import as_directory, choose_device, open_run, warn_if_unfinished
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.run_config import read_split
from dygmamba.tasks.link import build_event_set, has_events

Row = dict[str, Any]


@check_arguments
def evaluate(
    data: "Dataset | Source",
    model: str = "edgebank",
    *,
    negatives: Names = "random",
    split: Names = "test",
    setting: Names = SCOPES,
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
        data: A dataset, its name, anything that `read` takes, or a run directory.
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
    request = EvaluateRequest.from_arguments(locals(), data=resolve_data(data))
    return rows_to_table(run_evaluation(request.check()))


def run_evaluation(request: EvaluateRequest, progress: Progress = SILENT) -> list[Row]:
    """Evaluate a run, or a model without training on a dataset.

    A node classifier has a row per split, without setting and negatives; a model without training has a row per draw of
    the negatives or the candidates.
    """
    rows = (
        _evaluate_run(request) if is_run_directory(request.data) else _evaluate_untrained(request, progress)
    )
    if not rows:
        raise EventError(
            "none of the chosen splits and settings has an event; choose others or use a longer stream",
            code="no-events-in-split",
        )
    return rows


def _make_ranking(request: EvaluateRequest) -> tuple[bool, Ranking | None]:
    """Return whether AP and AUC are wanted, and which ranking metrics."""
    pairwise, ranks, count = request.parse_metrics()
    return pairwise, Ranking(ranks, count, request.filtered) if ranks else None


def _choose_visibility(request: EvaluateRequest, rule: VisibilityRule) -> VisibilityRule:
    return replace(rule, visible=request.visible or rule.visible)


def _evaluate_run(request: EvaluateRequest) -> list[Row]:
    choices, (pairwise, ranking) = request.list_choices(PUBLISHED_NEGATIVES), _make_ranking(request)
    folder = RunDirectory(Path(request.data))
    require_test_split(folder, "evaluate")
    warn_if_unfinished(folder)
    device = choose_device(request.device)
    if folder.task == "link":
        with process_group(device):
            run = open_run(folder, device, request.data_dir)
            about = {"dataset": run.dataset.name, "model": run.model, "seed": run.seed}
            about |= run.config.training_columns
            given, visibility = (run.scorer, run.stream), _choose_visibility(request, run.rule)
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
                        found = ranking.rank_events(*given, pairs, visibility, run.seed)
                        rows.append(about | ranking.build_row(found))
            return rows
    _check_node_request(request, ranking)
    fit = open_run(folder.path, device, request.data_dir, task="node").build_trainer()
    splits = tuple(dict.fromkeys(split for _, split, _ in choices))
    return evaluate_node_fit(fit, splits, load_calibration(fit.run))


def _check_node_request(request: EvaluateRequest, ranking: Ranking | None) -> None:
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
                f"{request.data} is a node classification run, for which `{name}` has no meaning; leave it out",
                code="option-of-link-task",
            )


def _evaluate_untrained(request: EvaluateRequest, progress: Progress) -> list[Row]:
    dataset = open_data(request.data, request.data_dir)
    model, settings = request.model, dict(request.settings)
    choices, (pairwise, ranking) = request.list_choices("random"), _make_ranking(request)
    split_rule = get_default_split(dataset, request.protocol)
    baselines = Baselines.from_dataset(dataset, _choose_visibility(request, STRICT_RULE), split_rule)
    activity = ActivityFactor.from_stream(baselines.stream) if request.activity else None
    choices = [choice for choice in choices if baselines.has_events(choice)]
    draws, rows = (None,) if request.seeds is None else tuple(request.seeds), []
    for choice in choices if pairwise else ():
        for seed in draws:
            with progress.stage(" ".join(choice)) as stage:
                options: dict[str, Any] = {"folder": request.store_negatives, "activity": activity}
                scored = baselines.evaluate(model, settings, choice, seed, **options, advance=stage.advance)
                rows.append(scored.about | scored.row(PAIR_METRICS) | _describe_draw(seed))
    if ranking is not None:
        ranking = ranking.with_board(dataset)
        for choice in {choice[1:]: choice for choice in choices}.values():
            for seed in draws if ranking.is_sampled else (None,):
                with progress.stage(" ".join(("ranks", *choice[1:]))) as stage:
                    drawn = replace(ranking, seed=seed)
                    found = baselines.rank(model, settings, choice, drawn, stage.advance)
                    rows.append(drawn.build_row(found) | _describe_draw(seed))
    given = split_rule.stamp | ({"settings": settings} if settings else {})
    return [row | given for row in rows]


def _describe_draw(seed: int | None) -> Row:
    """Return the field of a row whose negatives or candidates are not the published draw."""
    return {} if seed is None else {"drawn_with_seed": seed}


@dataclass(frozen=True, slots=True)
class MonitoringResult:
    """Figures on new events, the sentences on limits that were crossed, and what a training that mends it needs."""

    monitoring: Monitoring
    crossed: list[str]
    data: str  # name of the run's dataset
    can_start_from: bool  # whether a training can continue from the run

    @property
    def document(self) -> Document:
        """Figures by period, columns that moved, and what they say."""
        return build_monitoring_document(self.monitoring)


def run_monitoring(request: MonitorRequest, progress: Progress = SILENT) -> MonitoringResult:
    """Evaluate a link run on new events, by period."""
    lower, upper = request.lower, request.upper
    folder = RunDirectory(request.run)
    warn_if_unfinished(folder)
    predictor = Predictor.open(folder, request.device, request.data_dir, ReadOptions(**request.reading))
    found = monitor_run(predictor, request.events, request.period, progress)
    shares = found.total | {"lead": found.total["ap"] - found.total["rule_ap"]}
    figures = {name: shares[name] * (1 if name == "log_loss" else 100) for name in lower | upper}
    crossed = [
        f"{name} is {figures[name]:.4g}, {side} the limit of {limit:g}"
        for side, limits, sign in (("below", lower, 1), ("above", upper, -1))
        for name, limit in limits.items()
        if sign * figures[name] < sign * limit
    ]
    about = folder.config()["run"]
    return MonitoringResult(found, crossed, str(about["data"]), can_start_from=not about.get("blend_of"))


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
