"""Node features over time: the last row strictly before the query counts; equal to brute force."""

import math
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.data.events.node_rows import STATIC_TIME, NodeRows, select_node_columns
from dygmamba.history.index import Index, gather_view
from dygmamba.history.node_features import NodeFeatures
from dygmamba.history.view import PairBatch
from dygmamba.models.base import DatasetFacts
from raising import raises
from strategies import event_streams

CITIES = ("", "bonn", "köln", "mainz")
COLUMNS = ColumnFacts(
    (NumericColumn(0, "level", 0.25, 2.0),), (TypeColumn(0, "city", (2, 0, 1), ("köln", "", "bonn")),)
)
REQUEST = NodeFeatures(COLUMNS)
TIMES = [STATIC_TIME, 0.0, 1.0, 1.5, 2.0]


def make_rows(rows):
    """A table of (node, time, level or None, code)."""
    node, time, level, code = zip(*rows, strict=True) if rows else ((), (), (), ())
    return NodeRows.from_unsorted(
        torch.tensor(node, dtype=torch.int64),
        torch.tensor(time, dtype=torch.float64),
        torch.tensor([[value or 0.0] for value in level]).view(-1, 1),
        torch.tensor([[value is not None] for value in level], dtype=torch.bool).view(-1, 1),
        torch.tensor(code, dtype=torch.int32).view(-1, 1),
        names=("level",),
        categories=(Category("city", CITIES),),
    )


row_lists = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(TIMES),
        st.one_of(st.none(), st.floats(-9, 9, width=32)),
        st.integers(0, 3),
    ),
    max_size=20,
)


def last_before(rows, node, now):
    """By brute force: the last row of a node strictly before a time; of equal times the last one."""
    own = [row for row in rows if row[0] == node and row[1] < now]
    return max(reversed(own), key=lambda row: row[1]) if own else None


def by_name(rows, u, v, now):
    """Features of one pair by their names."""
    found = {"source": last_before(rows, u, now), "destination": last_before(rows, v, now)}
    result, level, city = {}, {}, {}
    for end, row in found.items():
        dated = row is not None and row[1] != STATIC_TIME
        result[f"age of the features of the {end}"] = math.log1p(now - row[1]) if dated else -1.0
        level[end] = None if row is None else row[2]
        city[end] = "" if row is None else CITIES[row[3]]
        result[f"level of the {end}"] = 0.25 if level[end] is None else level[end]
        result[f"level of the {end} is known"] = float(level[end] is not None)
        for word in ("köln", "bonn"):
            result[f"city of the {end} is {word!r}"] = float(city[end] == word)
        result[f"city of the {end} is any other value"] = float(city[end] == "mainz")
        result[f"city of the {end} is missing"] = float(city[end] == "")
    both = None not in level.values()
    difference = level["source"] - level["destination"] if both else 0.0
    result["level of the source minus that of the destination"] = difference
    same = city["source"] == city["destination"] != ""
    result["city of source and destination is the same"] = float(same)
    return result


@given(row_lists, st.sampled_from([0.0, 1.0, 1.25, 1.5, 2.0, 3.0]))
@settings(max_examples=80, deadline=None)
def test_features_equal_brute_force(rows, now):
    """For all tables and times, also times of rows: every feature of every pair, found by its name."""
    table = make_rows(rows)
    src, dst = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    time = torch.full((36,), now, dtype=torch.float64)
    found = REQUEST.compute_features(table, src, dst, time)
    assert len(set(REQUEST.names)) == len(REQUEST.names) == found.shape[1]
    for row, (u, v) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        expected = by_name(rows, u, v, now)
        assert set(expected) == set(REQUEST.names)
        torch.testing.assert_close(
            found[row], torch.tensor([expected[name] for name in REQUEST.names]), rtol=1e-5, atol=1e-5
        )


