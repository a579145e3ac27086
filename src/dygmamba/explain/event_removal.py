"""The logit that a model gives a pair if some of its past events had not happened, computed by running the model.

The past events of a pair are the players of a cooperative game; `shapley.py` divides the logit among them. There are
two games, by what a model reads:

- `WindowRemoval`, for models that read one sequence of recent neighbors per node: the events are cut out of the
  sequences. No older event moves up, so without all events the model sees a node without a history.
- `StreamRemoval`, for all other models: the events are cut out of the stream, and a node memory observes it again from
  before the first of them.

Shapes: m subsets, n players, l entries of a sequence, e events, k events of one node.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch
from dygmamba.engine.length_buckets import split_by_length
from dygmamba.engine.scoring import count_saved_events, score_views, start_memory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MEMORY_BATCH, MemorySchedule
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairBatch, PairView
from dygmamba.history.walks import WalkRequest
from dygmamba.models.base import Scorer

MAX_PLAYERS = 64  # the two sequences of a default model have 62 events
GROUPS_PER_NODE = 4  # of older events
MAX_MEETINGS = 8  # last events of the pair itself that are never grouped, however old

# limits of StreamRemoval, which runs the model once per subset
MAX_EVENTS_READ = 4_000_000  # events indexed again, over all subsets
MAX_EVENTS_OBSERVED = 60_000  # events observed again by a memory, over all subsets
MIN_EVENTS_PER_NODE, MAX_EVENTS_PER_NODE = 2, 8
WALK_COST = 20  # temporal walks take this many times as long as a neighbor look-up


@dataclass(frozen=True, slots=True)
class Player:
    """Events that are kept or removed together, oldest first; nearly always one event."""

    events: tuple[int, ...]
    of_src: bool  # in the history of the source
    of_dst: bool


def group_players(
    src: Int64[Tensor, "n"], dst: Int64[Tensor, "m"], max_players: int = MAX_PLAYERS
) -> tuple[Player, ...]:
    """Turn the events of two histories into players, oldest first; beyond `max_players`, group the older events.

    An event in both histories is an event of the pair itself; the last of these are never grouped.
    """
    of_src, of_dst = set(src.tolist()), set(dst.tolist())
    events = sorted(of_src | of_dst)
    single = events
    if len(events) > max_players:
        met = sorted(of_src & of_dst)[-MAX_MEETINGS:]
        num_recent = max_players - 2 * GROUPS_PER_NODE - len(met)
        recent = [event for event in events if event not in met][-num_recent:]
        single = sorted({*met, *recent})
    rest = sorted(set(events) - set(single))
    sides = ([event for event in rest if event in of_src], [event for event in rest if event not in of_src])
    groups = [group for side in sides for group in _split_evenly(side, GROUPS_PER_NODE)]
    players = [
        Player(tuple(group), any(e in of_src for e in group), any(e in of_dst for e in group))
        for group in [*groups, *([event] for event in single)]
    ]
    return tuple(sorted(players, key=lambda player: player.events[-1]))


def newest_players(index: Index, pairs: PairBatch, each: int, met: int) -> tuple[Player, ...]:
    """Return the last `each` events of both nodes and the last `met` events of the pair, a player per event."""
    src, dst = (node_history(index, node[None], pairs.time[:1]) for node in (pairs.src[0], pairs.dst[0]))
    both = src[torch.isin(src, dst)]
    events = torch.cat([src[-each:], dst[-each:], both[-met:] if met else both[:0]])
    of_src, of_dst = set(src.tolist()), set(dst.tolist())
    return tuple(
        Player((event,), event in of_src, event in of_dst)
        for event in torch.unique(events, sorted=True).tolist()
    )


def node_history(index: Index, node: Int64[Tensor, "1"], time: Float64[Tensor, "1"]) -> Int64[Tensor, "k"]:
    """Return the events of a node strictly before a time, oldest first, on the CPU."""
    begin, count = (int(value) for value in index.past(node, time))
    return index.entries.event[begin : begin + count].long().cpu()


def _split_evenly(events: list[int], count: int) -> list[list[int]]:
    """Split consecutive events into at most `count` groups of about the same size."""
    size = -(-len(events) // count)
    return [events[at : at + size] for at in range(0, len(events), size)] if events else []


class RemovalGame(Protocol):
    """The players of a pair, and its logit with a subset of them."""

    players: tuple[Player, ...]
    removal: str  # "window" or "stream"
    orders: int  # maximum of antithetic pairs of orders
    tries: int  # players tried at each step of the search for a flip
    saved_events: int  # number of events in the memory saved after training: part of the model, never players

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """Return the logit of the pair if only the kept players had happened, for each subset."""
        ...


def reads_windows(scorer: Scorer) -> bool:
    """Return whether a scorer reads nothing but sequences of the most recent neighbors of a node."""
    return not scorer.stateful and all(
        isinstance(request, NeighborRequest) and len(request.fanout) == 1 and request.strategy == "recent"
        for request in scorer.requests
    )


def build_game(
    scorer: Scorer, stream: Stream, pair: PairBatch, seed: int, batch_size: int = MEMORY_BATCH
) -> RemovalGame:
    """Return the game that suits the scorer; `pair` is a single pair on the stream's device."""
    if reads_windows(scorer) and scorer.requests:
        return WindowRemoval(scorer, stream, pair)
    return StreamRemoval(scorer, stream, pair, seed, batch_size)


