"""The channel of categorical columns: an embedding per frequent value in training, one for others, one for missing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import TINY
from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import TypeColumn
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.nn.encodings import ChannelConfig, EventTypeChannel, assign_type_buckets
from dygmamba.nn.tokens import make_tokens
from raising import raises
from strategies import event_streams

VALUES = ("", "call", "mail", "visit", "gift", "note")
PAPER = ["node", "edge", "time", "cooccurrence"]
TABLES = ["concat", "add"]


def with_types(store, codes):
    """The stream with two categorical columns; the second one counts up."""
    row = torch.arange(len(store), dtype=torch.int32) % 3
    table = torch.stack([torch.tensor(codes, dtype=torch.int32), row], dim=1)
    categories = (Category("kind", VALUES), Category("turn", ("x", "y", "z")))
    return replace(
        store, features=FeatureTable(store.features.node, store.features.edge, table, (), categories)
    )


@st.composite
def typed_streams(draw, min_events=4):
    store = draw(event_streams(min_events=min_events, edge_dim=1))
    codes = draw(st.lists(st.integers(0, len(VALUES) - 1), min_size=len(store), max_size=len(store)))
    return with_types(store, codes)


def build(name, store, train=None, **more):
    torch.manual_seed(0)
    spec = MODELS[name]
    return spec.build(build_config(spec.config, TINY[name] | more), DatasetFacts.of(store, train)).eval()


def score(model, store, pairs):
    with torch.no_grad():
        return model(gather_view(Index(store), store.features, pairs, model.requests))


def every_pair(store, time):
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    return PairBatch.from_pairs(src, dst, torch.full((len(src),), time, dtype=torch.float64))


@given(typed_streams(min_events=2), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_token_has_the_embedding_of_its_values(store, values):
    """For all streams and numbers of values: bias plus the embedding of each column's value, by brute force."""
    facts = DatasetFacts.of(store).columns
    config = ChannelConfig(0, 1, 4, 3, types=facts.types, type_values=values)
    channel = EventTypeChannel(config)
    pairs = every_pair(store, float(store.time[-1]) + 1)
    request = NeighborRequest((5,))
    (recent,) = gather_view(Index(store), store.features, pairs, (request,))[request]
    tokens = make_tokens(recent)
    found = channel(tokens, store.features).detach()
    if not facts.types:
        assert found.shape == (*tokens.age.shape, 0)
        assert not list(channel.parameters())
        return
    tables = channel.weight.detach().split(channel.sizes)
    for row, place in torch.ones_like(tokens.age).nonzero().tolist():
        expected = channel.bias.detach().clone()
        if tokens.is_event[row, place]:
            for column, table in zip(facts.types, tables, strict=True):
                value = store.features.categories[column.index].values[
                    store.features.codes[tokens.event[row, place], column.index]
                ]
                frequent = [word for word in column.values if word][:values]
                at = frequent.index(value) if value in frequent else len(frequent) + (value == "")
                expected = expected + table[at]
        torch.testing.assert_close(found[row, place], expected)


def test_values_that_training_does_not_have_share_one_embedding():
    """Rare values, values first seen later and codes beyond the vocabulary are others; missing values are apart."""
    column = TypeColumn(0, "kind", (2, 0, 5, 3), ("mail", "", "note", "visit"))
    assert assign_type_buckets(column, 2).tolist() == [3, 2, 0, 2, 2, 1, 2]
    assert assign_type_buckets(column, 9).tolist() == [4, 3, 0, 2, 3, 1, 3]


def test_embeddings_of_unseen_values_start_at_zero():
    """A value that training never had adds nothing to a token."""
    column = TypeColumn(0, "kind", (0, 1), ("call", "mail"))
    channel = EventTypeChannel(ChannelConfig(0, 0, 4, 3, types=(column,), type_values=8))
    assert channel.sizes == [4]
    assert not channel.weight[2:].any()
    assert bool(channel.weight[:2].all())


@pytest.mark.parametrize("tables", TABLES)
@given(store=typed_streams(min_events=12))
@settings(max_examples=15, deadline=None)
def test_types_of_validation_and_test_decide_nothing(tables, store):
    """For all streams: a model built from training events is the same whatever the later types are."""
    train = torch.arange(len(store) // 2)
    codes = store.features.codes.clone()
    codes[len(train) :] = (codes[len(train) :] + 1) % torch.tensor([len(VALUES), 3])
    other = replace(store, features=replace(store.features, codes=codes.int()))
    channels = [*PAPER, "event-types"]
    first, second = (
        build("dyg-mamba-counts", one, train, channels=channels, tables=tables) for one in (store, other)
    )
    assert list(first.state_dict()) == list(second.state_dict())
    buffers = zip(first.named_buffers(), second.named_buffers(), strict=True)
    assert all(torch.equal(one, two) for (_, one), (_, two) in buffers)
    state = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in state)


@given(store=typed_streams(min_events=12))
@settings(max_examples=15, deadline=None)
def test_a_type_of_an_earlier_event_changes_a_score(store):
    """For all streams with two kinds: other types of all past events give another score to some pair."""
    model = build("dyg-mamba-counts", store)
    codes = torch.stack([(store.features.codes[:, 0] + 1) % len(VALUES), store.features.codes[:, 1]], dim=1)
    other = replace(store, features=replace(store.features, codes=codes))
    pairs = every_pair(store, float(store.time[-1]) + 1)
    if any(column.name == "kind" for column in DatasetFacts.of(store).columns.types):
        assert not torch.equal(score(model, store, pairs), score(model, other, pairs))


@given(store=event_streams(min_events=4, edge_dim=1))
@settings(max_examples=10, deadline=None)
def test_without_categorical_columns_the_channel_is_not_there(store):
    """For all streams without them: the parameters and scores of a model without the channel, bit for bit."""
    spec = MODELS["dyg-mamba-counts"]
    rest = [name for name in spec.config().channels if name != "event-types"]
    assert len(rest) == len(spec.config().channels) - 1
    first, second = build("dyg-mamba-counts", store), build("dyg-mamba-counts", store, channels=rest)
    assert list(first.state_dict()) == list(second.state_dict())
    pairs = every_pair(store, float(store.time[-1]) + 1)
    assert torch.equal(score(first, store, pairs), score(second, store, pairs))


def test_a_model_of_event_types_alone_needs_some():
    """The message names the channel; other channels need no categorical columns."""
    facts = DatasetFacts(num_nodes=3, node_dim=0, edge_dim=0)
    spec = MODELS["dyg-mamba-counts"]
    only = {"channels": ["event-types"], "pair_features": [], "tables": "concat"}
    config = build_config(spec.config, TINY["dyg-mamba-counts"] | only)
    with raises("no-event-types", ConfigError):
        spec.build(config, facts)


def test_the_papers_model_does_not_read_types_by_default():
    assert "event-types" not in MODELS["dyg-mamba"].config().channels
    assert "event-types" in MODELS["dyg-mamba-counts"].config().channels
