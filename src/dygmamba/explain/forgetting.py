"""Learned decay: how the effect of a past event on a score decays with its age, measured in two ways.

`learned` is the return weight R(s) that the scores imply. In the generated stream (docs/reference/generated-stream.md)
nodes return to neighbors that they have not forgotten: P(v | u, t) = b + c R(s), where s is the time since u met v; b
and c depend on v and on the times in u's history, but not on which neighbor was met when. So a meeting is moved: in a
real history of u all times stay, and only the slot that holds v changes. A classifier of events against uniform
negatives has e^logit proportional to P, hence e^met(s) - e^never = c R(s) with one c per history, which gives R up to a
factor.

`retention` is what a state keeps over one time gap according to Eq. 11, exp(Delta(s) A), as quantiles over channels and
states. If the law that generated the data is known, it is added for comparison.

Shapes: q histories, p probes, l slots of a history, k spans, d channels, n states.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError, EventError, FileError, make_unreadable_error
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.data.generate.stream import GeneratorConfig, forgetting_law, generate_stream
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import score_views
from dygmamba.engine.stream import Stream
from dygmamba.history.index import Index
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairBatch, PairView
from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction
from dygmamba.nn.steps import RelativeStep
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.tokens import count_pair_tokens

PROBE_BATCH = 1_000  # pairs per forward pass
JACKKNIFE_GROUPS = 16

FORGETTING_FILE = "forgetting.json"
POINTS = 10  # of a curve
MAX_PAST_EVENTS = 64_000  # events in all histories that are probed
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

Curve = Float64[Tensor, "k"]
Law = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Meetings:
    """Histories of u and v at the same time, in which they met exactly once, and the slot of that event in each."""

    src: NeighborSequence
    dst: NeighborSequence
    src_slot: Int64[Tensor, "q"]
    dst_slot: Int64[Tensor, "q"]

    def __len__(self) -> int:
        return len(self.src_slot)


@dataclass(frozen=True, slots=True)
class Probes:
    """Logits of pairs that met a span ago, and of the same histories without the meeting."""

    past: Int64[Tensor, "p"]  # which history
    span: Float64[Tensor, "p"]
    met: Float64[Tensor, "p"]
    never: Float64[Tensor, "q"]


def window_length(scorer: Scorer) -> int:
    """Return how many recent neighbors of a node the scorer reads."""
    request = scorer.requests[0] if len(scorer.requests) == 1 else None
    if not isinstance(request, NeighborRequest) or len(request.fanout) != 1 or request.strategy != "recent":
        raise ConfigError(
            "forgetting can be measured only for models that read one sequence of recent neighbors per node",
            code="model-without-window",
        )
    return request.fanout[0]


def find_meetings(
    index: Index, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], known: Bool[Tensor, "m"], k: int
) -> Meetings:
    """Draw a random neighbor that each node met exactly once; nodes without one are left out.

    Args:
        index: Of all events.
        node: Sources of the queries.
        time: Times of the queries.
        known: Which nodes may be drawn.
        k: Length of a history.
    """
    rng = torch.Generator().manual_seed(0)
    src = index.recent(node, time, k)
    occurrences = count_pair_tokens(src.node.repeat(2, 1), src.mask.repeat(2, 1))[: len(node), :, 0]
    is_candidate = src.mask & (occurrences == 1) & known[src.node.long()] & (src.node != node[:, None])
    slot = (torch.rand(is_candidate.shape, generator=rng) * is_candidate).argmax(dim=1)
    row = torch.arange(len(node))
    dst = index.recent(src.node[row, slot].long(), time, k)
    is_meeting = dst.mask & (dst.event == src.event[row, slot][:, None])
    times_met = (dst.mask & (dst.node == node[:, None])).sum(dim=1)
    is_usable = is_candidate.any(dim=1) & is_meeting.any(dim=1) & (times_met == 1)
    is_usable &= (src.length > 1) & (dst.length > 1)
    rows = is_usable.nonzero()[:, 0]
    return Meetings(src[rows], dst[rows], slot[rows], is_meeting.int().argmax(dim=1)[rows])


def move_meetings(
    meetings: Meetings, past: Int64[Tensor, "p"], slot: Int64[Tensor, "p"]
) -> tuple[NeighborSequence, NeighborSequence]:
    """Return both histories as if the meeting had happened at that slot of u: neighbors swap slots, times stay."""
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
    """Return both histories with the other node of the meeting replaced by a random other neighbor; times stay."""
    rng, histories = torch.Generator().manual_seed(1), []
    for seq, slot in ((meetings.src, meetings.src_slot), (meetings.dst, meetings.dst_slot)):
        is_slot = torch.arange(seq.node.shape[1]) == slot[:, None]
        other = (torch.rand(is_slot.shape, generator=rng) * (seq.mask & ~is_slot)).argmax(dim=1, keepdim=True)
        histories.append(replace(seq, node=torch.where(is_slot, seq.node.gather(1, other), seq.node)))
    return histories[0], histories[1]


def choose_slots(meetings: Meetings, spans: Float64[Tensor, "k"]) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the probes: in each history, for each span, the slot whose age is nearest to it.

    Returns:
        History, slot and exact age of each probe.
    """
    src, dst = meetings.src, meetings.dst
    age = src.query_time[:, None] - src.time
    # the sequence of v is full and would not reach back to a meeting that early
    is_lost = (dst.length == dst.node.shape[1])[:, None] & (src.time < dst.time[:, :1])
    is_inside = src.mask & (age >= spans[0]) & (age <= spans[-1]) & ~is_lost
    position = log_position(age.clamp(min=1e-300), spans)
    distance = torch.where(is_inside, (position - position.round()).abs(), 1.0)
    is_chosen = torch.zeros_like(is_inside)
    for number in range(len(spans)):
        is_near = is_inside & (position.round() == number)
        best = torch.where(is_near, distance, 1.0).argmin(dim=1)
        is_chosen[torch.arange(len(meetings)), best] |= is_near.any(dim=1)
    past, slot = is_chosen.nonzero(as_tuple=True)
    return past, slot, age[past, slot]


