"""The best that a test allows: oracles that know what happens at the very moment they are asked about.

A negative may be a true event of its moment. Whoever treats the events of one moment alike cannot tell it from a
positive, however much it knows; the edge oracle knows everything else.

Legend: p pairs, m distinct (time, source).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH, LinkMetrics, link_metrics


@dataclass(frozen=True)
class EventsByTime:
    """What a stream holds at each of its times; not slotted, its tables are made when they are first asked for."""

    store: EventStore

    def happened(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Whether each directed pair is an event of exactly its time."""
        return self._last_row(pairs) >= 0

    def present(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Whether both ends take part in events of that time, in whichever role."""
        either = torch.unique(torch.cat([self._senders, self._receivers]))
        both = [_contains(either, self._at(node, pairs.time)) for node in (pairs.src, pairs.dst)]
        return both[0] & both[1]

    def in_role(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Whether the source sends and the destination receives at that time."""
        sends = _contains(self._senders, self._at(pairs.src, pairs.time))
        return sends & _contains(self._receivers, self._at(pairs.dst, pairs.time))

    def still_to_come(self, pairs: PairBatch, first: Int64[Tensor, "p"]) -> Bool[Tensor, "p"]:
        """Whether each pair is an event of its time in this row of the file or a later one."""
        return self._last_row(pairs) >= first

    @cached_property
    def _times(self) -> Tensor:
        return torch.unique(self.store.time)

    def _at(self, node: Tensor, time: Tensor) -> Tensor:
        return torch.searchsorted(self._times, time) * self.store.num_nodes + node

    @cached_property
    def _senders(self) -> Tensor:
        return torch.unique(self._at(self.store.src, self.store.time))

    @cached_property
    def _receivers(self) -> Tensor:
        return torch.unique(self._at(self.store.dst, self.store.time))

    def _key(self, src: Tensor, dst: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """A number per (time, source, destination), in two steps so that none overflows, and whether it exists."""
        sender = self._at(src, time)
        known = _contains(self._senders, sender)
        return torch.searchsorted(self._senders, sender) * self.store.num_nodes + dst, known

    @cached_property
    def _events(self) -> tuple[Tensor, Tensor]:
        """Distinct events of one time, and the last row of each."""
        key, _ = self._key(self.store.src, self.store.dst, self.store.time)
        distinct, place = torch.unique(key, return_inverse=True)
        last = torch.full((len(distinct),), -1).scatter_reduce(0, place, torch.arange(len(key)), "amax")
        return distinct, last

    def _last_row(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """The last row of the file in which a pair is an event of its time, -1 where it is none."""
        (distinct, last), (key, known) = self._events, self._key(pairs.src, pairs.dst, pairs.time)
        found = known & _contains(distinct, key)
        return torch.where(found, last[torch.searchsorted(distinct, key).clamp(max=len(distinct) - 1)], -1)


def _contains(ordered: Tensor, asked: Tensor) -> Tensor:
    place = torch.searchsorted(ordered, asked).clamp(max=len(ordered) - 1)
    return ordered[place] == asked


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one question of the protocol allows; shares and metrics between 0 and 1.

    `untied` is the edge oracle's AP with ties broken by chance, as a model that never says the same twice does it: in
    batches of 200 that alone is worth a few tenths of a point. `with_order` also knows which rows of its time are
    past, as a memory does that is told of earlier batches of the same time.
    """

    split: str
    setting: str
    negatives: str
    events: int
    times: int
    true_share: float
    edge_oracle_ap: float
    edge_oracle_ap_pooled: float
    edge_oracle_ap_untied: float
    edge_oracle_auc: float
    edge_oracle_auc_pooled: float
    membership_oracle_ap: float
    membership_oracle_ap_pooled: float
    roles_oracle_ap: float
    roles_oracle_ap_pooled: float
    edge_oracle_ap_with_order: float
    order_auc: float | None


def ceiling(moments: EventsByTime, evaluation_set: EvaluationSet) -> Ceiling:
    """The oracles put to an exam, ties as ties, by the metrics that every model is judged by."""
    pairs = evaluation_set.pairs
    true, negative = moments.happened(pairs), pairs.label == 0
    edge = _evaluate_oracle(pairs, true)
    first = evaluation_set.events[(evaluation_set.number // PUBLISHED_BATCH) * PUBLISHED_BATCH]
    coming = moments.still_to_come(pairs, first)
    membership, roles = (
        _evaluate_oracle(pairs, moments.present(pairs)),
        _evaluate_oracle(pairs, moments.in_role(pairs)),
    )
    twins = true & negative
    return Ceiling(
        **evaluation_set.about,
        events=len(evaluation_set.events),
        times=len(torch.unique(pairs.time)),
        true_share=float(true[negative].double().mean()),
        edge_oracle_ap=edge.ap,
        edge_oracle_ap_pooled=edge.ap_pooled,
        edge_oracle_ap_untied=_expected_untied_ap(pairs, true),
        edge_oracle_auc=edge.auc,
        edge_oracle_auc_pooled=edge.auc_pooled,
        membership_oracle_ap=membership.ap,
        membership_oracle_ap_pooled=membership.ap_pooled,
        roles_oracle_ap=roles.ap,
        roles_oracle_ap_pooled=roles.ap_pooled,
        edge_oracle_ap_with_order=_evaluate_oracle(pairs, coming).ap,
        # a positive is always still to come, so a tie counts half and a twin that is past counts whole
        order_auc=float(1 - coming[twins].double().mean() / 2) if bool(twins.any()) else None,
    )


def _evaluate_oracle(pairs: PairBatch, says: Bool[Tensor, "p"]) -> LinkMetrics:
    return link_metrics(says.float(), pairs.label, pairs.group)


def _expected_untied_ap(pairs: PairBatch, true: Bool[Tensor, "p"]) -> float:
    """The mean over batches of the expected AP where every positive and its twins are in an order by chance.

    Of n in a random order, P of them positive, the expected AP is r + (1 - r) H_n / n with r = (P - 1) / (n - 1).
    """
    batch = pairs.group // PUBLISHED_BATCH
    positives = torch.bincount(batch[pairs.label > 0]).double()
    n = torch.bincount(batch[true], minlength=len(positives)).double()
    rest = torch.where(n > 1, (positives - 1) / (n - 1).clamp(min=1), 1.0)
    harmonic = torch.cat(
        [torch.zeros(1).double(), (1 / torch.arange(1, int(n.max()) + 1).double()).cumsum(0)]
    )
    return float((rest + (1 - rest) * harmonic[n.long()] / n).mean())