@given(row_lists, st.integers(0, 4), st.sampled_from([0.0, 1.0, 1.5, 2.0]))
@settings(max_examples=60, deadline=None)
def test_a_row_at_exactly_the_query_time_is_not_visible(rows, node, now):
    """For all tables: one more row at the query time, or later, changes no look-up."""
    nodes, time = torch.arange(6), torch.full((6,), now, dtype=torch.float64)
    before = make_rows(rows).find_last_before(nodes, time)
    expected = [last_before(rows, number, now) for number in range(6)]
    for later in (now, now + 1):
        table = make_rows([*rows, (node, later, 99.0, 3)])
        found = table.find_last_before(nodes, time)
        assert [int(row) >= 0 for row in found] == [row is not None for row in expected]
        assert [int(row) >= 0 for row in before] == [row is not None for row in expected]
        for row, own in zip(found.tolist(), expected, strict=True):
            if own is not None:
                assert (float(table.time[row]), int(table.codes[row, 0])) == (own[1], own[3])


@given(row_lists, st.permutations(range(5)))
@settings(max_examples=40, deadline=None)
def test_renumbered_nodes_keep_their_rows(rows, order):
    """For all tables and numberings: the look-up of a node under its new number finds the same values."""
    table, number = make_rows(rows), torch.tensor(order)
    other = table.renumber(number)
    node, time = torch.arange(5), torch.full((5,), 1.75, dtype=torch.float64)
    first, second = table.find_last_before(node, time), other.find_last_before(number, time)
    assert torch.equal(first >= 0, second >= 0)
    has = first >= 0
    assert torch.equal(table.value[first[has]], other.value[second[has]])
    assert torch.equal(table.codes[first[has]], other.codes[second[has]])


@given(row_lists, st.permutations(CITIES))
@settings(max_examples=40, deadline=None)
def test_codes_of_an_earlier_vocabulary_stand_for_the_same_values(rows, values):
    """For all tables: every row has its value under the new codes; known values keep their codes."""
    table = make_rows(rows)
    other = table.recode((Category("city", tuple(values[:2])),))
    assert other.categories[0].values[:2] == tuple(values[:2])
    words = [[one.categories[0].values[code] for code in one.codes[:, 0].tolist()] for one in (table, other)]
    assert words[0] == words[1]


@given(event_streams(min_events=2, max_nodes=5), row_lists)
@settings(max_examples=40, deadline=None)
def test_facts_are_those_of_rows_before_the_end_of_training(store, rows):
    """For all streams: rows at or after the last training event decide nothing about what a model reads."""
    rows = [(node % store.num_nodes, *rest) for node, *rest in rows]
    store = replace(store, features=replace(store.features, node_rows=make_rows(rows)))
    end = float(store.time[-1])
    later = [(0, end, 50.0, 3), (0, end + 1, -70.0, 2)]
    other = replace(store, features=replace(store.features, node_rows=make_rows([*rows, *later])))
    assert DatasetFacts.of(store).node_columns == DatasetFacts.of(other).node_columns


def test_columns_that_say_nothing_are_left_out():
    """Constants in training, and columns without a value there."""
    rows = make_rows([(0, 0.0, 1.0, 1), (1, 0.0, 1.0, 1), (0, 5.0, 2.0, 2)])
    assert not select_node_columns(rows, 5.0)
    facts = select_node_columns(rows, 6.0)
    assert [column.name for column in facts.numeric] == ["level"]
    assert facts.types[0].values == ("bonn", "köln")
    assert not select_node_columns(None, 5.0)


def test_requests_without_answers_are_errors():
    with raises("invalid-request", ConfigError):
        NodeFeatures(ColumnFacts())
    with raises("unsorted-node-rows", EventError):
        replace(make_rows([(0, 0.0, 1.0, 1), (1, 0.0, 1.0, 1)]), node=torch.tensor([1, 0]))
    with raises("column-length", EventError):
        replace(make_rows([(0, 0.0, 1.0, 1)]), node=torch.tensor([0, 1]))


@given(event_streams(min_events=1, max_nodes=3))
@settings(max_examples=10, deadline=None)
def test_a_stream_without_them_is_refused(store):
    """The message names the node features that the model reads."""
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time)
    with raises("node-features-missing", EventError) as caught:
        gather_view(Index(store), store.features, pairs, (REQUEST,))
    assert "level, city" in str(caught.value)


def test_rows_of_unknown_nodes_are_refused():
    with raises("node-out-of-range", EventError):
        replace(
            event_store(), features=replace(event_store().features, node_rows=make_rows([(4, 0.0, 1.0, 1)]))
        )


def event_store():
    from contract_cases import sample_store

    return replace(store := sample_store(nodes=3), features=replace(store.features, node_rows=None))
