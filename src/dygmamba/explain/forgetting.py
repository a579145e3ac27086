"""How the pull of one meeting fades in a model's eyes: its return weight R(s), read off its scores alone.

Where people return to whom they have not forgotten, P(v | u, t) = b + c R(s), s the span since u met v
(docs/generated-stream.md); b and c depend on v and on the times of u's past, not on who was met when. So a
meeting is moved: in a real past of u every time stays, only the slot that holds v changes. A classifier of
events against uniform negatives has e^logit proportional to P, hence e^met(s) - e^never = c R(s) with one c
per past, which gives R up to a factor.

Legend: q pasts, p probes, l slots of a past, k spans.

The learned forgetting, two views of it: what the scores say, and what Eq. 11 holds.

`learned` is the return weight that the scores imply (see returns.py), with its standard error; `retention` is
what a state keeps over one gap, exp(Delta(s) A), quantiles over channels and states. Where the law behind the
data is known, it stands beside them.

Legend: q pasts, k spans, d channels, n states.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.core.files.writing import write_text
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.data.generate.stream import GeneratorConfig, forgetting_law, generate_stream
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import score_views
from dygmamba.engine.stream import Stream
from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction
from dygmamba.nn.steps import RelativeStep
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.cooccurrence import cooccurrence
from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView

PROBE_BATCH = 1_000  # pairs that are scored at once
JACKKNIFE_GROUPS = 16  # of the jackknife

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


def window_length(scorer: Scorer) -> int:
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


def move_meetings(
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


def erase_meetings(meetings: Meetings) -> tuple[NeighborSequence, NeighborSequence]:
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
    place = log_position(age.clamp(min=1e-300), spans)
    off = torch.where(inside, (place - place.round()).abs(), 1.0)
    taken = torch.zeros_like(inside)
    for cell in range(len(spans)):
        here = inside & (place.round() == cell)
        best = torch.where(here, off, 1.0).argmin(dim=1)
        taken[torch.arange(len(meetings)), best] |= here.any(dim=1)
    past, slot = taken.nonzero(as_tuple=True)
    return past, slot, age[past, slot]


def log_position(span: Float64[Tensor, "*s"], spans: Float64[Tensor, "k"]) -> Float64[Tensor, "*s"]:
    """Where a span lies among the (geometric) spans: 0 at the first, k - 1 at the last."""
    step = (spans[-1] / spans[0]).log() / (len(spans) - 1)
    return ((span / spans[0]).log() / step).clamp(0, len(spans) - 1)


def score_sequences(
    scorer: Scorer, src: NeighborSequence, dst: NeighborSequence, features: FeatureTable
) -> Float64[Tensor, "p"]:
    """The score of each pair of pasts."""

    def views() -> Iterator[PairView]:
        for rows in torch.arange(len(src.length)).split(PROBE_BATCH):
            first, second = src[rows], dst[rows]
            both = map(torch.cat, zip(first.columns, second.columns, strict=True))
            pairs = PairBatch.of(first.query_node, second.query_node, first.query_time)
            yield PairView(pairs, ((NeighborSequence(*both),),), features)

    return score_views(scorer, views()).double()


def probe_meetings(
    scorer: Scorer, meetings: Meetings, spans: Float64[Tensor, "k"], features: FeatureTable
) -> Probes:
    """Ask the scorer about every moved meeting, and about each past without it."""
    past, slot, span = choose_slots(meetings, spans)
    met = score_sequences(scorer, *move_meetings(meetings, past, slot), features)
    return Probes(past, span, met, score_sequences(scorer, *erase_meetings(meetings), features))


def fit_return_weights(probes: Probes, spans: Float64[Tensor, "k"]) -> tuple[Curve, Curve]:
    """R at `spans`, 1 at the first of them, and its standard error by a delete-a-group jackknife over the pasts."""
    group = torch.arange(len(probes.never)) % JACKKNIFE_GROUPS
    zero, start = torch.zeros_like(spans), torch.full_like(probes.never, 3.0)
    log_r, log_c = _fit_log_weights(
        probes, spans, torch.ones_like(group, dtype=torch.bool), (zero, start), 200
    )
    parts = [
        _fit_log_weights(probes, spans, group != out, (log_r, log_c), 20)[0]
        for out in range(JACKKNIFE_GROUPS)
    ]
    curves = torch.stack([(part - part[0]).exp() for part in parts])
    error = ((JACKKNIFE_GROUPS - 1) * (curves - curves.mean(dim=0)).square().mean(dim=0)).sqrt()
    return (log_r - log_r[0]).exp(), error


def _fit_log_weights(
    probes: Probes, spans: Curve, keep: Bool[Tensor, "q"], start: tuple[Tensor, Tensor], steps: int
) -> tuple[Curve, Float64[Tensor, "q"]]:
    """Least squares of log(e^never + c R(s)) - met over log R and one log c per past, R linear in log s.

    In logits, because that is the scale on which a classifier's errors are alike at every span.
    """
    rows = keep[probes.past]
    past, met, place = probes.past[rows], probes.met[rows], log_position(probes.span[rows], spans)
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


FORGETTING_FILE = "forgetting.json"
POINTS = 10  # points of a curve
MAX_PAST_EVENTS = 64_000  # at most so many events of pasts are probed
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

Law = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Closeness:
    """How far the learned return weight is from the law; both are 1 at the smallest span."""

    correlation: float
    mean_gap: float
    max_gap: float
    half_life: float | None  # the span, from the smallest on, after which half is left
    true_half_life: float | None


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Curves over `span`, in the stream's unit of time; `true` and `closeness` where the law is known."""

    span: list[float]
    learned: list[float]
    error: list[float]
    probes: int
    retention: dict[str, list[float]] | None  # quantile -> curve; None where the step does not see spans
    reach: float  # the span from the oldest event of the median past to its query, the unit of Eq. 11
    law: str | None = None
    true: list[float] | None = None
    closeness: Closeness | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def find_known_law(dataset: Dataset) -> tuple[str, Law] | None:
    """The law that made a dataset, if it is the embedded stream."""
    if dataset.origin.format != "generated":
        return None
    config = GeneratorConfig()
    store = generate_stream(config)
    same = len(store) == len(dataset.store) and all(
        torch.equal(getattr(store, name), getattr(dataset.store, name)) for name in ("src", "dst", "time")
    )
    return (config.law, forgetting_law(config)) if same else None


