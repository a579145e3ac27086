"""Descriptive statistics of a stream, and sparklines of counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore

TEST_QUANTILE = 0.85  # the published protocol tests on events after this quantile of the timestamps
ACTIVITY_BINS = 60
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Five-number summary and the 95th percentile."""

    min: float
    q25: float
    q50: float
    q75: float
    q95: float
    max: float

    @staticmethod
    def from_values(values: np.ndarray) -> "Quantiles | None":
        """Compute the quantiles; None if there are no values."""
        if not len(values):
            return None
        return Quantiles(*(float(q) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 0.95, 1])))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a stream; shares are of all events, and None if there is nothing to count."""

    nodes: int
    events: int
    bipartite: bool
    start: float | None
    end: float | None
    unique_times: int
    ties: int  # events that share their timestamp with another
    repeats: float | None  # share of events whose directed pair occurred in an earlier row
    surprise: float | None  # share of the test period's distinct pairs that never occurred before it
    self_loops: int
    edge_features: int
    node_features: int
    label_share: float | None  # share of events with a non-zero label
    degree: Quantiles | None  # events per node; a self-loop counts once
    gap: Quantiles | None  # time since the previous event of the same node
    activity: tuple[int, ...]  # events in each of 60 equal time intervals
    degree_histogram: tuple[int, ...]  # nodes of degree 0, 1, 2-3, 4-7, 8-15, ...

    @property
    def duration(self) -> float | None:
        """Time from the first event to the last."""
        return None if self.start is None or self.end is None else self.end - self.start


def compute_statistics(store: EventStore) -> Statistics:
    """Compute the statistics of a stream in a few sorts of its columns.

    Surprise is |E_test - E_train| / |E_test| over distinct pairs (Poursafaei et al. 2022); the test period is
    everything after the 0.85 quantile of the timestamps.
    """
    store.check_unchanged()
    src, dst, time = store.src.cpu().numpy(), store.dst.cpu().numpy(), store.time.cpu().numpy()
    repeats, surprise = _compute_repeats_and_surprise(src * store.num_nodes + dst, time)
    degree = np.bincount(src, minlength=store.num_nodes)
    degree += np.bincount(dst[src != dst], minlength=store.num_nodes)
    runs = compute_run_lengths(time)
    label = None if store.label is None else store.label.cpu().numpy()
    statistics = Statistics(
        nodes=store.num_nodes,
        events=len(store),
        bipartite=store.bipartite,
        start=float(time[0]) if len(time) else None,
        end=float(time[-1]) if len(time) else None,
        unique_times=len(runs),
        ties=int(runs[runs > 1].sum()),
        repeats=repeats,
        surprise=surprise,
        self_loops=int((src == dst).sum()),
        edge_features=store.features.edge.shape[1],
        node_features=store.features.node.shape[1],
        label_share=None if label is None or not len(label) else float((label != 0).mean()),
        degree=Quantiles.from_values(degree),
        gap=Quantiles.from_values(_compute_node_gaps(src, dst, time)),
        activity=_count_activity(time),
        degree_histogram=tuple(np.bincount(np.frexp(degree)[1]).tolist()),
    )
    store.check_unchanged()  # nor was the file modified meanwhile
    return statistics


def compute_run_lengths(ordered: np.ndarray) -> np.ndarray:
    """Return how often each distinct value of a sorted column occurs."""
    if not len(ordered):
        return np.zeros(0, np.int64)
    return np.diff(np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])))


def _sort_unique(sortable: np.ndarray) -> np.ndarray:
    ordered = np.sort(sortable)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _compute_repeats_and_surprise(pairs: np.ndarray, time: np.ndarray) -> tuple[float | None, float | None]:
    """Compute repeats and surprise; the pairs before and after the start of the test period are sorted once each."""
    if not len(time):
        return None, None
    cut = np.searchsorted(time, np.quantile(time, TEST_QUANTILE), side="right")
    known, tested = _sort_unique(pairs[:cut]), _sort_unique(pairs[cut:])
    fresh = known[np.searchsorted(known, tested).clip(max=len(known) - 1)] != tested
    distinct = len(known) + int(fresh.sum())
    return 1 - distinct / len(pairs), float(fresh.mean()) if len(tested) else None


def _count_activity(time: np.ndarray) -> tuple[int, ...]:
    if not len(time):
        return ()
    edges = np.searchsorted(time, np.linspace(time[0], time[-1], ACTIVITY_BINS + 1)[1:-1])
    return tuple(np.diff(np.concatenate([[0], edges, [len(time)]])).tolist())


def _compute_node_gaps(src: np.ndarray, dst: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Compute the time gaps of each node by sorting (node, row) packed into one integer."""
    events = len(time)
    row = np.arange(events)
    proper = src != dst
    packed = np.concatenate([src * events + row, (dst * events + row)[proper]])
    packed.sort()
    node, row = np.divmod(packed, max(events, 1))
    when = time[row]
    return (when[1:] - when[:-1])[node[1:] == node[:-1]]


def compute_median_gap(node: Int64[Tensor, "k"], time: Float64[Tensor, "k"]) -> float:
    """Compute the median positive time gap between events of a node; 1 if no node has two distinct times."""
    order = torch.argsort(time, stable=True)
    order = order[torch.argsort(node[order], stable=True)]
    gap = time[order].diff()[node[order].diff() == 0]
    gap = gap[gap > 0]
    return float(gap.median()) if len(gap) else 1.0


def sparkline(counts: Sequence[int], *, unicode: bool = True, log: bool = False) -> str:
    """Draw one block per count, as high as its share of the largest; any count above zero is visible."""
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    heights = np.log1p(counts) if log else np.asarray(counts, dtype=np.float64)
    top = heights.max(initial=0.0)
    if top == 0:
        return blocks[0] * len(counts)
    return "".join(blocks[level] for level in np.ceil(heights / top * (len(blocks) - 1)).astype(int))
