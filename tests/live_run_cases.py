"""What the tests of live runs share: events after a dataset, a second run, a clock that can be moved, a plain model."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dygmamba as dm
from dygmamba.core.clock import Clock
from dygmamba.live.live_run import LiveRun
from dygmamba.runs.predictor import Predictor
from torture_cases import SECONDS
from trained import copy_run, generate_stream, load_trees_run

PAIRS = [(3, 5), (1, 2), (7, 31), (40, 2)]  # also of a node that has no event at first


@functools.cache
def other_run() -> dm.Run:
    """A run of the same dataset with other scores: in the long mode of its own, else a copy without calibration."""
    out = Path(tempfile.mkdtemp(prefix="live-"))
    if SECONDS:
        return dm.train(generate_stream(), "trees", epochs=1, rounds=3, out=out)[0]
    copy = copy_run(load_trees_run(), out)
    (copy.path / "calibration.json").unlink()
    return copy


def last_time() -> float:
    return float(generate_stream().store.time[-1])


def make_events(count: int, first: int = 0, step: float = 10.0) -> list[dict]:
    """Events after the dataset, `step` apart, some of them of new nodes."""
    start = last_time() + 1
    return [
        {"id": f"e{k}", "src": k % 33, "dst": (7 * k + 1) % 30, "time": start + step * k}
        for k in range(first, first + count)
    ]


@dataclass
class MovedClock(Clock):
    """A clock that stands still until it is set."""

    time: float = 1e9

    def now(self) -> float:
        return self.time


def open_live(path: Path, **options) -> LiveRun:
    run = load_trees_run()
    return LiveRun(Predictor.open(run.path, "cpu"), path, **options)


def observed_scores(events: Sequence[dict], run: dm.Run | None = None) -> list[dict]:
    """What `observe` with these events, given in the order of the log, makes of the pairs."""
    run = run or load_trees_run()
    rows = [(str(event["src"]), str(event["dst"]), event["time"]) for event in events]
    return (run.observe(rows) if rows else run).score(PAIRS).to_pylist()


def live_scores(live: LiveRun) -> list[dict]:
    return live.score(PAIRS).to_pylist()


@dataclass
class PlainModel:
    """What a log must hold, in the plainest words: a list of accepted events and the latest time."""

    late: float = 0.0
    latest: float = field(default_factory=last_time)
    accepted: list[dict] = field(default_factory=list)

    def append(self, event: dict) -> tuple[str, int | None]:
        """Return the status and the sequence number of an event, and take it if it is accepted."""
        for number, known in enumerate(self.accepted, 1):
            if event.get("id") is not None and known.get("id") == event["id"]:
                return "duplicate", number
        if event["time"] < self.latest - self.late:
            return "late", None
        self.accepted.append(event)
        self.latest = max(self.latest, event["time"])
        return "accepted", len(self.accepted)
