"""Extending a dataset keeps every event, and every existing node keeps its number."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

import dygmamba as dm
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import align_dataset, extend_dataset, next_instant
from numbering import number_nodes
from strategies import event_streams


def dataset(store, ids=None):
    return Dataset.from_events("stream", store, ids or NodeIds.identity(store.num_nodes))


def named(rows, bipartite):
    """A dataset of (source, destination, gap) rows as a reader creates it."""
    columns = ([pa.array([str(row[k]) for row in rows]).dictionary_encode()] for k in (0, 1))
    src, dst, ids = number_nodes(*columns, bipartite)
    time = torch.tensor([gap for *_, gap in rows]).double().cumsum(0)
    store = EventStore.from_columns(
        torch.from_numpy(src), torch.from_numpy(dst), time, num_nodes=len(ids), bipartite=bipartite
    )
    return Dataset.from_events("named", store, ids)


ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from([0.0, 1.0])), min_size=1, max_size=12
)


@given(
    store=event_streams(min_events=1, max_events=20, max_nodes=5, edge_dim=1),
    more=event_streams(min_events=1, max_events=20, max_nodes=8, edge_dim=1),
)
def test_merging_keeps_every_event_under_its_users_ids(store, more):
    """For all pairs of streams, the merged one holds the events of both by time, existing ones first in a tie."""
    features = FeatureTable(torch.ones(store.num_nodes, 1), store.features.edge)
    first = dataset(replace(store, features=features))
    second = dataset(more, NodeIds(pa.array([str(3 * k) for k in range(more.num_nodes)], pa.large_string())))
    merged = extend_dataset(first, second)

    def listed(part, rank):
        columns = (
            part.ids.to_user(column).cast(pa.large_string()).to_pylist()
            for column in (part.store.src.numpy(), part.store.dst.numpy())
        )
        edge = part.store.features.edge[:, 0].tolist()
        return list(zip(part.store.time.tolist(), [rank] * len(edge), *columns, edge, strict=True))

    expected = sorted(listed(first, 0) + listed(second, 1), key=lambda event: event[:2])
    assert [event[2:] for event in listed(merged, 0)] == [event[2:] for event in expected]
    known = merged.ids.to_node(first.ids.values, "src")
    assert merged.store.features.node.sum() == store.num_nodes
    assert merged.store.features.node[known].all()


def test_new_sources_and_destinations_of_a_bipartite_stream_stay_apart():
    """Source 'x' and destination 'x' are two nodes, before and after they are added; new ones come last."""
    features = FeatureTable(torch.arange(4.0)[:, None], torch.zeros(2, 0))
    columns = (torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1.0, 3.0]))
    store = EventStore.from_columns(
        *columns, bipartite=True, num_nodes=4, features=features, label=torch.ones(2)
    )
    first = Dataset.from_events("s", store, NodeIds(pa.array(["a", "b", "a", "c"], pa.large_string()), 2))
    later = EventStore.from_columns(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), bipartite=True)
    merged = extend_dataset(
        first, Dataset.from_events("m", later, NodeIds(pa.array(["x", "x"], pa.large_string()), 1))
    )
    assert merged.ids.values.to_pylist() == ["a", "b", "a", "c", "x", "x"]
    assert merged.ids.is_source.to_pylist() == [True, True, False, False, True, False]
    assert merged.ids.sources == 3
    assert merged.store.src.tolist() == [0, 4, 1]
    assert merged.store.dst.tolist() == [2, 5, 3]
    assert merged.store.features.node[:, 0].tolist() == [0, 1, 2, 3, 0, 0]
    assert merged.store.label is not None
    assert merged.store.label.tolist() == [1, 0, 1]


@given(rows=ROWS, more=ROWS, cut=st.integers(1, 12), bipartite=st.booleans())
def test_a_node_keeps_its_number_when_the_stream_is_extended(rows, more, cut, bipartite):
    """For all streams S, new events A and cuts c: ids(S) begin ids(S + A[:c]), which begin ids(S + A).

    Hence also ids(S + A[:c] + A[c:]) = ids(S + A): a node's number depends on earlier events alone.
    """
    old = named(rows, bipartite)
    late = [(a, b, gap + 100.0 * (row == 0)) for row, (a, b, gap) in enumerate(more)]
    part, whole = (extend_dataset(old, named(some, bipartite)) for some in (late[:cut], late))
    for fewer, ids in ((old.ids, part.ids), (part.ids, whole.ids)):
        assert ids.values[: len(fewer)].cast(pa.string()) == fewer.values.cast(pa.string())
        assert ids.is_source is None or ids.is_source[: len(fewer)] == fewer.is_source
    assert torch.equal(whole.store.src[: len(rows)], old.store.src)
    assert torch.equal(whole.store.dst[: len(rows)], old.store.dst)
    if cut < len(late):
        assert extend_dataset(part, named(late[cut:], bipartite)).ids == whole.ids


def test_the_next_instant_is_one_tick_later():
    """A whole number later for whole times, a microsecond for dates, the next float otherwise."""
    end = torch.tensor([0, 0])
    whole, mixed = (EventStore.from_columns(end, end, torch.tensor([first, 7.0])) for first in (0.0, 0.5))
    assert next_instant(whole, dated=False) == next_instant(whole, dated=True) == 8
    assert next_instant(mixed, dated=False) == np.nextafter(7.0, 8)
    assert next_instant(mixed, dated=True) == 7.000001


@given(old=ROWS, new=ROWS, bipartite=st.booleans())
def test_an_aligned_dataset_keeps_the_numbers_of_known_ids(old, new, bipartite):
    """For all pairs of streams: known ids keep their nodes, every event keeps its ids, and it is done only once."""
    first, second = named(old, bipartite), named(new, bipartite)
    aligned = align_dataset(second, first)
    assert aligned.ids.values[: len(first.ids)].equals(first.ids.values.cast(aligned.ids.values.type))
    for column in ("src", "dst"):
        before, after = (
            part.ids.to_user(getattr(part.store, column).numpy()).cast(pa.large_string())
            for part in (second, aligned)
        )
        assert before.equals(after)
        assert np.array_equal(aligned.ids.to_node(after, column), getattr(aligned.store, column).numpy())
    assert align_dataset(aligned, first) is aligned
    assert align_dataset(first, first) is first


def test_event_types_keep_their_codes():
    """The values of the earlier dataset come first, whatever the order in the new one."""
    first, second = (
        dm.read({"src": [1, 2], "dst": [3, 3], "time": [1, 2], "kind": kinds}, types="kind")
        for kinds in (["b", "c"], ["a", "c"])
    )
    aligned = align_dataset(second, first).store.features
    assert aligned.categories[0].values == ("b", "c", "a")
    assert aligned.codes.tolist() == [[2], [1]]
