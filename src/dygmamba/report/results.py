"""A run's results: in words, at the head of the page, as tables, and beside rules that need no training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dygmamba.report.curves import Rows
from dygmamba.report.figures import Bars
from dygmamba.report.sheets import Cell, Grid, Section

KINDS = {"transductive": "all nodes", "inductive": "new nodes"}


@dataclass(frozen=True, slots=True)
class Card:
    """One figure at the head of the page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Task:
    """What the page of a task shows: its metrics, how to read them, and what validation watched."""

    metrics: dict[str, str]
    reading: str
    watched: str
    caption: str
    heading: Callable[[dict[str, Any]], tuple[str, str]]
    cards: Callable[[Rows, str], list[Card]]
    words: Callable[[Rows, str], str]
    ranked: bool  # whether events are asked about beside pairs that were not


def link_heading(row: dict[str, Any]) -> tuple[str, str]:
    """Which period and nodes a row of link prediction is about, and how it was asked."""
    title = f"{row['split']}, {KINDS[row['setting']]} ({row['setting']})"
    against = f"{row['negatives']} negatives" if "negatives" in row else f"{row.get('candidates')} candidates"
    return title, f"{row['n']:,} events, {against}"


def node_heading(row: dict[str, Any]) -> tuple[str, str]:
    """Which period a row of node classification is about, and how rare its positives are."""
    return row["split"], f"{row['n']:,} events, {row['positives']:,} of them positive"


def link_cards(results: Rows, own: str) -> list[Card]:
    """Test AP with random negatives, beside the best of the others."""
    found = []
    for setting, name in (("transductive", "Test AP"), ("inductive", "Test AP, new nodes")):
        scores = _tested(results, setting)
        others = {model: ap for model, ap in scores.items() if model != own}
        if own in scores:
            best = max(others, key=others.__getitem__, default="")
            note = f"best without training: {others[best]:.2f} ({best})" if others else "random negatives"
            found.append(Card(name, f"{scores[own]:.2f}", note))
    return found


def node_cards(results: Rows, own: str) -> list[Card]:
    """Test AUC, and the AP beside the share of positives, which a blind guess would have."""
    found = []
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            share = 100 * row["positives"] / row["n"]
            found += [
                Card("Test AUC", f"{100 * row['auc']:.2f}", node_heading(row)[1]),
                Card("Test AP", f"{100 * row['ap']:.2f}", f"a blind guess has {share:.2f}"),
            ]
    return found


def link_words(results: Rows, own: str) -> str:
    """The result as one would tell it."""
    for row in results:
        if (row["model"], *_asked(row)) == (own, "test", "transductive", "random") and row.get("auc_pooled"):
            return (
                f"Shown an event of the test and a random pair, the model gives the event the higher score "
                f"{100 * row['auc_pooled']:.0f} times in 100; a blind guess does so 50 times."
            )
    return ""


def node_words(results: Rows, own: str) -> str:
    """The result as one would tell it."""
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            return (
                f"Shown an event of state 1 and one of state 0, the model gives the first the higher score "
                f"{100 * row['auc']:.0f} times in 100; a blind guess does so 50 times."
            )
    return ""


TASKS = {
    "link": Task(
        metrics={"ap": "AP", "auc": "AUC", "ap_pooled": "AP pooled", "auc_pooled": "AUC pooled"},
        reading="Each event against one negative pair of the same moment, in per cent. AP and AUC are means over "
        "batches of 200 events, the published way; “pooled” ranks all pairs at once.",
        watched="ap",
        caption="All nodes; the weights of the best epoch are kept. Higher is better.",
        heading=link_heading,
        cards=link_cards,
        words=link_words,
        ranked=True,
    ),
    "node": Task(
        metrics={"auc": "AUC", "ap": "AP"},
        reading="How well events of state 1 are ranked above the others, over the whole period at once, in per cent. "
        "Where positives are rare, AUC is high long before AP is.",
        watched="auc",
        caption="Over the whole period; the weights of the best epoch are kept. Higher is better.",
        heading=node_heading,
        cards=node_cards,
        words=node_words,
        ranked=False,
    ),
}


