"""TGAT (Xu et al., ICLR 2020): a node asks its neighbours, which have asked theirs at the time they met.

A row's embedding depends on its own past alone. All hops are looked up before the model runs: hop h + 1 holds
the past of each entry of hop h at that entry's own time, and both layers read the same draw of it.

Legend: q rows, k neighbours, r queries of one level (q, q k, q k k), l = k, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import MAX_LENGTH, Count, Length, Rate, Settings, Width
from dygmamba.models.base import DatasetFacts, ModelSpec, NodeEncoder, with_link_head
from dygmamba.nn.attention import Merge, NeighborAttention, lookup
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairView, Strategy


@dataclass(frozen=True, slots=True)
class TGATConfig(Settings):
    """Published settings; dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbours looked up per hop
    sampling: Strategy = "recent"  # which neighbours: the latest, any, or more likely the later ones
    layers: Count = 2  # hops
    heads: Count = 2  # heads of the attention
    out: Width = 172  # columns of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations left out in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.neighbors**self.layers > MAX_LENGTH:
            raise ConfigError(
                f"neighbors ** layers must be at most {MAX_LENGTH:,}, the entries looked up for one node; "
                f"got {self.neighbors} neighbors, {self.layers} layers"
            )


class AttentionLayer(nn.Module):
    """[h ‖ φ(0)] asks [h' ‖ edge ‖ φ(age)] of each neighbour; the answer is merged with the node's features."""

    def __init__(self, config: TGATConfig, facts: DatasetFacts, dim: int) -> None:
        super().__init__()
        # as published, a node's features fill up to `out` columns with zeros; only residual and initial scale see it
        self.fill = max(config.out - dim, 0)
        query_dim = dim + self.fill + config.time_dim
        key_dim = dim + facts.edge_dim + config.time_dim
        fan_in = query_dim + padded_width(facts.edge_dim, config.out)
        self.attend = NeighborAttention(query_dim, key_dim, fan_in, config.heads, config.dropout)
        self.merge = Merge(query_dim, facts.node_dim, config.out)

    def forward(
        self, query: tuple[Tensor, Tensor], keys: Tensor, seq: NeighborSequence, raw: Tensor
    ) -> Float[Tensor, "r d"]:
        """The next embedding of each query."""
        h, now = query
        own = torch.cat([pad(h, (0, self.fill)), now.expand(h.shape[0], -1)], dim=-1)
        return self.merge(self.attend(own, keys, seq.mask), raw)


class TGAT(NodeEncoder):
    """Attention over two hops; the node's features are the embedding of layer 0."""

    def __init__(self, config: TGATConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.requests = (NeighborRequest((config.neighbors,) * config.layers, config.sampling),)
        self.out_dim = config.out
        self.time = TimeEncoding(config.time_dim, trainable=True)
        dims = [facts.node_dim, *[config.out] * (config.layers - 1)]
        self.layers = nn.ModuleList(AttentionLayer(config, facts, dim) for dim in dims)

    def encode(self, view: PairView) -> Float[Tensor, "q d"]:
        """The embedding of each row: layer by layer, every level asks the level of its neighbours."""
        (hops,) = view.neighbors
        nodes, edges = view.features.node, view.features.edge
        raw = [nodes[view.pairs.node], *(lookup(nodes, hop.node, hop.mask).flatten(0, 1) for hop in hops)]
        now = self.time(hops[0].age.new_zeros(1, 1))[0]  # φ(0), [1 t]
        # edge and time of an entry are the same for every layer
        seen = [torch.cat([lookup(edges, hop.event, hop.mask), self.time(hop.age)], dim=-1) for hop in hops]
        h = raw
        for layer in self.layers:
            h = [
                layer((own, now), torch.cat([past.unflatten(0, hop.node.shape), also], dim=-1), hop, features)
                for own, past, hop, also, features in zip(h[:-1], h[1:], hops, seen, raw, strict=False)
            ]
        return h[0]


SPEC = ModelSpec(
    config=TGATConfig,
    build=with_link_head(TGAT),
    trainable=True,
    title="TGAT (Xu et al. 2020)",
    looks_at="each node's recent events and those of its neighbours, two hops back",
    cost="neighbours squared: two hops",
)