def measure_forgetting(scorer: Scorer, stream: Stream, law: tuple[str, Law] | None = None) -> Forgetting:
    """Both views for a trained scorer, probed in the test period among nodes that training knew."""
    meetings = _sample_meetings(scorer, stream)
    age = meetings.src.age[meetings.src.mask].double()
    low, high = age.quantile(torch.tensor([0.02, 0.5]).double()) if len(age) else (age.sum(), age.sum())
    if len(meetings) < JACKKNIFE_GROUPS or not 0 < low < high:
        raise EventError(
            "too few repeated meetings in the test period to probe forgetting; use a longer stream"
        )
    spans = torch.logspace(float(low.log10()), float(high.log10()), POINTS, dtype=torch.float64)
    probes = probe_meetings(scorer, meetings, spans, stream.store.features)
    learned, error = fit_return_weights(probes, spans)
    reach = float((meetings.src.query_time - meetings.src.time[:, 0]).median())
    found = Forgetting(
        span=spans.tolist(),
        learned=learned.tolist(),
        error=error.tolist(),
        probes=len(probes.past),
        retention=compute_retention(scorer, spans, reach, int(meetings.src.length.median()) + 1),
        reach=reach,
    )
    return found if law is None else compare_with_law(found, *law)


def compare_with_law(found: Forgetting, name: str, law: Law) -> Forgetting:
    """The same curves with the law, scaled to 1 at the smallest span as they are, and how close they come."""
    span, learned = np.asarray(found.span), np.asarray(found.learned)
    true = law(span) / law(span[:1])
    gap = np.abs(learned - true)
    flat = np.ptp(learned) < 1e-9 or np.ptp(true) < 1e-9  # a correlation with a constant is undefined
    closeness = Closeness(
        correlation=0.0 if flat else float(np.corrcoef(learned, true)[0, 1]),
        mean_gap=float(gap.mean()),
        max_gap=float(gap.max()),
        half_life=compute_half_life(span, learned),
        true_half_life=compute_half_life(span, true),
    )
    return replace(found, law=name, true=true.tolist(), closeness=closeness)