def log_position(span: Float64[Tensor, "*s"], spans: Float64[Tensor, "k"]) -> Float64[Tensor, "*s"]:
    """Return the position of a span in the geometric sequence of spans: 0 at the first, k - 1 at the last."""
    step = (spans[-1] / spans[0]).log() / (len(spans) - 1)
    return ((span / spans[0]).log() / step).clamp(0, len(spans) - 1)


def score_sequences(
    scorer: Scorer, src: NeighborSequence, dst: NeighborSequence, features: FeatureTable
) -> Float64[Tensor, "p"]:
    """Return the logit of each pair of histories."""

    def views() -> Iterator[PairView]:
        for rows in torch.arange(len(src.length)).split(PROBE_BATCH):
            first, second = src[rows], dst[rows]
            both = map(torch.cat, zip(first.columns, second.columns, strict=True))
            pairs = PairBatch.from_pairs(first.query_node, second.query_node, first.query_time)
            yield PairView(pairs, features, {scorer.requests[0]: (NeighborSequence(*both),)})

    return score_views(scorer, views()).double()


def probe_meetings(
    scorer: Scorer, meetings: Meetings, spans: Float64[Tensor, "k"], features: FeatureTable
) -> Probes:
    """Score every moved meeting, and each history without the meeting."""
    past, slot, span = choose_slots(meetings, spans)
    met = score_sequences(scorer, *move_meetings(meetings, past, slot), features)
    return Probes(past, span, met, score_sequences(scorer, *erase_meetings(meetings), features))


