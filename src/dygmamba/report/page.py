"""One self-contained page per run: results, training curves, learned forgetting, settings; it opens offline.

The page carries plotly's own script and forbids itself every request by a content security policy.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from math import nan
from pathlib import Path
from typing import Any

from dygmamba.data.statistics import as_duration
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, FileError
from dygmamba.explain.forgetting import Forgetting, load_forgetting
from dygmamba.files.writing import make_folder, write_text
from dygmamba.report.figures import DARK, Rows, forgetting_figures, training_figures

NAME, TEMPLATE = "report.html", "template.html"


@dataclass(frozen=True, slots=True)
class Card:
    """One figure at the head of the page."""

    name: str
    value: str
    note: str


def link_heading(row: dict[str, Any]) -> tuple[str, str]:
    """Which period and nodes a row of link prediction is about, and how it was asked."""
    nodes = "all nodes" if row["setting"] == "transductive" else "new nodes"
    title = f"{row['split']}, {nodes} ({row['setting']})"
    return title, f"{row['n']:,} events, {row['negatives']} negatives"


def node_heading(row: dict[str, Any]) -> tuple[str, str]:
    """Which period a row of node classification is about, and how rare its positives are."""
    return row["split"], f"{row['n']:,} events, {row['positives']:,} of them positive"


def link_cards(results: Rows, own: str) -> list[Card]:
    """Test AP with random negatives, beside the best of the others."""
    found = []
    for setting, name in (("transductive", "Test AP"), ("inductive", "Test AP, new nodes")):
        asked = ("test", setting, "random")
        rows = [row for row in results if (row["split"], row["setting"], row["negatives"]) == asked]
        mine = [row["ap"] for row in rows if row["model"] == own]
        others = [(row["ap"], row["model"]) for row in rows if row["model"] != own]
        if mine:
            score, model = max(others, default=(0.0, ""))
            note = f"best without training: {100 * score:.2f} ({model})" if others else "random negatives"
            found.append(Card(name, f"{100 * mine[0]:.2f}", note))
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


@dataclass(frozen=True, slots=True)
class Task:
    """What the page of a task shows: its metrics, how to read them, and what validation watched."""

    metrics: dict[str, str]
    reading: str
    watched: str
    caption: str
    heading: Callable[[dict[str, Any]], tuple[str, str]]
    cards: Callable[[Rows, str], list[Card]]


TASKS = {
    "link": Task(
        metrics={"ap": "AP", "auc": "AUC", "ap_pooled": "AP pooled", "auc_pooled": "AUC pooled"},
        reading="Each event against one negative pair of the same moment, in per cent. AP and AUC are means over "
        "batches of 200 events, the published way; “pooled” ranks all pairs at once. A star marks the best of its "
        "column.",
        watched="ap",
        caption="Validation, all nodes, random negatives; the best weights are kept.",
        heading=link_heading,
        cards=link_cards,
    ),
    "node": Task(
        metrics={"auc": "AUC", "ap": "AP"},
        reading="How well events of state 1 are ranked above the others, over the whole period at once, in per cent. "
        "Where positives are rare, AUC is high long before AP is.",
        watched="auc",
        caption="Validation, over the whole period; the best weights are kept.",
        heading=node_heading,
        cards=node_cards,
    ),
}


def write_report(run: RunFolder, out: Path | None = None) -> Path:
    """Build the page from what the run folder holds, and put it there (or at `out`), whole or not at all."""
    path = run.path / NAME if out is None else out
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file with `out`")
    page = render(run)
    make_folder(path.parent)
    write_text(path, page)
    return path


def render(run: RunFolder) -> str:
    """The page as text."""
    jinja2, go, script = packages()
    config, forgetting = run.config(), load_forgetting(run)
    try:
        epochs, results, about = run.metrics(), run.results(), config["run"]
        task = TASKS[run.task]
        figures = training_figures(go, epochs, task.watched) | forgetting_figures(go, forgetting)
        facts = {
            "title": f"{about['model']} on {about['data']}",
            "seed": about["seed"],
            "cards": [*task.cards(results, about["model"]), *run_cards(epochs, task.watched, forgetting)],
            "groups": result_groups(results, about["model"], task),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.path} holds a damaged file ({error!r}); restore it or train again") from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["duration"] = lambda seconds: as_duration(float(f"{seconds:.6g}"))
    template = environment.from_string(files("dygmamba.report").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        **facts,
        task=task,
        epochs=epochs,
        forgetting=forgetting,
        figures={name: json.loads(figure.to_json()) for name, figure in figures.items()},
        sections=config,
        folder=run.path.name,
        dark=DARK,
        script=script,
    )


def packages() -> tuple[Any, Any, str]:
    """Jinja2, plotly's figures and plotly's script; packages that only a report needs."""
    try:
        import jinja2
        from plotly import graph_objects
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            f"a report needs the package {error.name}; install it with: pip install plotly jinja2"
        ) from error
    return jinja2, graph_objects, get_plotlyjs()


def result_groups(results: Rows, own: str, task: Task) -> list[dict[str, Any]]:
    """The rows of each heading, the test first, the best figure of each column marked."""
    groups: dict[tuple[str, str], Rows] = {}
    for row in sorted(results, key=lambda row: row["split"] != "test"):
        groups.setdefault(task.heading(row), []).append(row)
    shown = []
    for (title, note), rows in groups.items():
        best = {key: max(row[key] for row in rows) if len(rows) > 1 else nan for key in task.metrics}
        cells = [
            {
                "model": row["model"],
                "own": row["model"] == own,
                "values": [(_percent(row[key]), row[key] == best[key]) for key in task.metrics],
            }
            for row in rows
        ]
        shown.append({"title": title, "note": note, "rows": cells})
    return shown


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f}"


def run_cards(epochs: Rows, watched: str, forgetting: Forgetting | None) -> list[Card]:
    """What was learned of forgetting, and how long it took."""
    found = []
    if forgetting and forgetting.closeness:
        close = forgetting.closeness
        note = f"correlation with the law; mean gap {close.mean_gap:.3f}"
        found.append(Card("Learned forgetting", f"{close.correlation:.3f}", note))
    if epochs:
        seconds = as_duration(sum(entry["seconds"] for entry in epochs))
        best = max(epochs, key=lambda entry: entry[f"val_{watched}"])["epoch"] + 1
        note = f"{seconds} in all; best validation {watched.upper()} in epoch {best}"
        found.append(Card("Epochs", str(len(epochs)), note))
    return found
