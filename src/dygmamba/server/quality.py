"""Quality of the scores of a live run: drift against validation and calibration, from the events that arrive.

Some of the accepted events are scored as queries at their own times, which see strictly earlier events only, each
beside a random destination of the same source and time. A score is the probability that a pair is an event and not
random, so that the share of events among pairs with equal scores should be that score.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.runs.predictor import Predictor
from dygmamba.server.formats import Event
from dygmamba.tasks.calibration import compute_reliability

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun

SAMPLE_EVENTS = 20  # events scored each time
PENDING_EVENTS = 1_000
WINDOW_EVENTS = 500  # latest scored events that the figures are about
REFERENCE_EVENTS = 500  # of the validation period
MIN_EVENTS = 50  # fewer say nothing
DRIFT_EVENTS = 200  # with fewer, chance alone comes near the limit of drift
BINS = 10
SEED = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of scored events and as many random pairs; None while there are too few."""

    events: int
    drift: float | None = None  # population stability index of the scores of events, against validation
    calibration_error: float | None = None  # expected calibration error
    chance_error: float | None = None  # what perfectly calibrated scores would show with this many pairs
    auc: float | None = None  # share of events with a higher score than their random pair

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ScoredEvents:
    """Scores of events, and of a random pair beside each."""

    event: np.ndarray
    random: np.ndarray

    def measure(self, reference: np.ndarray | None) -> Quality:
        count = len(self.event)
        if count < MIN_EVENTS:
            return Quality(count)
        drift = None
        if reference is not None and count >= DRIFT_EVENTS:
            drift = compute_psi(reference, self.event)
        label = np.repeat([1.0, 0.0], [count, len(self.random)])
        score = np.concatenate([self.event, self.random])
        reliability = compute_reliability(torch.from_numpy(score), torch.from_numpy(label))
        auc = compute_auc(self.event, self.random)
        return Quality(count, drift, reliability.ece, reliability.chance, auc)


def compute_psi(expected: np.ndarray, found: np.ndarray) -> float:
    """Population stability index between two samples, over bins with equal shares of the first one, less chance.

    Half a value is added to each bin, so that an empty one does not make it infinite. What two samples of one
    population have on average, the number of bins less one times the sum of both inverse sizes, is subtracted.
    """
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, BINS + 1)[1:-1]))
    shares = []
    for sample in (expected, found):
        count = np.bincount(np.searchsorted(edges, sample, side="right"), minlength=len(edges) + 1) + 0.5
        shares.append(count / count.sum())
    index = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    return max(0.0, index - len(edges) * (1 / len(expected) + 1 / len(found)))


def compute_auc(event: np.ndarray, random: np.ndarray) -> float:
    """Share of event and random pair in which the event has the higher score; a tie counts half."""
    return float(((event > random) + 0.5 * (event == random)).mean())


class QualityMonitor:
    """Scores a sample of the accepted events, in a thread of its own, and keeps the latest scores."""

    def __init__(self, live: "LiveRun", interval: float = 1.0) -> None:
        self.live, self.interval = live, interval
        self.reference: Quality | None = None
        self._reference_scores: np.ndarray | None = None
        self._pending: deque[Event] = deque(maxlen=PENDING_EVENTS)
        self._scored: deque[tuple[float, float]] = deque(maxlen=WINDOW_EVENTS)
        self._generator = torch.Generator().manual_seed(SEED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dygmamba-quality", daemon=True)
        self.on_step: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def observe(self, events: Sequence[Event]) -> None:
        """Take accepted events; only some of many are scored."""
        self._pending.extend(events)

    def measure(self) -> Quality:
        """Return the figures of the latest scored events."""
        scored = np.array(list(self._scored)).reshape(-1, 2)
        return ScoredEvents(scored[:, 0], scored[:, 1]).measure(self._reference_scores)

    def _run(self) -> None:
        self.measure_reference()
        while not self._stop.wait(self.interval):
            self.step()
            self.on_step()

    def measure_reference(self) -> None:
        """Score events of the validation period at their times."""
        with self.live.read() as view:
            predictor = view.predictor
            if not _is_measurable(predictor):
                return
            rows = predictor.run.stream.split.val.cpu()
            if len(rows) < MIN_EVENTS:
                return
            rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), REFERENCE_EVENTS)).long()]
            store = predictor.run.dataset.store
            found = self._score(predictor, store.src[rows], store.dst[rows], store.time[rows])
        self.reference, self._reference_scores = found.measure(None), found.event

    def step(self) -> None:
        """Score some of the events that arrived since the last step."""
        events = [self._pending.pop() for _ in range(min(SAMPLE_EVENTS, len(self._pending)))]
        self._pending.clear()
        if not events:
            return
        parsed = [event for event in self.live.parser.parse(events).events if event is not None]
        with self.live.read() as view:
            predictor, ids = view.predictor, view.predictor.dataset.ids
            if not _is_measurable(predictor):
                return
            src = torch.from_numpy(ids.to_node([event.src for event in parsed], "src"))
            dst = torch.from_numpy(ids.to_node([event.dst for event in parsed], "dst"))
            time = torch.tensor([event.time for event in parsed], dtype=torch.float64)
            is_applied = (src >= 0) & (dst >= 0)
            if is_applied.any():
                found = self._score(predictor, src[is_applied], dst[is_applied], time[is_applied])
                self._scored.extend(zip(found.event.tolist(), found.random.tolist(), strict=True))

    def _score(self, predictor: Predictor, src: Tensor, dst: Tensor, time: Tensor) -> ScoredEvents:
        known = torch.unique(predictor.run.dataset.store.dst)
        other = known[torch.randint(len(known), (len(dst),), generator=self._generator)]
        scores = []
        for destination in (dst, other):
            logit = predictor.ranker.logits(src, destination, time)
            new_ends = predictor.find_new_ends(src, destination, time)
            assert predictor.calibration is not None
            scores.append(predictor.calibration.probability(logit, new_ends).numpy())
        return ScoredEvents(*scores)


def _is_measurable(predictor: Predictor) -> bool:
    """Return whether scores are probabilities of pairs, and queries of the past do not replay a node memory."""
    is_link = predictor.run.folder.task == "link"
    return is_link and predictor.calibration is not None and not predictor.run.scorer.stateful
