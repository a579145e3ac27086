"""A stream's times in its user's words: dates where they are dates, else the numbers they came as.

The data of a run, in its user's own ids and dates: how much, from when to when, where it is silent, who returns.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import Split
from dygmamba.data.events.statistics import (
    ACTIVITY_BINS,
    Statistics,
    format_duration,
    looks_like_epoch_seconds,
)
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.document import AxisKind, Cell, Histogram, ReportTable, Section
from dygmamba.report.svg import format_date, format_number


@dataclass(frozen=True, slots=True)
class TimeFormatter:
    """How moments and spans of a stream are written."""

    dated: bool

    @staticmethod
    def of(dataset: Dataset) -> "TimeFormatter":
        """By what is known of the source, and by what the numbers look like."""
        time = dataset.store.time
        known = bool(dataset.origin.time_origin)
        return TimeFormatter(
            known or (len(time) > 0 and looks_like_epoch_seconds(float(time[0]), float(time[-1])))
        )

    @property
    def kind(self) -> AxisKind:
        """Of an axis of moments."""
        return "date" if self.dated else "number"

    @property
    def axis(self) -> str:
        """The name and unit of an axis of moments."""
        return "date (UTC)" if self.dated else "time, in the unit of the data"

    def moment(self, time: Any) -> str:
        """A point in time, to the minute."""
        return format_date(float(time)) if self.dated else f"{time:,.10g}"

    def span(self, time: Any) -> str:
        """How long something takes, in units of a calendar or in the data's own."""
        return format_duration(float(time)) if self.dated else format_number(time)

    def length(self, time: Any) -> str:
        """The same, and of numbers whose unit nobody said what they are if in seconds."""
        return (
            self.span(time)
            if self.dated
            else f"{self.span(time)} ({format_duration(float(time))} if in seconds)"
        )


BUSIEST_COUNT, LONGEST_GAP_COUNT, MAX_SHADED_GAPS = 5, 3, 12


def build_dataset_section(dataset: Dataset, split: Split) -> Section:
    """What the model had to learn from, and what it was tested on."""
    calendar, facts = TimeFormatter.of(dataset), dataset.describe()
    time = dataset.store.time.cpu().numpy()
    tables = (
        _build_facts_table(dataset, split, facts, calendar),
        _build_gaps_table(time, calendar),
        _build_busiest_table(dataset, calendar),
    )
    text = (
        f"{facts.events:,} events among {facts.nodes:,} nodes, from {calendar.moment(time[0])} to "
        f"{calendar.moment(time[-1])}. The model learned from the first part, was chosen by the second and is judged "
        "by the last."
    )
    return Section("Data", text, tables, (_build_event_histogram(time, split, calendar),))


def format_node_names(ids: NodeIds, nodes: np.ndarray) -> list[str]:
    """The users' own ids; where sources and destinations are numbered apart, also which of them it is."""
    names = [str(name) for name in ids.to_user(nodes).to_pylist()]
    if ids.is_source is None:
        return names
    sides = ids.is_source.to_numpy(zero_copy_only=False)[nodes]
    return [
        f"{name} ({'source' if side else 'destination'})" for name, side in zip(names, sides, strict=True)
    ]


