"""The Triton kernel of the look-up against the definition, on a GPU or under Triton's interpreter."""

from typing import Any

import pytest
import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.index import Index
from dygmamba.ops.recent_neighbors import NeighborEntries, find_past, last_k_before
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")


def draw(nodes: int, events: int, queries: int, spread: int) -> tuple[NeighborEntries, Any, Any]:
    """A stream in which `spread` different times tie, and queries of every kind: no node, at, between and outside."""
    g = torch.Generator().manual_seed(nodes + events)
    src, dst = (torch.randint(nodes, (events,), generator=g) for _ in range(2))
    time = torch.randint(spread, (events,), generator=g).double().sort().values
    entries = Index(EventStore.from_columns(src, dst, time, num_nodes=nodes)).entries
    node = torch.randint(-1, nodes, (queries,), generator=g)
    when = torch.randint(-2, 2 * spread + 3, (queries,), generator=g).double() / 2
    return entries.to(DEVICE), node.to(DEVICE), when.to(DEVICE)


def assert_equal(entries: NeighborEntries, node: Any, when: Any, k: int) -> None:
    """Every column is the definition's."""
    from dygmamba.ops.recent_neighbors import triton as fused

    found = (*fused.last_k_before(entries, node, when, k), *fused.find_past(entries, node, when)[1:])
    expected = (
        *last_k_before.reference(entries, node, when, k),
        *find_past.reference(entries, node, when)[1:],
    )
    for ours, true in zip(found, expected, strict=True):
        assert ours.dtype == true.dtype
        assert torch.equal(ours, true)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("k", [1, 200])
def test_the_kernel_compiles_for_hopper(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels become machine code, GPU or no GPU."""
    from dygmamba.ops.recent_neighbors import triton as fused
    from dygmamba.ops.recent_neighbors import triton_kernels

    class Compiled:
        def __init__(self, name: str) -> None:
            self.kernel = getattr(triton_kernels, name)
            monkeypatch.setattr(fused, name, self)

        def __getitem__(self, grid: Any) -> Any:
            return lambda **arguments: compile_for_hopper(self.kernel, arguments, 4)

    for name in ("last_kernel", "past_kernel"):
        Compiled(name)
    entries, node, when = draw(3, 5, 4, 3)
    query = (entries.to("cpu"), node.cpu(), when.cpu())
    fused.last_k_before(*query, k)
    fused.find_past(*query)


@kernels_run
@pytest.mark.parametrize("k", [0, 1, 5, 130])
@pytest.mark.parametrize(("nodes", "events", "spread"), [(1, 1, 1), (4, 40, 7), (3, 150, 100), (5, 0, 2)])
def test_every_past_is_the_definitions(nodes: int, events: int, spread: int, k: int) -> None:
    """For all streams, queries and k, a stream without events included."""
    assert_equal(*draw(nodes, events, 40, spread), k)


@kernels_run
def test_no_queries_have_no_entries() -> None:
    """An empty batch is answered with tensors of its shapes."""
    assert_equal(*draw(3, 9, 0, 4), 5)


@pytest.mark.parametrize("k", [31, 1023])
class TestLarge:
    """Sizes for the compiler."""

    pytestmark = on_gpu

    def test_a_captured_graph_looks_up_what_it_is_asked_later(self, k: int) -> None:
        """Also of queries that are written after the capture."""
        entries, node, when = draw(1900, 59_835, 600, 50_000)
        assert_equal(entries, node, when, k)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = (*last_k_before(entries, node, when, k), *find_past(entries, node, when))
        node.copy_(node.flip(0))
        graph.replay()
        expected = last_k_before.reference(entries, node, when, k)
        for ours, true in zip(found, (*expected, *find_past.reference(entries, node, when)), strict=True):
            assert torch.equal(ours, true)
