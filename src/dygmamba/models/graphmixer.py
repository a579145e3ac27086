"""GraphMixer (Cong et al., ICLR 2023): an MLP-mixer over a node's recent events, no attention, fixed time.

Tokens stand at a fixed number of slots, the newest in the last one, as published. Empty slots hold zeros
before every block (the original leaves biases and mixed values in them); as their number is fixed they carry
nothing of the batch. The mean runs over the tokens that exist (the original divides by all slots), and so does
the mean of the neighbours' features (the original divides twice by the size of the window).

Legend: q rows, k slots, w entries of the window, n node features, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.settings import Count, Length, Rate, Settings, Width
from dygmamba.models.base import DatasetFacts, ModelSpec, NodeEncoder, with_link_head
from dygmamba.nn.attention import lookup
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width, scaled_linear
from dygmamba.nn.mixers import MeanPool, MixerBlock
from dygmamba.nn.tokens import newest_last
from dygmamba.sampling.view import NeighborRequest, PairView, Strategy


@dataclass(frozen=True, slots=True)
class GraphMixerConfig(Settings):
    """Published settings; neighbors, dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbours looked up
    sampling: Strategy = "recent"  # which neighbours: the latest, any, or more likely the later ones
    window: Length = 2000  # neighbours whose features are averaged; not looked up where nodes have none
    blocks: Count = 2  # mixer blocks
    out: Width = 172  # columns of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations left out in training


class GraphMixer(NodeEncoder):
    """Recent events mixed and averaged, beside the node's features and its neighbours' mean."""

    def __init__(self, config: GraphMixerConfig, facts: DatasetFacts) -> None:
        super().__init__()
        recent = NeighborRequest((config.neighbors,), config.sampling)
        window = NeighborRequest((config.window,))
        self.requests = (recent, window) if facts.node_dim else (recent,)
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
        """The embedding of each row."""
        (recent,), *window = view.neighbors
        edges = lookup(view.features.edge, recent.event, recent.mask)
        tokens = self.token(torch.cat([edges, self.time(recent.age)], dim=-1))
        x, taken = newest_last(tokens, recent, self.slots)
        for block in self.blocks:
            x = block(x, taken)
        node = view.features.node[view.pairs.node]  # [q n]
        for (past,) in window:
            node = node + self.pool(lookup(view.features.node, past.node, past.mask), past.mask)
        return self.out(torch.cat([self.pool(x, taken), node], dim=-1))


SPEC = ModelSpec(
    config=GraphMixerConfig,
    build=with_link_head(GraphMixer),
    trainable=True,
    title="GraphMixer (Cong et al. 2023)",
    looks_at="each node's recent events, at fixed places",
    cost="quadratic in the neighbours",
)
