"""Looking across the pair, and summing a sequence up: mixers and pools, masked everywhere.

Legend: p sequences, r = 2 p sequences of p pairs, l tokens, d width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dygmamba.nn.attention import LONG, masked_softmax
from dygmamba.nn.by_hand import GatedSum, LongAttention, ShortAttention

FULL = (torch.float32, torch.float64)  # beside autocast, which chooses a precision operation by operation

Both = Float[Tensor, "r l d"]  # the first sequence of each pair, then the second of each
Mask = Bool[Tensor, "r l"]


class NoMixer(nn.Module):
    """Each sequence on its own (the paper's text)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()

    def forward(self, x: Both, mask: Mask) -> Both:
        """The sequences as they are."""
        return x


class LinearCrossAttention(nn.Module):
    """Each token asks the other sequence, by linear attention: one layer, both ways at once.

    The paper's configuration table names the layer without describing it; the released code lets keys attend
    over padding and updates the two sides one after the other. Here keys are masked and both sides see the
    other's old states, so the layer is symmetric and blind to padding.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ask = nn.Linear(width, 3 * width, bias=False)  # query, key and value
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Both, mask: Mask) -> Both:
        """Both sequences, each informed by the other."""
        asked = self.ask(x)
        by_hand = LongAttention if x.shape[1] > LONG else ShortAttention
        found = by_hand.apply(asked, mask) if asked.dtype in FULL else across(asked, mask)
        return self.norm(x + self.drop(self.out(found)))


def across(asked: Float[Tensor, "r l k"], mask: Mask) -> Both:
    """What each token gets from the other sequence, by its query, key and value side by side: the definition."""
    query, key, value = asked.chunk(3, dim=-1)
    query, key = query.softmax(dim=-1) * query.shape[-1] ** -0.5, masked_softmax(key, mask)
    p = len(query) // 2
    if query.shape[1] < query.shape[2]:  # the cheaper product comes first
        return (query @ key.roll(p, dims=0).mT) @ value.roll(p, dims=0)
    return query @ (key.mT @ value).roll(p, dims=0)


PAIR_MIXERS: dict[str, type[nn.Module]] = {"none": NoMixer, "cross": LinearCrossAttention}


class MeanPool(nn.Module):
    """The mean over the tokens that exist (the paper's readout)."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        """One vector per sequence; zeros for an empty one."""
        return (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


class GatePool(nn.Module):
    """A softmax-weighted sum with a learned gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 1, bias=False)

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        """One vector per sequence."""
        return GatedSum.apply(x, self.gate.weight.flatten().to(x.dtype), mask)


class TopGatePool(GatePool):
    """The gate's 64 heaviest tokens, renormalised (the released code's readout)."""

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        """One vector per sequence."""
        weight = masked_softmax(self.gate(x), mask)  # [p l 1]
        top = weight.topk(min(64, weight.shape[1]), dim=1)
        kept = torch.zeros_like(weight).scatter(1, top.indices, top.values)
        share = kept / kept.sum(dim=1, keepdim=True).clamp(min=1e-12)
        return (x * mask[..., None] * share).sum(dim=1)


class LastPool(nn.Module):
    """The state after the last token."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "p l d"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p d"]:
        """One vector per sequence; zeros for an empty one."""
        count = mask.sum(dim=1)
        last = (count - 1).clamp(min=0)
        return x[torch.arange(len(x), device=x.device), last] * (count > 0)[:, None]


POOLS: dict[str, type[nn.Module]] = {
    "mean": MeanPool,
    "gate": GatePool,
    "gate64": TopGatePool,
    "last": LastPool,
}
