"""`dygmamba demo`: train on the built-in stream, compare, hold the learned forgetting against the true law."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, stdout, tell

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.explain.forgetting import Forgetting


def demo(
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 14,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train DyG-Mamba on a generated stream on the CPU and show what it learned, within two minutes."""
    from dygmamba.cli.watching import Bars
    from dygmamba.door.demo import demonstrate

    with Bars() as bars:
        found = demonstrate(out, seed, epochs, bars)
    if as_json:
        paths = {"run": str(found.run), "report": str(found.page)}
        emit_json({"results": found.rows, "forgetting": found.forgetting.to_json(), **paths})
        return
    stdout().print(table(found.rows))
    for line in (closeness(found.forgetting), f"report: {found.page}"):
        tell(line)


def table(rows: list[dict[str, Any]]) -> "Table":
    """One line per model and kind of nodes, in per cent."""
    from rich.table import Table

    from dygmamba.door.demo import HEURISTICS

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
