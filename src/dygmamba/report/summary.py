"""The data of a run, in its user's own ids and dates: how much, from when to when, where it is silent, who returns."""

import numpy as np

from dygmamba.data.ids import NodeIds
from dygmamba.data.splits import Split
from dygmamba.data.statistics import BINS, Statistics
from dygmamba.data.store import Dataset
from dygmamba.report.calendar import Calendar
from dygmamba.report.figures import Histogram
from dygmamba.report.sheets import Cell, Grid, Section

BUSIEST, LONGEST, SHADED = 5, 3, 12


def data_section(dataset: Dataset, split: Split) -> Section:
    """What the model had to learn from, and what it was tested on."""
    calendar, facts = Calendar.of(dataset), dataset.describe()
    time = dataset.store.time.cpu().numpy()
    grids = (
        _facts(dataset, split, facts, calendar),
        _silences(time, calendar),
        _busiest(dataset, calendar),
    )
    text = (
        f"{facts.events:,} events among {facts.nodes:,} nodes, from {calendar.moment(time[0])} to "
        f"{calendar.moment(time[-1])}. The model learned from the first part, was chosen by the second and is judged "
        "by the last."
    )
    return Section("Data", text, grids, (_events_over_time(time, split, calendar),))


def node_names(ids: NodeIds, nodes: np.ndarray) -> list[str]:
    """The users' own ids; where sources and destinations are numbered apart, also which of them it is."""
    names = [str(name) for name in ids.to_user(nodes).to_pylist()]
    if ids.is_source is None:
        return names
    sides = ids.is_source.to_numpy(zero_copy_only=False)[nodes]
    return [
        f"{name} ({'source' if side else 'destination'})" for name, side in zip(names, sides, strict=True)
    ]


def _facts(dataset: Dataset, split: Split, facts: Statistics, calendar: Calendar) -> Grid:
    store, sources, test = dataset.store, dataset.ids.sources, split.test
    sides = "" if sources is None else f" ({sources:,} sources, {facts.nodes - sources:,} destinations)"
    new = split.touching_new_nodes(store, test)
    rows = {
        "nodes": f"{facts.nodes:,}{sides}",
        "events": f"{facts.events:,}; {len(split.train):,} to learn from, {len(split.val):,} to choose by, "
        f"{len(test):,} to test",
        "period": f"{calendar.moment(facts.start or 0)} to {calendar.moment(facts.end or 0)}, "
        f"{calendar.length(facts.duration or 0)}",
        "returning pairs": f"{_share(facts.repeats)} of the events repeat an earlier pair",
        "surprising pairs": f"{_share(facts.surprise)} of the pairs of the test period never met before it",
        "new nodes": f"{int(split.new_nodes.sum()):,} nodes are in no event that was learned from; "
        f"{_share(len(new) / max(len(test), 1))} of the test's events have one",
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
    return Grid("", "", ("", ""), cells)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _silences(time: np.ndarray, calendar: Calendar) -> Grid:
    """The longest stretches without any event."""
    gap = np.diff(time)
    order = np.argsort(-gap, kind="stable")[:LONGEST]
    rows = tuple(
        (
            Cell(calendar.moment(time[row])),
            Cell(calendar.moment(time[row + 1])),
            Cell(calendar.span(gap[row])),
        )
        for row in order
        if gap[row] > 0
    )
    return Grid("Longest silences", "Stretches without any event.", ("from", "to", "how long"), rows)


def _busiest(dataset: Dataset, calendar: Calendar) -> Grid:
    """The nodes with the most events, a self-loop counting once."""
    store = dataset.store
    src, dst, time = (column.cpu().numpy() for column in (store.src, store.dst, store.time))
    degree = np.bincount(src, minlength=store.num_nodes)
    degree += np.bincount(dst[src != dst], minlength=store.num_nodes)
    nodes = np.argsort(-degree, kind="stable")[:BUSIEST]
    rows = []
    for node, name in zip(nodes, node_names(dataset.ids, nodes), strict=True):
        own = time[(src == node) | (dst == node)]
        if len(own):
            ends = Cell(calendar.moment(own[0])), Cell(calendar.moment(own[-1]))
            rows.append((Cell(name), Cell(f"{degree[node]:,}"), *ends))
    return Grid("Busiest nodes", "By your own ids.", ("node", "events", "first", "last"), tuple(rows))


def _events_over_time(time: np.ndarray, split: Split, calendar: Calendar) -> Histogram:
    """Events per slice of the time, by what they were used for."""
    edges = np.linspace(time[0], time[-1], BINS + 1)
    if edges[0] == edges[-1]:
        edges = np.array([time[0], time[0] + 1.0])
    bounds = [int(part[0]) if len(part) else len(time) for part in (split.val, split.test)]
    parts = np.split(time, sorted(bounds))
    names = ("to learn from", "to choose by", "to test")
    counts = {
        name: tuple(np.histogram(part, edges)[0].tolist()) for name, part in zip(names, parts, strict=True)
    }
    gap, wide = np.diff(time), edges[1] - edges[0]
    silent = [row for row in np.argsort(-gap, kind="stable")[:SHADED] if gap[row] > wide]
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
