"""Neighbor look-up, co-occurrence and decayed counts against loops in Python, and the index of a large stream.

The references are what the published implementations do: a Python loop over the rows of a batch.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import (
    BenchmarkRow,
    log,
    measure_median_seconds,
    require,
    synchronize,
    track_peak_memory,
)
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairBatch
from dygmamba.ops.tokens import count_pair_tokens

QUERIES, LENGTH = 600, 512
LARGE_EVENTS, LARGE_NODES = 22_800_000, 638_000


def run(device: str) -> list[BenchmarkRow]:
    """Measure the four cases; each is checked against its reference before it is timed."""
    log("generating a stream of 60,000 events")
    store = generate_stream(GeneratorConfig(seed=1, nodes=400, events=60_000))
    index = Index(store)
    half = torch.arange(len(store) - QUERIES // 2, len(store))
    node = torch.cat([store.src[half], store.dst[half]])
    when = store.time[half].repeat(2)
    rows = [_measure_lookup(store, index, node, when, device)]
    rows.append(_measure_cooccurrence(index.recent(node, when, LENGTH), device))
    rows.append(_measure_decayed_counts(index, node, when, device))
    log(f"indexing {LARGE_EVENTS:,} events of {LARGE_NODES:,} nodes")
    return [*rows, _measure_large_index()]


def _measure_lookup(
    store: EventStore, index: Index, node: torch.Tensor, when: torch.Tensor, device: str
) -> BenchmarkRow:
    histories = _split_histories(index, store.num_nodes)
    nodes, times = node.numpy(), when.numpy()

    def check_rows(count: int) -> None:
        ours = index.recent(node[:count], when[:count], LENGTH)
        theirs = reference_lookup(histories, nodes[:count], times[:count], LENGTH)
        pairs = zip((ours.node, ours.event, ours.time), theirs, strict=True)
        same = all(np.array_equal(a, b) for a, b in pairs)
        require(same, "the neighbor look-up equals the look-up row by row")

    check_rows(QUERIES // 10)
    # Time the reference first: later, the allocator would reuse our blocks and its zeroed arrays would cost nothing.
    slow = measure_median_seconds(lambda: reference_lookup(histories, nodes, times, LENGTH), repeats=20)
    moved, moved_node, moved_when = index.to(device), node.to(device), when.to(device)
    row = _measure_fast(
        "neighbor look-up", lambda: moved.recent(moved_node, moved_when, LENGTH), slow, device, repeats=200
    )
    check_rows(QUERIES)
    return row


def _measure_cooccurrence(sequences: NeighborSequence, device: str) -> BenchmarkRow:
    """Measure 600 pairs of sequences of 512 tokens: each row is paired with another one."""
    other = torch.arange(QUERIES).roll(QUERIES // 2)
    left, right = sequences, sequences[other]
    rows = (left.node.numpy(), right.node.numpy(), left.length.numpy(), right.length.numpy())
    node, mask = torch.cat([left.node, right.node]), torch.cat([left.mask, right.mask])
    same = np.array_equal(count_pair_tokens(node, mask), np.concatenate(reference_cooccurrence(*rows)))
    require(same, "co-occurrence counts equal the counts row by row")
    slow = measure_median_seconds(lambda: reference_cooccurrence(*rows), repeats=3, warmup=0)
    moved = node.to(device), mask.to(device)
    return _measure_fast("co-occurrence", lambda: count_pair_tokens(*moved), slow, device, repeats=50)


def _measure_decayed_counts(
    index: Index, node: torch.Tensor, when: torch.Tensor, device: str
) -> BenchmarkRow:
    """Measure exact decayed counts of 600 nodes on nine time scales, each over its whole history."""
    histories = [times for _, _, times in _split_histories(index, index.store.num_nodes)]
    span = float(index.store.time[-1] - index.store.time[0])
    scales = np.geomspace(span / 1e4, span, 9)
    lists = index.counts(tuple(scales.tolist())).groups["node"]
    nodes, times = node.numpy(), when.numpy()
    queries = histories, nodes, times, scales
    require(
        np.allclose(
            lists.count_before(nodes, times), reference_decayed_counts(*queries), rtol=1e-9, atol=1e-12
        ),
        "decayed counts equal the sums over the history of each row",
    )
    slow = measure_median_seconds(lambda: reference_decayed_counts(*queries), repeats=5)
    # counts are looked up on the host, whatever the device of the model
    return _measure_fast(
        "decayed counts", lambda: lists.count_before(nodes, times), slow, device, repeats=200
    )


def _measure_fast(
    case: str, work: Callable[[], object], slow: float, device: str, repeats: int
) -> BenchmarkRow:
    """Measure peak and median time of a fast path whose reference takes `slow` seconds."""

    def fast() -> None:
        work()
        synchronize(device)

    with track_peak_memory() as peak:
        fast()
    return BenchmarkRow.from_times(case, measure_median_seconds(fast, repeats, warmup=10), slow, peak[0])


def reference_decayed_counts(
    histories: list, nodes: np.ndarray, times: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """Compute decayed counts with a search and a sum over the history for each row."""
    counts = np.zeros((len(nodes), len(scales)))
    for row, (node, query_time) in enumerate(zip(nodes, times, strict=True)):
        history = histories[node][: np.searchsorted(histories[node], query_time)]
        counts[row] = np.exp(-(query_time - history)[:, None] / scales).sum(axis=0)
    return counts


def _measure_large_index() -> BenchmarkRow:
    """Index a large stream and look up one batch; the reference is a stable sort of its nodes."""
    with track_peak_memory(interval=0.02) as peak:
        store = generate_stream(GeneratorConfig(seed=0, nodes=LARGE_NODES, events=LARGE_EVENTS))
        start = time.perf_counter()
        index = Index(store)
        last = store.select(torch.arange(len(store) - 200, len(store)))
        pairs = PairBatch.from_pairs(last.src, last.dst, last.time)
        request = NeighborRequest((LENGTH,))
        (recent,) = gather_view(index, store.features, pairs, (request,))[request]
        seconds = time.perf_counter() - start
    require(bool((recent.length > 0).any()), "the nodes of the batch have a history")
    start = time.perf_counter()
    torch.sort(torch.stack([store.src, store.dst], dim=1).flatten(), stable=True)
    sort = time.perf_counter() - start
    return BenchmarkRow("index 22.8M", seconds, sort, sort / seconds, peak[0])


def _split_histories(index: Index, num_nodes: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    entries, cut = index.entries, index.entries.start[1:num_nodes].tolist()
    columns = (np.split(column.numpy(), cut) for column in (entries.neighbor, entries.event, entries.time))
    return list(zip(*columns, strict=True))


def reference_lookup(histories: list, nodes: np.ndarray, times: np.ndarray, k: int):
    """Look up the latest `k` neighbors with a search and three padded copies for each row."""
    found = []
    for node, query_time in zip(nodes, times, strict=True):
        neighbor, event, event_time = histories[node]
        stop = np.searchsorted(event_time, query_time)
        found.append((neighbor[:stop], event[:stop], event_time[:stop]))
    recent = [tuple(column[-k:] for column in history) for history in found]
    ids, events = np.zeros((len(nodes), k), np.int64), np.zeros((len(nodes), k), np.int64)
    event_times = np.zeros((len(nodes), k))
    for row, (neighbor, event, event_time) in enumerate(recent):
        if len(neighbor):
            ids[row, : len(neighbor)] = neighbor
            events[row, : len(event)] = event
            event_times[row, : len(event_time)] = event_time
    return ids, events, event_times


def reference_cooccurrence(
    left: np.ndarray, right: np.ndarray, left_length: np.ndarray, right_length: np.ndarray
):
    """Count co-occurrences with two dictionaries per pair and a look-up in each per token."""
    outs = np.zeros((*left.shape, 2), np.int64), np.zeros((*right.shape, 2), np.int64)
    for row in range(len(left)):
        sides = (left[row, : left_length[row]], right[row, : right_length[row]])
        counts = [dict(zip(*np.unique(side, return_counts=True), strict=True)) for side in sides]
        for out, side in zip(outs, sides, strict=True):
            for column, count in enumerate(counts):
                out[row, : len(side), column] = [count.get(token, 0) for token in side]
    return outs
