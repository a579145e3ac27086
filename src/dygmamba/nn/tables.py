"""What tables of the whole past say of a token or a pair: fading counts and walks, as channels and beside a head.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, s scales, c channel width, b numbers.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from dygmamba.nn.tokens import Tokens
from dygmamba.nn.walks import WalkRelation
from dygmamba.sampling.fades import FadeRequest
from dygmamba.sampling.view import PairView
from dygmamba.sampling.walks import WalkRequest


@dataclass(frozen=True, slots=True)
class TableConfig:
    """Which tables are asked for, how wide what is read from them becomes, and how much of it is dropped."""

    fades: FadeRequest
    walks: WalkRequest
    width: int
    dropout: float


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom each sequence belongs to, whom it is held against, and at which time tables are asked."""

    view: PairView
    own: Int64[Tensor, "r"]
    other: Int64[Tensor, "r"]
    time: Float64[Tensor, "r"]

    @staticmethod
    def of(view: PairView) -> "Asked":
        """Sources, then destinations."""
        pairs = view.pairs
        own, other = torch.cat([pairs.src, pairs.dst]), torch.cat([pairs.dst, pairs.src])
        return Asked(view, own, other, pairs.known.repeat(2))


class TokenFades(nn.Module):
    """How often a token's node has acted, and met either end of the pair: over all of the past, not the sequence."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.request = config.fades
        numbers = 3 * len(config.fades.scales)
        self.encode = nn.Sequential(
            nn.Linear(numbers, config.width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.width, config.width),
        )

    def forward(self, tokens: Tokens, asked: Asked) -> Float[Tensor, "r l c"]:
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

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.request = config.walks
        self.relation, self.drop = WalkRelation(config.walks.width), nn.Dropout(config.dropout)
        self.align = nn.Linear(2 * self.relation.out_dim, config.width)

    def forward(self, tokens: Tokens, asked: Asked) -> Float[Tensor, "r l c"]:
        """The aligned relations."""
        (walks,), ends = asked.view.walks, torch.stack([asked.own, asked.other], dim=1)
        return self.align(
            self.drop(self.relation.of_tokens(walks, tokens.node, tokens.mask, ends, asked.time))
        )


class PairFades(nn.Module):
    """How often either end of a pair has acted, and how often they have met."""

    def __init__(self, config: TableConfig) -> None:
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

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.request = config.walks
        self.relation, self.drop = WalkRelation(config.walks.width), nn.Dropout(config.dropout)
        self.out_dim = self.relation.out_dim

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        """Numbers for the head."""
        (walks,), pairs = view.walks, view.pairs
        return self.drop(self.relation.of_pairs(walks, pairs.src, pairs.dst, pairs.known))


# What a token is told, and what the head is told of the pair.
TABLE_CHANNELS: dict[str, type[TokenFades] | type[TokenWalks]] = {
    "fading-counts": TokenFades,
    "walks": TokenWalks,
}
BESIDE: dict[str, type[PairFades] | type[PairWalks]] = {"fading-pair": PairFades, "walks": PairWalks}
