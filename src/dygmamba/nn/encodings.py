"""Channels: encodings of tokens, each projected to the same width (DyG-Mamba section 4.1).

Legend: r = 2 p sequences of p pairs (first all sources, then all destinations), l tokens, t time frequencies,
c channel width, d columns of all channels, dc categorical columns, k one-hot columns of them, s time scales, f = 2 s
decayed counts of a token.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor, nn

from dygmamba.data.events.categories import MISSING_VALUE
from dygmamba.data.events.columns import TypeColumn
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.nn.initialization import padded_width, uniform_parameter
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.rows import gather_rows
from dygmamba.ops.tokens.encoding import (
    FeatureRows,
    PairCounts,
    Part,
    TimeSpans,
    encode_counts,
    encode_part,
    encode_tokens,
)


class TimeEncoding(nn.Module):
    """cos(omega * span + b), omega_i = 10^(-decades * i / (t - 1)); fixed as in the paper, or trained.

    Args:
        dim: Number t of frequencies.
        decades: Frequencies go from 1 down to 10^-decades.
        trainable: Train frequencies and phases.
    """

    def __init__(self, dim: int, decades: float = 9.0, trainable: bool = False) -> None:
        super().__init__()
        self.omega = nn.Parameter(10 ** -torch.linspace(0, decades, dim), requires_grad=trainable)
        self.phase = nn.Parameter(torch.zeros(dim), requires_grad=trainable)

    def forward(self, span: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape t"]:
        return torch.cos(span[..., None] * self.omega + self.phase)


class CountSum(nn.Module):
    """f(a) + f(b) for a token's two counts, f a two-layer perceptron; the linear second layer is applied to the sum.

    The few distinct counts could be looked up in a table. But most tokens have the same count, and a GPU adds up the
    gradient of a table row one by one.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, hidden), nn.Linear(hidden, hidden)

    def forward(self, counts: Int32[Tensor, "r l 2"]) -> Float[Tensor, "r l c"]:
        return encode_counts(counts, *self.layers)

    @property
    def layers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights and biases of both layers."""
        return self.first.weight, self.first.bias, self.second.weight, self.second.bias


class CountEncoding(nn.Sequential):
    """Encoding of the counts, projected to the width of a channel: (f(a) + f(b)) W_C + b_C (Eq. 5).

    The alignment of Eq. 6, a second linear map right behind it, would add nothing and is left out.
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__(CountSum(hidden), nn.Linear(hidden, width))


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """The channels of a model and their sizes."""

    node_dim: int
    edge_dim: int
    time_dim: int
    width: int
    trainable_time: bool = False
    scales: tuple[float, ...] = (1.0,)  # time scales of decayed counts
    # least number of columns that the initial scale of the weights of node and edge features assumes
    min_fan_in: int = 1
    names: tuple[str, ...] = ("node", "edge", "time")
    types: tuple[TypeColumn, ...] = ()  # categorical columns of events, with their values in training
    type_values: int = 1  # values of a categorical column that have an embedding of their own

    def build_channels(self) -> nn.ModuleList:
        """Build the channels that need one sequence only."""
        return nn.ModuleList(CHANNELS[name](self) for name in self.names if name in CHANNELS)


class Channel(nn.Module):
    """Base class of channels: `out_dim` columns of each token."""

    out_dim: int


class PartChannel(Channel):
    """Base class of channels that are a part of `encode_tokens`."""

    def part(self, tokens: Tokens, features: FeatureTable) -> Part:
        """Return what the channel encodes of each token, with its weights."""
        raise NotImplementedError

    def forward(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "r l c"]:
        return encode_part(self.part(tokens, features))


class FeatureChannel(PartChannel):
    """Base class of channels of features, `dim` columns of them; only the bias if there are none."""

    def __init__(self, config: ChannelConfig, dim: int) -> None:
        super().__init__()
        self.out_dim = config.width
        self.align = FeatureProjection(dim, config.width, padded_width(dim, config.min_fan_in))