def _build_facts_table(
    dataset: Dataset, split: Split, facts: Statistics, calendar: TimeFormatter
) -> ReportTable:
    store, sources, test = dataset.store, dataset.ids.sources, split.test
    sides = "" if sources is None else f" ({sources:,} sources, {facts.nodes - sources:,} destinations)"
    new = split.touching_new_nodes(store, test)
    rows = {
        "nodes": f"{facts.nodes:,}{sides}",
        "events": f"{facts.events:,}; {len(split.train):,} to learn from, {len(split.val):,} to choose by, "
        f"{len(test):,} to test",
        "period": f"{calendar.moment(facts.start or 0)} to {calendar.moment(facts.end or 0)}, "
        f"{calendar.length(facts.duration or 0)}",
        "returning pairs": f"{_format_percent(facts.repeats)} of the events repeat an earlier pair",
        "surprising pairs": f"{_format_percent(facts.surprise)} of the pairs of the test period never met before it",
        "new nodes": f"{int(split.new_nodes.sum()):,} nodes are in no event that was learned from; "
        f"{_format_percent(len(new) / max(len(test), 1))} of the test's events have one",
        "ties": f"{facts.ties:,} events share their moment with another",
        "features": f"{facts.node_features} per node, {facts.edge_features} per event",
    }
    if facts.gap is not None:
        rows["waiting"] = (
            f"a node's next event comes within {calendar.span(facts.gap.q50)} half of the time, and within "
            f"{calendar.span(facts.gap.q95)} in 95 of 100 cases"
        )
    if facts.degree is not None:
        rows["activity"] = (
            f"half of the nodes have at most {facts.degree.q50:,.0f} events, one has {facts.degree.max:,.0f}"
        )
    cells = tuple((Cell(name), Cell(said, "words")) for name, said in rows.items())
    return ReportTable("", "", ("", ""), cells)


def _format_percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _build_gaps_table(time: np.ndarray, calendar: TimeFormatter) -> ReportTable:
    """The longest stretches without any event."""
    gap = np.diff(time)
    order = np.argsort(-gap, kind="stable")[:LONGEST_GAP_COUNT]
    rows = tuple(
        (
            Cell(calendar.moment(time[row])),
            Cell(calendar.moment(time[row + 1])),
            Cell(calendar.span(gap[row])),
        )
        for row in order
        if gap[row] > 0
    )
    return ReportTable("Longest silences", "Stretches without any event.", ("from", "to", "how long"), rows)


def _build_busiest_table(dataset: Dataset, calendar: TimeFormatter) -> ReportTable:
    """The nodes with the most events, a self-loop counting once."""
    store = dataset.store
    src, dst, time = (column.cpu().numpy() for column in (store.src, store.dst, store.time))
    degree = np.bincount(src, minlength=store.num_nodes)
    degree += np.bincount(dst[src != dst], minlength=store.num_nodes)
    nodes = np.argsort(-degree, kind="stable")[:BUSIEST_COUNT]
    rows = []
    for node, name in zip(nodes, format_node_names(dataset.ids, nodes), strict=True):
        own = time[(src == node) | (dst == node)]
        if len(own):
            ends = Cell(calendar.moment(own[0])), Cell(calendar.moment(own[-1]))
            rows.append((Cell(name), Cell(f"{degree[node]:,}"), *ends))
    return ReportTable("Busiest nodes", "By your own ids.", ("node", "events", "first", "last"), tuple(rows))


def _build_event_histogram(time: np.ndarray, split: Split, calendar: TimeFormatter) -> Histogram:
    """Events per slice of the time, by what they were used for."""
    edges = np.linspace(time[0], time[-1], ACTIVITY_BINS + 1)
    if edges[0] == edges[-1]:
        edges = np.array([time[0], time[0] + 1.0])
    bounds = [int(part[0]) if len(part) else len(time) for part in (split.val, split.test)]
    parts = np.split(time, sorted(bounds))
    names = ("to learn from", "to choose by", "to test")
    counts = {
        name: tuple(np.histogram(part, edges)[0].tolist()) for name, part in zip(names, parts, strict=True)
    }
    gap, wide = np.diff(time), edges[1] - edges[0]
    silent = [row for row in np.argsort(-gap, kind="stable")[:MAX_SHADED_GAPS] if gap[row] > wide]
    shaded = tuple(
        (float(time[row]), float(time[row + 1]), f"silent for {calendar.span(gap[row])}")
        for row in sorted(silent)
    )
    said = " Grey stretches are silent." if shaded else ""
    note = f"Events in each of {len(edges) - 1} slices of {calendar.span(wide)}, by what they were used for.{said}"
    places = tuple(float(edge) for edge in edges)
    return Histogram(
        "Events over time", calendar.axis, "events per slice", places, counts, calendar.kind, shaded, note
    )
