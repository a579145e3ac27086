"""FreeDyG (Tian et al., ICLR 2024): a learned filter over the frequencies of a node's recent events.

Tokens stand at a fixed number of slots, the newest in the last one, as published. The original counts the
padding id as if it were a neighbour, which tells how many slots are empty, and leaves biases and mixed values in
them; here padding is not counted, and empty slots hold zeros before and after each filter and block. As the
number of slots is fixed they carry nothing of the batch. A node without a past gets zeros.

Legend: p pairs, q rows, r = 2 p rows (sources, then destinations), l tokens, k slots, d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor, nn
from torch.nn.functional import linear

from dygmamba.core.settings import Count, Length, Rate, Settings, Width
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.attention import FeedForward
from dygmamba.nn.encodings import ChannelConfig, CountEncoding, pair_counts
from dygmamba.nn.tokens import Tokens, make_tokens, newest_last
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairView


@dataclass(frozen=True, slots=True)
class FreeDyGConfig(Settings):
    """Settings of the release; length and dropout were chosen per dataset."""

    length: Length = 32  # events per sequence
    blocks: Count = 2  # blocks of filter and mixer
    out: Width = 172  # columns of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    count_dim: Width = 50  # hidden width of the encoding of counts
    dropout: Rate = 0.1  # share of activations left out in training
    filter_dropout: Rate = 0.1  # dropout after the filter, the same for all datasets


def count_interactions(paired: NeighborSequence) -> Int32[Tensor, "r l 2"]:
    """How often each entry's node occurs in u's and in v's past.

    The other end of the pair counts in both as often as it occurs here, so that having met shows on either side.
    """
    p, counts = paired.node.shape[0] // 2, pair_counts(paired.node, paired.mask)
    here = torch.cat([counts[:p, :, :1], counts[p:, :, 1:]])  # [r l 1]
    met = paired.node == paired.query_node.roll(p)[:, None]  # rolled by p, each row has the other end's node
    return torch.where(met[..., None], here, counts)


class MixedChannels(nn.Module):
    """Four aligned channels side by side and a linear map of them, which is a sum of one map per channel.

    So node, edge and time are mapped once per row, and only the pair's counts once per pair.
    """

    def __init__(self, config: FreeDyGConfig, facts: DatasetFacts) -> None:
        super().__init__()
        dims = (facts.node_dim, facts.edge_dim, config.time_dim, config.out)
        self.channels = ChannelConfig(*dims, fill=config.out).channels()
        self.count = CountEncoding(config.count_dim, config.out)
        self.mix = nn.Linear((len(self.channels) + 1) * config.out, config.out)

    def rows(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l d"]:
        """What the channels of a row add by themselves."""
        x = torch.cat([channel(tokens, features) for channel in self.channels], dim=-1)
        return linear(x, self.mix.weight[:, : x.shape[-1]], self.mix.bias)

    def join(self, rows: Float[Tensor, "r l d"], counts: Int32[Tensor, "r l 2"]) -> Float[Tensor, "r l d"]:
        """A row's channels and the pair's counts."""
        return rows + linear(self.count(counts), self.mix.weight[:, -rows.shape[-1] :])


class FrequencyFilter(nn.Module):
    """Each channel's spectrum over the slots times a learned weight: a circular convolution."""

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        # real and imaginary parts side by side, so that optimizer and checkpoint see real numbers
        self.weight = nn.Parameter(torch.randn(slots // 2 + 1, width, 2))

    def forward(self, x: Float[Tensor, "r k d"]) -> Float[Tensor, "r k d"]:
        """The filtered slots; in 32 bits, as there is no transform in bfloat16."""
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.fft.rfft(x.float(), dim=1, norm="forward")
            spectrum = spectrum * torch.view_as_complex(self.weight)
            return torch.fft.irfft(spectrum, n=x.shape[1], dim=1, norm="forward")


class FrequencyBlock(nn.Module):
    """Filter, mix each channel over the slots, then each slot over the channels; empty slots stay zero."""

    def __init__(self, config: FreeDyGConfig) -> None:
        super().__init__()
        slots, width, dropout = config.length, config.out, config.dropout
        self.filter, self.drop = FrequencyFilter(slots, width), nn.Dropout(config.filter_dropout)
        self.over_slots = nn.Sequential(
            nn.LayerNorm(slots), FeedForward(slots, max(slots // 2, 1), nn.GELU, dropout)
        )
        self.over_width = nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width, nn.GELU, dropout))

    def forward(self, x: Float[Tensor, "r k d"], taken: Bool[Tensor, "r k"]) -> Float[Tensor, "r k d"]:
        """The mixed tokens."""
        filtered = (x + self.drop(self.filter(x))) * taken[..., None]
        x = x + self.over_slots(filtered.mT).mT
        return (x + self.over_width(x)) * taken[..., None]


class FreeDyG(Encoder):
    """Both pasts filtered and mixed by the same weights, each summed with a learned weight per token."""

    def __init__(self, config: FreeDyGConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.requests = (NeighborRequest((config.length,)),)
        self.slots, self.out_dim = config.length, config.out
        self.channels = MixedChannels(config, facts)
        self.blocks = nn.ModuleList(FrequencyBlock(config) for _ in range(config.blocks))
        self.weigh = nn.Linear(config.out, 1)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        """Source and destination embedding of each pair."""
        ((recent,),) = view.neighbors
        pairs, p = view.pairs, view.pairs.src_row.shape[0]
        both = torch.cat([pairs.src_row, pairs.dst_row])
        paired = recent[both]
        rows = self.channels.rows(make_tokens(recent, "absent"), view.features)
        x, taken = newest_last(self.channels.join(rows[both], count_interactions(paired)), paired, self.slots)
        for block in self.blocks:
            x = block(x, taken)
        z = (self.weigh(x) * x).sum(dim=1)  # empty slots are zero, so they add nothing
        return z[:p], z[p:]


SPEC = ModelSpec(
    config=FreeDyGConfig,
    build=with_link_head(FreeDyG),
    trainable=True,
    title="FreeDyG (Tian et al. 2024)",
    looks_at="the frequencies of both nodes' recent events, and who occurs in both",
    cost="quadratic in the length (its token mixing)",
)
