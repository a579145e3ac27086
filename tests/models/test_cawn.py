"""CAWN: positions, walks and their encoding, by exact values and laws."""

from dataclasses import replace

import torch
from torch import nn

from dygmamba.config import build_config, find_preset, load_presets
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.cawn import WalkLSTM, walk_positions
from dygmamba.nn.tokens import make_tokens

TINY = {"walks": 4, "heads": 2, "out": 8, "time_dim": 6, "dropout": 0.0}


def build(facts, **more):
    torch.manual_seed(0)
    return MODELS["cawn"].build(build_config(MODELS["cawn"].config, TINY | more), facts).eval()


def stream(src, dst, edge_dim=2):
    """Events one apart, with edge features that tell them apart."""
    src, dst = torch.tensor(src), torch.tensor(dst)
    rng = torch.Generator().manual_seed(0)
    nodes = 1 + int(torch.maximum(src, dst).max())
    features = FeatureTable(torch.zeros(nodes, 0), torch.randn(len(src), edge_dim, generator=rng))
    return EventStore.from_columns(
        src, dst, torch.arange(1.0, len(src) + 1), num_nodes=nodes, features=features
    )


def draw(model, store, pairs, seed=3):
    """The view of pairs (u, v) at times t, with one seed's walks."""
    src, dst, time = zip(*pairs, strict=True)
    batch = PairBatch.from_pairs(torch.tensor(src), torch.tensor(dst), torch.tensor(time).double())
    return gather_view(Index(store), store.features, batch, model.requests, Draws.from_seed(seed))


def embed(model, view):
    with torch.no_grad():
        return torch.stack(model.encoder(view))  # [2 p d]


def rewalk(view, change):
    """The view with other neighbour sequences."""
    return replace(view, found={request: (change(drawn),) for request, (drawn,) in view.found.items()})


def drawn_walks(view):
    ((drawn,),) = view.found.values()
    return drawn


PATHS = stream([0, 0, 0, 1, 3], [1, 1, 2, 2, 1])


def test_walks_are_drawn_as_published():
    """One hop, M entries with replacement, later ones likelier at 1e-6 per unit of time."""
    model = build(DatasetFacts.of(PATHS))
    assert model.requests == (NeighborRequest((4,), "time_aware", 1e-6),)


def test_positions_on_a_stream_of_four_events():
    """Here u = 0 met 1, 1, 2 and v = 1 met 0, 0, 2: shares (root, neighbour) in u's and in v's walks by hand."""
    view = draw(build(DatasetFacts.of(PATHS), sampling="recent"), PATHS, [(0, 1, 5.0)])
    shares = walk_positions(make_tokens(drawn_walks(view), "first"))
    assert shares.shape == (2, 5, 2, 2)
    root_u, root_v, shared, none = (
        [[1, 0], [0, 2 / 3]],
        [[0, 2 / 3], [1, 0]],
        [[0, 1 / 3], [0, 1 / 3]],
        [[0, 0], [0, 0]],
    )
    torch.testing.assert_close(shares[0], torch.tensor([root_u, root_v, root_v, shared, none]))
    torch.testing.assert_close(shares[1], torch.tensor([root_v, root_u, root_u, shared, none]))


def test_positions_of_a_node_asked_about_itself():
    """With u = v = 0 and one self-loop, listed at both its ends: the node is root and neighbour of all walks."""
    loop = stream([0], [0])
    view = draw(build(DatasetFacts.of(loop)), loop, [(0, 0, 5.0)])
    shares = walk_positions(make_tokens(drawn_walks(view), "first"))
    torch.testing.assert_close(shares, torch.ones(2, 5, 2, 2))


def published_lstm(part, width, hidden):
    """The bidirectional LSTM of torch with our weights; what it has beyond them is drawn at random."""
    torch.manual_seed(1)
    lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
    order = (0, 3, 1, 2)  # torch has i, f, g, o; we have i, g, o, f

    def reorder(x):
        return torch.cat([x.chunk(4)[k] for k in order])

    with torch.no_grad():
        lstm.weight_ih_l0.copy_(reorder(part.ahead.weight))
        lstm.weight_hh_l0.copy_(reorder(part.again.weight))
        lstm.bias_ih_l0.copy_(reorder(part.ahead.bias))
        lstm.bias_hh_l0.zero_()
        lstm.bias_hh_l0_reverse.zero_()
        for ours, theirs in (
            (part.back.weight, lstm.weight_ih_l0_reverse),
            (part.back.bias, lstm.bias_ih_l0_reverse),
        ):
            i, g, o = ours.chunk(3)
            theirs.copy_(torch.cat([i, theirs.chunk(4)[1], g, o]))
    return lstm


