"""Features from columns of events: equal to brute force, strictly earlier, the same in any batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.data.events.columns import rank_columns
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.history.block_lists import EventRows
from dygmamba.history.column_sums import ColumnLookup, ColumnSumTable
from dygmamba.history.columns import HISTORIES, ColumnFeatures, ColumnTable, ColumnValues
from dygmamba.history.index import Index, gather_view
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import PairBatch
from purchases import generate_purchases
from raising import raises
from strategies import event_streams

COLUMNS = ColumnFacts(
    (NumericColumn(1, "amount", 2.0, 4.0),), (TypeColumn(0, "kind", (2, 0), ("wire", "card")),)
)
SCALES = (3.0, 40.0)
REQUEST = ColumnFeatures(COLUMNS, SCALES, query=True)


def with_columns(store):
    row = torch.arange(len(store))
    edge = torch.stack([row.float(), torch.sin(3.0 * row).float() * 10], dim=1)
    codes = ((row * 7) % 5 % 4).to(torch.int32)[:, None]
    category = Category("kind", ("card", "cash", "wire", "gift"))
    table = FeatureTable(store.features.node, edge, codes, ("number", "amount"), (category,))
    return replace(store, features=table)


def features(store, pairs, request=REQUEST, events=None):
    index = Index(store, events)
    return gather_view(index, store.features, pairs, (request,))[request]


@given(event_streams(), st.data())
def test_table_on_the_device_equals_the_features(store, data):
    """Sorted keys find what hash maps find, to the bit: for all pairs, at times of events, between and after them."""
    store = with_columns(store)
    at = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(
        st.sampled_from([-0.25, 0.0, 7.0])
    )
    request = ColumnFeatures(ColumnFacts(COLUMNS.numeric, ()), SCALES)
    pairs, index = every_pair(store, at), Index(store)
    sums = ColumnLookup(request)
    view = gather_view(index, store.features, pairs, (request, sums))
    assert torch.equal(view[sums].compute_features(pairs.src, pairs.dst, pairs.time), view[request])


def test_a_constant_column_deviates_from_no_mean():
    """Exactly: a mean of equal values is that value, however it is rounded, so trees find nothing to split."""
    rng = np.random.default_rng(0)
    time, ends = np.sort(rng.uniform(0, 9e4, 300)), rng.integers(0, 3, (2, 300))
    rows = EventRows(*ends, time, 3, edge=np.full((300, 1), 0.1, np.float32))
    request = ColumnFeatures(
        ColumnFacts((NumericColumn(0, "amount", 0.37, 1.7),)), (7.0, 5e3, 1e5), query=True
    )
    queries = (rng.integers(0, 3, 50), rng.integers(0, 3, 50), np.linspace(0, 1e5, 50))
    host = ColumnTable(request)
    host.append_rows(rows)
    deviations = [number for number, name in enumerate(request.names) if "minus" in name]
    known = queries[2] > time[40]  # all histories have events
    same = ColumnValues(np.full((50, 1), 0.1, np.float32))
    found = host.compute_features(*queries, same)[known]
    assert not found[:, deviations].any()
    table = ColumnSumTable.build(rows, ColumnLookup(replace(request, query=False)))
    found = table.compute_features(*map(torch.from_numpy, queries))[known]
    deviations = [
        number for number, name in enumerate(replace(request, query=False).names) if "minus" in name
    ]
    assert not found[:, deviations].any()


def every_pair(store, time, columns=None):
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    given = QueryColumns(
        torch.zeros_like(src), torch.tensor([[0.0, 5.0]]), torch.tensor([[2]], dtype=torch.int32)
    )
    time = torch.full((len(src),), time, dtype=torch.float64)
    return PairBatch.from_pairs(src, dst, time).with_columns(columns or given)


def by_name(store, u, v, now):
    """Features of one pair by brute force over the list of events, by their names, for a query of 5.0 and 'wire'."""
    rows = [
        (a, b, t, x, {2: 0, 0: 1}.get(code, 2))
        for a, b, t, x, code in zip(
            store.src.tolist(), store.dst.tolist(), store.time.tolist(),
            store.features.edge[:, 1].double().tolist(), store.features.codes[:, 0].tolist(), strict=True,
        )
        if t < now
    ]  # fmt: skip
    own = {
        HISTORIES[0]: [row for row in rows if row[0] == u],
        HISTORIES[1]: [row for row in rows if row[1] == v],
        HISTORIES[2]: [row for row in rows if {row[0], row[1]} == {u, v}],
    }
    result, labels = {}, [f"fading over {scale:.4g}" for scale in SCALES]

    def weight(row, scale):
        return math.exp(-(now - row[2]) / scale)

    def mean(history, scale):
        total = sum(weight(row, scale) for row in own[history])
        return sum(weight(row, scale) * row[3] for row in own[history]) / total if total else 2.0

    def last(history):
        values = [row[3] for row in own[history] if row[2] == own[history][-1][2]]
        return sum(values) / len(values) if values else 2.0

    def count(history, bucket, scale):
        return sum(weight(row, scale) for row in own[history] if row[4] == bucket)

    for history in HISTORIES:
        for scale, label in zip(SCALES, labels, strict=True):
            total = sum(weight(row, scale) * row[3] for row in own[history])
            result[f"mean amount of the events {history}, {label}"] = mean(history, scale)
            result[f"sum of amount over the events {history}, {label}"] = math.copysign(
                math.log1p(abs(total)), total
            )
            result[f"amount of the query minus the mean of the events {history}, {label}"] = 5 - mean(
                history, scale
            )
            for bucket, value in enumerate(("kind 'wire'", "kind 'card'", "kind any other value")):
                result[f"events of {value} {history}, {label}"] = math.log1p(count(history, bucket, scale))
            result[f"number of events of the query's kind {history}, {label}"] = math.log1p(
                count(history, 0, scale)
            )
            every = sum(count(history, bucket, scale) for bucket in range(3))
            result[f"share of events of the query's kind {history}, {label}"] = math.log(
                (count(history, 0, scale) + 1e-3) / (every + 1e-2)
            )
        longest = SCALES[-1]
        # with weights up to the decay since the last event, by which they all shrink alike
        latest = own[history][-1][2] if own[history] else now
        weights = [math.exp(-(latest - row[2]) / longest) for row in own[history]]
        square = sum(
            w * (row[3] - mean(history, longest)) ** 2 for w, row in zip(weights, own[history], strict=True)
        )
        spread = math.sqrt((square + 16) / (sum(weights) + 1))
        result[f"last amount of the events {history}"] = last(history)
        result[f"last amount minus the mean of the events {history}"] = last(history) - mean(history, longest)
        result[f"spread of amount over the events {history}"] = spread
        result[f"amount of the query minus the last of the events {history}"] = 5 - last(history)
        result[f"amount of the query in deviations from the mean of the events {history}"] = (
            5 - mean(history, longest)
        ) / spread
    received = "the mean of those that the destination received"
    for scale, label in zip(SCALES, labels, strict=True):
        gap = mean(HISTORIES[0], scale) - mean(HISTORIES[1], scale)
        result[f"mean amount that the source sent minus {received}, {label}"] = gap
        totals = [sum(count(history, bucket, scale) for bucket in range(3)) for history in HISTORIES[:2]]
        same = sum(
            count(HISTORIES[0], bucket, scale) * count(HISTORIES[1], bucket, scale) for bucket in range(3)
        )
        result[f"agreement of kind that the source sent and the destination received, {label}"] = (
            same / math.prod(totals) if all(totals) else 0.0
        )
    result[f"last amount that the source sent minus {received}"] = last(HISTORIES[0]) - mean(
        HISTORIES[1], SCALES[-1]
    )
    return result | {"amount of the query": 5.0, "kind of the query, by rank of frequency": 0.0}


@settings(max_examples=10, deadline=None)
@given(store=event_streams(max_events=20, max_nodes=4), shift=st.sampled_from([0.0, 0.25]))
def test_features_equal_brute_force(store, shift):
    """For all streams and pairs: every feature is what its name says, over strictly earlier events."""
    store = with_columns(store)
    now = float(store.time[len(store) // 2]) + shift if len(store) else 0.0
    pairs = every_pair(store, now)
    table = features(store, pairs)
    assert len(set(REQUEST.names)) == len(REQUEST.names) == table.shape[1]
    for row, (u, v) in enumerate(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)):
        expected = by_name(store, u, v, now)
        assert dict(zip(REQUEST.names, table[row].tolist(), strict=True)) == pytest.approx(
            expected, rel=1e-4, abs=1e-4
        )


def test_a_query_without_columns_is_an_error_only_where_they_are_read():
    store = with_columns(EventStore.from_columns(torch.zeros(3), torch.ones(3), torch.arange(3.0)))
    pairs = every_pair(store, 9.0).with_columns(None)
    with raises("query-columns-missing", ConfigError):
        features(store, pairs)
    silent = replace(REQUEST, query=False)
    assert features(store, pairs, silent).shape[1] == len(silent.names) < len(REQUEST.names)
    unknown = QueryColumns(torch.zeros(4, dtype=torch.int64), torch.zeros(1, 2), torch.full((1, 1), -1).int())
    rank = REQUEST.names.index("kind of the query, by rank of frequency")
    assert features(store, pairs.with_columns(unknown))[:, rank].tolist() == [2.0] * 4
    with raises("invalid-request", ConfigError):
        ColumnFeatures(ColumnFacts(), SCALES)


def test_columns_are_ranked_by_training_events_only():
    """A column that the nodes explain comes before noise; constants and vectors are left out; the test is not read."""
    store = generate_purchases(customers=20, shops=30, events=400, categories=3).store
    noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    edge = torch.cat([noise, torch.ones(400, 1), store.features.edge], dim=1)
    table = replace(store.features, edge=edge, names=("noise", "one", "amount"))
    train, late = torch.arange(300), torch.arange(400)[:, None] >= 300
    facts = rank_columns(replace(store, features=table), train)
    assert [column.name for column in facts.numeric] == ["amount", "noise"]
    assert [(column.name, len(column.values)) for column in facts.types] == [("type", 3)]
    changed = replace(table, edge=torch.where(late, 1e6, edge), codes=torch.where(late, 0, table.codes))
    assert rank_columns(replace(store, features=changed), train) == facts
    wide = replace(table, edge=edge.repeat(1, 20), names=())
    assert rank_columns(replace(store, features=wide), train).numeric == ()
    assert facts.first(1, 1, 2) == ColumnFacts(
        facts.numeric[:1],
        (replace(facts.types[0], codes=facts.types[0].codes[:2], values=facts.types[0].values[:2]),),
    )
    assert not facts.first(0, 2, 0)
