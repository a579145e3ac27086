"""Mixers between the two sequences of a pair, and pools that reduce a sequence to one vector; both respect masks.

Legend: p sequences, r = 2 p sequences of p pairs, l tokens, d width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dygmamba.nn.attention import FeedForward
from dygmamba.ops.attention import gated_sum, masked_softmax, pair_attention
from dygmamba.ops.residual_norm import add_layer_norm

Both = Float[Tensor, "r l d"]  # all sources, then all destinations
Mask = Bool[Tensor, "r l"]


class NoMixer(nn.Module):
    """No exchange between the sequences, as in the paper's text."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()

    def forward(self, x: Both, mask: Mask) -> Both:
        return x


class LinearCrossAttention(nn.Module):
    """Linear attention of each token to the other sequence: one layer, in both directions at once.

    The paper's configuration table names the layer without describing it. The released code attends to padding and
    updates the two sides one after the other. Here keys are masked and each side sees the other's old states, so the
    layer is symmetric and padding has no effect.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ask = nn.Linear(width, 3 * width, bias=False)  # query, key and value in one product
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Both, mask: Mask) -> Both:
        attended = pair_attention(self.ask(x), mask)
        dropout = self.drop.p if self.training else 0.0
        out, norm = self.out, self.norm
        return add_layer_norm(
            x, attended, (out.weight, out.bias), (norm.weight, norm.bias), dropout, norm.eps
        )


PAIR_MIXERS: dict[str, type[nn.Module]] = {"none": NoMixer, "cross": LinearCrossAttention}


class MixerBlock(nn.Module):
    """MLP-mixer block: mix each channel over the slots, then each slot over the channels; empty slots stay zero."""

    def __init__(self, slots: int, width: int, dropout: float) -> None:
        super().__init__()
        self.over_slots = nn.Sequential(
            nn.LayerNorm(slots), FeedForward(slots, max(slots // 2, 1), nn.GELU, dropout)
        )
        self.over_width = nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width, nn.GELU, dropout))

    def forward(self, x: Float[Tensor, "p l d"], taken: Bool[Tensor, "p l"]) -> Float[Tensor, "p l d"]:
        x = x + self.over_slots(x.mT).mT
        return (x + self.over_width(x)) * taken[..., None]


class MeanPool(nn.Module):
    """Mean over the unmasked tokens (the paper's readout); zeros for an empty sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        return (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


class GatePool(nn.Module):
    """Softmax-weighted sum with a learned gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 1, bias=False)

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        return gated_sum(x, self.gate.weight.flatten().to(x.dtype), mask)


class TopGatePool(GatePool):
    """Sum of the 64 tokens with the largest gate weights, renormalised (the released code's readout)."""

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        weight = masked_softmax(self.gate(x), mask)  # [p l 1]
        top = weight.topk(min(64, weight.shape[1]), dim=1)
        top_weight = torch.zeros_like(weight).scatter(1, top.indices, top.values)
        share = top_weight / top_weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
        return (x * mask[..., None] * share).sum(dim=1)


class LastPool(nn.Module):
    """State of the last token; zeros for an empty sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        count = mask.sum(dim=1)  # real tokens come first, so the last one is at count - 1
        last = (count - 1).clamp(min=0)
        return x[torch.arange(x.shape[0], device=x.device), last] * (count > 0)[:, None]


POOLS: dict[str, type[nn.Module]] = {
    "mean": MeanPool,
    "gate": GatePool,
    "gate64": TopGatePool,
    "last": LastPool,
}
