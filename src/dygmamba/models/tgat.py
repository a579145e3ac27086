"""TGAT (Xu et al., ICLR 2020): a node attends to its neighbors, which attended to theirs at the time of their event.

A row's embedding depends on its own history only. All hops are looked up before the model runs: hop h + 1 contains the
neighbors of each entry of hop h before that entry's time, and both layers read the same draw of them.

Legend: q rows, k neighbors, r queries of one level (q, q k, q k k), l = k, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.history.view import NeighborRequest, NeighborSequence, PairView
from dygmamba.models.base import DatasetFacts, NodeEncoder
from dygmamba.models.configs import TGATConfig
from dygmamba.nn.attention import Merge, NeighborAttention, lookup, lookup_edges
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width


class AttentionLayer(nn.Module):
    """Attention of [h ‖ φ(0)] to [h' ‖ edge ‖ φ(age)] of each neighbor, merged with the node's features."""

    def __init__(self, config: TGATConfig, facts: DatasetFacts, dim: int) -> None:
        super().__init__()
        # as in the original, node features are zero-padded to `out` columns, which affects residual and initial scale
        self.fill = max(config.out - dim, 0)
        query_dim = dim + self.fill + config.time_dim
        key_dim = dim + facts.edge_dim + config.time_dim
        fan_in = query_dim + padded_width(facts.edge_dim, config.out)
        self.attend = NeighborAttention(query_dim, key_dim, fan_in, config.heads, config.dropout)
        self.merge = Merge(query_dim, facts.node_dim, config.out)

    def forward(
        self, query: tuple[Tensor, Tensor], keys: Tensor, seq: NeighborSequence, raw: Tensor
    ) -> Float[Tensor, "r d"]:
        h, now = query
        own = torch.cat([pad(h, (0, self.fill)), now.expand(h.shape[0], -1)], dim=-1)
        return self.merge(self.attend(own, keys, seq.mask), raw)


class TGAT(NodeEncoder):
    """Attention over several hops; the node's features are the embedding of layer 0."""

    def __init__(self, config: TGATConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.sampled = NeighborRequest((config.neighbors,) * config.layers, config.sampling)
        self.requests = (self.sampled,)
        self.out_dim = config.out
        self.time = TimeEncoding(config.time_dim, trainable=True)
        dims = [facts.node_dim, *[config.out] * (config.layers - 1)]
        self.layers = nn.ModuleList(AttentionLayer(config, facts, dim) for dim in dims)

    def encode(self, view: PairView) -> Float[Tensor, "q d"]:
        # layer by layer, every level attends to the level of its neighbors
        hops = view[self.sampled]
        nodes = view.features.node
        raw = [nodes[view.pairs.node], *(lookup(nodes, hop.node, hop.mask).flatten(0, 1) for hop in hops)]
        now = self.time(hops[0].age.new_zeros(1, 1))[0]  # φ(0), [1 t]
        # edge features and time encodings are the same for every layer
        seen = [
            torch.cat([lookup_edges(view.features, hop.event, hop.mask), self.time(hop.age)], dim=-1)
            for hop in hops
        ]
        h = raw
        for layer in self.layers:
            h = [
                layer((own, now), torch.cat([past.unflatten(0, hop.node.shape), also], dim=-1), hop, features)
                for own, past, hop, also, features in zip(h[:-1], h[1:], hops, seen, raw, strict=False)
            ]
        return h[0]
