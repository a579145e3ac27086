"""Attention over the memories of a node's neighbours.

Legend: q queries, l neighbours, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn

from dygmamba.data.events import FeatureTable
from dygmamba.nn.attention import Merge, NeighborAttention, lookup
from dygmamba.nn.initial import filled, uniform
from dygmamba.nn.memory import NodeMemory


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """Nodes with the entries they attend to; an entry's `age` is the span from it to the query."""

    node: Int64[Tensor, "q"]
    neighbor: Int64[Tensor, "q l"]
    event: Int64[Tensor, "q l"]
    age: Float32[Tensor, "q l"]
    mask: Bool[Tensor, "q l"]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """What a layer is built from; `dim` is the memory's width and the output's."""

    node_dim: int
    edge_dim: int
    dim: int
    time_dim: int
    heads: int
    dropout: float


class MemoryAttention(nn.Module):
    """One layer of TGAT on h = memory + node features (TGN, Rossi et al. 2020, section 3.1).

    φ is the memory's own. Published node features are as wide as the memory; here a linear map without bias
    brings them to its width, and where there are none h is the memory.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        query_dim = config.dim + config.time_dim
        key_dim, fan_in = query_dim + config.edge_dim, query_dim + filled(config.edge_dim, config.dim)
        self.lift = uniform(max(config.node_dim, 1), config.node_dim, config.dim)
        self.attend = NeighborAttention(query_dim, key_dim, fan_in, config.heads, config.dropout)
        self.merge = Merge(query_dim, config.dim, config.dim)

    def forward(
        self, asked: Neighborhood, memory: NodeMemory, features: FeatureTable
    ) -> Float32[Tensor, "q d"]:
        """The embedding of each node."""
        own = asked.node[:, None]
        node = torch.cat([own, torch.where(asked.mask, asked.neighbor, own)], dim=1)  # [q 1+l]
        h, _ = memory.read(node, features.edge)
        if features.node.shape[1]:
            h = h + features.node[node] @ self.lift
        now = memory.time(asked.age.new_zeros(1)).expand(len(h), -1)
        edge = lookup(features.edge, asked.event, asked.mask)
        keys = torch.cat([h[:, 1:], edge, memory.time(asked.age)], dim=-1)
        return self.merge(self.attend(torch.cat([h[:, 0], now], dim=-1), keys, asked.mask), h[:, 0])
