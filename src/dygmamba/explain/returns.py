"""How the pull of one meeting fades in a model's eyes: its return weight R(s), read off its scores alone.

Where people return to whom they have not forgotten, P(v | u, t) = b + c R(s), s the span since u met v
(docs/generated-stream.md); b and c depend on v and on the times of u's past, not on who was met when. So a
meeting is moved: in a real past of u every time stays, only the slot that holds v changes. A classifier of
events against uniform negatives has e^logit proportional to P, hence e^met(s) - e^never = c R(s) with one c
per past, which gives R up to a factor.

Legend: q pasts, p probes, l slots of a past, k spans.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.data.events import FeatureTable
from dygmamba.engine.walk import ask_all
from dygmamba.errors import ConfigError
from dygmamba.models.base import Scorer
from dygmamba.ops.cooccurrence import cooccurrence
from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView

BATCH = 1_000  # pairs that are scored at once
GROUPS = 16  # of the jackknife

Curve = Float64[Tensor, "k"]


@dataclass(frozen=True, slots=True)
class Meetings:
    """Pasts of u and v at one time, who met exactly once in them, and the slot of that meeting in each."""

    src: NeighborSequence
    dst: NeighborSequence
    src_slot: Int64[Tensor, "q"]
    dst_slot: Int64[Tensor, "q"]

    def __len__(self) -> int:
        return len(self.src_slot)


@dataclass(frozen=True, slots=True)
class Probes:
    """Logits of u and v with their meeting a span ago, and of the same pasts had they never met."""

    past: Int64[Tensor, "p"]
    span: Float64[Tensor, "p"]
    met: Float64[Tensor, "p"]
    never: Float64[Tensor, "q"]


def window(scorer: Scorer) -> int:
    """How many past events the scorer sees of a node."""
    request = scorer.requests[0] if len(scorer.requests) == 1 else None
    if not isinstance(request, NeighborRequest) or len(request.fanout) != 1 or request.strategy != "recent":
        raise ConfigError(
            "forgetting is probed in models that read one list of recent events; this one does not"
        )
    return request.fanout[0]


def find_meetings(
    index: NeighborIndex,
    node: Int64[Tensor, "q"],
    time: Float64[Tensor, "q"],
    known: Bool[Tensor, "m"],
    k: int,
) -> Meetings:
    """For each query node a partner met once, drawn at random; queries without one are left out."""
    rng = torch.Generator().manual_seed(0)
    src = index.recent(node, time, k)
    own = cooccurrence(src.node, src.node, src.mask, src.mask)[0][..., 0]
    fit = src.mask & (own == 1) & known[src.node.long()] & (src.node != node[:, None])
    slot = (torch.rand(fit.shape, generator=rng) * fit).argmax(dim=1)
    row = torch.arange(len(node))
    dst = index.recent(src.node[row, slot].long(), time, k)
    same = dst.mask & (dst.event == src.event[row, slot][:, None])
    times_met = (dst.mask & (dst.node == node[:, None])).sum(dim=1)
    good = fit.any(dim=1) & same.any(dim=1) & (times_met == 1) & (src.length > 1) & (dst.length > 1)
    rows = good.nonzero()[:, 0]
    return Meetings(src[rows], dst[rows], slot[rows], same.int().argmax(dim=1)[rows])


def moved(
    meetings: Meetings, past: Int64[Tensor, "p"], slot: Int64[Tensor, "p"]
) -> tuple[NeighborSequence, NeighborSequence]:
    """Both pasts had the meeting happened at that slot of u's: partners trade slots, times stay."""
    src, dst, row = meetings.src[past], meetings.dst[past], torch.arange(len(past))
    node, displaced = src.node.clone(), src.node[row, slot]
    node[row, meetings.src_slot[past]] = displaced
    node[row, slot] = dst.query_node.to(node.dtype)
    event, time = dst.event.clone(), dst.time.clone()
    event[row, meetings.dst_slot[past]] = src.event[row, slot]
    time[row, meetings.dst_slot[past]] = src.time[row, slot]
    order = torch.where(dst.mask, time, torch.inf).argsort(dim=1, stable=True)
    columns = {"node": dst.node, "event": event, "time": time}
    return replace(src, node=node), replace(dst, **{key: x.gather(1, order) for key, x in columns.items()})


def erased(meetings: Meetings) -> tuple[NeighborSequence, NeighborSequence]:
    """Both pasts had they met someone else at that moment: each another of its own partners."""
    rng, pasts = torch.Generator().manual_seed(1), []
    for seq, slot in ((meetings.src, meetings.src_slot), (meetings.dst, meetings.dst_slot)):
        here = torch.arange(seq.node.shape[1]) == slot[:, None]
        other = (torch.rand(here.shape, generator=rng) * (seq.mask & ~here)).argmax(dim=1, keepdim=True)
        pasts.append(replace(seq, node=torch.where(here, seq.node.gather(1, other), seq.node)))
    return pasts[0], pasts[1]


