"""`dygmamba demo`: train on the built-in stream, compare, hold the learned forgetting against the true law."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.data.store import Dataset
    from dygmamba.explain.forgetting import Forgetting

# a small model that learns the stream in about a minute on two cores; its channels are those the stream fills
SETTINGS: dict[str, Any] = {
    "length": 24,
    "channels": ["time", "cooccurrence"],
    "width": 16,
    "time_dim": 32,
    "blocks": 1,
    "states": 4,
    "out": 32,
    "dropout": 0.0,
    "lr": 0.005,
    "epochs": 14,
}
HEURISTICS = ("edgebank", "popularity", "recency")


def demo(
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = SETTINGS["epochs"],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train DyG-Mamba on a generated stream on the CPU and show what it learned, within two minutes."""
    import torch

    from dygmamba.cli.train import finish_run, write_page
    from dygmamba.data.library import generated_dataset
    from dygmamba.explain.forgetting import known_law, measure_forgetting, save_forgetting
    from dygmamba.runs.link import start_link_run

    dataset = generated_dataset()
    settings = SETTINGS | {"epochs": epochs}
    fit = start_link_run(dataset, "dyg-mamba", seed, settings, torch.device("cpu"), out)
    own = finish_run(fit, ["random"], tensorboard=False)
    rows = heuristic_rows(dataset) + [row for row in own if row["split"] == "test"]
    fit.run.write_results(rows)
    found = measure_forgetting(fit.scorer, fit.stream, known_law(dataset))
    save_forgetting(fit.run, found)
    page = write_page(fit.run)
    if as_json:
        paths = {"run": str(fit.run.path), "report": None if page is None else str(page)}
        emit_json({"results": rows, "forgetting": found.to_json(), **paths})
        return
    stdout().print(table(rows))
    for line in (closeness(found), *([f"report: {page}"] if page else [])):
        stdout().print(line, soft_wrap=True, markup=False, highlight=False)


def heuristic_rows(dataset: "Dataset") -> list[dict[str, Any]]:
    """The models without training on the same events and negatives."""
    from dygmamba.runs.link import Heuristics
    from dygmamba.tasks.link import SETTINGS as KINDS

    untrained = Heuristics.of(dataset)
    return [untrained.row(model, {}, ("random", "test", kind)) for model in HEURISTICS for kind in KINDS]


def table(rows: list[dict[str, Any]]) -> "Table":
    """One line per model and kind of nodes, in per cent."""
    from rich.table import Table

    shown = Table("nodes", "model", title="generated: test events against random negatives")
    for name in ("AP", "AUC", "AP pooled", "AUC pooled"):
        shown.add_column(name, justify="right")
    for kind, nodes in (("transductive", "all"), ("inductive", "new")):
        for row in (row for row in rows if row["setting"] == kind):
            cells = (f"{100 * row[key]:.2f}" for key in ("ap", "auc", "ap_pooled", "auc_pooled"))
            style = "" if row["model"] in HEURISTICS else "bold"
            shown.add_row(nodes, row["model"], *cells, style=style)
        shown.add_section()
    return shown


def closeness(found: "Forgetting") -> str:
    """How close the learned forgetting is to the law, in a sentence."""
    from dygmamba.data.statistics import as_duration

    close = found.closeness
    if close is None:
        return "the law behind the data is not known"
    said = (
        f"learned forgetting against the {found.law} law of the data: correlation {close.correlation:.3f}, "
        f"mean gap {close.mean_gap:.3f}, largest gap {close.max_gap:.3f}"
    )
    if close.half_life is None or close.true_half_life is None:
        return said
    halves = (as_duration(round(value)) for value in (close.half_life, close.true_half_life))
    return said + "; a meeting's pull halves after {}, by the law after {}".format(*halves)
