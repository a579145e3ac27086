"""Drift and calibration of scores, counted shares, rates and alerts."""

import threading
import time
from collections import deque

import numpy as np
import pytest

import dygmamba as dm
from dygmamba.core.clock import Clock
from dygmamba.server.quality import MIN_EVENTS, Quality, QualityMonitor, ScoredEvents, compute_psi
from dygmamba.server.status import LiveStatus, RecentShare

PEOPLE = ["alice", "bob", "carol", "dora", "eve", "fred"]


class FixedClock(Clock):
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def test_drift_is_zero_for_equal_samples_and_grows_with_a_shift():
    """For all shifts, a larger one has a larger index; equal samples have none."""
    sample = np.random.default_rng(0).uniform(size=1000)
    drifts = [compute_psi(sample, np.clip(sample + shift, 0, 1)) for shift in (0.0, 0.1, 0.2, 0.4)]
    assert drifts[0] == 0
    assert drifts == sorted(drifts)
    assert drifts[1] < 0.25 < drifts[3]
    again = [compute_psi(sample[k::2], sample[1 - k :: 2]) for k in (0, 1)]
    assert max(again) < 0.05


def test_calibrated_scores_are_within_chance_and_overconfident_ones_are_not():
    rng, prior = np.random.default_rng(1), np.random.default_rng(2).uniform(size=4000)
    is_event = rng.uniform(size=4000) < prior
    count = min(is_event.sum(), (~is_event).sum())
    good = ScoredEvents(prior[is_event][:count], prior[~is_event][:count]).measure(prior[is_event])
    assert good.calibration_error < 3 * good.chance_error
    assert good.drift < 0.05
    assert 0.8 < good.auc < 0.9
    sure = ScoredEvents(np.round(prior[is_event][:count]), np.round(prior[~is_event][:count])).measure(None)
    assert sure.calibration_error > good.chance_error + 0.1
    assert ScoredEvents(prior[: MIN_EVENTS - 1], prior[: MIN_EVENTS - 1]).measure(prior) == Quality(
        MIN_EVENTS - 1
    )


def test_arriving_events_are_scored_at_their_times_beside_random_pairs(mail, tmp_path, monkeypatch):
    """The scores of events are those of `Run.score` at their times; a state of only late knowledge changes nothing."""
    monkeypatch.setattr("dygmamba.server.quality.MIN_EVENTS", 10)
    monkeypatch.setattr("dygmamba.server.quality.DRIFT_EVENTS", 10)
    events = [{"src": "alice", "dst": PEOPLE[1 + k % 5], "time": f"2024-03-01T10:{k:02d}"} for k in range(20)]
    with dm.live(mail, tmp_path / "state") as live:
        monitor = QualityMonitor(live)
        monitor.measure_reference()
        assert monitor.reference.events == 22
        live.append(events)
        monitor.observe(events)
        monitor.observe([{"src": "alice", "dst": "bob", "time": "no time"}, {"from": 1}])
        monitor.step()
        found, scores = monitor.measure(), sorted(score for score, _ in monitor._scored)
        rows = [(event["src"], event["dst"], event["time"]) for event in events[2:]]
        assert scores == sorted(live.score(rows)["score"].to_pylist())
    assert found.events == 18
    assert 0 <= found.calibration_error <= 1
    assert found.drift is not None


def test_alerts_come_and_go(mail, tmp_path):
    status, clock = LiveStatus(FixedClock()), FixedClock()
    status._clock = clock
    with dm.live(mail, tmp_path / "state") as live:
        assert status.find_alerts(live) == []
        status.unknown.add(2000, 1500)
        status.count_events([], 600)
        status.count_events([{}] * 400, 0)
        status.last_failure = "full."

        class Drifting:
            reference = None

            def measure(self):
                return Quality(500, drift=0.5, calibration_error=0.4, chance_error=0.05, auc=0.6)

        status.monitor = Drifting()
        codes = [alert.code for alert in status.find_alerts(live)]
        assert codes == ["append-failed", "score-drift", "calibration", "unknown-ids", "events-refused"]
        status.note_history()
        clock.time += 1
        status.note_history()  # too soon
        described = status.describe(live)
    assert described["rates"][-1] == 400
    assert len(described["history"]) == 1
    assert described["history"][0]["drift"] == 0.5


@pytest.mark.parametrize("most", [10, 100])
def test_a_recent_share_forgets_what_is_old(most):
    """For all sizes: after enough items without marks the share is 0, and at least `most` items are counted."""
    share = RecentShare(most)
    share.add(5, 5)
    assert share.share == 1
    for _ in range(most):
        share.add(3, 0)
    assert share.share == 0
    assert most <= share.count < most + 3


class SlowChunks(deque):
    """Lets other threads run before a chunk is forgotten."""

    def popleft(self):
        time.sleep(0.02)
        return super().popleft()


def test_a_share_that_several_threads_count_forgets_each_chunk_once():
    share = RecentShare(10)
    share.add(5, 5)
    share._chunks = SlowChunks(share._chunks)
    threads = [threading.Thread(target=share.add, args=(6, 0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (share.count, share.marked) == (12, 0)
