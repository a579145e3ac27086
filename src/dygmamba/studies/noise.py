"""Event streams with noise, for the robustness study. Models are trained on clean data; only the evaluation is noisy.

Two kinds of noise (decision 026):

- `insert` (ours): noise events with uniformly drawn nodes and times are inserted into the stream. Every model sees the
  same noise, including node memories and heuristics, and only noise strictly before its query.
- `release` (as in the released code): before a history is cut to its length, a share of its entries is overwritten
  with uniformly drawn nodes and times, which may be later than the query. Memories and heuristics never see it.

Legend: e events, m noise events, q queries, l entries.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream
from dygmamba.history.draws import Draws
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.tasks.base import EvaluationSet

NOISE_KINDS = ("insert", "release")


@dataclass(frozen=True, slots=True)
class NoisyStream:
    """A stream with noise events, and the row of every clean event in it."""

    stream: Stream
    row: Int64[Tensor, "e"]

    def evaluation_set(self, clean: EvaluationSet) -> EvaluationSet:
        """Return the same queries on the noisy stream."""
        split = self.stream.split
        periods = (split.train, split.val)[: len(clean.earlier)]
        return replace(clean, events=self.row[clean.events], earlier=periods)


def insert_noise(stream: Stream, rate: float, seed: int) -> NoisyStream:
    """Insert `rate` noise events per event of the stream."""
    store, rng = stream.store, torch.Generator().manual_seed(seed)
    e = len(store)
    count = round(rate * e)
    src = torch.randint(store.num_nodes, (count,), generator=rng)
    dst = torch.randint(store.num_nodes, (count,), generator=rng)
    first, last = float(store.time[0]), float(store.time[-1])
    noise_time = first + (last - first) * torch.rand(count, generator=rng, dtype=torch.float64)
    # features of random real events, so that noise cannot be recognized by its features
    feature_row = torch.randint(e, (count,), generator=rng)
    time, order = torch.sort(torch.cat([store.time, noise_time]), stable=True)
    noisy = EventStore(
        src=torch.cat([store.src, src])[order],
        dst=torch.cat([store.dst, dst])[order],
        time=time,
        features=store.features.select_events(torch.cat([torch.arange(e), feature_row])[order]),
        num_nodes=store.num_nodes,
        bipartite=store.bipartite,
    )
    row = torch.empty_like(order)
    row[order] = torch.arange(e + count)
    split = _split_with_noise(stream.split, row, order >= e)
    return NoisyStream(Stream(noisy, split, stream.device), row[:e])


def _split_with_noise(clean: Split, row: Int64[Tensor, "n"], is_noise: Tensor) -> Split:
    """Return the rows of each period, including the noise events that fall into it."""
    bounds = [int(row[part[0]]) for part in (clean.val, clean.test)]
    rows = torch.arange(len(is_noise))
    period = torch.bucketize(rows, torch.tensor(bounds), right=True)
    parts = [
        torch.cat([row[part], rows[is_noise & (period == number)]]).sort().values
        for number, part in enumerate((clean.train, clean.val, clean.test))
    ]
    train, val, test = parts
    return Split(train, val, test, clean.new_nodes, clean.protocol)


def supports_overwriting(requests: tuple[Request, ...]) -> bool:
    """Return whether `release` noise is defined for a model: it must read recent neighbors of one hop only."""
    return bool(requests) and all(
        isinstance(request, NeighborRequest) and len(request.fanout) == 1 and request.strategy == "recent"
        for request in requests
    )


@dataclass(frozen=True)
class OverwrittenHistoryStream(Stream):
    """A stream whose histories are overwritten at random when they are read (`release` noise)."""

    rate: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def view(
        self,
        pairs: PairBatch,
        requests: tuple[Request, ...],
        draws: Draws | None = None,
        length: int | None = None,
    ) -> PairView:
        """Return the neighbor sequences after overwriting: of the whole history first, cut to its length then."""
        _, count = self.index.past(pairs.node, pairs.when)
        longest = max(int(count.max()), 1)
        found = {}
        for request in requests:
            assert isinstance(request, NeighborRequest)  # `supports_overwriting` was checked before
            full = replace(request, fanout=(longest,), strategy="recent")
            (sequence,) = self.index.gather(full, pairs.node, pairs.when, draws)
            (most,) = request.cut(length).fanout
            found[request] = (_keep_last(self._overwrite(sequence), most),)
        return PairView(pairs.without_labels(), self.events.features, found)

    def _overwrite(self, sequence: NeighborSequence) -> NeighborSequence:
        """Overwrite floor(rate * n) of the n entries of each history, and sort it by time again."""
        k, mask = sequence.node.shape[1], sequence.mask
        uniform = [
            Draws.from_seed(self.seed + number, device=self.device).uniform(
                sequence.query_node, sequence.query_time, 0, k
            )
            for number in range(4)
        ]
        rank = torch.where(mask, uniform[0], 2.0).argsort(dim=1).argsort(dim=1)
        is_noise = mask & (rank < (self.rate * sequence.length).long()[:, None])
        latest = float(self.store.time[-1])
        node = torch.where(is_noise, (uniform[1] * self.store.num_nodes).int(), sequence.node)
        event = torch.where(is_noise, (uniform[2] * len(self.store)).int(), sequence.event)
        time = torch.where(is_noise, 1 + (uniform[3] * max(latest - 1, 1)).floor(), sequence.time)
        order = torch.where(mask, time, torch.inf).argsort(dim=1, stable=True)
        return replace(
            sequence, node=node.gather(1, order), event=event.gather(1, order), time=time.gather(1, order)
        )


def _keep_last(sequence: NeighborSequence, k: int) -> NeighborSequence:
    """Keep the last k entries of each history."""
    length = sequence.length.clamp(max=k)
    index = (sequence.length - length)[:, None] + torch.arange(k, device=length.device)
    index = index.clamp(max=sequence.node.shape[1] - 1)
    mask = torch.arange(k, device=length.device) < length[:, None]
    entries = {"node": sequence.node, "event": sequence.event, "time": sequence.time}
    columns = {name: column.gather(1, index) * mask for name, column in entries.items()}
    return replace(sequence, **columns, length=length)
