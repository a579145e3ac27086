"""FreeDyG: the filter, the counts and what each may see, by exact values and laws."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import linear

from dygmamba.config import build_config, find_preset, load_presets
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.freedyg import FrequencyBlock, FrequencyFilter, count_interactions
from dygmamba.models.graphmixer import MixerBlock
from dygmamba.nn.tokens import make_tokens
from dygmamba.runs.link_training import separate_settings

TINY = {"length": 3, "out": 8, "time_dim": 6, "count_dim": 4, "dropout": 0.0}


def config(**more):
    return build_config(MODELS["freedyg"].config, TINY | more)


def build(facts, **more):
    torch.manual_seed(0)
    return MODELS["freedyg"].build(config(**more), facts).eval()


def stream(src, dst, node_dim=0):
    """Events one apart, with edge features that tell them apart."""
    src, dst = torch.tensor(src), torch.tensor(dst)
    rng = torch.Generator().manual_seed(0)
    nodes = 1 + int(torch.maximum(src, dst).max())
    features = FeatureTable(
        torch.randn(nodes, node_dim, generator=rng), torch.randn(len(src), 2, generator=rng)
    )
    return EventStore.from_columns(
        src, dst, torch.arange(1.0, len(src) + 1), num_nodes=nodes, features=features
    )


def look(model, store, src, dst, time=99.0):
    pairs = PairBatch.from_pairs(torch.tensor([src]), torch.tensor([dst]), torch.tensor([time]).double())
    return gather_view(Index(store), store.features, pairs, model.requests)


def embed(model, store, src, dst, time=99.0):
    with torch.no_grad():
        return torch.cat(model.encoder(look(model, store, src, dst, time)))  # [2 d]


def changed(store, event):
    """The same stream with another edge feature of one event."""
    edge = store.features.edge.clone()
    edge[event] += 1
    return replace(store, features=FeatureTable(store.features.node, edge))


@given(slots=st.integers(1, 9), shift=st.integers(0, 8))
def test_the_filter_is_a_circular_convolution(slots, shift):
    """For all lengths: the spectrum of a unit impulse at place s turns the slots by s; s = 0 is the identity."""
    part = FrequencyFilter(slots, 2)
    angle = -2 * torch.pi * torch.arange(slots // 2 + 1) * shift / slots
    with torch.no_grad():
        part.weight.copy_(torch.stack([angle.cos(), angle.sin()], dim=-1)[:, None])
    x = torch.randn(3, slots, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(part(x), x.roll(shift, 1), rtol=1e-5, atol=1e-5)


def test_the_filter_of_four_slots_by_hand():
    """For x = (1, 2, 3, 4), weights 1, i, 0: the mean and a quarter turn of the first wave."""
    part = FrequencyFilter(4, 1)
    with torch.no_grad():
        part.weight.copy_(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]]))
    # X_0 / 4 = 2.5 and X_1 / 4 = (-1 + i) / 2, so i X_1 / 4 = (-1 - i) / 2 and its wave is (-1, 1, 1, -1)
    expected = [2.5 - 1, 2.5 + 1, 2.5 + 1, 2.5 - 1]
    torch.testing.assert_close(
        part(torch.tensor([1.0, 2, 3, 4]).view(1, 4, 1)).flatten(), torch.tensor(expected)
    )


def test_the_filter_keeps_32_bits_where_the_rest_has_16():
    """Under bfloat16 the transform of a bfloat16 input equals that of the same numbers in float32."""
    torch.manual_seed(0)
    part, x = FrequencyFilter(6, 2), torch.randn(2, 6, 2).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(part(x), part(x.float()), rtol=0, atol=0)


def test_empty_slots_stay_zero():
    """A block leaves nothing where no token stands, and something wherever one does."""
    torch.manual_seed(0)
    block = FrequencyBlock(config(length=5)).eval()
    taken = torch.arange(5) >= torch.tensor([[5], [3], [0]])
    x = torch.randn(3, 5, 8) * taken[..., None]
    mixed = block(x, taken)
    assert not mixed[~taken].any()
    assert mixed[taken].any(dim=-1).all()


def test_without_its_filter_a_block_is_graphmixers():
    """Where the filter passes nothing, a block equals an MLP-mixer's with its weights: no norm of its own between."""
    torch.manual_seed(0)
    block, mixer = FrequencyBlock(config(length=5)).eval(), MixerBlock(5, 8, 0.0)
    torch.nn.init.zeros_(block.filter.weight)
    mixer.load_state_dict({key: value for key, value in block.state_dict().items() if key != "filter.weight"})
    taken = torch.arange(5) >= torch.tensor([[0], [2], [5]])
    x = torch.randn(3, 5, 8) * taken[..., None]
    torch.testing.assert_close(block(x, taken), mixer(x, taken), rtol=0, atol=0)


