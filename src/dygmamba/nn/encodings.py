"""Channel encodings of tokens, each aligned to the same width (DyG-Mamba section 4.1).

Legend: q sequences, p pairs, l tokens, t time frequencies, c channel width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch.nn.functional import embedding

from dygmamba.data.events import FeatureTable
from dygmamba.nn.tokens import Tokens


class TimeEncoding(nn.Module):
    """cos(omega * span + b), omega_i = 10^(-decades * i / (t - 1)); constant, as the paper keeps it, or trained."""

    def __init__(self, dim: int, decades: float = 9.0, trainable: bool = False) -> None:
        super().__init__()
        self.omega = nn.Parameter(10 ** -torch.linspace(0, decades, dim), requires_grad=trainable)
        self.phase = nn.Parameter(torch.zeros(dim), requires_grad=trainable)

    def forward(self, span: Float[Tensor, "q l"]) -> Float[Tensor, "q l t"]:
        """The encoding of each span."""
        return torch.cos(span[..., None] * self.omega + self.phase)


class CountEncoding(nn.Module):
    """(f(a) + f(b)) W + bias for two counts a, b, f a two-layer perceptron.

    A count is at most the sequence length, so f W is tabulated once per call and looked up per token.
    """

    def __init__(self, longest: int, hidden: int, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.align = nn.Linear(hidden, width)
        self.register_buffer("counts", torch.arange(longest + 1.0)[:, None], persistent=False)

    def forward(self, counts: Int32[Tensor, "p l 2"]) -> Float[Tensor, "p l c"]:
        """The encoding of each token's two counts."""
        table = self.mlp(self.counts) @ self.align.weight.T  # [longest + 1, c]
        return embedding(counts[..., 0], table) + embedding(counts[..., 1], table) + self.align.bias


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """Which channels a model reads, and how wide they are."""

    names: tuple[str, ...]
    length: int
    node_dim: int
    edge_dim: int
    time_dim: int
    width: int
    trainable_time: bool


class NodeChannel(nn.Module):
    """Features of the token's node; without features, the bias alone."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.align = AlignFeatures(config.node_dim, config.width)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Tensor:
        """The aligned node features."""
        return self.align(features.node, tokens.node, tokens.mask)


class EdgeChannel(nn.Module):
    """Features of the token's event at their native width; the query token has none."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.align = AlignFeatures(config.edge_dim, config.width)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Tensor:
        """The aligned edge features."""
        return self.align(features.edge, tokens.event, tokens.is_event)


class TimeChannel(nn.Module):
    """Absolute temporal encoding: the span from the token to the query."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.encode = TimeEncoding(config.time_dim, trainable=config.trainable_time)
        self.align = nn.Linear(config.time_dim, config.width)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Tensor:
        """The aligned time encoding."""
        return self.align(self.encode(tokens.age))


class AlignFeatures(nn.Module):
    """A linear map of looked-up features; zero-width features cost nothing and leave the bias."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        bound = max(dim, 1) ** -0.5
        self.weight = nn.Parameter(torch.empty(dim, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, table: Tensor, index: Tensor, present: Tensor) -> Tensor:
        """Rows of `table` where `present`, aligned."""
        if table.shape[1] == 0:
            return self.bias.expand(*index.shape, -1)
        return torch.where(present[..., None], table[index], 0) @ self.weight + self.bias


# Channels of one sequence alone; "cooccurrence" needs both sequences of a pair and is added by `Channels`.
CHANNELS: dict[str, type[nn.Module]] = {"node": NodeChannel, "edge": EdgeChannel, "time": TimeChannel}
PAIR_CHANNELS = ("cooccurrence",)


class Channels(nn.Module):
    """Aligned encodings side by side: those of a row once per row, co-occurrence once per pair."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.alone = nn.ModuleList(CHANNELS[name](config) for name in config.names if name in CHANNELS)
        paired = (
            [CountEncoding(config.length, config.width, config.width)] if self.pairs_in(config.names) else []
        )
        self.paired = nn.ModuleList(paired)
        self.out_dim = config.width * (len(self.alone) + len(self.paired))

    @staticmethod
    def pairs_in(names: tuple[str, ...]) -> bool:
        """Whether a channel looks across the pair."""
        return any(name in PAIR_CHANNELS for name in names)

    def rows(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l a"]:
        """The channels that a row has by itself."""
        parts = [channel(tokens, features) for channel in self.alone]
        return torch.cat(parts, dim=-1) if parts else tokens.age.new_zeros(*tokens.age.shape, 0)

    def join(self, rows: Float[Tensor, "p l a"], counts: Int32[Tensor, "p l 2"]) -> Float[Tensor, "p l d"]:
        """A row's channels with the pair's co-occurrence beside them."""
        return torch.cat([rows, *(encode(counts) for encode in self.paired)], dim=-1)
