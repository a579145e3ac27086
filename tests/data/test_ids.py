"""Properties of the mapping between the user's node ids and nodes 0..N-1."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import EventError, FileError, NotFoundError
from dygmamba.data.events.id_values import parse_id
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.readers import ReadOptions, read_in_memory
from dygmamba.data.readers.bad_rows import ColumnLocation
from dygmamba.data.readers.values import parse_ids
from dygmamba.runs.tree_scorer import NodeNumbers
from numbering import number_nodes
from raising import raises

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Z")), min_size=1, max_size=4)
numbers = st.integers(-(2**63), 2**63 - 1)
columns = st.one_of(*(st.lists(st.tuples(kind, kind), min_size=1, max_size=30) for kind in (words, numbers)))


def chunks(values: list, cuts: list[int]) -> list[pa.DictionaryArray]:
    """The column in chunks, each with its own dictionary, as the readers pass it on."""
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    kind = pa.int64() if isinstance(values[0], int) else pa.string()
    pieces = [values[a:b] for a, b in pairwise(edges)]
    return [pa.array(piece, kind).dictionary_encode() for piece in pieces]


@given(rows=columns, cuts=st.lists(st.integers(0, 30), max_size=3), bipartite=st.booleans())
def test_numbering_is_undone_by_to_user_and_repeated_by_to_node(rows, cuts, bipartite):
    """For all columns: to_user(number(x)) = x and to_node(x) = number(x), on both sides."""
    src, dst = [a for a, _ in rows], [b for _, b in rows]
    u, v, ids = number_nodes(chunks(src, cuts), chunks(dst, cuts), bipartite)
    shown = [str(x) for x in src + dst]
    assert [str(x) for x in ids.to_user(np.concatenate([u, v])).to_pylist()] == shown
    assert ids.to_node(src, "src").tolist() == u.tolist()
    assert ids.to_node(dst, "dst").tolist() == v.tolist()
    assert sorted({*u.tolist(), *v.tolist()}) == list(range(len(ids)))


@given(rows=columns, order=st.randoms(use_true_random=False), cuts=st.lists(st.integers(0, 30), max_size=3))
def test_numbering_depends_neither_on_row_order_nor_on_chunks(rows, order, cuts):
    """For all columns and permutations: the ids, hence every node's number, stay the same."""
    moved = rows.copy()
    order.shuffle(moved)
    plain, other = (
        number_nodes(chunks([a for a, _ in some], at), chunks([b for _, b in some], at), False)[2]
        for some, at in ((rows, []), (moved, cuts))
    )
    assert plain == other


def test_ids_that_are_numbered_already_keep_their_numbers():
    """Ids 0..N-1, written as text in any order, are their own nodes."""
    src, dst = ["3", "10", "0", "7", "8"], ["1", "2", "4", "5", "9"]
    u, v, ids = number_nodes(chunks([*src, "6"], []), chunks([*dst, "6"], []), False)
    assert u.tolist() == [3, 10, 0, 7, 8, 6]
    assert v.tolist() == [1, 2, 4, 5, 9, 6]
    assert ids == NodeIds.identity(11)


@pytest.mark.parametrize("odd", ["007", "9223372036854775808", "-0", "1.5", "x", "0x1f"])
def test_one_id_that_is_not_a_plain_integer_makes_all_ids_strings(odd):
    """No two different texts become one id: '007' is not 7, and 2^63 does not overflow."""
    _, _, ids = number_nodes(chunks(["7", odd], []), chunks(["1", "2"], []), False)
    assert ids.kind == "string"
    assert set(ids.values.to_pylist()) == {"1", "2", "7", odd}


def test_integers_written_with_a_point_are_those_integers():
    """978.0 and 978 are one id if all ids are integers; among strings '1.0' is a string. The same in queries."""
    u, v, ids = number_nodes(chunks(["978.0", "3"], []), chunks(["978", "5.0"], []), False)
    assert (u.tolist(), v.tolist()) == ([2, 0], [2, 1])
    assert ids.values.to_pylist() == [3, 5, 978]
    assert ids.to_node(["978.0", "5"], "src").tolist() == [2, 1]
    _, _, versions = number_nodes(chunks(["1.0"], []), chunks(["2.0-rc"], []), False)
    assert versions.values.to_pylist() == ["1.0", "2.0-rc"]


