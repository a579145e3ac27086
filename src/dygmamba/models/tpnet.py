"""TPNet (Lu et al., NeurIPS 2024): walks to both ends of a pair beside each recent event, mixed as in GraphMixer.

The walks are exact: a question sees every strictly earlier event, those of its own batch too, and none of its own
instant; the original lags by a batch and on snapshots sees the question's own time (decision 027). The random rows
are a function of a seed; the original draws new ones in every epoch. Empty slots hold zeros before every block, and
the mean runs over the tokens that exist (the original's masking has no effect, and it divides by all slots).

Legend: p pairs, k slots, n node features, e edge features, w numbers about two nodes, d width.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.settings import Bounds, Count, Length, Rate, Settings, Width
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.attention import lookup
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.history_features import WalkRelation
from dygmamba.nn.initialization import padded_width, scaled_linear
from dygmamba.nn.mixers import MeanPool, MixerBlock
from dygmamba.nn.tokens import newest_last
from dygmamba.sampling.view import NeighborRequest, PairView, Strategy
from dygmamba.sampling.walks import WalkRequest


@dataclass(frozen=True, slots=True)
class TPNetConfig(Settings):
    """Published settings; decay and sampling were chosen per dataset, dim follows from its size."""

    neighbors: Length = 20  # neighbours looked up
    sampling: Strategy = "recent"  # which neighbours: the latest, any, or more likely the later ones
    layers: Annotated[int, Bounds(1, 5)] = 3  # events of the longest walks
    dim: Width = 120  # random numbers of a node
    decay: Annotated[float, Bounds(0, 1e12)] = (
        0.0  # how walks fade per unit of time; 0: 2 in the training period
    )
    walk_seed: Annotated[int, Bounds(0, 2**62)] = 0  # of the random numbers
    blocks: Count = 2  # mixer blocks
    out: Width = 172  # columns of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations left out in training


class TPNet(Encoder):
    """The recent events of either end, each with its walks to both ends, mixed and averaged."""

    def __init__(self, config: TPNetConfig, facts: DatasetFacts) -> None:
        super().__init__()
        decay = config.decay if config.decay > 0 else 2 / facts.period
        walks = WalkRequest(config.layers, config.dim, decay, config.walk_seed)
        self.requests = (NeighborRequest((config.neighbors,), config.sampling), walks)
        self.slots, self.out_dim = config.neighbors, config.out
        self.time, self.relation = TimeEncoding(config.time_dim, trainable=True), WalkRelation(walks.width)
        self.beside_dim = self.relation.out_dim
        other = config.time_dim + 2 * walks.width
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
        """Source and destination embedding of each pair."""
        ((recent,),), (walks,), pairs = view.neighbors, view.walks, view.pairs
        seq = recent[torch.cat([pairs.src_row, pairs.dst_row])]  # [2 p k]
        ends = torch.stack([pairs.src, pairs.dst], dim=1).repeat(2, 1)
        parts = (
            lookup(view.features.node, seq.node, seq.mask),
            lookup(view.features.edge, seq.event, seq.mask),
            self.time(torch.log1p(seq.age)),
            self.relation.of_tokens(walks, seq.node, seq.mask, ends, pairs.known.repeat(2)),
        )
        x, taken = newest_last(self.token(torch.cat(parts, dim=-1)), seq, self.slots)
        for block in self.blocks:
            x = block(x, taken)
        src, dst = self.pool(x, taken).chunk(2)
        return src, dst

    def beside(self, view: PairView) -> tuple[Float[Tensor, "p w"]]:
        """r(source, destination) of each pair."""
        (walks,), pairs = view.walks, view.pairs
        return (self.relation.of_pairs(walks, pairs.src, pairs.dst, pairs.known),)


SPEC = ModelSpec(
    config=TPNetConfig,
    build=with_link_head(TPNet),
    trainable=True,
    title="TPNet (Lu et al. 2024), exact walks",
    looks_at="how walks to both nodes and to their recent neighbours overlap, each step fading",
    cost="quadratic in the neighbours, linear in the walks' numbers",
)
