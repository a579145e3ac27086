"""The section on a run's dataset: sizes, period, longest gaps, most active nodes and events over time.

Nodes have the user's own ids, and times are dates where the dataset's times are dates (`TimeFormatter`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dygmamba.data.events.anomalies import describe_rare_destinations
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import Split
from dygmamba.data.events.statistics import ACTIVITY_BINS
from dygmamba.data.events.times import format_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.dataset_facts import build_facts_table, build_quantile_table
from dygmamba.report.document import AxisKind, Histogram, ReportTable, Section
from dygmamba.report.svg import format_date, format_number

ACTIVE_NODE_COUNT, LONGEST_GAP_COUNT, MAX_SHADED_GAPS = 5, 3, 12


@dataclass(frozen=True, slots=True)
class TimeFormatter:
    """Formats timestamps and durations of a dataset: as dates, or as plain numbers in the unit of the data."""

    is_dated: bool

    @property
    def axis_kind(self) -> AxisKind:
        return "date" if self.is_dated else "number"

    @property
    def axis_name(self) -> str:
        return "date (UTC)" if self.is_dated else "time, in the unit of the data"

    def format_time(self, time: Any) -> str:
        """Format a timestamp, dates to the minute."""
        return format_date(float(time)) if self.is_dated else f"{time:,.10g}"

    def format_gap(self, time: Any) -> str:
        """Format a time gap, such as `2 h 5 min`, or as a number in the unit of the data."""
        return format_duration(float(time)) if self.is_dated else format_number(time)


def build_dataset_section(dataset: Dataset, split: Split) -> Section:
    """Describe the events that the model was trained, selected and tested on."""
    times, facts = TimeFormatter(dataset.is_dated), dataset.describe()
    time = dataset.store.time.cpu().numpy()
    tables = (
        build_facts_table(dataset, facts, "", split.count(dataset.store)),
        build_quantile_table(dataset, facts),
        _build_gaps_table(time, times),
        _build_active_nodes_table(dataset, times),
    )
    text = (
        f"{facts.events:,} events among {facts.nodes:,} nodes, from {times.format_time(time[0])} to "
        f"{times.format_time(time[-1])}. The model was trained on the first part, the best epoch was selected on the "
        "second (validation), and the last part is the test. Given a source, the model predicts the destination."
    )
    sent, received = (np.bincount(column.cpu().numpy()) for column in (dataset.store.src, dataset.store.dst))
    if side := describe_rare_destinations(sent[sent > 0], received[received > 0]):
        text += f" {side[0].upper()}{side[1:]}."
    return Section("Data", text, tables, (_build_event_histogram(time, split, times),))


def format_node_names(ids: NodeIds, nodes: np.ndarray) -> list[str]:
    """Return the user's ids; if sources and destinations have separate ids, add which of them a node is."""
    names = [str(name) for name in ids.to_user(nodes).to_pylist()]
    if ids.is_source is None:
        return names
    sides = ids.is_source.to_numpy(zero_copy_only=False)[nodes]
    return [
        f"{name} ({'source' if side else 'destination'})" for name, side in zip(names, sides, strict=True)
    ]


def _build_gaps_table(time: np.ndarray, times: TimeFormatter) -> ReportTable:
    gap = np.diff(time)
    longest = np.argsort(-gap, kind="stable")[:LONGEST_GAP_COUNT]
    rows = (
        (times.format_time(time[row]), times.format_time(time[row + 1]), times.format_gap(gap[row]))
        for row in longest
        if gap[row] > 0
    )
    return ReportTable.of_rows("Longest gaps", "Periods without any event.", ("from", "to", "duration"), rows)


def _build_active_nodes_table(dataset: Dataset, times: TimeFormatter) -> ReportTable:
    store = dataset.store
    src, dst, time = (column.cpu().numpy() for column in (store.src, store.dst, store.time))
    degree = np.bincount(src, minlength=store.num_nodes)
    degree += np.bincount(dst[src != dst], minlength=store.num_nodes)  # a self-loop counts once
    nodes = np.argsort(-degree, kind="stable")[:ACTIVE_NODE_COUNT]
    rows = []
    for node, name in zip(nodes, format_node_names(dataset.ids, nodes), strict=True):
        own = time[(src == node) | (dst == node)]
        if len(own):
            rows.append((name, f"{degree[node]:,}", times.format_time(own[0]), times.format_time(own[-1])))
    columns = ("node", "events", "first event", "last event")
    return ReportTable.of_rows("Most active nodes", "With the ids of your data.", columns, rows)


def _build_event_histogram(time: np.ndarray, split: Split, times: TimeFormatter) -> Histogram:
    """Count events per time bin, separately for the train, validation and test period."""
    edges = np.linspace(time[0], time[-1], ACTIVITY_BINS + 1)
    if edges[0] == edges[-1]:  # all events have one timestamp
        edges = np.array([time[0], time[0] + 1.0])
    bounds = [int(part[0]) if len(part) else len(time) for part in (split.val, split.test)]
    parts = np.split(time, sorted(bounds))
    names = ("train", "validation", "test")
    counts = {
        name: tuple(np.histogram(part, edges)[0].tolist()) for name, part in zip(names, parts, strict=True)
    }
    gap, width = np.diff(time), edges[1] - edges[0]
    # a gap shorter than a bin cannot be seen in the chart
    long_gaps = [row for row in np.argsort(-gap, kind="stable")[:MAX_SHADED_GAPS] if gap[row] > width]
    shaded = tuple(
        (float(time[row]), float(time[row + 1]), f"no events for {times.format_gap(gap[row])}")
        for row in sorted(long_gaps)
    )
    gray = " Gray areas have no events." if shaded else ""
    note = f"Number of events in each of {len(edges) - 1} bins of {times.format_gap(width)}.{gray}"
    name, bins = "Events over time", tuple(float(edge) for edge in edges)
    return Histogram(name, times.axis_name, "events per bin", bins, counts, times.axis_kind, shaded, note)