class NodeChannel(FeatureChannel):
    """Features of the token's node."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__(config, config.node_dim)

    def part(self, tokens: Tokens, features: FeatureTable) -> FeatureRows:
        return FeatureRows(features.node, tokens.node, tokens.mask, None, self.align.weight, self.align.bias)


class EdgeChannel(FeatureChannel):
    """Features of the token's event; the query token has none."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__(config, config.edge_dim)

    def part(self, tokens: Tokens, features: FeatureTable) -> FeatureRows:
        rows = features.edge, tokens.event, tokens.is_event, features.edge_scale
        return FeatureRows(*rows, self.align.weight, self.align.bias)


class TimeChannel(PartChannel):
    """Time encoding of the token's age (time from the event to the query)."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.out_dim = config.width
        self.encode = TimeEncoding(config.time_dim, trainable=config.trainable_time)
        self.align = nn.Linear(config.time_dim, config.width)

    def part(self, tokens: Tokens, features: FeatureTable) -> TimeSpans:
        spans = tokens.age, self.encode.omega, self.encode.phase
        return TimeSpans(*spans, self.align.weight, self.align.bias)


class EventTypeChannel(Channel):
    """Embeddings of the categorical columns of the token's event, summed; the query token has only the bias.

    A column has an embedding per frequent value in training, one for all other values, also those that training does
    not have, and one for a missing value. The last two start at 0: a value that training never showed says nothing. A
    stream without categorical columns has no weights and no columns here. Embeddings are rows of a matrix that one-hot
    codes are multiplied with, because a GPU adds up the gradient of a table row one by one, in any order.
    """

    bucket: Tensor

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        buckets = [assign_type_buckets(column, config.type_values) for column in config.types]
        self.index = [column.index for column in config.types]
        # the last entry is the bucket of other values, behind which only that of missing values follows
        self.sizes = [int(bucket[-1]) + 2 for bucket in buckets]
        self.out_dim = config.width if buckets else 0
        most = max((len(bucket) for bucket in buckets), default=0)
        # beyond a column's own codes there are only unknown values, the bucket of its last entry
        rows = [torch.cat([bucket, bucket[-1:].expand(most - len(bucket))]) for bucket in buckets]
        table = torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.int64)
        self.register_buffer("bucket", table, persistent=False)
        if buckets:
            self.weight = uniform_parameter(len(buckets), sum(self.sizes), config.width)
            self.bias = uniform_parameter(len(buckets), config.width)
            with torch.no_grad():
                for rows in self.weight.split(self.sizes):
                    rows[-2:] = 0

    def forward(self, tokens: Tokens, features: FeatureTable) -> Tensor:
        if not self.index:
            return tokens.age.new_zeros(*tokens.age.shape, 0)
        assert features.codes is not None
        codes = gather_rows(features.codes, tokens.event).long()  # [r l dc]
        chosen = []
        for bucket, index, size in zip(self.bucket, self.index, self.sizes, strict=True):
            own = bucket[codes[..., index].clamp(max=len(bucket) - 1)]
            chosen.append(own[..., None] == torch.arange(size, device=own.device))
        one_hot = torch.cat(chosen, dim=-1) & tokens.is_event[..., None]  # [r l k]
        return one_hot.to(self.weight.dtype) @ self.weight + self.bias


def assign_type_buckets(column: TypeColumn, values: int) -> Int64[Tensor, "_"]:
    """Return the bucket of each code: `values` frequent ones by rank, then all others, then missing values.

    The last entry is that of any larger code, which training does not have.
    """
    frequent = [
        code for code, value in zip(column.codes, column.values, strict=True) if value != MISSING_VALUE
    ]
    frequent = frequent[:values]
    bucket = torch.full((max(column.codes) + 2,), len(frequent), dtype=torch.int64)
    bucket[frequent] = torch.arange(len(frequent))
    for code, value in zip(column.codes, column.values, strict=True):
        if value == MISSING_VALUE:
            bucket[code] = len(frequent) + 1
    return bucket


class FeatureProjection(nn.Module):
    """Weights of a linear projection of features, which may have no columns."""

    def __init__(self, dim: int, width: int, fan_in: int) -> None:
        super().__init__()
        self.weight, self.bias = uniform_parameter(fan_in, dim, width), uniform_parameter(fan_in, width)


class CooccurrenceChannel(PartChannel):
    """Counts of the token's node in the first and in the second sequence of its pair."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.out_dim = config.width
        self.encode = CountEncoding(config.width, config.width)

    def part(self, tokens: Tokens, features: FeatureTable) -> PairCounts:
        total, align = self.encode
        assert isinstance(total, CountSum)
        assert isinstance(align, nn.Linear)
        return PairCounts(tokens.node, tokens.mask, *total.layers, align.weight, align.bias)


