"""FreeDyG (Tian et al., ICLR 2024): a learned filter over the frequencies of a node's recent events.

As in the original, tokens are in a fixed number of slots, the newest in the last one. The original counts the padding
id as if it were a neighbor, which reveals how many slots are empty, and leaves biases and mixed values in them. Here
padding is not counted, and empty slots are zero before and after each filter and block. As the number of slots is
fixed, padding does not depend on the batch. A node without neighbors gets zeros.

Legend: p pairs, q rows, r = 2 p rows (sources, then destinations), l tokens, k slots, d width.
"""

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor, nn
from torch.nn.functional import linear

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import FreeDyGConfig
from dygmamba.nn.attention import FeedForward
from dygmamba.nn.encodings import ChannelConfig, CountEncoding
from dygmamba.nn.tokens import Tokens, make_tokens, newest_last
from dygmamba.ops.tokens import count_pair_tokens


def count_interactions(paired: NeighborSequence) -> Int32[Tensor, "r l 2"]:
    """Count each entry's node in u's and in v's neighbor sequences.

    The other end of the pair gets its count in this sequence for both, so that common events show on both sides.
    """
    p, counts = paired.node.shape[0] // 2, count_pair_tokens(paired.node, paired.mask)
    own = torch.cat([counts[:p, :, :1], counts[p:, :, 1:]])  # [r l 1], count in the entry's own sequence
    met = (
        paired.node == paired.query_node.roll(p)[:, None]
    )  # rolled by p, each row gets the node at the other end
    return torch.where(met[..., None], own, counts)


class MixedChannels(nn.Module):
    """Four channels side by side and a linear map of them, computed as a sum of one map per channel.

    So node, edge and time are mapped once per row, and only the pair's counts once per pair.
    """

    def __init__(self, config: FreeDyGConfig, facts: DatasetFacts) -> None:
        super().__init__()
        dims = (facts.node_dim, facts.edge_dim, config.time_dim, config.out)
        self.channels = ChannelConfig(*dims, min_fan_in=config.out).build_channels()
        self.count = CountEncoding(config.count_dim, config.out)
        self.mix = nn.Linear((len(self.channels) + 1) * config.out, config.out)

    def rows(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l d"]:
        """Return the mixed channels of each sequence, all but the co-occurrence counts, which depend on the pair."""
        x = torch.cat([channel(tokens, features) for channel in self.channels], dim=-1)
        return linear(x, self.mix.weight[:, : x.shape[-1]], self.mix.bias)

    def add_counts(
        self, rows: Float[Tensor, "r l d"], counts: Int32[Tensor, "r l 2"]
    ) -> Float[Tensor, "r l d"]:
        """Add the encoded co-occurrence counts to the rows, which `rows` computed without them."""
        return rows + linear(self.count(counts), self.mix.weight[:, -rows.shape[-1] :])


class FrequencyFilter(nn.Module):
    """Multiply each channel's spectrum over the slots by a learned weight: a circular convolution."""

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        # real and imaginary parts as columns, so that optimizer and checkpoint see real numbers
        self.weight = nn.Parameter(torch.randn(slots // 2 + 1, width, 2))

    def forward(self, x: Float[Tensor, "r k d"]) -> Float[Tensor, "r k d"]:
        # float32, as there is no Fourier transform in bfloat16
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
        filtered = (x + self.drop(self.filter(x))) * taken[..., None]
        x = x + self.over_slots(filtered.mT).mT
        return (x + self.over_width(x)) * taken[..., None]


class FreeDyG(Encoder):
    """Filter and mix both sequences with the same weights, then sum each with a learned weight per token."""

    def __init__(self, config: FreeDyGConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.recent = NeighborRequest((config.length,))
        self.requests = (self.recent,)
        self.slots, self.out_dim = config.length, config.out
        self.channels = MixedChannels(config, facts)
        self.blocks = nn.ModuleList(FrequencyBlock(config) for _ in range(config.blocks))
        self.weigh = nn.Linear(config.out, 1)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        (recent,) = view[self.recent]
        pairs, p = view.pairs, view.pairs.src_row.shape[0]
        both = torch.cat([pairs.src_row, pairs.dst_row])
        paired = recent[both]
        rows = self.channels.rows(make_tokens(recent, "absent"), view.features)
        x, taken = newest_last(
            self.channels.add_counts(rows[both], count_interactions(paired)), paired, self.slots
        )
        for block in self.blocks:
            x = block(x, taken)
        z = (self.weigh(x) * x).sum(dim=1)  # empty slots are zero, so they add nothing
        return z[:p], z[p:]
