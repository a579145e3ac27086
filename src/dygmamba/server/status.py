"""Status for the page and the metrics: facts, rates, quality over time, alerts."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from dygmamba.core.clock import Clock
from dygmamba.data.readers.times import format_iso_time
from dygmamba.server.formats import Event
from dygmamba.server.quality import Quality, QualityMonitor

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun

RATE_SECONDS = 120  # of the counts per second
HISTORY_POINTS = 360
RECENT_IDS = 10_000  # ids in queries that the share of unknown ids is about
RECENT_EVENTS = 1_000
DRIFT_LIMIT = 0.25  # of the population stability index; the usual limit for a changed population
CALIBRATION_LIMIT = 0.1  # of the calibration error beyond that of chance
UNKNOWN_LIMIT = 0.5
REFUSED_LIMIT = 0.1
UNAPPLIED_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Alert:
    """A state that somebody should look at."""

    code: str
    message: str


class RecentShare:
    """Share of marked items among the latest ones, counted in chunks, by several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._chunks, self._lock = most, deque[tuple[int, int]](), Lock()
        self.count = self.marked = 0

    def add(self, count: int, marked: int) -> None:
        with self._lock:
            self._chunks.append((count, marked))
            self.count, self.marked = self.count + count, self.marked + marked
            while self.count - self._chunks[0][0] >= self._most:
                count, marked = self._chunks.popleft()
                self.count, self.marked = self.count - count, self.marked - marked

    @property
    def share(self) -> float:
        return self.marked / self.count if self.count else 0.0


class LiveStatus:
    """Counts events and ids as they come, and describes the live run."""

    def __init__(self, clock: Clock, history_seconds: float = 10.0) -> None:
        self._clock, self._history_seconds = clock, history_seconds
        self.started = clock.now()
        self.unknown, self.refused = RecentShare(RECENT_IDS), RecentShare(RECENT_EVENTS)
        self.ahead = RecentShare(RECENT_EVENTS)
        self.last_failure = ""  # of the last append, if it failed
        self.failed_sources: dict[str, str] = {}  # code of the error by name
        self.source_gaps = 0  # how often events of a source may have been lost
        self._counts: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS)  # second, events
        self._counting = Lock()  # requests and sources append in several threads
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY_POINTS)
        self._noted = float("-inf")
        self.monitor: QualityMonitor | None = None

    def attach(self, live: "LiveRun") -> None:
        """Begin to watch the quality of a live run, or begin anew after it changed to another run."""
        self.stop()
        self.monitor = QualityMonitor(live)
        self.monitor.on_step = self.note_history
        self.monitor.start()

    def stop(self) -> None:
        if self.monitor is not None:
            self.monitor.stop()

    def count_events(self, accepted: Sequence[Event], refused: int, ahead: int = 0) -> None:
        """Count the events of an append; `ahead` of the refused ones are dated in the future."""
        self.refused.add(len(accepted) + refused, refused)
        self.ahead.add(len(accepted) + refused, ahead)
        second = int(self._clock.monotonic())
        with self._counting:
            if self._counts and self._counts[-1][0] == second:
                self._counts[-1] = (second, self._counts[-1][1] + len(accepted))
            else:
                self._counts.append((second, len(accepted)))
        if self.monitor is not None:
            self.monitor.observe(accepted)

    def list_rates(self) -> list[int]:
        """Return the accepted events of each of the last seconds, oldest first."""
        now, counts = int(self._clock.monotonic()), dict(self._counts)
        return [counts.get(second, 0) for second in range(now - RATE_SECONDS, now)]

    @property
    def quality(self) -> Quality:
        return Quality(0) if self.monitor is None else self.monitor.measure()

    def note_history(self) -> None:
        """Keep the figures of this moment, if the last ones are old enough."""
        if self._clock.monotonic() - self._noted < self._history_seconds:
            return
        self._noted = self._clock.monotonic()
        point = {"time": self._clock.now(), "unknown": self.unknown.share, **self.quality.to_json()}
        self._history.append(point)

    def find_alerts(self, live: "LiveRun") -> list[Alert]:
        """Return what somebody should look at now."""
        return [*self._find_ingest_alerts(live), *self._find_quality_alerts()]

    def _find_ingest_alerts(self, live: "LiveRun") -> list[Alert]:
        """Return alerts about events that do not reach the log or the state."""
        found = []
        if self.last_failure:
            found.append(Alert("append-failed", f"The last events were not accepted: {self.last_failure}"))
        if live.failure:
            text = "The state takes no more events; restart the server, no acknowledged event is lost."
            found.append(Alert("state-failed", text))
        for code in self.failed_sources.copy().values():
            found.append(Alert("source-failed", f"A source of events cannot be read ({code}); see the log."))
        if self.source_gaps:
            found.append(Alert("source-gap", "Events of a source may have been lost; see the log."))
        waiting = live.sequence - live.applied
        if waiting > UNAPPLIED_LIMIT:
            found.append(
                Alert("events-waiting", f"{waiting:,} events are on disk that scores do not see yet.")
            )
        return found

    def _find_quality_alerts(self) -> list[Alert]:
        """Return alerts about scores and about what the latest events and queries contain."""
        quality, found = self.quality, []
        if quality.drift is not None and quality.drift > DRIFT_LIMIT:
            text = f"Scores of events differ from those of validation (index {quality.drift:.2f}, limit {DRIFT_LIMIT})."
            found.append(Alert("score-drift", text))
        error, chance = quality.calibration_error, quality.chance_error
        if error is not None and chance is not None and error > chance + CALIBRATION_LIMIT:
            text = f"Scores are {100 * error:.0f} points away from the observed shares"
            found.append(Alert("calibration", f"{text}; chance explains {100 * chance:.0f}."))
        if self.unknown.count >= RECENT_EVENTS and self.unknown.share > UNKNOWN_LIMIT:
            found.append(
                Alert("unknown-ids", f"{100 * self.unknown.share:.0f} % of the ids in queries have no event.")
            )
        if self.ahead.marked:
            text = f"{self.ahead.marked:,} of the latest {self.ahead.count:,}"
            found.append(Alert("events-ahead", f"Events dated too far ahead were set aside: {text}."))
        if self.refused.count >= RECENT_EVENTS and self.refused.share > REFUSED_LIMIT:
            text = f"{100 * self.refused.share:.0f} % of the latest events were refused"
            found.append(Alert("events-refused", f"{text} (duplicate, late, ahead, invalid or unreadable)."))
        return found

    def describe(self, live: "LiveRun") -> dict[str, Any]:
        """Return everything as plain values."""
        reference = None if self.monitor is None else self.monitor.reference
        with live.read() as view:
            is_dated = bool(view.predictor.dataset.origin.time_origin)
        latest = live.latest
        more = {
            "dated": is_dated,
            "latest_shown": format_iso_time(latest) if is_dated else f"{latest:.12g}",
            "uptime": self._clock.now() - self.started,
        }
        return {
            "facts": live.facts() | more,
            "limits": {"drift": DRIFT_LIMIT, "calibration": CALIBRATION_LIMIT},
            "rates": self.list_rates(),
            "quality": self.quality.to_json(),
            "reference": None if reference is None else reference.to_json(),
            "history": list(self._history),
            "unknown": self.unknown.share,
            "alerts": [{"code": alert.code, "message": alert.message} for alert in self.find_alerts(live)],
        }
