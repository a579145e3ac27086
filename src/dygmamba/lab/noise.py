"""Histories with noise in them, for the study of robustness; training is never touched.

Two definitions (decision 026):

- `insert`, ours: a share of noise events, uniform pairs of the stream's nodes at times uniform over the stream, is put
  among the events that a model may see. Every model meets the same noise, memories and heuristics too, each strictly
  earlier than its question, whatever the length of its histories and the origin of time.
- `release`, the released code's: in a query's history, before it is cut, a share of the entries is overwritten with
  uniform nodes and times, which may be later than the question. Memories and heuristics never meet it.

Legend: e events, m noise events, q queries, l entries.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.tasks.base import EvaluationSet

NOISE_KINDS = ("insert", "release")


@dataclass(frozen=True, slots=True)
class NoisyStream:
    """A stream with noise among its events, and where the events of the clean one are in it."""

    stream: Stream
    place: Int64[Tensor, "e"]

    def evaluation_set(self, clean: EvaluationSet) -> EvaluationSet:
        """The same questions; what comes before them is the noisy periods."""
        split = self.stream.split
        periods = (split.train, split.val)[: len(clean.earlier)]
        return replace(clean, events=self.place[clean.events], earlier=periods)


def insert_noise(stream: Stream, rate: float, seed: int) -> NoisyStream:
    """The stream with `rate` times as many noise events as it has, by a seeded generator."""
    store, rng = stream.store, torch.Generator().manual_seed(seed)
    count, e = round(rate * len(store)), len(store)
    src = torch.randint(store.num_nodes, (count,), generator=rng)
    dst = torch.randint(store.num_nodes, (count,), generator=rng)
    first, last = float(store.time[0]), float(store.time[-1])
    when = first + (last - first) * torch.rand(count, generator=rng, dtype=torch.float64)
    shown = torch.randint(e, (count,), generator=rng)  # a noise event looks like a real one
    time, order = torch.sort(torch.cat([store.time, when]), stable=True)
    edge = store.features.edge
    noisy = EventStore(
        src=torch.cat([store.src, src])[order],
        dst=torch.cat([store.dst, dst])[order],
        time=time,
        features=FeatureTable(store.features.node, torch.cat([edge, edge[shown]])[order]),
        num_nodes=store.num_nodes,
        bipartite=store.bipartite,
    )
    place = torch.empty_like(order)
    place[order] = torch.arange(e + count)
    split = _split_with_noise(stream.split, place, order >= e)
    return NoisyStream(Stream(noisy, split, stream.device), place[:e])


def _split_with_noise(clean: Split, place: Int64[Tensor, "n"], noise: Tensor) -> Split:
    """Each period with the noise that falls into it."""
    bounds = [int(place[part[0]]) for part in (clean.val, clean.test)]
    rows = torch.arange(len(noise))
    extra = torch.bucketize(rows, torch.tensor(bounds), right=True)
    parts = [
        torch.cat([place[part], rows[noise & (extra == number)]]).sort().values
        for number, part in enumerate((clean.train, clean.val, clean.test))
    ]
    train, val, test = parts
    return Split(train, val, test, clean.new_nodes)


def supports_overwriting(requests: tuple[Request, ...]) -> bool:
    """Whether the released noise is defined for a model: it looks at recent events, one hop away."""
    return bool(requests) and all(
        isinstance(one, NeighborRequest) and len(one.fanout) == 1 and one.strategy == "recent"
        for one in requests
    )


@dataclass(frozen=True)
class OverwrittenHistoryStream(Stream):
    """The stream as the released robustness test shows it."""

    rate: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def view(self, pairs: PairBatch, requests: tuple[Request, ...], draws: Draws | None = None) -> PairView:
        """What a model sees: of each history the last entries after a share of the whole was overwritten."""
        _, count = self.index.past(pairs.node, pairs.when)
        whole = max(int(count.max()), 1)
        hops = []
        for request in requests:
            assert isinstance(request, NeighborRequest)  # `overwritable` is asked first
            full = replace(request, fanout=(whole,), strategy="recent")
            (sequence,) = self.index.gather(full, pairs.node, pairs.when, draws)
            hops.append((_keep_last(self._overwritten(sequence), request.fanout[0]),))
        return PairView(pairs, tuple(hops), self.events.features)

    def _overwritten(self, sequence: NeighborSequence) -> NeighborSequence:
        """floor(rate * n) of n entries overwritten, then sorted by time again."""
        k, mask = sequence.node.shape[1], sequence.mask
        chance = [
            Draws.of(self.seed + number, device=self.device).uniform(
                sequence.query_node, sequence.query_time, 0, k
            )
            for number in range(4)
        ]
        rank = torch.where(mask, chance[0], 2.0).argsort(dim=1).argsort(dim=1)
        hit = mask & (rank < (self.rate * sequence.length).long()[:, None])
        latest = float(self.store.time[-1])
        node = torch.where(hit, (chance[1] * self.store.num_nodes).int(), sequence.node)
        event = torch.where(hit, (chance[2] * len(self.store)).int(), sequence.event)
        time = torch.where(hit, 1 + (chance[3] * max(latest - 1, 1)).floor(), sequence.time)
        order = torch.where(mask, time, torch.inf).argsort(dim=1, stable=True)
        return replace(
            sequence, node=node.gather(1, order), event=event.gather(1, order), time=time.gather(1, order)
        )


def _keep_last(sequence: NeighborSequence, k: int) -> NeighborSequence:
    """The last k entries of each query."""
    length = sequence.length.clamp(max=k)
    place = (sequence.length - length)[:, None] + torch.arange(k, device=length.device)
    place = place.clamp(max=sequence.node.shape[1] - 1)
    mask = torch.arange(k, device=length.device) < length[:, None]
    entries = {"node": sequence.node, "event": sequence.event, "time": sequence.time}
    kept = {name: column.gather(1, place) * mask for name, column in entries.items()}
    return replace(sequence, **kept, length=length)
