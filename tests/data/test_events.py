"""EventStore checks its columns, sorts stably, and yields batches and devices as documented."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import EventError
from dygmamba.data.events import event_store
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.ops.rows import gather_rows
from raising import raises
from strategies import event_streams


def columns(*time, nodes=3):
    return torch.arange(len(time)) % nodes, (torch.arange(len(time)) + 1) % nodes, torch.tensor(time)


def test_a_late_event_is_refused_and_named():
    """Times must not decrease; the message names the event and the way out."""
    with raises("unsorted-events", EventError) as caught:
        EventStore.from_columns(*columns(1.0, 3.0, 2.0))
    assert "EventStore.from_unsorted" in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_time_that_is_not_finite_is_refused(bad):
    """NaN and infinite times are refused, naming the event."""
    with raises("time-not-finite", EventError):
        EventStore.from_columns(*columns(1.0, bad))


def test_an_id_out_of_range_is_refused():
    """Node ids lie in 0..num_nodes-1."""
    with raises("node-out-of-range", EventError):
        EventStore.from_columns(*columns(1.0, 2.0, 3.0), num_nodes=2)


def test_columns_of_other_lengths_are_refused():
    """Every column has one row per event."""
    with raises("column-length", EventError):
        EventStore.from_columns(
            *columns(1.0, 2.0), features=FeatureTable(torch.zeros(2, 0), torch.zeros(1, 4)), num_nodes=2
        )


def test_sorting_keeps_the_order_of_ties():
    """Stable: among equal times the file's order is the stream's order; features and labels move along."""
    src, dst = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0])
    edge = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    store = EventStore.from_unsorted(
        src,
        dst,
        torch.tensor([5.0, 1.0, 5.0, 1.0]),
        features=FeatureTable(torch.zeros(4, 0), edge),
        label=edge[:, 0],
    )
    assert store.src.tolist() == [1, 3, 0, 2]
    assert store.features.edge[:, 0].tolist() == [1, 3, 0, 2]
    assert store.label is not None
    assert store.label.tolist() == [1, 3, 0, 2]


@given(store=event_streams(edge_dim=2), size=st.integers(1, 17))
def test_batches_cover_the_events_once_in_order(store, size):
    """For all streams and sizes, the batches concatenated are the stream."""
    batches = list(store.batches(torch.arange(len(store)), size))
    assert all(len(batch) == size for batch in batches[:-1])
    for name in ("src", "dst", "time"):
        whole = torch.cat([getattr(store, name)[:0], *(getattr(batch, name) for batch in batches)])
        assert torch.equal(whole, getattr(store, name))


@pytest.mark.parametrize(("free", "stays"), [(10_000, False), (639, True)])
def test_edge_features_too_large_for_a_gpu_stay_pinned(monkeypatch, free, stays):
    """80 floats are moved if they take at most half of the free memory; otherwise they stay in pinned memory."""
    table = FeatureTable(torch.zeros(3, 2), torch.zeros(40, 2))
    moved = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: moved.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: moved.append(str(device)) or tensor)
    table.to("cuda")
    assert moved == ["cuda", "pinned" if stays else "cuda"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_edge_features_give_the_rows_of_moved_ones(monkeypatch):
    """On a GPU both ways to hold a table give the same rows."""
    table, index = FeatureTable(torch.zeros(3, 0), torch.randn(40, 5)), torch.randint(40, (6, 7)).cuda()
    moved = gather_rows(table.to("cuda").edge, index)
    monkeypatch.setattr(event_store, "MAX_GPU_SHARE", 0.0)
    pinned = table.to("cuda").edge
    assert pinned.device.type == "cpu"
    assert torch.equal(gather_rows(pinned, index), moved)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_codes_give_the_rows_of_moved_ones(monkeypatch):
    """The same of the codes of categorical columns, which are integers."""
    codes = torch.randint(9, (40, 2), dtype=torch.int32)
    table, index = (
        FeatureTable(torch.zeros(3, 0), torch.zeros(40, 0), codes),
        torch.randint(40, (6, 7)).cuda(),
    )
    moved = gather_rows(table.to("cuda").codes, index)
    monkeypatch.setattr(event_store, "MAX_GPU_SHARE", 0.0)
    pinned = table.to("cuda").codes
    assert pinned.device.type == "cpu"
    assert torch.equal(gather_rows(pinned, index), moved)
    assert torch.equal(moved.cpu(), codes[index.cpu()])
