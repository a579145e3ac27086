"""Which past events a score is divided among: those of either node of a pair, old ones of a long past in groups.

Legend: k entries of a past, l entries a look-up brings, n events.

What a model would say of a pair had some of its past events never happened: asked, not guessed.

Two ways, by what a model reads. `Window`: a model that reads one list of recent events per node is handed the list
without them; nothing older moves up, so without any of them it sees a node that has no past. `Replay`: any other
model is handed the stream without them, its memory told again from before the first of them.

Legend: m subsets, n players, l entries of a list, e events.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.engine.length_buckets import split_by_length
from dygmamba.engine.scoring import count_kept_events, score_views, start_memory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MEMORY_BATCH, MemorySchedule
from dygmamba.models.base import Scorer
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView
from dygmamba.sampling.walks import WalkRequest

MAX_PLAYERS = 64  # players of one explanation: both pasts of a default model are 62 events
GROUPS_PER_NODE = 4  # of each node's older events
MAX_MEETINGS = 8  # of the pair, that stand alone however old they are


@dataclass(frozen=True, slots=True)
class Player:
    """Events that are there or not there together, oldest first; nearly always one."""

    events: tuple[int, ...]
    of_src: bool  # in the past of the pair's source
    of_dst: bool


def group_players(
    src: Int64[Tensor, "n"], dst: Int64[Tensor, "m"], most: int = MAX_PLAYERS
) -> tuple[Player, ...]:
    """The events of two pasts, each once, oldest first; beyond `most` the older ones are put in groups.

    An event of both pasts is a meeting of the pair; the last of them are never in a group.
    """
    own, others = set(src.tolist()), set(dst.tolist())
    events = sorted(own | others)
    alone = events
    if len(events) > most:
        met = sorted(own & others)[-MAX_MEETINGS:]
        recent = [event for event in events if event not in met][-(most - 2 * GROUPS_PER_NODE - len(met)) :]
        alone = sorted({*met, *recent})
    rest = sorted(set(events) - set(alone))
    grouped = [
        run
        for chosen in ([e for e in rest if e in own], [e for e in rest if e not in own])
        for run in _split_runs(chosen, GROUPS_PER_NODE)
    ]
    players = [
        Player(tuple(run), any(e in own for e in run), any(e in others for e in run))
        for run in [*grouped, *([event] for event in alone)]
    ]
    return tuple(sorted(players, key=lambda player: player.events[-1]))


def newest_players(index: NeighborIndex, pairs: PairBatch, each: int, met: int) -> tuple[Player, ...]:
    """Of one pair the last events of each node and the last meetings of the two, one player each, oldest first."""
    src, dst = (
        node_history(index, node[None], pairs.time[:1]) for node in (pairs.src[0], pairs.dst[0])
    )  # both oldest first
    both = src[torch.isin(src, dst)]
    kept = torch.cat([src[-each:], dst[-each:], both[-met:] if met else both[:0]])
    own, others = set(src.tolist()), set(dst.tolist())
    return tuple(
        Player((event,), event in own, event in others) for event in torch.unique(kept, sorted=True).tolist()
    )


def node_history(
    index: NeighborIndex, node: Int64[Tensor, "1"], time: Float64[Tensor, "1"]
) -> Int64[Tensor, "k"]:
    """Every event of a node strictly before a time, oldest first, on the host."""
    begin, count = (int(value) for value in index.past(node, time))
    return index.entries.event[begin : begin + count].long().cpu()


def _split_runs(events: list[int], count: int) -> list[list[int]]:
    """Consecutive events in at most so many runs of about the same size."""
    size = -(-len(events) // count)
    return [events[at : at + size] for at in range(0, len(events), size)] if events else []


MAX_EVENTS_READ = 4_000_000  # that a Replay looks up again, all its questions together
MAX_EVENTS_OBSERVED = 60_000  # that it tells a memory again
MAX_EVENTS_PER_NODE = 8  # events of each node that a Replay tries
MIN_EVENTS_PER_NODE = 2
WALK_COST = 20  # sums over walks take so many times what a look-up takes


class RemovalGame(Protocol):
    """Players, and the logit of the pair with some of them."""

    players: tuple[Player, ...]
    removal: str
    orders: int  # pairs of orders that may be asked about, at most
    tries: int  # players that are tried at each step of a search
    carried: (
        int  # events in the memory that training left, which is part of the model: none of them is a player
    )

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """The pair's logit, had only these players happened."""
        ...


