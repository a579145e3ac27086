"""Any pairs at any times, asked of a trained scorer and a stream that may have gone on since.

Legend: p pairs, s sources, c candidates, k kept.
"""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterator
from math import inf, nextafter

import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor, nn

from dygmamba.data.events import EventStore, FeatureTable
from dygmamba.data.ids import NodeIds
from dygmamba.data.store import Dataset
from dygmamba.engine.buckets import pairs_per_pass
from dygmamba.errors import EventError
from dygmamba.models.base import Scorer
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.metrics import PUBLISHED_BATCH

Advance = Callable[[int], None]  # told how many more pairs are done


def _unwatched(count: int) -> None:
    """Nobody follows the progress."""


class LinkPredictor:
    """A scorer on a stream: a pair sees what is strictly earlier than its own time, and nothing else."""

    def __init__(
        self, scorer: Scorer, store: EventStore, device: torch.device | str = "cpu", chunk: int | None = None
    ) -> None:
        if isinstance(scorer, nn.Module):
            scorer.eval()
        self.scorer, self.device = scorer, torch.device(device)
        self.store = store.to(device)
        self.index = NeighborIndex.build(store).to(device)
        self.chunk = chunk or pairs_per_pass(scorer.requests, self.device)
        self._loops = bool((store.src == store.dst).any())
        self._told = 0  # events a scorer with memory has observed

    def logits(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        advance: Advance = _unwatched,
    ) -> Float32[Tensor, "p"]:
        """The logit of each pair, on the CPU, in the order asked."""
        self._forget()
        return self._logits(src, dst, time, advance)

    def best(
        self,
        src: Int64[Tensor, "s"],
        time: Float64[Tensor, "s"],
        candidates: Int64[Tensor, "c"],
        k: int,
        advance: Advance = _unwatched,
    ) -> tuple[Int64[Tensor, "s k"], Float32[Tensor, "s k"]]:
        """The k likeliest candidates of each source with their logits, the first in line before its ties.

        Where no event of the stream is a self-loop, a node is not its own candidate: its logit is -inf.
        """
        c, k = len(candidates), min(k, len(candidates))
        node, logit = torch.zeros(len(src), k, dtype=torch.int64), torch.full((len(src), k), -inf)
        self._forget()
        # in time order, so that a memory only ever moves forward; small enough to keep all scores of a part
        for rows in torch.argsort(time, stable=True).split(max(1, self.chunk // max(c, 1))):
            asked = (src[rows].repeat_interleave(c), candidates.repeat(len(rows)))
            scores = self._logits(*asked, time[rows].repeat_interleave(c), advance).view(len(rows), c)
            if not self._loops:
                scores[src[rows][:, None] == candidates] = -inf
            found, place = scores.sort(dim=1, descending=True, stable=True)
            node[rows], logit[rows] = candidates[place[:, :k]], found[:, :k]
        return node, logit

    @torch.no_grad()
    def _logits(self, src: Tensor, dst: Tensor, time: Tensor, advance: Advance) -> Tensor:
        found = torch.empty(len(src))
        for together in self._moments(time):
            for rows in together.split(self.chunk):
                who, whom, when = (column[rows].to(self.device) for column in (src, dst, time))
                pairs = shared_rows(who, whom, when, self.store.num_nodes)
                view = gather_view(self.index, self.store.features, pairs, self.scorer.requests)
                found[rows] = self.scorer(view).float().cpu()
                advance(len(rows))
        if not bool(torch.isfinite(found).all()):
            row = int((~torch.isfinite(found)).nonzero()[0])
            raise EventError(
                f"the score at time {float(time[row]):g} is {float(found[row])}; ask about a time nearer to the "
                "stream, or train again if every score is so"
            )
        return found

    def _moments(self, time: Tensor) -> Iterator[Tensor]:
        """Rows that may be asked together: all of them, or with a memory those of one instant."""
        if not self.scorer.stateful:
            yield torch.arange(len(time))
            return
        order = torch.argsort(time, stable=True)
        instants, counts = torch.unique_consecutive(time[order], return_counts=True)
        for instant, rows in zip(instants.tolist(), order.split(counts.tolist()), strict=True):
            past = int(torch.searchsorted(self.store.time, instant))
            waiting = torch.arange(self._told, past, device=self.device)
            for events in self.store.batches(
                waiting, PUBLISHED_BATCH
            ):  # as in training: memory lags by a batch
                self.scorer.observe(events)
            self._told = past
            yield rows

    def _forget(self) -> None:
        self.scorer.reset()
        self._told = 0


def shared_rows(
    src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"], num_nodes: int
) -> PairBatch:
    """Pairs whose equal (node, time) queries point at one row, so each is looked up and encoded once."""
    instants, instant = torch.unique(time, return_inverse=True)
    keys, row = torch.unique(torch.cat([src, dst]) + num_nodes * instant.repeat(2), return_inverse=True)
    p = len(src)
    return PairBatch(
        node=keys % num_nodes,
        when=instants[keys // num_nodes],
        src_row=row[:p],
        dst_row=row[p:],
        label=torch.ones(p, device=src.device),
        group=torch.arange(p, device=src.device),
    )


def extended(dataset: Dataset, events: Dataset) -> Dataset:
    """The stream with more events merged in by time, behind stored ones of the same instant.

    Ids it does not know become new nodes without features. In a bipartite stream new sources stand before the
    destinations, whose numbers move up; no score depends on a number.
    """
    store, more = dataset.store, events.store
    if more.features.edge.shape[1] != store.features.edge.shape[1]:
        raise EventError(
            f"the new events have {more.features.edge.shape[1]} features each, those of '{dataset.name}' have "
            f"{store.features.edge.shape[1]}; give the columns it was trained with"
        )
    own = {"src": events.ids.to_user(more.src.numpy()), "dst": events.ids.to_user(more.dst.numpy())}
    ids, moved = _widened(dataset.ids, own["src"], own["dst"])
    node = torch.zeros(len(ids), store.features.node.shape[1])
    node[moved] = store.features.node
    label = torch.zeros(len(more)) if more.label is None else more.label
    merged = EventStore.sorted(
        torch.cat([moved[store.src], torch.from_numpy(ids.to_node(own["src"], "src"))]),
        torch.cat([moved[store.dst], torch.from_numpy(ids.to_node(own["dst"], "dst"))]),
        torch.cat([store.time, more.time]),
        features=FeatureTable(node, torch.cat([store.features.edge, more.features.edge])),
        label=None if store.label is None else torch.cat([store.label, label]),
        num_nodes=len(ids),
        bipartite=store.bipartite,
    )
    return Dataset.of(dataset.name, merged, ids, dataset.origin)


def just_after(time: Float64[Tensor, "e"], dated: bool) -> float:
    """The first instant that sees all of these times: the next whole number, microsecond or 64-bit number."""
    last = float(time[-1])
    if bool((time == time.floor()).all()) and abs(last) < 2**53:
        return last + 1
    return last + 1e-6 if dated else nextafter(last, inf)


def _widened(ids: NodeIds, src: pa.Array, dst: pa.Array) -> tuple[NodeIds, Int64[Tensor, "n"]]:
    """The ids with the unknown ones among these added, and the number each old node now has."""
    new_src = pc.unique(src.filter(pa.array(ids.to_node(src, "src") < 0)))
    new_dst = pc.unique(dst.filter(pa.array(ids.to_node(dst, "dst") < 0)))
    old = torch.arange(len(ids))
    if ids.sources is None:
        return NodeIds(_joined(ids.values, pc.unique(pa.concat_arrays([new_src, new_dst])))), old
    values = _joined(ids.values[: ids.sources], new_src, ids.values[ids.sources :], new_dst)
    return NodeIds(values, ids.sources + len(new_src)), old + len(new_src) * (old >= ids.sources)


def _joined(*parts: pa.Array) -> pa.Array:
    """One array; integers become strings where they meet strings."""
    alike = len({part.type for part in parts}) == 1
    return pa.concat_arrays(parts if alike else [part.cast(pa.large_string()) for part in parts])