class DecayedCooccurrenceChannel(Channel):
    """Co-occurrence where each event counts exp(-age / scale), on several time scales."""

    scale: Tensor

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.out_dim = config.width
        self.register_buffer("scale", torch.tensor(config.scales), persistent=False)
        width, sides = config.width, 2 * len(config.scales)
        self.encode = nn.Sequential(nn.Linear(sides, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, tokens: Tokens, features: FeatureTable) -> Tensor:
        return self.encode(torch.log1p(count_decayed_pair_tokens(tokens, self.scale)))


def count_decayed_pair_tokens(tokens: Tokens, scale: Float32[Tensor, "s"]) -> Float32[Tensor, "r l f"]:
    """Return the decayed count of each token's node in its own and then in the other sequence, on every scale.

    The first half of the sequences are sources, the second half the destinations of the same pairs.
    """
    decay = torch.exp(-tokens.age[..., None] / scale) * tokens.mask[..., None]  # [r l s]
    node = torch.where(tokens.mask, tokens.node, -1)
    other_node, other_decay = (torch.cat(column.chunk(2)[::-1]) for column in (node, decay))
    same = (node[:, :, None] == node[:, None, :]).float()
    shared = (node[:, :, None] == other_node[:, None, :]).float()
    return torch.cat([same @ decay, shared @ other_decay], dim=-1) * tokens.mask[..., None]


# Channels that need one sequence only, and channels that need both sequences of a pair.
CHANNELS: dict[str, type[Channel]] = {
    "node": NodeChannel,
    "edge": EdgeChannel,
    "time": TimeChannel,
    "event-types": EventTypeChannel,
}
PAIR_CHANNELS: dict[str, type[Channel]] = {
    "cooccurrence": CooccurrenceChannel,
    "decayed-cooccurrence": DecayedCooccurrenceChannel,
}


def count_columns(*parts: Iterable[nn.Module]) -> int:
    """Return the number of columns of all these channels side by side."""
    return sum(channel.out_dim for part in parts for channel in part if isinstance(channel, Channel))


class Channels(nn.Module):
    """Encodings of a token side by side: channels of one sequence, then channels of the pair."""

    def __init__(self, config: ChannelConfig) -> None:
        super().__init__()
        self.alone = config.build_channels()
        self.paired = nn.ModuleList(
            PAIR_CHANNELS[name](config) for name in config.names if name in PAIR_CHANNELS
        )
        self.out_dim = count_columns(self.alone, self.paired)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "r l d"]:
        """Encode each token; a sequence that two pairs share is encoded for each of them (decision 007)."""
        channels = [*self.alone, *self.paired]
        parts = [channel.part(tokens, features) for channel in channels if isinstance(channel, PartChannel)]
        if parts and len(parts) == len(channels):
            return encode_tokens(parts)
        return torch.cat([channel(tokens, features) for channel in channels], dim=-1)
