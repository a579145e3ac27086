"""Features from the whole history: decayed counts, temporal walks and transitions, of a token and of a pair.

Pair features are read by the link head next to the two embeddings.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, c channel width, b pair features; for counts
s time scales; for transitions k lags, n numbers; for walks g decays, s rows of a node for each of them (P^0..P^k), d
their width, w = g (2 s)^2 overlaps of two nodes, o columns of a relation.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64
from torch import Tensor, nn

from dygmamba.history.column_sums import ColumnLookup
from dygmamba.history.decayed_counts import DecayedCountLookup
from dygmamba.history.transition_counts import TransitionCountTable, TransitionLookup
from dygmamba.history.transitions import LEAST_COUNT, LEAST_TOTAL
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.history.walks import TemporalWalks, WalkRequest
from dygmamba.nn.initialization import two_layers
from dygmamba.nn.tokens import Tokens

WalkRows = Float32[Tensor, "*q g s d"]


def walk_overlaps(a: WalkRows, b: WalkRows) -> Float32[Tensor, "*q w"]:
    """Return log(1 + inner product) between all rows of two nodes, negative products as 0.

    For every decay 2 s by 2 s values; rows of different decays are not compared.
    """
    with torch.autocast(a.device.type, enabled=False):
        both = torch.cat([a, b], dim=-2)
        return torch.log1p((both @ both.mT).clamp(min=0)).flatten(-3)


def token_overlaps(token: Float32[Tensor, "p l g s d"], ends: Float32[Tensor, "p 2 g s d"]) -> Tensor:
    """`walk_overlaps` of each token with both ends of its pair, [p l 2 w]; each inner product is computed once."""
    p, tokens, bank, s, _ = token.shape
    shape = (p, tokens, 2, bank, s, s)
    with torch.autocast(token.device.type, enabled=False):
        own = (token @ token.mT)[:, :, None].expand(shape)
        rows, columns = (x.transpose(1, 2).flatten(2, 3) for x in (token, ends))  # [p g l*s d], [p g 2*s d]
        cross = (rows @ columns.mT).view(p, bank, tokens, s, 2, s).permute(0, 2, 4, 1, 3, 5)
        end = (ends @ ends.mT)[:, None].expand(shape)
        gram = torch.cat([torch.cat([own, cross], -1), torch.cat([cross.mT, end], -1)], dim=-2)
        return torch.log1p(gram.clamp(min=0)).flatten(-3)


def pair_overlaps(
    walks: TemporalWalks, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> Float32[Tensor, "p w"]:
    """Return the walk overlaps of each pair strictly before its time."""
    with torch.no_grad():
        return walk_overlaps(walks.at(src, time), walks.at(dst, time))


class WalkRelation(nn.Module):
    """r(a, b): a perceptron on the overlaps of two nodes (TPNet, Lu et al., NeurIPS 2024, Eq. 9).

    It reads the overlaps of all decays; its hidden and its output width are those of one decay. `dropout` applies to
    its hidden layer.
    """

    def __init__(self, walks: WalkRequest, dropout: float = 0.0) -> None:
        super().__init__()
        self.out_dim = width = walks.products
        # activation and dropout are one item, so that names of weights do not depend on the dropout
        activation = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        self.layers = nn.Sequential(
            nn.Linear(walks.width, 4 * width), activation, nn.Linear(4 * width, width)
        )

    def of_pairs(
        self,
        walks: TemporalWalks,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> Float[Tensor, "p o"]:
        """Return r(source, destination) of each pair."""
        return self.layers(pair_overlaps(walks, src, dst, time))

    def of_tokens(
        self,
        walks: TemporalWalks,
        node: Int[Tensor, "p l"],
        mask: Bool[Tensor, "p l"],
        ends: Int64[Tensor, "p 2"],
        time: Float64[Tensor, "p"],
    ) -> Float[Tensor, "p l o2"]:
        """Return r(token, first end) and r(token, second end) side by side, at the time of each token's pair."""
        with torch.no_grad():
            token = walks.at(torch.where(mask, node.long(), -1), time[:, None].expand(node.shape))
            overlaps = token_overlaps(token, walks.at(ends, time[:, None].expand(ends.shape)))
        return self.layers(overlaps).flatten(-2)


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """The history requests of a model, the width of their encodings and their dropout."""

    recent: NeighborRequest
    counts: DecayedCountLookup
    walks: WalkRequest
    transitions: TransitionLookup
    width: int
    dropout: float
    relation_dropout: float = 0.0  # inside the perceptron on walks
    columns: ColumnLookup | None = None  # if events have numeric columns

    def build_relation(self) -> WalkRelation:
        return WalkRelation(self.walks, self.relation_dropout)


@dataclass(frozen=True, slots=True)
class SequencePairs:
    """Each sequence's own node, the node at the other end of its pair, and the time of the look-up."""

    view: PairView
    own: Int64[Tensor, "r"]
    other: Int64[Tensor, "r"]
    time: Float64[Tensor, "r"]

    @staticmethod
    def from_view(view: PairView) -> "SequencePairs":
        pairs = view.pairs
        own, other = torch.cat([pairs.src, pairs.dst]), torch.cat([pairs.dst, pairs.src])
        return SequencePairs(view, own, other, pairs.table_time.repeat(2))


