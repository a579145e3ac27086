"""TPNet (Lu et al., NeurIPS 2024): recent events with their walks to both ends of a pair, mixed as in GraphMixer.

The walks are exact: a query sees every strictly earlier event, including those of its own batch, and none at its own
time. The original lags by a batch and on snapshots sees events at the query's time (decision 027). The random vectors
are a function of the run's seed; the original draws new ones in every epoch. Empty slots are zero before every block,
and the mean runs over the real tokens (the original's masking has no effect, and it divides by all slots).

Legend: p pairs, k slots, n node features, e edge features, w columns of the relation of two nodes, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.history.walks import WalkRequest
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import TPNetConfig
from dygmamba.nn.attention import lookup, lookup_edges
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.history_features import WalkRelation
from dygmamba.nn.initialization import padded_width, scaled_linear
from dygmamba.nn.mixers import MeanPool, MixerBlock
from dygmamba.nn.tokens import newest_last


class TPNet(Encoder):
    """Mix and average the recent events of each end, each with its walk overlaps with both ends."""

    def __init__(self, config: TPNetConfig, facts: DatasetFacts) -> None:
        super().__init__()
        decays = facts.walk_decays(config.decays, config.decay)
        self.recent = NeighborRequest((config.neighbors,), config.sampling)
        self.walks = WalkRequest(config.layers, config.dim, decays, config.walk_seed)
        self.requests = (self.recent, self.walks)
        self.slots, self.out_dim = config.neighbors, config.out
        self.time, self.relation = TimeEncoding(config.time_dim, trainable=True), WalkRelation(self.walks)
        self.pair_feature_dim = self.relation.out_dim
        other = config.time_dim + 2 * self.relation.out_dim
        features = padded_width(facts.node_dim, config.out) + padded_width(facts.edge_dim, config.out)
        self.token = nn.Sequential(
            scaled_linear(facts.node_dim + facts.edge_dim + other, 2 * config.out, fan_in=features + other),
            nn.ReLU(),
            nn.Linear(2 * config.out, config.out),
        )
        self.blocks = nn.ModuleList(
            MixerBlock(config.neighbors, config.out, config.dropout) for _ in range(config.blocks)
        )
        self.pool = MeanPool(config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        (recent,), walks, pairs = view[self.recent], view[self.walks], view.pairs
        seq = recent[torch.cat([pairs.src_row, pairs.dst_row])]  # [2 p k]
        ends = torch.stack([pairs.src, pairs.dst], dim=1).repeat(2, 1)
        parts = (
            lookup(view.features.node, seq.node, seq.mask),
            lookup_edges(view.features, seq.event, seq.mask),
            self.time(torch.log1p(seq.age)),
            self.relation.of_tokens(walks, seq.node, seq.mask, ends, pairs.table_time.repeat(2)),
        )
        x, taken = newest_last(self.token(torch.cat(parts, dim=-1)), seq, self.slots)
        for block in self.blocks:
            x = block(x, taken)
        src, dst = self.pool(x, taken).chunk(2)
        return src, dst

    def pair_features(self, view: PairView) -> tuple[Float[Tensor, "p w"]]:
        pairs = view.pairs
        return (self.relation.of_pairs(view[self.walks], pairs.src, pairs.dst, pairs.table_time),)
