"""How the walks to two nodes overlap, as features of a pair and of tokens.

Legend: p pairs, l tokens, s rows of a node (P^0..P^k), d their width, w = (2 s)^2 numbers about two nodes.

What tables of the whole past say of a token or a pair: fading counts and walks, as channels and beside a head.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, s scales, c channel width, b numbers.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64
from torch import Tensor, nn

from dygmamba.nn.tokens import Tokens
from dygmamba.sampling.decayed_counts import DecayedCountRequest
from dygmamba.sampling.view import PairView
from dygmamba.sampling.walks import TemporalWalks, WalkRequest

WalkRows = Float32[Tensor, "*q s d"]


def walk_overlaps(a: WalkRows, b: WalkRows) -> Float32[Tensor, "*q w"]:
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
    walks: TemporalWalks, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> Float32[Tensor, "p w"]:
    """What the walks say of each pair, strictly before its time."""
    with torch.no_grad():
        return walk_overlaps(walks.at(src, time), walks.at(dst, time))


class WalkRelation(nn.Module):
    """r(a, b): a perceptron on the overlaps of two nodes (TPNet, Lu et al., NeurIPS 2024, Eq. 9)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_dim = width
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def of_pairs(
        self,
        walks: TemporalWalks,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> Float[Tensor, "p w"]:
        """r(source, destination) of each pair."""
        return self.layers(pair_overlaps(walks, src, dst, time))

    def of_tokens(
        self,
        walks: TemporalWalks,
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


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Which tables are asked for, how wide what is read from them becomes, and how much of it is dropped."""

    fades: DecayedCountRequest
    walks: WalkRequest
    width: int
    dropout: float


@dataclass(frozen=True, slots=True)
class SequencePairs:
    """Whom each sequence belongs to, whom it is held against, and at which time tables are asked."""

    view: PairView
    own: Int64[Tensor, "r"]
    other: Int64[Tensor, "r"]
    time: Float64[Tensor, "r"]

    @staticmethod
    def of(view: PairView) -> "SequencePairs":
        """Sources, then destinations."""
        pairs = view.pairs
        own, other = torch.cat([pairs.src, pairs.dst]), torch.cat([pairs.dst, pairs.src])
        return SequencePairs(view, own, other, pairs.known.repeat(2))


class TokenDecayedCounts(nn.Module):
    """How often a token's node has acted, and met either end of the pair: over all of the past, not the sequence."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.request = config.fades
        numbers = 3 * len(config.fades.scales)
        self.encode = nn.Sequential(
            nn.Linear(numbers, config.width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.width, config.width),
        )

    def forward(self, tokens: Tokens, asked: SequencePairs) -> Float[Tensor, "r l c"]:
        """The aligned counts."""
        (fades,), node = asked.view.fades, torch.where(tokens.mask, tokens.node.long(), -1)
        time, own, other = (
            column[:, None].expand(node.shape) for column in (asked.time, asked.own, asked.other)
        )
        with torch.no_grad():
            counts = [
                fades.of_node(node, time),
                fades.of_pair(node, own, time),
                fades.of_pair(node, other, time),
            ]
        return self.encode(torch.log1p(torch.cat(counts, dim=-1)))


class TokenWalks(nn.Module):
    """How the walks to a token's node overlap with those to either end of the pair."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.request = config.walks
        self.relation, self.drop = WalkRelation(config.walks.width), nn.Dropout(config.dropout)
        self.align = nn.Linear(2 * self.relation.out_dim, config.width)

    def forward(self, tokens: Tokens, asked: SequencePairs) -> Float[Tensor, "r l c"]:
        """The aligned relations."""
        (walks,), ends = asked.view.walks, torch.stack([asked.own, asked.other], dim=1)
        return self.align(
            self.drop(self.relation.of_tokens(walks, tokens.node, tokens.mask, ends, asked.time))
        )


class PairDecayedCounts(nn.Module):
    """How often either end of a pair has acted, and how often they have met."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.request, self.out_dim = config.fades, config.width
        self.encode = nn.Sequential(
            nn.Linear(3 * len(config.fades.scales), 4 * config.width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        """Numbers for the head."""
        (fades,), pairs = view.fades, view.pairs
        with torch.no_grad():
            counts = [
                fades.of_node(pairs.src, pairs.known),
                fades.of_node(pairs.dst, pairs.known),
                fades.of_pair(pairs.src, pairs.dst, pairs.known),
            ]
        return self.encode(torch.log1p(torch.cat(counts, dim=-1)))


class PairWalks(nn.Module):
    """How the walks to both ends of a pair overlap."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.request = config.walks
        self.relation, self.drop = WalkRelation(config.walks.width), nn.Dropout(config.dropout)
        self.out_dim = self.relation.out_dim

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        """Numbers for the head."""
        (walks,), pairs = view.walks, view.pairs
        return self.drop(self.relation.of_pairs(walks, pairs.src, pairs.dst, pairs.known))


# What a token is told, and what the head is told of the pair.
HISTORY_CHANNELS: dict[str, type[TokenDecayedCounts] | type[TokenWalks]] = {
    "fading-counts": TokenDecayedCounts,
    "walks": TokenWalks,
}
PAIR_FEATURES: dict[str, type[PairDecayedCounts] | type[PairWalks]] = {
    "fading-pair": PairDecayedCounts,
    "walks": PairWalks,
}
