"""One self-contained page per run: results, training curves, learned forgetting, settings; it opens offline.

The page carries plotly's own script and forbids itself every request by a content security policy.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dygmamba.data.statistics import as_duration
from dygmamba.engine.runs import RunFolder, write_text
from dygmamba.errors import ConfigError, FileError
from dygmamba.figures import DARK, Rows, forgetting_figures, training_figures
from dygmamba.forgetting import Forgetting, load_forgetting

NAME, TEMPLATE = "report.html", "report_template.html"
METRICS = {"ap": "AP", "auc": "AUC", "ap_pooled": "AP pooled", "auc_pooled": "AUC pooled"}


@dataclass(frozen=True, slots=True)
class Card:
    """One figure at the head of the page."""

    name: str
    value: str
    note: str


def write_report(run: RunFolder, out: Path | None = None) -> Path:
    """Build the page from what the run folder holds, and put it there (or at `out`), whole or not at all."""
    path = run.path / NAME if out is None else out
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give --out the name of a file")
    page = render(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def render(run: RunFolder) -> str:
    """The page as text."""
    jinja2, go, script = packages()
    config, forgetting = run.config(), load_forgetting(run)
    try:
        epochs, results, about = run.metrics(), run.results(), config["run"]
        figures = training_figures(go, epochs) | forgetting_figures(go, forgetting)
        facts = {
            "title": f"{about['model']} on {about['data']}",
            "seed": about["seed"],
            "cards": cards(results, about["model"], epochs, forgetting),
            "groups": result_groups(results, about["model"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{run.path} holds a damaged file ({error!r}); restore it or train again") from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["duration"] = lambda seconds: as_duration(float(f"{seconds:.6g}"))
    template = environment.from_string(files("dygmamba").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        **facts,
        metrics=METRICS,
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
            f"a report needs the package {error.name}; pip install 'dyg-mamba[report]'"
        ) from error
    return jinja2, graph_objects, get_plotlyjs()


def result_groups(results: Rows, own: str) -> list[dict[str, Any]]:
    """The rows of each (split, setting, negatives), the test first, the best figure of each column marked."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in sorted(results, key=lambda row: row["split"] != "test"):
        groups.setdefault((row["split"], row["setting"], row["negatives"]), []).append(row)
    shown = []
    for (split, setting, negatives), rows in groups.items():
        best = {key: max(row[key] for row in rows) if len(rows) > 1 else None for key in METRICS}
        cells = [
            {
                "model": row["model"],
                "own": row["model"] == own,
                "values": [(f"{100 * row[key]:.2f}", row[key] == best[key]) for key in METRICS],
            }
            for row in rows
        ]
        title = f"{split}, {'all nodes' if setting == 'transductive' else 'new nodes'} ({setting})"
        shown.append({"title": title, "negatives": negatives, "events": f"{rows[0]['n']:,}", "rows": cells})
    return shown


def cards(results: Rows, own: str, epochs: Rows, forgetting: Forgetting | None) -> list[Card]:
    """The few figures to read first."""
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
    if forgetting and forgetting.closeness:
        close = forgetting.closeness
        note = f"correlation with the law; mean gap {close.mean_gap:.3f}"
        found.append(Card("Learned forgetting", f"{close.correlation:.3f}", note))
    if epochs:
        seconds = as_duration(sum(entry["seconds"] for entry in epochs))
        best = max(epochs, key=lambda entry: entry["val_ap"])["epoch"] + 1
        found.append(
            Card("Epochs", str(len(epochs)), f"{seconds} in all; best validation AP in epoch {best}")
        )
    return found
