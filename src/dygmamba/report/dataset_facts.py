"""Facts about a dataset, as a document and in phrases; importable without torch, as the command line needs it."""

from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING

from dygmamba.data.events.times import format_date, format_duration
from dygmamba.report.document import Cell, Document, ReportTable, Section

if TYPE_CHECKING:
    from dygmamba.data.events.splits import SplitCounts
    from dygmamba.data.events.statistics import Quantiles, Statistics
    from dygmamba.data.storage.dataset import Dataset

MAX_COLUMNS = 8  # named


def build_dataset_document(
    dataset: "Dataset", facts: "Statistics", split: str, counts: "SplitCounts | None", *, unicode: bool = True
) -> Document:
    """Build the facts of a dataset, with its activity and its degrees as lines of blocks.

    Args:
        dataset: The dataset.
        facts: Its statistics.
        split: How it is split by default.
        counts: The counts of that split; None without events.
        unicode: Whether blocks may be other than ASCII.
    """
    from dygmamba.data.events.statistics import sparkline

    activity = sparkline(facts.activity, unicode=unicode)
    degrees = sparkline(facts.degree_histogram, unicode=unicode, log=True)
    lines = (f"events over time |{activity}|", f"nodes by degree  |{degrees}| 0, 1, 2-3, 4-7, ... (log)")
    tables = (build_facts_table(dataset, facts, f"by {split}", counts), build_quantile_table(dataset, facts))
    return Document(dataset.name, "", (Section(dataset.name, "\n".join(lines), tables),))


def build_facts_table(
    dataset: "Dataset", facts: "Statistics", split: str, counts: "SplitCounts | None"
) -> ReportTable:
    """Build a table with a line per fact; `split` may say how the events are split."""
    rows = {
        "nodes": describe_nodes(dataset).replace(" nodes", ""),
        "events": f"{facts.events:,}",
        "split": ": ".join(filter(None, (split, "" if counts is None else counts.describe_events()))),
        "new nodes": "-" if counts is None else counts.describe_new_nodes(),
        "period": describe_period(dataset),
        "unique times": f"{facts.unique_times:,}",
        "shared timestamps": f"{facts.ties:,} events have the same timestamp as another event",
        "repeated pairs": _format_share(facts.repeats, "of the events repeat an earlier pair"),
        "surprise": _format_share(
            facts.surprise, "of the pairs in the last 15 % of the events have no earlier event"
        ),
        "self-loops": f"{facts.self_loops:,}",
        "features": f"{facts.node_features} per node, {facts.edge_features} per event",
        "columns": describe_columns(dataset),
        "node features": describe_node_columns(dataset),
        "labels": _format_share(facts.label_share, "are not zero"),
        "digest": dataset.digest[:16],
    }
    cells = tuple((Cell(name), Cell(text, "words")) for name, text in rows.items() if text)
    return ReportTable("", "", ("", ""), cells)


def build_quantile_table(dataset: "Dataset", facts: "Statistics") -> ReportTable:
    """Build a table of the events per node, and of the gaps between two events of a node."""

    def format_cells(quantiles: "Quantiles | None", format_value: Callable[[float], str]) -> list[str]:
        return ["-"] * 6 if quantiles is None else [format_value(value) for value in astuple(quantiles)]

    format_gap = format_duration if dataset.is_dated else "{:.4g}".format
    rows = (
        ("events per node", *format_cells(facts.degree, "{:.4g}".format)),
        ("gap at a node", *format_cells(facts.gap, format_gap)),
    )
    columns = ("", "min", "25 %", "50 %", "75 %", "95 %", "max")
    return ReportTable.of_rows("Quantiles", "", columns, rows)


def _format_share(value: float | None, meaning: str) -> str:
    return "-" if value is None else f"{100 * value:.2f} % {meaning}"


def describe_nodes(dataset: "Dataset") -> str:
    """Return how many nodes there are, on both sides of a bipartite dataset."""
    nodes, sources = dataset.store.num_nodes, dataset.ids.sources
    sides = "" if sources is None else f" ({sources:,} sources, {nodes - sources:,} destinations)"
    return f"{nodes:,} nodes{sides}"


def describe_categories(dataset: "Dataset") -> list[str]:
    """Return each categorical column with its number of values."""
    return [
        f"{category.name} ({len(category.values):,} values)" for category in dataset.store.features.categories
    ]


def describe_columns(dataset: "Dataset") -> str:
    """Return the names of edge features and categorical columns."""
    features = dataset.store.features
    shown = [*features.edge_names[:MAX_COLUMNS], *(["..."] if features.edge.shape[1] > MAX_COLUMNS else [])]
    return ", ".join([*shown, *describe_categories(dataset)]) or "none"


def describe_node_columns(dataset: "Dataset") -> str:
    """Return the named node features, and whether they change; empty if there are none."""
    rows = dataset.store.features.node_rows
    if rows is None:
        return ""
    types = [f"{category.name} ({len(category.values):,} values)" for category in rows.categories]
    kind = "that never change" if rows.is_static else "that change over time"
    return f"{', '.join([*rows.names, *types])} ({len(rows):,} rows {kind})"


def describe_period(dataset: "Dataset") -> str:
    """Return the first and the last timestamp, as dates if they are dates."""
    if not len(dataset.store):
        return "no events"
    start, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if dataset.is_dated:
        return f"{format_date(start)} to {format_date(end)} ({format_duration(end - start)})"
    return f"{start:,.12g} to {end:,.12g} ({format_duration(end - start)} if in seconds)"
