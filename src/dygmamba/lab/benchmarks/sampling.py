"""Looking into the past: ours against the per-row Python way, and a stream of 22.8 million events."""

import time
from collections.abc import Callable

import numpy as np
import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.lab.benchmarks.harness import BenchmarkRow, measure_median_seconds, require, track_peak_memory
from dygmamba.ops.cooccurrence import cooccurrence
from dygmamba.ops.decayed_counts import count_before
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch

QUERIES, LENGTH = 600, 512
LARGE_EVENTS, LARGE_NODES = 22_800_000, 638_000


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """The four cases; each is checked against its reference before it is timed."""
    say("generating a stream of 60,000 events")
    store = generate_stream(GeneratorConfig(seed=1, nodes=400, events=60_000))
    index = NeighborIndex.build(store)
    half = torch.arange(len(store) - QUERIES // 2, len(store))
    node = torch.cat([store.src[half], store.dst[half]])
    when = store.time[half].repeat(2)
    rows = [_measure_lookup(store, index, node, when, device)]
    rows.append(_measure_cooccurrence(index.recent(node, when, LENGTH), device))
    rows.append(_measure_decayed_counts(index, node, when, device))
    say(f"indexing {LARGE_EVENTS:,} events of {LARGE_NODES:,} nodes")
    return [*rows, _measure_large_index()]


def _measure_lookup(
    store: EventStore, index: NeighborIndex, node: torch.Tensor, when: torch.Tensor, device: str
) -> BenchmarkRow:
    histories = _split_histories(index, store.num_nodes)
    nodes, times = node.numpy(), when.numpy()

    def agree(count: int) -> None:
        ours = index.recent(node[:count], when[:count], LENGTH)
        theirs = reference_lookup(histories, nodes[:count], times[:count], LENGTH)
        pairs = zip((ours.node, ours.event, ours.time), theirs, strict=True)
        require(
            all(np.array_equal(a, b) for a, b in pairs), "the neighbour look-up equals the per-row look-up"
        )

    agree(QUERIES // 10)
    # the reference first: afterwards the allocator keeps our blocks, and its zeroed arrays would come for free
    slow = measure_median_seconds(lambda: reference_lookup(histories, nodes, times, LENGTH), repeats=20)
    moved, moved_node, moved_when = index.to(device), node.to(device), when.to(device)

    def fast() -> None:
        moved.recent(moved_node, moved_when, LENGTH)
        _wait(device)

    with track_peak_memory() as peak:
        fast()
    seconds = measure_median_seconds(fast, repeats=200, warmup=10)
    agree(QUERIES)
    return BenchmarkRow("neighbour look-up", seconds, slow, slow / seconds, peak[0])


def _measure_cooccurrence(found: NeighborSequence, device: str) -> BenchmarkRow:
    """600 pairs of two 512-token sequences: each looked-up row against another one."""
    turned = torch.arange(QUERIES).roll(QUERIES // 2)
    left, right = found, found[turned]
    rows = (left.node.numpy(), right.node.numpy(), left.length.numpy(), right.length.numpy())
    ours = cooccurrence(left.node, right.node, left.mask, right.mask)
    same = all(np.array_equal(a, b) for a, b in zip(ours, reference_cooccurrence(*rows), strict=True))
    require(same, "co-occurrence counts equal the per-row counts")
    slow = measure_median_seconds(lambda: reference_cooccurrence(*rows), repeats=3, warmup=0)
    moved = [x.to(device) for x in (left.node, right.node, left.mask, right.mask)]

    def fast() -> None:
        cooccurrence(*moved)
        _wait(device)

    with track_peak_memory() as peak:
        fast()
    seconds = measure_median_seconds(fast, repeats=50, warmup=5)
    return BenchmarkRow("co-occurrence", seconds, slow, slow / seconds, peak[0])


def _measure_decayed_counts(
    index: NeighborIndex, node: torch.Tensor, when: torch.Tensor, device: str
) -> BenchmarkRow:
    """Exact fading counts of 600 nodes on nine scales, each over all its events before."""
    histories = [stamp for _, _, stamp in _split_histories(index, index.edges.num_nodes)]
    span = float(index.edges.time[-1] - index.edges.time[0])
    scales = np.geomspace(span / 1e4, span, 9)
    grouped = index.counts(tuple(scales.tolist())).groups["node"]
    group = grouped.group(node)
    asked = histories, node.numpy(), when.numpy(), scales
    require(
        np.allclose(
            count_before(grouped.lists, group, when), reference_decayed_counts(*asked), rtol=1e-9, atol=1e-12
        ),
        "fading counts equal the sums over each row's history",
    )
    slow = measure_median_seconds(lambda: reference_decayed_counts(*asked), repeats=5)
    lists, moved_group, moved_when = grouped.lists.to(device), group.to(device), when.to(device)

    def fast() -> None:
        count_before(lists, moved_group, moved_when)
        _wait(device)

    with track_peak_memory() as peak:
        fast()
    seconds = measure_median_seconds(fast, repeats=200, warmup=10)
    return BenchmarkRow("fading counts", seconds, slow, slow / seconds, peak[0])


def reference_decayed_counts(
    histories: list, nodes: np.ndarray, times: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """The plain way: for each row a search, a cut and a sum over the past, in Python."""
    found = np.zeros((len(nodes), len(scales)))
    for row, (node, time_) in enumerate(zip(nodes, times, strict=True)):
        past = histories[node][: np.searchsorted(histories[node], time_)]
        found[row] = np.exp(-(time_ - past)[:, None] / scales).sum(axis=0)
    return found


def _measure_large_index() -> BenchmarkRow:
    """Index a large stream and answer its first batch; the reference is one stable sort of its keys."""
    with track_peak_memory(interval=0.02) as peak:
        store = generate_stream(GeneratorConfig(seed=0, nodes=LARGE_NODES, events=LARGE_EVENTS))
        start = time.perf_counter()
        index = NeighborIndex.build(store)
        last = store.select(torch.arange(len(store) - 200, len(store)))
        pairs = PairBatch.of(last.src, last.dst, last.time)
        view = gather_view(index, store.features, pairs, (NeighborRequest((LENGTH,)),))
        seconds = time.perf_counter() - start
    require(bool((view.neighbors[0][0].length > 0).any()), "the first batch of the large stream has a past")
    start = time.perf_counter()
    torch.sort(torch.stack([store.src, store.dst], dim=1).flatten(), stable=True)
    sort = time.perf_counter() - start
    return BenchmarkRow("index 22.8M", seconds, sort, sort / seconds, peak[0])


def _split_histories(index: NeighborIndex, num_nodes: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    entries, cut = index.entries, index.entries.start[1:num_nodes].tolist()
    columns = (np.split(column.numpy(), cut) for column in (entries.neighbor, entries.event, entries.time))
    return list(zip(*columns, strict=True))


def reference_lookup(histories: list, nodes: np.ndarray, times: np.ndarray, k: int):
    """The field's way: a search, a cut and three padded copies for each row, in Python."""
    found = []
    for node, time_ in zip(nodes, times, strict=True):
        neighbor, event, stamp = histories[node]
        stop = np.searchsorted(stamp, time_)
        found.append((neighbor[:stop], event[:stop], stamp[:stop]))
    cut = [tuple(column[-k:] for column in past) for past in found]
    ids, events = np.zeros((len(nodes), k), np.int64), np.zeros((len(nodes), k), np.int64)
    stamps = np.zeros((len(nodes), k))
    for row, (neighbor, event, stamp) in enumerate(cut):
        if len(neighbor):
            ids[row, : len(neighbor)] = neighbor
            events[row, : len(event)] = event
            stamps[row, : len(stamp)] = stamp
    return ids, events, stamps


def reference_cooccurrence(
    left: np.ndarray, right: np.ndarray, left_length: np.ndarray, right_length: np.ndarray
):
    """The field's way: two dictionaries per pair and one look-up in each per token, in Python."""
    outs = np.zeros((*left.shape, 2), np.int64), np.zeros((*right.shape, 2), np.int64)
    for row in range(len(left)):
        sides = (left[row, : left_length[row]], right[row, : right_length[row]])
        counts = [dict(zip(*np.unique(side, return_counts=True), strict=True)) for side in sides]
        for out, side in zip(outs, sides, strict=True):
            for column, count in enumerate(counts):
                out[row, : len(side), column] = [count.get(token, 0) for token in side]
    return outs


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