def fit_return_weights(probes: Probes, spans: Float64[Tensor, "k"]) -> tuple[Curve, Curve]:
    """Fit R at `spans`, scaled to 1 at the first, with standard errors from a delete-a-group jackknife."""
    group = torch.arange(len(probes.never)) % JACKKNIFE_GROUPS
    zero, start = torch.zeros_like(spans), torch.full_like(probes.never, 3.0)
    log_r, log_c = _fit_log_weights(
        probes, spans, torch.ones_like(group, dtype=torch.bool), (zero, start), 200
    )
    parts = [
        _fit_log_weights(probes, spans, group != deleted, (log_r, log_c), 20)[0]
        for deleted in range(JACKKNIFE_GROUPS)
    ]
    curves = torch.stack([(part - part[0]).exp() for part in parts])
    error = ((JACKKNIFE_GROUPS - 1) * (curves - curves.mean(dim=0)).square().mean(dim=0)).sqrt()
    return (log_r - log_r[0]).exp(), error


def _fit_log_weights(
    probes: Probes, spans: Curve, keep: Bool[Tensor, "q"], start: tuple[Tensor, Tensor], steps: int
) -> tuple[Curve, Float64[Tensor, "q"]]:
    """Fit log R, and one log c per history, by least squares of log(e^never + c R(s)) - met; R is linear in log s.

    The residual is in logits because a classifier's errors are about equal on that scale at every span.
    """
    rows = keep[probes.past]
    past, met, position = probes.past[rows], probes.met[rows], log_position(probes.span[rows], spans)
    never, low = probes.never[past], position.long().clamp(max=len(spans) - 2)
    part = position - low
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


@dataclass(frozen=True, slots=True)
class Closeness:
    """Distance between the learned return weight and the true law; both are 1 at the shortest span."""

    correlation: float
    mean_gap: float
    max_gap: float
    half_life: float | None  # counted from the shortest span; None if it lies beyond the longest
    true_half_life: float | None


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Curves over `span`, in the stream's unit of time (the fields are the keys of forgetting.json)."""

    span: list[float]
    learned: list[float]
    error: list[float]
    probes: int
    # curve by quantile; None if the step does not depend on time gaps
    retention: dict[str, list[float]] | None
    reach: float  # age of the oldest event in a history (median), the unit of time in Eq. 11
    law: str | None = None  # that generated the data, if known
    true: list[float] | None = None
    closeness: Closeness | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_known_law(dataset: Dataset) -> tuple[str, Law] | None:
    """Return the name and law of the default generated stream, or None for any other dataset."""
    if dataset.origin.format != "generated":
        return None
    config = GeneratorConfig()
    store = generate_stream(config)
    is_default = len(store) == len(dataset.store) and all(
        torch.equal(getattr(store, name), getattr(dataset.store, name)) for name in ("src", "dst", "time")
    )
    return (config.law, forgetting_law(config)) if is_default else None


def measure_forgetting(scorer: Scorer, stream: Stream, law: tuple[str, Law] | None = None) -> Forgetting:
    """Measure the forgetting of a trained scorer in the test period, among nodes known from training."""
    meetings = _sample_meetings(scorer, stream)
    age = meetings.src.age[meetings.src.mask].double()
    low, high = age.quantile(torch.tensor([0.02, 0.5]).double()) if len(age) else (age.sum(), age.sum())
    if len(meetings) < JACKKNIFE_GROUPS or not 0 < low < high:
        raise EventError(
            "the test period has too few repeated pairs to measure forgetting; use a longer stream",
            code="too-few-events",
        )
    spans = torch.logspace(float(low.log10()), float(high.log10()), POINTS, dtype=torch.float64)
    probes = probe_meetings(scorer, meetings, spans, stream.store.features)
    learned, error = fit_return_weights(probes, spans)
    reach = float((meetings.src.query_time - meetings.src.time[:, 0]).median())
    curves = Forgetting(
        span=spans.tolist(),
        learned=learned.tolist(),
        error=error.tolist(),
        probes=len(probes.past),
        retention=compute_retention(scorer, spans, reach, int(meetings.src.length.median()) + 1),
        reach=reach,
    )
    return curves if law is None else compare_with_law(curves, *law)


