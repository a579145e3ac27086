"""DyGFormer (Yu et al., NeurIPS 2023): patches of both pasts in one transformer, with co-occurrence counts.

The original attends to and averages over padded patches, whose number depends on the batch. Here padded tokens
are zeros inside a patch, and patches without any real token are masked in attention and in the mean.

Legend: p pairs, q rows, l tokens (the query node first), m patches, c channel width, d width of all channels.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Count, Length, Rate, Settings, Width
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.attention import PreNormLayer, lookup
from dygmamba.nn.encodings import CountSum, TimeEncoding, pair_counts
from dygmamba.nn.initialization import padded_width, uniform_parameter
from dygmamba.nn.mixers import MeanPool
from dygmamba.nn.tokens import Tokens, make_tokens
from dygmamba.sampling.view import NeighborRequest, PairView


@dataclass(frozen=True, slots=True)
class DyGFormerConfig(Settings):
    """Published settings; length, patch and dropout were chosen per dataset."""

    length: Length = 32  # tokens per sequence, the query node included
    patch: Length = 1  # consecutive tokens that become one
    width: Width = 50  # columns of each of the four channels
    layers: Count = 2  # layers of the transformer
    heads: Count = 2  # heads of the attention
    time_dim: Width = 100  # columns of the time encoding
    out: Width = 172  # columns of the vector of a node
    dropout: Rate = 0.1  # share of activations left out in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.patch > self.length:
            raise ConfigError(f"patch must be at most length, {self.length}; got {self.patch}")
        if 4 * self.width % self.heads:
            raise ConfigError(
                f"4 width must be a multiple of heads; got width {self.width}, {self.heads} heads"
            )


def patches(x: Float[Tensor, "q l a"], size: int) -> Float[Tensor, "q m b"]:
    """Every `size` consecutive tokens side by side; zeros complete the last patch."""
    return pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size)).flatten(2)


def patch_mask(mask: Bool[Tensor, "q l"], size: int) -> Bool[Tensor, "q m"]:
    """Which patches hold a real token."""
    return pad(mask, (0, -mask.shape[1] % size)).unflatten(1, (-1, size)).any(dim=2)


class PatchAlign(nn.Module):
    """A linear map of whole patches; encodings without columns leave the bias.

    `published` is how many columns the encoding was published with, whose scale the initial weights have.
    """

    def __init__(self, dim: int, published: int, config: DyGFormerConfig) -> None:
        super().__init__()
        self.size, fan_in = config.patch, published * config.patch
        self.weight = uniform_parameter(fan_in, dim * config.patch, config.width)
        self.bias = uniform_parameter(fan_in, config.width)

    def forward(self, x: Float[Tensor, "q l a"], mask: Bool[Tensor, "q l"]) -> Float[Tensor, "q m c"]:
        """The aligned patches of the tokens that exist."""
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
        """The patches of each sequence."""
        mask = tokens.mask
        parts = (
            self.node(lookup(features.node, tokens.node, mask), mask),
            self.edge(lookup(features.edge, tokens.event, tokens.is_event), mask),
            self.age(self.time(tokens.age), mask),
            self.common(self.count(pair_counts(tokens.node, mask)), mask),
        )
        return torch.cat(parts, dim=-1)


class DyGFormer(Encoder):
    """Patches of both sequences attend to one another; each side is averaged."""

    elastic = True

    def __init__(self, config: DyGFormerConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.requests = (NeighborRequest((config.length - 1,)),)
        self.patch, self.out_dim = config.patch, config.out
        self.channels = PatchChannels(config, facts)
        width = 4 * config.width
        self.layers = nn.ModuleList(
            PreNormLayer(width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.pool = MeanPool(width)
        self.out = nn.Linear(width, config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        """Source and destination embedding of each pair."""
        states, tokens = self.states(view)
        p, exists = view.pairs.src_row.shape[0], patch_mask(tokens.mask, self.patch)
        src, dst = states.chunk(2)
        return self.out(self.pool(src, exists[:p])), self.out(self.pool(dst, exists[p:]))

    def states(self, view: PairView) -> tuple[Float[Tensor, "q m d"], Tokens]:
        """What the encoder makes of every patch, sources first, then destinations; and the tokens."""
        ((recent,),) = view.neighbors
        both = torch.cat([view.pairs.src_row, view.pairs.dst_row])
        tokens = make_tokens(recent[both], "first")  # [2p l]
        x = self.channels(tokens, view.features)
        exists = patch_mask(tokens.mask, self.patch)
        x, kept = torch.cat(x.chunk(2), dim=1), torch.cat(exists.chunk(2), dim=1)  # [p 2m d]
        for layer in self.layers:
            x = layer(x, kept)
        return torch.cat(x.chunk(2, dim=1)), tokens


SPEC = ModelSpec(
    config=DyGFormerConfig,
    build=with_link_head(DyGFormer),
    trainable=True,
    title="DyGFormer (Yu et al. 2023)",
    looks_at="both nodes' recent events in patches, and who occurs in both",
    cost="quadratic in length / patch",
)