def compute_half_life(span: np.ndarray, weight: np.ndarray) -> float | None:
    """The span from the first on after which half of the weight is left; None if it never is.

    Between two points the weight falls exponentially, so the answer is exact for an exponential law.
    """
    below = np.flatnonzero(weight <= weight[0] / 2)
    if not len(below) or below[0] == 0:
        return None
    a, b = below[0] - 1, below[0]
    left, right = np.log(np.maximum(weight[[a, b]], 1e-300) / weight[0])
    share = (np.log(0.5) - left) / (right - left)
    return float(span[a] + share * (span[b] - span[a]) - span[0])


def compute_retention(
    scorer: Scorer, spans: Float64[Tensor, "k"], reach: float, length: int
) -> dict[str, list[float]] | None:
    """Quantiles of exp(Delta(s) A) over the channels and states of all blocks, for a gap s in a past of that reach."""
    paths = (
        [part for part in scorer.modules() if isinstance(part, Direction)]
        if isinstance(scorer, nn.Module)
        else []
    )
    gap = spans.float()[None]
    unused, count = torch.zeros_like(gap, dtype=torch.int32), torch.tensor([length])
    real = torch.ones_like(gap, dtype=torch.bool)
    tokens = Tokens(unused, unused, gap, gap, gap / reach, count, real, real)
    kept = []
    for path in paths:
        if isinstance(path.step, RelativeStep):
            with torch.no_grad():
                delta = path.step.delta(path.step.span(tokens))[0]  # [k d]
                kept.append(torch.exp(-delta[:, :, None] * path.log_A.exp()).flatten(1))  # [k d*n]
    if not kept:
        return None
    levels = torch.tensor(QUANTILES, dtype=torch.float32)
    curves = torch.cat(kept, dim=1).quantile(levels, dim=1)
    return {f"{level:g}": curve.tolist() for level, curve in zip(QUANTILES, curves, strict=True)}


def _sample_meetings(scorer: Scorer, stream: Stream) -> Meetings:
    """Meetings of the test period's sources, evenly over time, both ends known to training."""
    store, split = stream.store, stream.split
    known, limit = ~split.new_nodes, max(JACKKNIFE_GROUPS, MAX_PAST_EVENTS // max(window_length(scorer), 1))
    events = split.test[known[store.src[split.test]]]
    events = events[torch.linspace(0, len(events) - 1, min(limit, len(events))).long()]
    return find_meetings(stream.index, store.src[events], store.time[events], known, window_length(scorer))


def save_forgetting(run: RunDirectory, found: Forgetting) -> None:
    """Keep the curves in the run folder."""
    write_text(run.path / FORGETTING_FILE, json.dumps(found.to_json(), indent=1) + "\n")


def load_forgetting(run: RunDirectory) -> Forgetting | None:
    """What save_forgetting wrote, unless the run has better weights since."""
    path = run.path / FORGETTING_FILE
    if not path.exists() or (run.best.exists() and run.best.stat().st_mtime > path.stat().st_mtime):
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        close = values.pop("closeness")
        return Forgetting(**values, closeness=None if close is None else Closeness(**close))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error!r}); delete it to measure again") from error
