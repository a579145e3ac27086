"""The published protocol on a trained run, or on a model that needs no training."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.data.library import open_dataset
from dygmamba.data.store import Dataset
from dygmamba.door.asking import Names, asked_metrics, asks_properties, check_visible
from dygmamba.door.asking import chosen_names as chosen_names
from dygmamba.door.properties import property_rows
from dygmamba.door.states import require_test, tell_unfinished
from dygmamba.door.together import joined
from dygmamba.engine.clock import Rule
from dygmamba.engine.examine import STRICT
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError, EventError
from dygmamba.models import find_model
from dygmamba.runs.calibrating import load_calibration
from dygmamba.runs.factoring import factoring
from dygmamba.runs.link import Choice, Heuristics, link_rows
from dygmamba.runs.node import node_rows, open_node_run
from dygmamba.runs.opening import choose_device, open_run, task_of, trained_against
from dygmamba.runs.ranking import Ranking, rank_rows
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.link import SETTINGS, SPLITS

EVERY = ("random", "historical", "inductive")
NOTHING = "none of the chosen splits and settings has an event; choose others or use a longer stream"


def choices(negatives: Names, split: Names, setting: Names) -> list[Choice]:
    """Every combination, in this order."""
    return [
        (strategy, name, kind)
        for strategy in chosen_names("negatives", negatives, SAMPLERS)
        for name in chosen_names("split", split, SPLITS)
        for kind in chosen_names("setting", setting, SETTINGS)
    ]


def ruled(rule: Rule, visible: str | None) -> Rule:
    """The rule, with what the user says of it."""
    check_visible(visible)
    return replace(rule, visible=visible or rule.visible)


def rankings(
    metrics: Names | None, candidates: int | str | None, filtered: bool, seed: int | None = None
) -> tuple[bool, Ranking | None]:
    """Whether AP and AUC are asked for, and which ranks are; without metrics the first alone."""
    pairwise, ranks, count = asked_metrics(metrics, candidates, filtered)
    return pairwise, Ranking(ranks, count, filtered, seed) if ranks else None


def run_rows(
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
    chosen = choices(negatives or EVERY, split, setting)
    ruled(STRICT, visible)
    pairwise, ranking = asked
    require_test(path, "evaluate")
    tell_unfinished(path)
    if task_of(path) == "link":
        with joined(where := choose_device(device)):
            run = open_run(path, where, data_dir)
            about = {"dataset": run.dataset.name, "model": run.about["model"], "seed": run.seed}
            about |= trained_against(run.folder)
            put = (run.scorer, run.stream, about, chosen, ruled(run.rule, visible))
            factored = factoring(activity or run.activity, run.stream)
            rows = link_rows(*put, load_calibration(run.folder), factored) if pairwise else []
            return _some(rows + ([] if ranking is None else rank_rows(*put, ranking.on(run.dataset))))
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
    return _some(node_rows(fit, names, load_calibration(fit.run)))


class Meter:
    """Who follows each exam: nobody, unless a child says otherwise."""

    def exam(self, name: str) -> AbstractContextManager[Advance]:
        """Told of every question answered."""
        return nullcontext(unwatched)


def untrained_rows(
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
    untrained = Heuristics.of(dataset, ruled(STRICT, visible), folder, activity)
    pairwise, ranking = asked
    ranking = None if ranking is None else ranking.on(dataset)
    watch, there = meter or Meter(), [one for one in chosen if untrained.has(one)]

    def rows() -> Iterator[dict[str, Any]]:
        for one in there if pairwise else ():
            for seed in seeds:
                with watch.exam(" ".join(one)) as advance:
                    yield untrained.row(model, settings, one, seed, advance)

    def ranks(ranking: Ranking) -> Iterator[dict[str, Any]]:
        for one in {one[1:]: one for one in there}.values():
            for seed in seeds if ranking.drawn else (None,):
                with watch.exam(" ".join(("ranks", *one[1:]))) as advance:
                    drawn = replace(ranking, seed=seed)
                    yield untrained.rank_row(model, settings, one, drawn, advance)

    return _some([*rows(), *(() if ranking is None else ranks(ranking))])


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
    properties = asks_properties(
        metrics, candidates=candidates, filtered=filtered, seeds=seeds, visible=visible
    )
    if not properties:
        require_untrained(model, name)
    dataset = (
        open_dataset(data, None if data_dir is None else Path(data_dir)) if isinstance(data, str) else data
    )
    if properties:
        return as_table(property_rows(dataset, model, split))
    drawn = (None,) if seeds is None else tuple(seeds)
    chosen, asked = choices(negatives, split, setting), rankings(metrics, candidates, filtered)
    return as_table(
        untrained_rows(
            dataset, model, settings, chosen, seeds=drawn, visible=visible, asked=asked, activity=activity
        )
    )


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as a table with every column that any of them has, empty where a row has it not."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])


def _some(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows:
        raise EventError(NOTHING)
    return rows