def choose_slots(meetings: Meetings, spans: Float64[Tensor, "k"]) -> tuple[Tensor, Tensor, Tensor]:
    """Past, slot and span of the probes: in each past, for each of the spans, the slot that is nearest to it."""
    src, dst = meetings.src, meetings.dst
    age = src.query_time[:, None] - src.time
    # a meeting from before a full window of v would not be in it
    lost = (dst.length == dst.node.shape[1])[:, None] & (src.time < dst.time[:, :1])
    inside = src.mask & (age >= spans[0]) & (age <= spans[-1]) & ~lost
    place = position(age.clamp(min=1e-300), spans)
    off = torch.where(inside, (place - place.round()).abs(), 1.0)
    taken = torch.zeros_like(inside)
    for cell in range(len(spans)):
        here = inside & (place.round() == cell)
        best = torch.where(here, off, 1.0).argmin(dim=1)
        taken[torch.arange(len(meetings)), best] |= here.any(dim=1)
    past, slot = taken.nonzero(as_tuple=True)
    return past, slot, age[past, slot]


def position(span: Float64[Tensor, "*s"], spans: Float64[Tensor, "k"]) -> Float64[Tensor, "*s"]:
    """Where a span lies among the (geometric) spans: 0 at the first, k - 1 at the last."""
    step = (spans[-1] / spans[0]).log() / (len(spans) - 1)
    return ((span / spans[0]).log() / step).clamp(0, len(spans) - 1)


def logits(
    scorer: Scorer, src: NeighborSequence, dst: NeighborSequence, features: FeatureTable
) -> Float64[Tensor, "p"]:
    """The score of each pair of pasts."""

    def views() -> Iterator[PairView]:
        for rows in torch.arange(len(src.length)).split(BATCH):
            first, second = src[rows], dst[rows]
            both = map(torch.cat, zip(first.columns, second.columns, strict=True))
            pairs = PairBatch.of(first.query_node, second.query_node, first.query_time)
            yield PairView(pairs, ((NeighborSequence(*both),),), features)

    return ask_all(scorer, views()).double()


def probe(scorer: Scorer, meetings: Meetings, spans: Float64[Tensor, "k"], features: FeatureTable) -> Probes:
    """Ask the scorer about every moved meeting, and about each past without it."""
    past, slot, span = choose_slots(meetings, spans)
    met = logits(scorer, *moved(meetings, past, slot), features)
    return Probes(past, span, met, logits(scorer, *erased(meetings), features))


def fit_returns(probes: Probes, spans: Float64[Tensor, "k"]) -> tuple[Curve, Curve]:
    """R at `spans`, 1 at the first of them, and its standard error by a delete-a-group jackknife over the pasts."""
    group = torch.arange(len(probes.never)) % GROUPS
    zero, start = torch.zeros_like(spans), torch.full_like(probes.never, 3.0)
    log_r, log_c = _fit(probes, spans, torch.ones_like(group, dtype=torch.bool), (zero, start), 200)
    parts = [_fit(probes, spans, group != out, (log_r, log_c), 20)[0] for out in range(GROUPS)]
    curves = torch.stack([(part - part[0]).exp() for part in parts])
    error = ((GROUPS - 1) * (curves - curves.mean(dim=0)).square().mean(dim=0)).sqrt()
    return (log_r - log_r[0]).exp(), error


def _fit(
    probes: Probes, spans: Curve, keep: Bool[Tensor, "q"], start: tuple[Tensor, Tensor], steps: int
) -> tuple[Curve, Float64[Tensor, "q"]]:
    """Least squares of log(e^never + c R(s)) - met over log R and one log c per past, R linear in log s.

    In logits, because that is the scale on which a classifier's errors are alike at every span.
    """
    rows = keep[probes.past]
    past, met, place = probes.past[rows], probes.met[rows], position(probes.span[rows], spans)
    never, low = probes.never[past], place.long().clamp(max=len(spans) - 2)
    part = place - low
    log_r, log_c = (value.clone().requires_grad_() for value in start)
    optimizer = torch.optim.LBFGS([log_r, log_c], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        r = log_r.exp()
        weight = log_c[past] + torch.log(r[low] * (1 - part) + r[low + 1] * part)
        value = (torch.logaddexp(never, weight) - met).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    return log_r.detach(), log_c.detach()