def reads_windows(scorer: Scorer) -> bool:
    """Whether all that the scorer sees of a node's past is lists of its most recent events."""
    return not scorer.stateful and all(
        isinstance(request, NeighborRequest) and len(request.fanout) == 1 and request.strategy == "recent"
        for request in scorer.requests
    )


def build_game(
    scorer: Scorer, stream: Stream, pair: PairBatch, seed: int, cell: int = MEMORY_BATCH
) -> RemovalGame:
    """The way that suits the scorer; `pair` is one pair on the stream's device."""
    if reads_windows(scorer) and scorer.requests:
        return WindowRemoval(scorer, stream, pair)
    return StreamRemoval(scorer, stream, pair, seed, cell)


class WindowRemoval:
    """The lists of recent events, shortened."""

    removal, orders, tries, carried = "window", 1_000, 12, 0

    def __init__(self, scorer: Scorer, stream: Stream, pair: PairBatch) -> None:
        self.scorer, self.stream, self.pair = scorer, stream, pair
        self.view = stream.view(pair, scorer.requests)
        rows = torch.cat([pair.src_row, pair.dst_row])
        self.lists = [hops[0][rows] for hops in self.view.neighbors]  # of two rows each
        src, dst = (
            torch.cat([seq.event[side, : int(seq.length[side])].long().cpu() for seq in self.lists])
            for side in range(2)
        )
        self.players = group_players(src, dst)
        number = {event: at for at, player in enumerate(self.players) for event in player.events}
        nobody = len(self.players)  # padding is nobody's
        self._whose = [
            torch.tensor(
                [
                    [number[e] if at < int(seq.length[side]) else nobody for at, e in enumerate(row)]
                    for side, row in enumerate(seq.event.tolist())
                ],
                dtype=torch.int64,
                device=stream.device,
            ).view(seq.event.shape)
            for seq in self.lists
        ]

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """All subsets in as few passes as the device likes, short lists apart from long ones."""
        answers = torch.zeros(len(keep), dtype=torch.float64)
        if not len(keep):
            return answers
        there = torch.nn.functional.pad(keep, (0, 1)).to(self.stream.device)  # nobody is never there
        kept = [there[:, whose] for whose in self._whose]  # [m 2 l]
        lengths = torch.stack([part.sum(dim=2).amax(dim=1) for part in kept]).amax(dim=0)
        most = NeighborRequest.longest(self.scorer.requests)
        order = []

        def views() -> Iterator[PairView]:
            for chosen, length in split_by_length(lengths, most, self.stream.device):
                order.append(chosen)
                lists = [
                    _shorten_lists(seq, part[chosen]) for seq, part in zip(self.lists, kept, strict=True)
                ]
                if self.scorer.elastic:
                    lists = [seq.cut(length) for seq in lists]
                ends = (self.pair.src, self.pair.dst, self.pair.time)
                pairs = PairBatch.of(*(end.expand(len(chosen)).contiguous() for end in ends))
                yield PairView(pairs, tuple((seq,) for seq in lists), self.view.features)

        found = score_views(self.scorer, views()).double()
        answers[torch.cat(order).cpu()] = found
        return answers


def _shorten_lists(seq: NeighborSequence, kept: Bool[Tensor, "m 2 l"]) -> NeighborSequence:
    """The two lists of a pair in m versions, sources first: what is kept, in its order, then padding."""
    m, _, width = kept.shape
    kept = kept.transpose(0, 1).reshape(2 * m, width)
    row = torch.arange(2, device=kept.device).repeat_interleave(m)
    order = (~kept).int().argsort(dim=1, stable=True)
    length = kept.sum(dim=1)
    real = torch.arange(width, device=kept.device) < length[:, None]
    columns = {"node": seq.node, "event": seq.event, "time": seq.time}
    entries = {name: column[row].gather(1, order) * real for name, column in columns.items()}
    return replace(seq[row], **entries, length=length)


