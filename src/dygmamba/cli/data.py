"""`dygmamba data describe`: look at a dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # torch, pyarrow and rich tables wait until a command needs them
    from rich.table import Table

    from dygmamba.data.statistics import Quantiles, Statistics
    from dygmamba.data.store import Dataset

app = typer.Typer(
    help="Import, fetch, generate, describe and export streams of events.", no_args_is_help=True
)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the datasets; otherwise $DYGMAMBA_DATA, then the user's cache folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command("describe")
def describe(
    data: Annotated[str, typer.Argument(help="Name of a dataset, or its file.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show what a dataset holds."""
    from dataclasses import asdict

    from dygmamba.cli import early
    from dygmamba.cli.console import emit_json, stdout

    early.require_dataset(data, data_dir)

    from dygmamba.data.library import open_dataset
    from dygmamba.data.statistics import describe as measure
    from dygmamba.data.statistics import sparkline

    dataset = open_dataset(data, data_dir)
    facts = measure(dataset.store)
    if json:
        head = {"name": dataset.name, "digest": dataset.digest, "duration": facts.duration}
        emit_json(head | asdict(facts))
        return
    console = stdout()
    console.print(_facts_table(dataset, facts))
    console.print(_quantile_table(facts, len(dataset.store) > 0 and is_dated(dataset)))
    blocks = {"unicode": console.encoding.lower().startswith("utf")}
    activity = sparkline(facts.activity, **blocks)
    degrees = sparkline(facts.degree_histogram, log=True, **blocks)
    console.print(f" events over time |{activity}|")
    console.print(f" nodes by degree  |{degrees}| 0, 1, 2-3, 4-7, ... (log)")


def nodes_of(dataset: "Dataset") -> str:
    """How many nodes there are, and on which side."""
    nodes, sources = dataset.store.num_nodes, dataset.ids.sources
    sides = "" if sources is None else f" ({sources:,} sources, {nodes - sources:,} destinations)"
    return f"{nodes:,} nodes{sides}"


def is_dated(dataset: "Dataset") -> bool:
    """Whether the times are, or look like, seconds since 1970."""
    from dygmamba.data.statistics import looks_like_epoch

    time = dataset.store.time
    return bool(dataset.origin.time_origin) or looks_like_epoch(float(time[0]), float(time[-1]))


def period_of(dataset: "Dataset") -> str:
    """From when to when, in dates where the times are dates."""
    from dygmamba.data.statistics import as_date, as_duration

    if not len(dataset.store):
        return "no events"
    start, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if is_dated(dataset):
        return f"{as_date(start)} to {as_date(end)} ({as_duration(end - start)})"
    return f"{start:,.12g} to {end:,.12g} ({as_duration(end - start)} if in seconds)"


def _facts_table(dataset: "Dataset", facts: "Statistics") -> "Table":
    from rich.table import Table

    def share(value: float | None, meaning: str) -> str:
        return "-" if value is None else f"{100 * value:.2f} % {meaning}"

    table = Table(title=dataset.name, show_header=False, title_justify="left")
    rows = {
        "nodes": nodes_of(dataset).replace(" nodes", ""),
        "events": f"{facts.events:,}",
        "period": period_of(dataset),
        "unique times": f"{facts.unique_times:,}",
        "ties": f"{facts.ties:,} events share their time with another",
        "repeats": share(facts.repeats, "of the events repeat an earlier pair"),
        "surprise": share(facts.surprise, "of the pairs in the last 15 % of events are new"),
        "self-loops": f"{facts.self_loops:,}",
        "features": f"{facts.node_features} per node, {facts.edge_features} per event",
        "labels": share(facts.label_share, "are not zero"),
        "digest": dataset.digest[:16],
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _quantile_table(facts: "Statistics", dated: bool) -> "Table":
    from dataclasses import astuple

    from rich.table import Table

    from dygmamba.data.statistics import as_duration

    def cells(quantiles: "Quantiles | None", show: Callable[[float], str]) -> list[str]:
        return ["-"] * 6 if quantiles is None else [show(value) for value in astuple(quantiles)]

    def plain(value: float) -> str:
        return f"{value:.4g}"

    table = Table("", "min", "25 %", "50 %", "75 %", "95 %", "max")
    table.add_row("events per node", *cells(facts.degree, plain))
    table.add_row("gap at a node", *cells(facts.gap, as_duration if dated else plain))
    return table
