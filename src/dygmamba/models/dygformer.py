"""DyGFormer (Yu et al., NeurIPS 2023): a transformer over patches of both histories, with co-occurrence counts.

The original attends to padded patches and averages over them, and their number depends on the batch. Here padded tokens
are zeros inside a patch, and patches without a real token are masked in attention and in the mean.

Legend: p pairs, q rows, l tokens (the query node first), m patches, c channel width, d width of all channels.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import DyGFormerConfig
from dygmamba.nn.attention import PreNormLayer, lookup, lookup_edges
from dygmamba.nn.encodings import CountSum, TimeEncoding
from dygmamba.nn.initialization import padded_width, uniform_parameter
from dygmamba.nn.mixers import MeanPool
from dygmamba.nn.tokens import Tokens, make_tokens
from dygmamba.ops.tokens import count_pair_tokens


def patches(x: Float[Tensor, "q l a"], size: int) -> Float[Tensor, "q m b"]:
    """Concatenate every `size` consecutive tokens; zeros complete the last patch."""
    return pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size)).flatten(2)


def patch_mask(mask: Bool[Tensor, "q l"], size: int) -> Bool[Tensor, "q m"]:
    """Return which patches contain a real token."""
    return pad(mask, (0, -mask.shape[1] % size)).unflatten(1, (-1, size)).any(dim=2)


class PatchAlign(nn.Module):
    """Linear map of whole patches; encodings without columns leave only the bias.

    `published` is the published number of columns of the encoding, which sets the initial scale of the weights.
    """

    def __init__(self, dim: int, published: int, config: DyGFormerConfig) -> None:
        super().__init__()
        self.size, fan_in = config.patch, published * config.patch
        self.weight = uniform_parameter(fan_in, dim * config.patch, config.width)
        self.bias = uniform_parameter(fan_in, config.width)

    def forward(self, x: Float[Tensor, "q l a"], mask: Bool[Tensor, "q l"]) -> Float[Tensor, "q m c"]:
        return patches(x * mask[..., None], self.size) @ self.weight + self.bias


class PatchChannels(nn.Module):
    """Node, edge, time and co-occurrence patches side by side."""

    def __init__(self, config: DyGFormerConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.time = TimeEncoding(config.time_dim, trainable=True)
        self.count = CountSum(config.width)
        self.node, self.edge = (
            PatchAlign(dim, padded_width(dim, config.out), config) for dim in (facts.node_dim, facts.edge_dim)
        )
        self.age, self.common = (PatchAlign(dim, dim, config) for dim in (config.time_dim, config.width))

    def forward(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q m d"]:
        mask = tokens.mask
        parts = (
            self.node(lookup(features.node, tokens.node, mask), mask),
            self.edge(lookup_edges(features, tokens.event, tokens.is_event), mask),
            self.age(self.time(tokens.age), mask),
            self.common(self.count(count_pair_tokens(tokens.node, mask)), mask),
        )
        return torch.cat(parts, dim=-1)


class DyGFormer(Encoder):
    """Attention among the patches of both sequences, then the mean of each sequence."""

    elastic = True

    def __init__(self, config: DyGFormerConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.recent = NeighborRequest((config.length - 1,))
        self.requests = (self.recent,)
        self.patch, self.out_dim = config.patch, config.out
        self.channels = PatchChannels(config, facts)
        width = 4 * config.width
        self.layers = nn.ModuleList(
            PreNormLayer(width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.pool = MeanPool(width)
        self.out = nn.Linear(width, config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        states, tokens = self.states(view)
        p, exists = view.pairs.src_row.shape[0], patch_mask(tokens.mask, self.patch)
        src, dst = states.chunk(2)
        return self.out(self.pool(src, exists[:p])), self.out(self.pool(dst, exists[p:]))

    def states(self, view: PairView) -> tuple[Float[Tensor, "q m d"], Tokens]:
        """Return the state of every patch, sources first, then destinations, and the tokens."""
        (recent,) = view[self.recent]
        both = torch.cat([view.pairs.src_row, view.pairs.dst_row])
        tokens = make_tokens(recent, "first", rows=both)  # [2p l]
        x = self.channels(tokens, view.features)
        exists = patch_mask(tokens.mask, self.patch)
        x, mask = torch.cat(x.chunk(2), dim=1), torch.cat(exists.chunk(2), dim=1)  # [p 2m d]
        for layer in self.layers:
            x = layer(x, mask)
        return torch.cat(x.chunk(2, dim=1)), tokens