class StreamRemoval:
    """The stream without some events: what is looked up, counted and walked is made anew, a memory told again."""

    removal, tries = "stream", 1

    def __init__(self, scorer: Scorer, stream: Stream, pair: PairBatch, seed: int, cell: int) -> None:
        self.scorer, self.stream, self.pair = scorer, stream, pair
        self.draws = Draws.of(seed, device=stream.device)
        self._level = int(torch.searchsorted(stream.store.time, pair.time.cpu()))  # events strictly earlier
        self._clock, self._told, self.carried = None, 0, 0
        walks = any(isinstance(request, WalkRequest) for request in scorer.requests)
        self.orders, self._cost = (1, WALK_COST) if walks else (2, 1)
        if scorer.stateful:
            self._clock = MemorySchedule.of(stream.store, (torch.arange(len(stream.store)),), cell)
            self.scorer = deepcopy(scorer)
            kept = count_kept_events(scorer, stream.store, self._clock)
            self.carried = kept if kept <= self._level else 0
        self.players = self._affordable()
        if self._clock is not None:
            self._tell_the_beginning(self._clock)

    def _affordable(self) -> tuple[Player, ...]:
        """As many of the newest events as can be tried within the limits; a few however long the stream is."""
        players: tuple[Player, ...] = ()
        for each in range(MIN_EVENTS_PER_NODE, MAX_EVENTS_PER_NODE + 1):
            more = newest_players(self.stream.index, self.pair, each, each // 2)
            more = tuple(player for player in more if player.events[0] >= self.carried)
            asked = (2 * self.orders + 2) * len(more)
            read, told = asked * self._level * self._cost, asked * self._again(more)
            if players and (read > MAX_EVENTS_READ or told > MAX_EVENTS_OBSERVED):
                break
            players = more
        return players

    def _again(self, players: tuple[Player, ...]) -> int:
        """How many events a memory is told again in each question."""
        if self._clock is None or not players:
            return 0
        return self._level - players[0].events[0]

    def _tell_the_beginning(self, clock: MemorySchedule) -> None:
        first = self.players[0].events[0] if self.players else self._level
        self._told = max(self.carried, int(clock.cells_before(torch.tensor([first]))))
        start_memory(self.scorer, self.carried)
        for cell in clock.between(self.carried, self._told):
            self.scorer.observe(self._events(cell))

    def _events(self, ids: Int64[Tensor, "_"]):
        return self.stream.events.select(ids.to(self.stream.device))

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """One subset after another."""
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(self._one(row) for row in keep.cpu())])

    def _one(self, keep: Bool[Tensor, "n"]) -> Float64[Tensor, "1"]:
        gone = [
            event
            for player, stays in zip(self.players, keep.tolist(), strict=True)
            for event in player.events
            if not stays
        ]
        index = self.stream.index
        there = torch.arange(len(self.stream.store)) < self._level
        there[gone] = False
        if gone:
            index = NeighborIndex.build(self.stream.store, there.nonzero()[:, 0]).to(self.stream.device)
        view = gather_view(index, self.stream.events.features, self.pair, self.scorer.requests, self.draws)
        with self._told_of(there):
            return score_views(self.scorer, [view]).double()

    @contextmanager
    def _told_of(self, there: Bool[Tensor, "e"]) -> Iterator[None]:
        """The scorer, its memory told of what is there up to the question; as it was afterwards."""
        if self._clock is None:
            yield
            return
        kept = self.scorer.snapshot(self._events(self._clock.events[self._told : self._level]))
        try:
            for cell in self._clock.between(self._told, self._level):
                self.scorer.observe(self._events(cell[there[cell]]))
            yield
        finally:
            self.scorer.restore(kept)