class WindowRemoval:
    """Removal of events from the sequences of recent neighbors."""

    removal, orders, tries, saved_events = "window", 1_000, 12, 0

    def __init__(self, scorer: Scorer, stream: Stream, pair: PairBatch) -> None:
        self.scorer, self.stream, self.pair = scorer, stream, pair
        self.view = stream.view(pair, scorer.requests)
        rows = torch.cat([pair.src_row, pair.dst_row])
        # of two rows: source, destination
        self.sequences = [self.view[request][0][rows] for request in scorer.requests]
        src, dst = (
            torch.cat([seq.event[side, : int(seq.length[side])].long().cpu() for seq in self.sequences])
            for side in range(2)
        )
        self.players = group_players(src, dst)
        number = {event: at for at, player in enumerate(self.players) for event in player.events}
        nobody = len(self.players)  # owner of padding
        self._owner = [
            torch.tensor(
                [
                    [number[e] if at < int(seq.length[side]) else nobody for at, e in enumerate(row)]
                    for side, row in enumerate(seq.event.tolist())
                ],
                dtype=torch.int64,
                device=stream.device,
            ).view(seq.event.shape)
            for seq in self.sequences
        ]

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """Score all subsets in few passes, grouped by sequence length."""
        logits = torch.zeros(len(keep), dtype=torch.float64)
        if not len(keep):
            return logits
        keep = torch.nn.functional.pad(keep, (0, 1)).to(self.stream.device)  # padding is never kept
        kept = [keep[:, owner] for owner in self._owner]  # [m 2 l]
        lengths = torch.stack([part.sum(dim=2).amax(dim=1) for part in kept]).amax(dim=0)
        max_length = NeighborRequest.longest(self.scorer.requests)
        order = []

        def views() -> Iterator[PairView]:
            for rows, length in split_by_length(lengths, max_length, self.stream.device):
                order.append(rows)
                sequences = [
                    _shorten_sequences(seq, part[rows])
                    for seq, part in zip(self.sequences, kept, strict=True)
                ]
                if self.scorer.elastic:
                    sequences = [seq.cut(length) for seq in sequences]
                columns = (self.pair.src, self.pair.dst, self.pair.time)
                pairs = PairBatch.from_pairs(*(column.expand(len(rows)).contiguous() for column in columns))
                found = {
                    request: (seq,) for request, seq in zip(self.scorer.requests, sequences, strict=True)
                }
                yield PairView(pairs, self.view.features, found)

        scored = score_views(self.scorer, views()).double()
        logits[torch.cat(order).cpu()] = scored
        return logits


def _shorten_sequences(seq: NeighborSequence, kept: Bool[Tensor, "m 2 l"]) -> NeighborSequence:
    """Return m versions of the two sequences of a pair, sources first: the kept entries in order, then padding."""
    m, _, width = kept.shape
    kept = kept.transpose(0, 1).reshape(2 * m, width)
    row = torch.arange(2, device=kept.device).repeat_interleave(m)
    order = (~kept).int().argsort(dim=1, stable=True)
    length = kept.sum(dim=1)
    is_real = torch.arange(width, device=kept.device) < length[:, None]
    columns = {"node": seq.node, "event": seq.event, "time": seq.time}
    entries = {name: column[row].gather(1, order) * is_real for name, column in columns.items()}
    return replace(seq[row], **entries, length=length)