def test_bipartite_sides_are_separate_name_spaces():
    """Source 5 and destination 5 are two nodes, sources first; an id of the other side is unknown."""
    u, v, ids = number_nodes(chunks([5, 9, 5], []), chunks([5, 7, 7], []), True)
    assert (u.tolist(), v.tolist(), ids.sources) == ([0, 1, 0], [2, 3, 3], 2)
    assert ids.to_node([5, 7, 9], "src").tolist() == [0, -1, 1]
    assert ids.to_node([5, 7, 9], "dst").tolist() == [2, 3, -1]


def test_sources_may_stand_behind_destinations():
    """Which nodes are sources is a column; without it they are the first."""
    column = pa.array([True, False, True])
    ids = NodeIds(pa.array([5, 5, 7]), 2, column)
    assert ids.to_node([5, 7, 9], "src").tolist() == [0, 2, -1]
    assert ids.to_node([5, 7, 9], "dst").tolist() == [1, -1, -1]
    assert NodeIds(pa.array([5, 7, 5]), 2).is_source.to_pylist() == [True, True, False]
    for wrong in (NodeIds.identity(3, 1).is_source, column[:2]):
        with raises("source-count", EventError):
            NodeIds(pa.array([5, 5, 7]), 2, wrong)


def test_unknown_ids_are_minus_one_and_text_equals_number():
    """-1 for an unknown id; '12' and 12 mean the same node, '012' does not."""
    ids = NodeIds(pa.array([3, 12, -4]))
    assert ids.to_node(["12", "012", "x", None, "-4"], "src").tolist() == [1, -1, -1, -1, 2]
    assert ids.to_node(np.array([12, 5]), "dst").tolist() == [1, -1]
    assert ids.to_node([], "src").tolist() == []
    assert NodeIds(pa.array(["12", "a"], pa.large_string())).to_node([12, 1], "src").tolist() == [0, -1]


def test_impossible_ids_are_refused():
    """Repeated ids, odd types, too many sources and nodes beyond the end are errors."""
    with raises("node-ids-not-unique", EventError):
        NodeIds(pa.array([1, 1]))
    with raises("node-id-type", EventError):
        NodeIds(pa.array([1.5]))
    with raises("source-count", EventError):
        NodeIds.identity(2, 3)
    with raises("unknown-node", NotFoundError):
        NodeIds.identity(2).to_user([0, 2])
    assert len(NodeIds(pa.array([1, 1]), sources=1)) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((7, "7"), (-7, "-7"), (7.0, "7"), ("7", "7"), (" 7 ", "7"), ("007", "007"), ("7.6", "7.6")),
        *((2**63, str(2**63)), (2.0**62, str(2**62)), (np.int32(7), "7"), ("\xe4", "\xe4")),
        *(
            (value, None)
            for value in (7.6, 1e300, float("inf"), float("nan"), None, True, "", " ", "NaN", "null")
        ),
    ],
)
def test_every_reader_has_the_same_rule_of_ids(value, expected):
    """For all values: a scalar, a column of queries, a table of events and an exported model agree, or refuse it."""

    def import_one():
        events = {"src": [value], "dst": [value], "time": [0]}
        ids = read_in_memory(events, ReadOptions(skip_bad=False)).ids
        return str(ids.to_user([0])[0])

    def read_query():
        column = pa.array([str(value) if value == 2**63 else value])
        location = ColumnLocation("queries", "src")
        return str(parse_ids(column, location, any_id=False).require(location)[0])

    def read_exported():
        numbers = NodeNumbers(np.array([1]), None)
        numbers.add([value], [value])
        return list(numbers.tables[0])[-1]

    for read in (lambda: parse_id(value), read_query, import_one, read_exported):
        if expected is not None:
            assert read() == expected
            continue
        with pytest.raises((ValueError, FileError)):
            read()


@given(texts=st.lists(st.sampled_from(["1", "1.0", "2.0", "7", "7.0", "bob", "007"]), min_size=1, max_size=5))
def test_an_id_means_the_same_whatever_it_is_given_with(texts):
    """'7.0' is 7 among integers, also beside other texts, and a text among other ids; each id alone says the same."""
    for values in (["1", "2", "9"], ["1", "bob"], ["007", "7"]):
        ids = NodeIds(pa.array(values, pa.large_string()))
        assert ids.to_node(texts, "src").tolist() == [int(ids.to_node([text], "src")[0]) for text in texts]
    assert NodeIds(pa.array([1, 2])).to_node(["1.0", "bob"], "src").tolist() == [0, -1]
    assert NodeIds(pa.array(["1", "bob"], pa.large_string())).to_node(["1.0"], "src").tolist() == [-1]
