"""How the walks to two nodes overlap, as features of a pair and of tokens.

Legend: p pairs, l tokens, s rows of a node (P^0..P^k), d their width, w = (2 s)^2 numbers about two nodes.
"""

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64
from torch import Tensor, nn

from dygmamba.sampling.walks import Walks

Rows = Float32[Tensor, "*q s d"]


def overlaps(a: Rows, b: Rows) -> Float32[Tensor, "*q w"]:
    """log(1 + inner product) of all rows of two nodes with each other, negative products as 0: 2 s by 2 s numbers."""
    with torch.autocast(a.device.type, enabled=False):
        both = torch.cat([a, b], dim=-2)
        return torch.log1p((both @ both.mT).clamp(min=0)).flatten(-2)


def token_overlaps(token: Float32[Tensor, "p l s d"], ends: Float32[Tensor, "p 2 s d"]) -> Tensor:
    """`overlaps` of each token with either end of its pair, [p l 2 w]; the products of each kind once."""
    p, tokens, s, _ = token.shape
    with torch.autocast(token.device.type, enabled=False):
        own = (token @ token.mT)[:, :, None].expand(p, tokens, 2, s, s)
        cross = (token.flatten(1, 2) @ ends.flatten(1, 2).mT).view(p, tokens, s, 2, s).transpose(2, 3)
        end = (ends @ ends.mT)[:, None].expand(p, tokens, 2, s, s)
        gram = torch.cat([torch.cat([own, cross], -1), torch.cat([cross.mT, end], -1)], dim=-2)
        return torch.log1p(gram.clamp(min=0)).flatten(-2)


def pair_overlaps(
    walks: Walks, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> Float32[Tensor, "p w"]:
    """What the walks say of each pair, strictly before its time."""
    with torch.no_grad():
        return overlaps(walks.at(src, time), walks.at(dst, time))


class WalkRelation(nn.Module):
    """r(a, b): a perceptron on the overlaps of two nodes (TPNet, Lu et al., NeurIPS 2024, Eq. 9)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_dim = width
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def of_pairs(
        self, walks: Walks, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float[Tensor, "p w"]:
        """r(source, destination) of each pair."""
        return self.layers(pair_overlaps(walks, src, dst, time))

    def of_tokens(
        self,
        walks: Walks,
        node: Int[Tensor, "p l"],
        mask: Bool[Tensor, "p l"],
        ends: Int64[Tensor, "p 2"],
        time: Float64[Tensor, "p"],
    ) -> Float[Tensor, "p l w2"]:
        """r(token, first end) and r(token, second end) side by side, at the time of each token's pair."""
        with torch.no_grad():
            token = walks.at(torch.where(mask, node.long(), -1), time[:, None].expand(node.shape))
            found = token_overlaps(token, walks.at(ends, time[:, None].expand(ends.shape)))
        return self.layers(found).flatten(-2)
