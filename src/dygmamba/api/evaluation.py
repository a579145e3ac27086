"""Node properties: what simple forecasts reach on a scoreboard's labels.

How far a run is: finished, half-trained, or stopped before it had weights to keep; said before it is asked.

The published protocol on a trained run, or on a model that needs no training.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.api.processes import process_group
from dygmamba.api.validation import (
    Names,
    check_forecast,
    check_visible,
    is_property_evaluation,
    parse_metrics,
    parse_names,
)
from dygmamba.core.errors import ConfigError, DygWarning, EventError
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import load_leaderboard
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.evaluation import STRICT_RULE
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models import find_model
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.evaluation import Ranking, build_score_factor, evaluate_ranks
from dygmamba.runs.link_training import Choice, HeuristicEvaluator, evaluate_link_scorer
from dygmamba.runs.node_training import evaluate_node_fit, open_node_run
from dygmamba.runs.opening import choose_device, describe_training, open_run, read_split, read_task
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.link import SETTINGS, SPLITS
from dygmamba.tasks.metric_names import NDCG_METRIC
from dygmamba.tasks.node_properties import FORECASTS, NodePropertyLabels


def evaluate_node_properties(dataset: Dataset, model: str, split: Names = "test") -> list[dict[str, Any]]:
    """A row per period: the mean over its moments of the mean NDCG@10 of their nodes."""
    check_forecast(model)
    names: Sequence[str] = parse_names("split", split, SPLITS)
    board = load_leaderboard(dataset)
    asked = NodePropertyLabels.of(dataset.store, board)
    found = asked.judged(FORECASTS[model](asked.nodes, asked.kinds))
    rows = []
    for name in (name for name in names if found[name]):
        scores = [score for score, _ in found[name]]
        about = {
            "dataset": dataset.name,
            "model": model,
            "task": "property",
            "split": name,
            "board": board.name,
        }
        counts = {"moments": len(scores), "n": sum(count for _, count in found[name])}
        rows.append({**about, "visible": "strict", NDCG_METRIC: sum(scores) / len(scores), **counts})
    if not rows:
        raise EventError("no label is of the chosen splits; choose others")
    return rows


def warn_if_unfinished(path: Path) -> None:
    """Warn of a run that was stopped; refuse one that has no weights yet."""
    folder = RunDirectory(path)
    sections = folder.config()
    if folder.finished or "train" not in sections:
        return
    most, mend = sections["train"]["epochs"], f"go on with: `dygmamba.resume('{path}')`"
    if not folder.best.exists():
        raise ConfigError(f"{path} was stopped in its first epoch and has no weights yet; {mend}")
    done = len(folder.metrics())
    how = "trained, but not evaluated" if done >= most else f"stopped after {done} of at most {most} epochs"
    warnings.warn(DygWarning(f"{path} is not finished ({how}); {mend}"), stacklevel=3)


def require_test_split(path: Path, asked: str) -> None:
    """Refuse to judge a run that was trained on everything."""
    folder = RunDirectory(path)
    if not read_split(folder).numbers:
        of = folder.config()["run"].get("refit_of", "another run")
        raise ConfigError(
            f"{path} was trained on every event and has no test; {asked} {of}, whose settings it has"
        )


ALL_NEGATIVES = ("random", "historical", "inductive")
NO_EVENTS_MESSAGE = (
    "none of the chosen splits and settings has an event; choose others or use a longer stream"
)


def combine_choices(negatives: Names, split: Names, setting: Names) -> list[Choice]:
    """Every combination, in this order."""
    return [
        (strategy, name, kind)
        for strategy in parse_names("negatives", negatives, SAMPLERS)
        for name in parse_names("split", split, SPLITS)
        for kind in parse_names("setting", setting, SETTINGS)
    ]


def apply_visibility(rule: VisibilityRule, visible: str | None) -> VisibilityRule:
    """The rule, with what the user says of it."""
    check_visible(visible)
    return replace(rule, visible=visible or rule.visible)


def parse_ranking(
    metrics: Names | None, candidates: int | str | None, filtered: bool, seed: int | None = None
) -> tuple[bool, Ranking | None]:
    """Whether AP and AUC are asked for, and which ranks are; without metrics the first alone."""
    pairwise, ranks, count = parse_metrics(metrics, candidates, filtered)
    return pairwise, Ranking(ranks, count, filtered, seed) if ranks else None


def evaluate_run(
    path: Path,
    negatives: Names | None = None,
    split: Names = "test",
    setting: Names = SETTINGS,
    visible: str | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    asked: tuple[bool, Ranking | None] = (True, None),
    activity: bool = False,
) -> list[dict[str, Any]]:
    """A link run's rows, or a classifier's: that has a split and neither setting nor negatives."""
    chosen = combine_choices(negatives or ALL_NEGATIVES, split, setting)
    apply_visibility(STRICT_RULE, visible)
    pairwise, ranking = asked
    require_test_split(path, "evaluate")
    warn_if_unfinished(path)
    if read_task(path) == "link":
        with process_group(where := choose_device(device)):
            run = open_run(path, where, data_dir)
            about = {"dataset": run.dataset.name, "model": run.about["model"], "seed": run.seed}
            about |= describe_training(run.folder)
            put = (run.scorer, run.stream, about, chosen, apply_visibility(run.rule, visible))
            factored = build_score_factor(activity or run.activity, run.stream)
            rows = evaluate_link_scorer(*put, load_calibration(run.folder), factored) if pairwise else []
            return _require_rows(
                rows + ([] if ranking is None else evaluate_ranks(*put, ranking.on(run.dataset)))
            )
    if activity:
        raise ConfigError(f"{path} classifies nodes, which do not compete; leave out `activity`")
    if ranking is not None:
        raise ConfigError(f"{path} classifies nodes and ranks none; leave out `metrics`")
    if negatives is not None:
        raise ConfigError(f"{path} classifies nodes, for which there are no negatives; leave out `negatives`")
    if visible is not None:
        raise ConfigError(f"{path} classifies nodes by the rule it was trained under; leave out `visible`")
    names = tuple(dict.fromkeys(name for _, name, _ in chosen))
    fit = open_node_run(path, choose_device(device), data_dir)
    return _require_rows(evaluate_node_fit(fit, names, load_calibration(fit.run)))


class Meter:
    """Who follows each exam: nobody, unless a child says otherwise."""

    def evaluation_set(self, name: str) -> AbstractContextManager[Advance]:
        """Told of every question answered."""
        return nullcontext(unwatched)


def evaluate_untrained(
    dataset: Dataset,
    model: str,
    settings: dict[str, Any],
    chosen: list[Choice],
    *,
    seeds: Sequence[int | None] = (None,),
    visible: str | None = None,
    folder: Path | None = None,
    meter: Meter | None = None,
    asked: tuple[bool, Ranking | None] = (True, None),
    activity: bool = False,
) -> list[dict[str, Any]]:
    """The rows of a model without training, for each draw of the negatives or the candidates."""
    untrained = HeuristicEvaluator.of(dataset, apply_visibility(STRICT_RULE, visible), folder, activity)
    pairwise, ranking = asked
    ranking = None if ranking is None else ranking.on(dataset)
    watch, there = meter or Meter(), [one for one in chosen if untrained.has(one)]

    def rows() -> Iterator[dict[str, Any]]:
        for one in there if pairwise else ():
            for seed in seeds:
                with watch.evaluation_set(" ".join(one)) as advance:
                    yield untrained.row(model, settings, one, seed, advance)

    def ranks(ranking: Ranking) -> Iterator[dict[str, Any]]:
        for one in {one[1:]: one for one in there}.values():
            for seed in seeds if ranking.drawn else (None,):
                with watch.evaluation_set(" ".join(("ranks", *one[1:]))) as advance:
                    drawn = replace(ranking, seed=seed)
                    yield untrained.rank_row(model, settings, one, drawn, advance)

    return _require_rows([*rows(), *(() if ranking is None else ranks(ranking))])


def require_untrained(model: str, data: str) -> None:
    """Refuse a model that must be trained first."""
    if find_model(model).trainable:
        raise ConfigError(f"model '{model}' must be trained first: `dygmamba.train('{data}', '{model}')`")


def evaluate(
    data: Dataset | str,
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
    data_dir: Path | str | None = None,
    **settings: Any,
) -> pa.Table:
    """How good a model without training is (edgebank, recency, ...): a row per negatives, split and setting.

    `seeds` draw other negatives than the published ones. `metrics` such as "mrr,hits@10" rank each event's destination
    among `candidates`, a number, "all", or "board": those that the dataset's scoreboard lists, a row per split and
    setting; `filtered` leaves out those that are true too. "ndcg@10" judges the forecasts of node properties,
    "persistent" and "moving-average". `activity` adds the rate of the source to the score where negatives replace it,
    weighed on the validation period.

    >>> import dygmamba as dm
    >>> table = dm.evaluate(dm.generate(nodes=40, events=800, communities=4), "recency")
    >>> table.column_names[:3], table.num_rows
    (['dataset', 'model', 'seed'], 2)
    """
    name = data if isinstance(data, str) else data.name
    properties = is_property_evaluation(
        metrics, candidates=candidates, filtered=filtered, seeds=seeds, visible=visible
    )
    if not properties:
        require_untrained(model, name)
    dataset = (
        open_dataset(data, None if data_dir is None else Path(data_dir)) if isinstance(data, str) else data
    )
    if properties:
        return rows_to_table(evaluate_node_properties(dataset, model, split))
    drawn = (None,) if seeds is None else tuple(seeds)
    chosen, asked = combine_choices(negatives, split, setting), parse_ranking(metrics, candidates, filtered)
    return rows_to_table(
        evaluate_untrained(
            dataset, model, settings, chosen, seeds=drawn, visible=visible, asked=asked, activity=activity
        )
    )


def rows_to_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as a table with every column that any of them has, empty where a row has it not."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])


def _require_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows:
        raise EventError(NO_EVENTS_MESSAGE)
    return rows