class TokenDecayedCounts(nn.Module):
    """Decayed counts of a token's node, alone and with both ends of the pair, over the whole history."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.counts, self.requests = config.counts, (config.counts,)
        numbers = 3 * len(config.counts.scales)
        self.encode = two_layers(numbers, config.width, config.width, config.dropout)

    def forward(self, tokens: Tokens, sequences: SequencePairs) -> Float[Tensor, "r l c"]:
        table, node = sequences.view[self.counts], torch.where(tokens.mask, tokens.node.long(), -1)
        time, own, other = (
            column[:, None].expand(node.shape) for column in (sequences.time, sequences.own, sequences.other)
        )
        with torch.no_grad():
            counts = [
                table.of_node(node, time),
                table.of_pair(node, own, time),
                table.of_pair(node, other, time),
            ]
        return self.encode(torch.log1p(torch.cat(counts, dim=-1)))


class TokenWalks(nn.Module):
    """Overlap of the walks to a token's node with the walks to both ends of the pair."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.walks, self.requests = config.walks, (config.walks,)
        self.relation, self.drop = config.build_relation(), nn.Dropout(config.dropout)
        self.align = nn.Linear(2 * self.relation.out_dim, config.width)

    def forward(self, tokens: Tokens, sequences: SequencePairs) -> Float[Tensor, "r l c"]:
        walks, ends = sequences.view[self.walks], torch.stack([sequences.own, sequences.other], dim=1)
        return self.align(
            self.drop(self.relation.of_tokens(walks, tokens.node, tokens.mask, ends, sequences.time))
        )


class PairDecayedCounts(nn.Module):
    """Decayed counts of both ends of a pair, and of their common events."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.counts, self.requests, self.out_dim = config.counts, (config.counts,), config.width
        self.encode = two_layers(
            3 * len(config.counts.scales), 4 * config.width, config.width, config.dropout
        )

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        table, pairs = view[self.counts], view.pairs
        with torch.no_grad():
            counts = [
                table.of_node(pairs.src, pairs.table_time),
                table.of_node(pairs.dst, pairs.table_time),
                table.of_pair(pairs.src, pairs.dst, pairs.table_time),
            ]
        return self.encode(torch.log1p(torch.cat(counts, dim=-1)))


class PairWalks(nn.Module):
    """Overlap of the walks to both ends of a pair."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.walks, self.requests = config.walks, (config.walks,)
        self.relation, self.drop = config.build_relation(), nn.Dropout(config.dropout)
        self.out_dim = self.relation.out_dim

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        walks, pairs = view[self.walks], view.pairs
        return self.drop(self.relation.of_pairs(walks, pairs.src, pairs.dst, pairs.table_time))


class SharedPairWalks(nn.Module):
    """The same with the relation of a model's tokens, `TokenWalks`, instead of one of its own."""

    def __init__(self, tokens: TokenWalks) -> None:
        super().__init__()
        self.requests, self.out_dim = tokens.requests, tokens.relation.out_dim
        self._tokens = (tokens,)  # no submodule: its weights are stored once, with the tokens
        self.drop = nn.Dropout(tokens.drop.p)

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        pairs, (tokens,) = view.pairs, self._tokens
        walks = view[tokens.walks]
        return self.drop(tokens.relation.of_pairs(walks, pairs.src, pairs.dst, pairs.table_time))


def transition_numbers(
    table: TransitionCountTable,
    lag: Int64[Tensor, "*q k"],
    origin: Int64[Tensor, "*q k"],
    dst: Int64[Tensor, "*q k"],
    time: Float64[Tensor, "*q k"],
) -> Float32[Tensor, "*q n"]:
    """Return for each (w, v) how often v followed w, its share of all that followed w, and how often w followed v."""
    followed, left = table.count(lag, origin, dst, time), table.count_all(lag, origin, time)
    share = torch.log((followed + LEAST_COUNT) / (left + LEAST_TOTAL))
    reverse = torch.log1p(table.count(lag, dst, origin, time))
    return torch.cat([torch.log1p(followed), share, reverse], dim=-1).flatten(-2)


def count_transitions(
    table: TransitionCountTable, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
) -> Float32[Tensor, "p n"]:
    """Return the transition numbers of each destination after the last destinations of its source."""
    origin = table.last_destinations(src, time)
    lag = torch.arange(table.request.lags, device=origin.device).expand(origin.shape)
    dsts, times = (column[:, None].expand(origin.shape) for column in (dst, time))
    return transition_numbers(table, lag, origin, dsts, times)


class TokenTransitions(nn.Module):
    """Encoding of how often the other end of the pair came 1, 2, ... events after a token's node, over all sources."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.transitions, self.requests = config.transitions, (config.transitions,)
        self.encode = two_layers(config.transitions.width, config.width, config.width, config.dropout)

    def forward(self, tokens: Tokens, sequences: SequencePairs) -> Float[Tensor, "r l c"]:
        table, node = sequences.view[self.transitions], torch.where(tokens.mask, tokens.node.long(), -1)
        lag = torch.arange(table.request.lags, device=node.device).expand(*node.shape, table.request.lags)
        with torch.no_grad():
            other, time = (
                column[:, None, None].expand(lag.shape) for column in (sequences.other, sequences.time)
            )
            numbers = transition_numbers(table, lag, node[:, :, None].expand(lag.shape), other, time)
        return self.encode(numbers)


class PairTransitions(nn.Module):
    """Encoding of how often the destination came 1, 2, ... events after the last destinations of the source."""

    def __init__(self, config: HistoryConfig) -> None:
        super().__init__()
        self.transitions, self.requests = config.transitions, (config.transitions,)
        self.out_dim = config.width
        self.encode = two_layers(config.transitions.width, 4 * config.width, config.width, config.dropout)

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        table, pairs = view[self.transitions], view.pairs
        with torch.no_grad():
            numbers = count_transitions(table, pairs.src, pairs.dst, pairs.table_time)
        return self.encode(numbers)


# Channels of tokens.
HISTORY_CHANNELS: dict[str, type[TokenDecayedCounts] | type[TokenWalks] | type[TokenTransitions]] = {
    "decayed-counts": TokenDecayedCounts,
    "walks": TokenWalks,
    "transitions": TokenTransitions,
}
