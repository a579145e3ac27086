"""GraphMixer (Cong et al., ICLR 2023): an MLP-mixer over a node's recent events with a fixed time encoding.

As in the original, tokens are in a fixed number of slots, the newest in the last one. Empty slots are zero before
every block (the original leaves biases and mixed values in them); as their number is fixed, padding does not depend on
the batch. The mean runs over the real tokens (the original divides by all slots), and so does the mean of the
neighbors' features (the original divides twice by the size of the window).

Legend: q rows, k slots, w entries of the window, n node features, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, NodeEncoder
from dygmamba.models.configs import GraphMixerConfig
from dygmamba.nn.attention import lookup, lookup_edges
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width, scaled_linear
from dygmamba.nn.mixers import MeanPool, MixerBlock
from dygmamba.nn.tokens import newest_last


class GraphMixer(NodeEncoder):
    """Mean of the mixed recent events, with the node's features plus the mean of its neighbors' features."""

    def __init__(self, config: GraphMixerConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.recent = NeighborRequest((config.neighbors,), config.sampling)
        self.window = NeighborRequest((config.window,)) if facts.node_dim else None
        self.requests = (self.recent,) if self.window is None else (self.recent, self.window)
        self.slots, self.out_dim = config.neighbors, config.out
        self.time = TimeEncoding(config.time_dim)
        edges, nodes = (padded_width(dim, config.out) for dim in (facts.edge_dim, facts.node_dim))
        self.token = scaled_linear(
            facts.edge_dim + config.time_dim, config.out, fan_in=edges + config.time_dim
        )
        self.blocks = nn.ModuleList(
            MixerBlock(config.neighbors, config.out, config.dropout) for _ in range(config.blocks)
        )
        self.pool = MeanPool(config.out)
        self.out = scaled_linear(config.out + facts.node_dim, config.out, fan_in=config.out + nodes)

    def encode(self, view: PairView) -> Float[Tensor, "q d"]:
        (recent,) = view[self.recent]
        edges = lookup_edges(view.features, recent.event, recent.mask)
        tokens = self.token(torch.cat([edges, self.time(recent.age)], dim=-1))
        x, taken = newest_last(tokens, recent, self.slots)
        for block in self.blocks:
            x = block(x, taken)
        node = view.features.node[view.pairs.node]  # [q n]
        if self.window is not None:
            (past,) = view[self.window]
            node = node + self.pool(lookup(view.features.node, past.node, past.mask), past.mask)
        return self.out(torch.cat([self.pool(x, taken), node], dim=-1))