def test_counts_on_a_stream_of_six_events():
    """S_0 = (1, 1, 2, 3), S_1 = (0, 0, 2, 2): u and v are counted across, 2 and 3 as they occur, padding nowhere."""
    store = stream([0, 0, 0, 1, 1, 0], [1, 1, 2, 2, 2, 3])
    model = build(DatasetFacts.of(store), length=5)
    (recent,) = look(model, store, 0, 1)[model.requests[0]]
    assert recent.node[:, :4].tolist() == [[1, 1, 2, 3], [0, 0, 2, 2]]
    expected = [
        [[2, 2], [2, 2], [1, 2], [1, 0], [0, 0]],  # 1 is v: its 2 in S_u stands for S_v too
        [[2, 2], [2, 2], [1, 2], [1, 2], [0, 0]],  # 0 is u: its 2 in S_v stands for S_u too
    ]
    assert count_interactions(recent).tolist() == expected


def test_a_node_that_met_itself_is_counted_as_it_occurs():
    """S_0 = (0, 0, 1), S_1 = (0): u stands twice in its own past and once in v's; only v counts across here."""
    store = stream([0, 0], [0, 1])
    model = build(DatasetFacts.of(store))
    (recent,) = look(model, store, 0, 1)[model.requests[0]]
    assert recent.node[0].tolist() == [0, 0, 1]
    assert count_interactions(recent).tolist() == [[[2, 1], [2, 1], [1, 1]], [[1, 1], [0, 0], [0, 0]]]


def test_one_map_per_channel_is_a_map_of_all_channels():
    """Mapped row by row and pair by pair and added, the channels give what they give side by side."""
    store = stream([0, 0, 0, 1], [1, 2, 1, 2], node_dim=3)
    model = build(DatasetFacts.of(store))
    view, channels = look(model, store, 0, 1), model.encoder.channels
    (recent,) = view[model.requests[0]]
    tokens, counts = make_tokens(recent, "absent"), count_interactions(recent)
    parts = [channel(tokens, view.features) for channel in channels.channels] + [channels.count(counts)]
    together = linear(torch.cat(parts, dim=-1), channels.mix.weight, channels.mix.bias)
    torch.testing.assert_close(channels.add_counts(channels.rows(tokens, view.features), counts), together)


def test_a_node_without_a_past_embeds_as_zeros():
    """Nothing seen, nothing said: exactly zero, before the first event and for a node that has none."""
    store = stream([0, 0], [1, 2])
    model = build(DatasetFacts.of(store))
    assert not embed(model, store, 0, 2, time=1.0).any()
    assert embed(model, store, 0, 2, time=1.5)[0].any()


def test_only_the_most_recent_events_are_seen():
    """With room for three, the fourth last event does not exist and the third last does."""
    store = stream([0, 0, 0, 0, 0], [1, 2, 3, 4, 5])
    model = build(DatasetFacts.of(store))
    source = embed(model, store, 0, 0)
    assert torch.equal(embed(model, changed(store, 1), 0, 0), source)
    assert not torch.allclose(embed(model, changed(store, 2), 0, 0), source)


def test_nodes_have_no_names():
    """Without node features a permutation of all ids leaves the embeddings alone."""
    store = stream([0, 0, 3, 1, 2, 0], [1, 2, 1, 2, 3, 3])
    model = build(DatasetFacts.of(store))
    name = torch.tensor([2, 3, 1, 0])
    renamed = replace(store, src=name[store.src], dst=name[store.dst])
    torch.testing.assert_close(embed(model, renamed, 2, 3), embed(model, store, 0, 1))


def test_swapping_a_pair_swaps_its_embeddings():
    """encode(v, u) = encode(u, v) turned around: both ends have the same weights, and counts go both ways."""
    store = stream([0, 1, 0, 2, 0, 3], [1, 2, 2, 3, 3, 1])
    model = build(DatasetFacts.of(store))
    torch.testing.assert_close(embed(model, store, 1, 0), embed(model, store, 0, 1).flip(0))
    u, v = embed(model, store, 0, 1)
    assert not torch.allclose(u, v)


def test_published_settings_build_a_model_of_width_172():
    """Every dataset's row of the presets is a valid setting; only enron trains in batches of 100."""
    datasets = [key for key, value in load_presets()["freedyg"].items() if isinstance(value, dict)]
    assert len(datasets) == 12
    facts = DatasetFacts(num_nodes=9, node_dim=0, edge_dim=4)
    for dataset in datasets:
        train, own = separate_settings(find_preset("freedyg", dataset))
        model = MODELS["freedyg"].build(build_config(MODELS["freedyg"].config, own), facts)
        assert model.encoder.out_dim == 172
        assert train == ({"batch": 100} if dataset == "enron" else {})