class StreamRemoval:
    """Removal of events from the stream; indices are built and a memory is updated again for each subset."""

    removal, tries = "stream", 1

    def __init__(self, scorer: Scorer, stream: Stream, pair: PairBatch, seed: int, batch_size: int) -> None:
        self.scorer, self.stream, self.pair = scorer, stream, pair
        self.draws = Draws.from_seed(seed, device=stream.device)
        self._num_earlier = int(torch.searchsorted(stream.store.time, pair.time.cpu()))  # strictly
        self._schedule, self._num_observed, self.saved_events = None, 0, 0
        is_on_cpu = stream.device.type == "cpu"
        # features do not depend on the numbers of events
        self._has_tables_only = is_on_cpu and all(isinstance(one, FeatureRequest) for one in scorer.requests)
        self._index: Index | None = None
        self._indexed = torch.zeros(0, dtype=torch.int64)  # its events
        has_walks = any(isinstance(request, WalkRequest) for request in scorer.requests)
        self.orders, self._cost = (1, WALK_COST) if has_walks else (2, 1)
        if scorer.stateful:
            everything = torch.arange(len(stream.store))
            self._schedule = MemorySchedule.from_periods(stream.store, (everything,), batch_size)
            self.scorer = deepcopy(scorer)
            saved_events = count_saved_events(scorer, stream.store, self._schedule)
            self.saved_events = saved_events if saved_events <= self._num_earlier else 0
        self.players = self._choose_players()
        if self._schedule is not None:
            self._observe_prefix(self._schedule)

    def _choose_players(self) -> tuple[Player, ...]:
        """Return as many of the newest events as the limits allow, and at least a few."""
        players: tuple[Player, ...] = ()
        for each in range(MIN_EVENTS_PER_NODE, MAX_EVENTS_PER_NODE + 1):
            more = newest_players(self.stream.index, self.pair, each, each // 2)
            more = tuple(player for player in more if player.events[0] >= self.saved_events)
            subsets = (2 * self.orders + 2) * len(more)
            num_read = subsets * self._num_earlier * self._cost
            num_observed = subsets * self._count_observed_again(more)
            if players and (num_read > MAX_EVENTS_READ or num_observed > MAX_EVENTS_OBSERVED):
                break
            players = more
        return players

    def _count_observed_again(self, players: tuple[Player, ...]) -> int:
        if self._schedule is None or not players:
            return 0
        return self._num_earlier - players[0].events[0]

    def _observe_prefix(self, schedule: MemorySchedule) -> None:
        """Update the memory once with the events before the first player, which all subsets share."""
        first = self.players[0].events[0] if self.players else self._num_earlier
        self._num_observed = max(self.saved_events, int(schedule.count_before_batch(torch.tensor([first]))))
        start_memory(self.scorer, self.saved_events)
        for batch in schedule.batches_between(self.saved_events, self._num_observed):
            self.scorer.observe(self._select(batch))

    def _select(self, events: Int64[Tensor, "_"]) -> EventBatch:
        return self.stream.events.select(events.to(self.stream.device))

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(self._logit(row) for row in keep.cpu())])

    def _logit(self, keep: Bool[Tensor, "n"]) -> Float64[Tensor, "1"]:
        removed = [
            event
            for player, is_kept in zip(self.players, keep.tolist(), strict=True)
            for event in player.events
            if not is_kept
        ]
        happened = torch.arange(len(self.stream.store)) < self._num_earlier
        happened[removed] = False
        index = self._index_events(happened.nonzero()[:, 0]) if removed else self.stream.index
        view = gather_view(index, self.stream.events.features, self.pair, self.scorer.requests, self.draws)
        with self._memory_after(happened):
            return score_views(self.scorer, [view]).double()

    def _index_events(self, events: Int64[Tensor, "e"]) -> Index:
        """Return an index of these events; feature tables on a CPU keep the events before the first other one."""
        store = self.stream.store
        if not self._has_tables_only:
            return Index(store, events).to(self.stream.device)
        if self._index is None:
            self._index = Index(store[events], is_growing=True).prepare(self.scorer.requests)
        else:
            count = min(len(events), len(self._indexed))
            differs = (events[:count] != self._indexed[:count]).nonzero()
            first = int(differs[0]) if len(differs) else count
            held = self._index.store.time
            if first < len(held):  # the first event of its instant
                first = int(torch.searchsorted(held[: first + 1], held[first]))
            self._index.drop(first)
            self._index.append(store[events], first)
        self._indexed = events
        return self._index

    @contextmanager
    def _memory_after(self, happened: Bool[Tensor, "e"]) -> Iterator[None]:
        """Let the memory observe the events that happened before the query; undo it on exit."""
        if self._schedule is None:
            yield
            return
        later = self._schedule.events[self._num_observed : self._num_earlier]
        saved = self.scorer.snapshot(self._select(later))
        try:
            for batch in self._schedule.batches_between(self._num_observed, self._num_earlier):
                self.scorer.observe(self._select(batch[happened[batch]]))
            yield
        finally:
            self.scorer.restore(saved)
