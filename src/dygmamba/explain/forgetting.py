"""The learned forgetting, two views of it: what the scores say, and what Eq. 11 holds.

`learned` is the return weight that the scores imply (see returns.py), with its standard error; `retention` is
what a state keeps over one gap, exp(Delta(s) A), quantiles over channels and states. Where the law behind the
data is known, it stands beside them.

Legend: q pasts, k spans, d channels, n states.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from dygmamba.data.generate import GeneratorConfig, forgetting_law, generate_stream
from dygmamba.data.store import Dataset
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.stream import Stream
from dygmamba.errors import EventError, FileError
from dygmamba.explain.returns import GROUPS, Meetings, find_meetings, fit_returns, probe, window
from dygmamba.files.writing import write_text
from dygmamba.models.base import Scorer
from dygmamba.nn.ssm import Direction
from dygmamba.nn.steps import RelativeStep
from dygmamba.nn.tokens import Tokens

NAME = "forgetting.json"
POINTS = 10  # points of a curve
PAST_EVENTS = 64_000  # at most so many events of pasts are probed
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


def known_law(dataset: Dataset) -> tuple[str, Law] | None:
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
    meetings = _meetings(scorer, stream)
    age = meetings.src.age[meetings.src.mask].double()
    low, high = age.quantile(torch.tensor([0.02, 0.5]).double()) if len(age) else (age.sum(), age.sum())
    if len(meetings) < GROUPS or not 0 < low < high:
        raise EventError(
            "too few repeated meetings in the test period to probe forgetting; use a longer stream"
        )
    spans = torch.logspace(float(low.log10()), float(high.log10()), POINTS, dtype=torch.float64)
    probes = probe(scorer, meetings, spans, stream.store.features)
    learned, error = fit_returns(probes, spans)
    reach = float((meetings.src.query_time - meetings.src.time[:, 0]).median())
    found = Forgetting(
        span=spans.tolist(),
        learned=learned.tolist(),
        error=error.tolist(),
        probes=len(probes.past),
        retention=retention(scorer, spans, reach, int(meetings.src.length.median()) + 1),
        reach=reach,
    )
    return found if law is None else beside_law(found, *law)


def beside_law(found: Forgetting, name: str, law: Law) -> Forgetting:
    """The same curves with the law, scaled to 1 at the smallest span as they are, and how close they come."""
    span, learned = np.asarray(found.span), np.asarray(found.learned)
    true = law(span) / law(span[:1])
    gap = np.abs(learned - true)
    flat = np.ptp(learned) < 1e-9 or np.ptp(true) < 1e-9  # a correlation with a constant is undefined
    closeness = Closeness(
        correlation=0.0 if flat else float(np.corrcoef(learned, true)[0, 1]),
        mean_gap=float(gap.mean()),
        max_gap=float(gap.max()),
        half_life=half_life(span, learned),
        true_half_life=half_life(span, true),
    )
    return replace(found, law=name, true=true.tolist(), closeness=closeness)


def half_life(span: np.ndarray, weight: np.ndarray) -> float | None:
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


def retention(
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


def _meetings(scorer: Scorer, stream: Stream) -> Meetings:
    """Meetings of the test period's sources, evenly over time, both ends known to training."""
    store, split = stream.store, stream.split
    known, limit = ~split.new_nodes, max(GROUPS, PAST_EVENTS // max(window(scorer), 1))
    events = split.test[known[store.src[split.test]]]
    events = events[torch.linspace(0, len(events) - 1, min(limit, len(events))).long()]
    return find_meetings(stream.index, store.src[events], store.time[events], known, window(scorer))


def save_forgetting(run: RunFolder, found: Forgetting) -> None:
    """Keep the curves in the run folder."""
    write_text(run.path / NAME, json.dumps(found.to_json(), indent=1) + "\n")


def load_forgetting(run: RunFolder) -> Forgetting | None:
    """What save_forgetting wrote, unless the run has better weights since."""
    path = run.path / NAME
    if not path.exists() or (run.best.exists() and run.best.stat().st_mtime > path.stat().st_mtime):
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        close = values.pop("closeness")
        return Forgetting(**values, closeness=None if close is None else Closeness(**close))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error!r}); delete it to measure again") from error