def compare_with_law(curves: Forgetting, name: str, law: Law) -> Forgetting:
    """Add the true law, scaled to 1 at the shortest span like the learned curve, and the distance between them."""
    span, learned = np.asarray(curves.span), np.asarray(curves.learned)
    true = law(span) / law(span[:1])
    gap = np.abs(learned - true)
    is_flat = np.ptp(learned) < 1e-9 or np.ptp(true) < 1e-9  # a correlation with a constant is undefined
    closeness = Closeness(
        correlation=0.0 if is_flat else float(np.corrcoef(learned, true)[0, 1]),
        mean_gap=float(gap.mean()),
        max_gap=float(gap.max()),
        half_life=compute_half_life(span, learned),
        true_half_life=compute_half_life(span, true),
    )
    return replace(curves, law=name, true=true.tolist(), closeness=closeness)


def compute_half_life(span: np.ndarray, weight: np.ndarray) -> float | None:
    """Return the time after the first span at which half of the weight is left; None if it never is.

    The weight is interpolated exponentially, which is exact for an exponential law.
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
    """Compute quantiles of exp(Delta(s) A) over channels and states of all blocks.

    Args:
        scorer: The model.
        spans: Time gaps s.
        reach: Age of the oldest event in the history.
        length: Tokens of the history.

    Returns:
        A curve per quantile; None if the model has no step that depends on time gaps.
    """
    parts = scorer.modules() if isinstance(scorer, nn.Module) else ()
    # a sequence with one token per span; node and event do not matter
    gap = spans.float()[None]
    unused, count = torch.zeros_like(gap, dtype=torch.int32), torch.tensor([length])
    is_real = torch.ones_like(gap, dtype=torch.bool)
    tokens = Tokens(unused, unused, gap, gap, gap / reach, count, is_real, is_real)
    retained = []
    for direction in parts:
        if isinstance(direction, Direction) and isinstance(direction.step, RelativeStep):
            with torch.no_grad():
                delta = direction.step.delta(direction.step.span(tokens))[0]  # [k d]
                retained.append(torch.exp(-delta[:, :, None] * direction.log_A.exp()).flatten(1))  # [k d*n]
    if not retained:
        return None
    levels = torch.tensor(QUANTILES, dtype=torch.float32)
    curves = torch.cat(retained, dim=1).quantile(levels, dim=1)
    return {f"{level:g}": curve.tolist() for level, curve in zip(QUANTILES, curves, strict=True)}


def _sample_meetings(scorer: Scorer, stream: Stream) -> Meetings:
    """Find meetings of sources of the test period, at even distances in time, of nodes known from training."""
    store, split, length = stream.store, stream.split, window_length(scorer)
    known, limit = ~split.new_nodes, max(JACKKNIFE_GROUPS, MAX_PAST_EVENTS // max(length, 1))
    events = split.test[known[store.src[split.test]]]
    events = events[torch.linspace(0, len(events) - 1, min(limit, len(events))).long()]
    return find_meetings(stream.index, store.src[events], store.time[events], known, length)


def save_forgetting(run: RunDirectory, curves: Forgetting) -> None:
    run.write_file(FORGETTING_FILE, json.dumps(curves.to_json(), indent=1) + "\n")


def load_forgetting(run: RunDirectory) -> Forgetting | None:
    """Read forgetting.json; None if there is none or if the run has newer weights."""
    path = run.path / FORGETTING_FILE
    if not path.exists() or (run.best.exists() and run.best.stat().st_mtime > path.stat().st_mtime):
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        closeness = values.pop("closeness")
        return Forgetting(**values, closeness=None if closeness is None else Closeness(**closeness))
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"{path} cannot be read ({error!r}); delete it to measure again", code="damaged-forgetting"
        ) from error
