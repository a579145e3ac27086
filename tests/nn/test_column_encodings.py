"""Pair features from named columns in a network: node features, columns of earlier events, columns of the query."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import TINY, sample_store
from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.data.events.node_rows import NodeRows
from dygmamba.history.columns import find_query_columns
from dygmamba.history.index import Index, gather_view
from dygmamba.history.node_features import NodeFeatures
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.models.classifiers import NodeClassifier, SourceEmbedding
from dygmamba.models.column_requests import request_columns, request_node_features
from dygmamba.models.stored_settings import update_stored_settings
from dygmamba.nn.column_features import TableEncoding
from dygmamba.testing import sample_node_rows
from raising import raises

NAME = "dyg-mamba-counts"
OTHERS = ["walks", "history"]  # pair features of the default that need no named column


def build(store, train=None, name=NAME, **more):
    torch.manual_seed(0)
    spec = MODELS[name]
    return spec.build(build_config(spec.config, TINY[name] | more), DatasetFacts.of(store, train)).eval()


def score(model, store, pairs):
    with torch.no_grad():
        return model(gather_view(Index(store), store.features, pairs, model.requests))


def every_pair(store, time, row=0):
    """All pairs at a time, which carry the columns of an event."""
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    pairs = PairBatch.from_pairs(src, dst, torch.full((len(src),), time, dtype=torch.float64))
    return pairs.with_columns(QueryColumns.of_events(store.features, torch.full_like(src, row)))


def with_rows(store, rows):
    return replace(store, features=replace(store.features, node_rows=rows))


def add_rows(store, time, value=1e3):
    """The stream with one more row of every node at a time, with a value that is far off."""
    rows, count = store.features.node_rows, store.num_nodes
    more = (
        torch.arange(count),
        torch.full((count,), time, dtype=torch.float64),
        torch.full((count, 1), value),
        torch.ones(count, 1, dtype=torch.bool),
        torch.full((count, 1), 2, dtype=torch.int32),
    )
    both = (torch.cat(pair) for pair in zip(rows.columns, more, strict=True))
    return with_rows(store, NodeRows.from_unsorted(*both, names=rows.names, categories=rows.categories))


def without_rows(store):
    return with_rows(store, None)


@given(seed=st.integers(0, 50), at=st.integers(0, 59))
@settings(max_examples=20, deadline=None)
def test_a_row_counts_for_strictly_later_queries_only(seed, at):
    """For all streams and times: a row at the query time or later changes no score, one just before it changes some."""
    store = sample_store(seed=seed)
    model, time = build(store), float(store.time[at])
    pairs = every_pair(store, time)
    before = score(model, store, pairs)
    assert torch.equal(score(model, add_rows(store, time), pairs), before)
    assert torch.equal(score(model, add_rows(store, time + 1), pairs), before)
    assert not torch.equal(score(model, add_rows(store, time - 1), pairs), before)


@pytest.mark.parametrize("query_columns", [False, True])
def test_a_score_depends_on_the_columns_of_its_query_if_it_reads_them(query_columns):
    """Other columns of the queries give other scores with `query_columns`, and the same ones without."""
    store = sample_store()
    model, time = build(store, query_columns=query_columns), float(store.time[-1])
    one, other = (score(model, store, every_pair(store, time, row)) for row in (0, 1))
    assert torch.equal(one, other) is not query_columns


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_unit_of_a_node_feature_changes_no_score(scale):
    """An income in cents, or counted from another year, says what it says in euros."""
    store = sample_store()
    rows = store.features.node_rows
    value = torch.where(rows.known, scale * rows.value + 3 * scale, 0.0)
    other = with_rows(store, replace(rows, value=value))
    pairs = every_pair(store, float(store.time[-1]))
    expected = score(build(store), store, pairs)
    torch.testing.assert_close(score(build(other), other, pairs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-42, 1e36])
def test_columns_of_any_size_give_finite_scores(scale):
    """Amounts whose deviation is too small for 32 bits, and amounts near the largest number."""
    store = sample_store()
    small = replace(store, features=replace(store.features, edge=store.features.edge * scale))
    model = build(small, query_columns=True, channels=["time"], pair_features=[])
    usual, odd = (every_pair(one, float(store.time[-1])) for one in (small, store))
    for pairs in (usual, odd):
        assert bool(torch.isfinite(score(model, small, pairs)).all())


def test_rows_of_validation_and_test_decide_nothing():
    """A model built from training events is the same whatever the later rows are."""
    store = sample_store()
    train = torch.arange(30)
    other = add_rows(store, float(store.time[30]) + 1)
    first, second = (build(one, train) for one in (store, other))
    pairs = zip([*first.state_dict().items()], [*second.state_dict().items()], strict=True)
    assert all(one == two and torch.equal(x, y) for (one, x), (two, y) in pairs)
    buffers = zip(first.buffers(), second.buffers(), strict=True)
    assert all(torch.equal(one, two) for one, two in buffers)


@pytest.mark.parametrize(
    "more", [{}, {"pair_features": [*OTHERS, "node-features", "columns"], "channels": ["time"]}]
)
def test_without_columns_a_model_is_the_one_without_the_features(more):
    """Of a dataset without node rows and columns: the parameters and scores of before, bit for bit."""
    store = without_rows(sample_store(edge_dim=0))
    store = replace(store, features=replace(store.features, codes=None, categories=()))
    first, second = build(store, **more), build(store, **more | {"pair_features": OTHERS})
    assert list(first.state_dict()) == list(second.state_dict())
    assert first.requests == second.requests
    pairs = every_pair(store, float(store.time[-1]) + 1)
    assert torch.equal(score(first, store, pairs), score(second, store, pairs))


def test_query_columns_adds_the_pair_feature_columns():
    """`query_columns` adds the pair feature, whatever the list says; the default list has node features alone."""
    spec = MODELS[NAME].config
    assert spec().pair_features == (*OTHERS, "node-features")
    assert spec(query_columns=True).pair_features == (*OTHERS, "node-features", "columns")
    assert spec(query_columns=True, pair_features=("columns", "walks")).pair_features == ("columns", "walks")
    facts = DatasetFacts.of(sample_store())
    assert sum(isinstance(part, TableEncoding) for part in build(sample_store()).modules()) == 1
    read = find_query_columns(build(sample_store(), query_columns=True).requests)
    assert read == facts.columns.first(8, MAX_CODE_COLUMNS, 8)


def test_stored_runs_open_without_the_features():
    """Settings of a run that names its pair features, and of one that is older than the setting."""
    for stored in ({"pair_features": OTHERS}, {}):
        config = build_config(MODELS[NAME].config, update_stored_settings(NAME, stored))
        assert not {"node-features", "columns"} & set(config.pair_features)
        assert not config.query_columns


def test_only_a_link_head_looks_columns_up():
    """Embeddings and node heads read no pair features, so a query needs no columns for them."""
    store = sample_store()
    encoder = build(store, query_columns=True).encoder
    tables = (NodeFeatures, type(request_columns(DatasetFacts.of(store), True)[0]))
    wrappers = {kind: kind(encoder).requests for kind in (EncoderScorer, SourceEmbedding, NodeClassifier)}
    found = {
        kind: [type(one) for one in requests if isinstance(one, tables)]
        for kind, requests in wrappers.items()
    }
    assert found == {EncoderScorer: list(tables), SourceEmbedding: [], NodeClassifier: []}


def test_a_pair_feature_reads_the_names_of_its_request():
    """One unit per feature: values of a column in its mean and deviation, differences in its deviation."""
    store = sample_store()
    (request,) = request_node_features(DatasetFacts.of(store))
    part = TableEncoding(request, 4, 0.0)
    (level,) = request.columns.numeric
    units = {unit.name: (unit.mean, unit.deviation) for unit in request.units}
    assert list(units) == request.names
    assert units["level of the source"] == (level.mean, level.deviation)
    assert units["level of the source minus that of the destination"] == (0, level.deviation)
    assert units["level of the source is known"] == (0, 1)
    assert part.mean.shape == part.deviation.shape == (len(request.names),)
    (columns,) = request_columns(DatasetFacts.of(store), True)
    pairs = every_pair(store, float(store.time[-1]))
    view = gather_view(Index(store), store.features, pairs, (columns,))
    assert view[columns].shape == (len(pairs), len(columns.units))


def test_a_missing_column_of_a_query_is_an_error():
    store = sample_store()
    model, pairs = build(store, query_columns=True), every_pair(store, float(store.time[-1]))
    with raises("query-columns-missing", ConfigError):
        score(model, store, pairs.with_columns(None))


def test_nodes_without_rows_have_finite_scores():
    """A stream whose table has rows of one node only, and none of them before the first event."""
    store = sample_store()
    rows = sample_node_rows(2, store.time, torch.Generator().manual_seed(0))
    model = build(with_rows(store, rows))
    assert bool(
        torch.isfinite(score(model, with_rows(store, rows), every_pair(store, float(store.time[0])))).all()
    )