def results_section(results: Rows, own: str, task: Task) -> Section:
    """Every row, the test first, the best figure of each column marked."""
    if not results:
        return Section("Results", "There are no results yet: the run is not finished.")
    groups: dict[tuple[str, str], Rows] = {}
    for row in sorted(results, key=lambda row: row["split"] != "test"):
        groups.setdefault(task.heading(row), []).append(row)
    grids = [_grid(title, note, rows, own, task) for (title, note), rows in groups.items()]
    best = "The best of a column is blue." if any(len(grid.rows) > 1 for grid in grids) else ""
    words = (task.words(results, own), task.reading, best)
    return Section("Results", " ".join(filter(None, words)), tuple(grids))


def rules_section(results: Rows, own: str, verdict: str = "") -> Section | None:
    """The model beside rules that need no training, and the verdict on it; nothing where none was asked."""
    values: dict[str, dict[str, float]] = {}
    for setting, name in KINDS.items():
        scores = _tested(results, setting)
        if own in scores and len(scores) > 1:
            values[name] = dict(sorted(scores.items(), key=lambda pair: -pair[1]))
    if not values:
        return None
    low = 50.0 if all(ap >= 50 for own_ in values.values() for ap in own_.values()) else 0.0
    note = "Test against random pairs; a blind guess has 50. The coloured bar is this run."
    chart = Bars("AP by model", "AP (%)", values, own, low, note)
    said = [_margin(kind, scores, own) for kind, scores in values.items()]
    said += [f"Verdict: {verdict.rstrip('.')}."] if verdict else []
    return Section("Against simple rules", " ".join(said), (), (chart,))


def _margin(kind: str, scores: dict[str, float], own: str) -> str:
    best, ap = max(((name, ap) for name, ap in scores.items() if name != own), key=lambda pair: pair[1])
    gap = scores[own] - ap
    side = "above" if gap >= 0 else "below"
    said = f"With {kind}, the model is {abs(gap):.2f} points {side} the best simple rule ({best})."
    return said if gap >= 0 else f"{said} The rule is cheaper and better there."


def _grid(title: str, note: str, rows: Rows, own: str, task: Task) -> Grid:
    ranks = sorted({key for row in rows for key in row if key == "mrr" or key.startswith("hits@")})
    named = {key: key.upper() if key == "mrr" else key.capitalize() for key in ranks}
    metrics = task.metrics | {
        key: named[key] for key in ranks if any(row.get(key) is not None for row in rows)
    }
    best = {key: max(row.get(key) or 0.0 for row in rows) for key in metrics}
    cells = []
    for row in rows:
        first = Cell(f"{row['model']}{' (this run)' if row['model'] == own and len(rows) > 1 else ''}")
        shown = (
            _cell(row, key, len(rows) > 1 and row.get(key) == best[key], key in ranks) for key in metrics
        )
        cells.append((first, *shown))
    return Grid(title, note, ("model", *metrics.values()), tuple(cells))


def _asked(row: dict[str, Any]) -> tuple[str | None, ...]:
    return row.get("split"), row.get("setting"), row.get("negatives")


def _tested(results: Rows, setting: str) -> dict[str, float]:
    """Test AP against random pairs by model, in per cent."""
    return {
        row["model"]: 100 * row["ap"]
        for row in results
        if _asked(row) == ("test", setting, "random") and row.get("ap") is not None
    }


def _cell(row: dict[str, Any], key: str, best: bool, optional: bool) -> Cell:
    """In per cent; a metric that does not exist is none, a rank that was not asked for is left empty."""
    if row.get(key) is None:
        return Cell("" if optional else "none")
    return Cell(f"{100 * row[key]:.2f}", "best" if best else "")