def test_a_walk_is_read_as_by_a_bidirectional_lstm():
    """Equal to torch's LSTM at the last step of (root) and (root, neighbour), whatever its unused weights."""
    torch.manual_seed(0)
    part = WalkLSTM(5, 3)
    lstm = published_lstm(part, 5, 3)
    x = torch.randn(2, 4, 5)
    ends = part(x)
    torch.testing.assert_close(ends[:, 0], lstm(x[:, :1])[0][:, -1])
    for neighbour in range(1, 4):
        torch.testing.assert_close(ends[:, neighbour], lstm(x[:, [0, neighbour]])[0][:, -1])


def test_the_order_of_walks_does_not_matter():
    """Walks are a set: permuted, they give the same embeddings."""
    model = build(DatasetFacts.of(PATHS))
    view = draw(model, PATHS, [(0, 1, 9.0), (2, 3, 9.0)])
    order = torch.tensor([2, 0, 3, 1])

    def permuted(seq):
        return replace(seq, node=seq.node[:, order], event=seq.event[:, order], time=seq.time[:, order])

    assert not torch.equal(permuted(drawn_walks(view)).event, drawn_walks(view).event)
    torch.testing.assert_close(embed(model, rewalk(view, permuted)), embed(model, view))


def test_copies_of_a_walk_say_what_one_says():
    """Drawn M times from a past of one event, a walk gives the embedding of a single one."""
    store = stream([0, 1], [2, 3])
    many, one = (build(DatasetFacts.of(store), walks=walks) for walks in (7, 1))
    pairs = [(0, 1, 9.0), (0, 3, 9.0)]
    torch.testing.assert_close(embed(many, draw(many, store, pairs)), embed(one, draw(one, store, pairs)))


def test_a_node_without_a_past_keeps_its_root_alone():
    """No past: all such nodes embed alike where nodes have no features, whatever the other end has done."""
    store = stream([0, 0], [1, 2])
    model = build(DatasetFacts.of(store))
    u, v = embed(model, draw(model, store, [(1, 2, 1.0), (2, 2, 0.5), (0, 1, 1.0)]))
    torch.testing.assert_close(u[0], v[0])
    torch.testing.assert_close(u[2], u[0])
    assert not torch.allclose(u[1], u[0])  # its own partner: root of both


def test_nodes_have_no_names():
    """Without node features a permutation of all ids leaves the embeddings alone, hence unseen nodes are fine."""
    store = stream([0, 0, 3, 1, 2, 0], [1, 2, 1, 2, 3, 3])
    model = build(DatasetFacts.of(store), sampling="recent")
    name = torch.tensor([2, 3, 1, 0])
    renamed = replace(store, src=name[store.src], dst=name[store.dst])
    view, other = draw(model, store, [(0, 1, 9.0)]), draw(model, renamed, [(2, 3, 9.0)])
    torch.testing.assert_close(embed(model, other), embed(model, view))


def test_swapping_a_pair_swaps_its_embeddings():
    """encode(v, u) = encode(u, v) turned around: both ends have the same weights."""
    model = build(DatasetFacts.of(PATHS), sampling="recent")
    (u, v), (v_, u_) = (embed(model, draw(model, PATHS, [pair])) for pair in ((0, 1, 9.0), (1, 0, 9.0)))
    torch.testing.assert_close(u, u_)
    torch.testing.assert_close(v, v_)
    assert not torch.allclose(u, v)


def test_published_widths():
    """Whole tokens 308 each way, positions 86 each way, attention at 312, embeddings at 172, for all 12 datasets."""
    spec, facts = MODELS["cawn"], DatasetFacts(num_nodes=9, node_dim=0, edge_dim=4)
    datasets = [key for key, value in load_presets()["cawn"].items() if isinstance(value, dict)]
    assert len(datasets) == 12
    for dataset in datasets:
        encoder = spec.build(build_config(spec.config, find_preset("cawn", dataset)), facts).encoder
        widths = (encoder.walk.again.in_features, encoder.path.again.in_features, encoder.join.in_features)
        assert widths == (308, 86, 616 + 172)
        assert (encoder.out.in_features, encoder.out_dim) == (312, 172)
