"""A live run: what it says about each event, what queries see, and that nothing but the log decides about a score."""

import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dygmamba as dm
from dygmamba.core.errors import ConfigError, FileError, LockedError, WriteError
from dygmamba.live.event_log import EventLog, LogReader
from dygmamba.live.log_writer import Request
from dygmamba.live.serving_state import ServedRun
from dygmamba.live.verdicts import TimeRules, parse_lateness
from live_run_cases import (
    PAIRS,
    MovedClock,
    PlainModel,
    last_time,
    live_scores,
    make_events,
    observed_scores,
    open_live,
    other_run,
)
from raising import raises
from torture_cases import SECONDS, seeds
from trained import load_trees_run


@pytest.fixture
def live(tmp_path):
    with open_live(tmp_path / "state") as opened:
        yield opened


def test_scores_are_those_of_observe(live):
    """After each append, of one event or many: bit for bit what `observe` with all events gives; so are ranks."""
    events = make_events(12)
    assert live_scores(live) == load_trees_run().score(PAIRS).to_pylist()
    for first, count in ((0, 1), (1, 8), (9, 3)):
        live.append(events[first : first + count])
        assert live_scores(live) == observed_scores(events[: first + count])
    run = load_trees_run().observe([(event["src"], event["dst"], event["time"]) for event in events])
    assert live.rank([3, 1], k=4).equals(run.rank([3, 1], k=4))
    if SECONDS:
        assert live.explain((3, 5), orders=1).logit == run.explain((3, 5), orders=1).logit
    assert live.score([{"src": "3", "dst": 5}]).to_pylist() == run.score([(3, 5)]).to_pylist()
    assert live.data.digest == run.data.digest
    assert (live.sequence, live.applied) == (12, 12)


def test_each_event_gets_a_verdict(live):
    """Accepted, duplicate, late, invalid: in order, with sequence numbers; the others are not affected."""
    events = make_events(3)
    answer = live.append([events[0], events[2], events[0], {"src": 1}, events[1], events[2] | {"id": None}])
    assert [(v.index, v.status, v.sequence) for v in answer.verdicts] == [
        *[(0, "accepted", 1), (1, "accepted", 2), (2, "duplicate", 1)],
        *[(3, "invalid", None), (4, "late", None), (5, "accepted", 3)],
    ]
    assert (answer.sequence, answer.accepted, len(answer.rejected)) == (3, 3, 3)
    assert all(verdict.message for verdict in answer.rejected)
    again = live.append([events[2]])
    assert (again.sequence, again.accepted) == (2, 0)
    assert live.append([]).sequence == 3
    assert live.set_aside.num_rows == 0
    with raises("unsupported-table", ConfigError):
        live.append(7)


def test_late_events_within_the_tolerance_are_taken_and_others_set_aside(tmp_path):
    """Scores are those of `observe` with the accepted ones; the same late id is set aside once; the setting is kept."""
    events = make_events(6)
    with open_live(tmp_path, late="25s", on_late="set-aside") as live:
        live.append([events[0], events[4], events[2]])
        statuses = [verdict.status for verdict in live.append([events[1], events[1], events[3]]).verdicts]
        assert statuses == ["late", "late", "accepted"]
        assert live_scores(live) == observed_scores([events[k] for k in (0, 4, 2, 3)])
        assert live.set_aside.to_pylist() == [
            {key: str(value) if key != "time" else value for key, value in events[1].items()}
            | {"status": "late"}
        ]
    with open_live(tmp_path) as live:
        assert (live.facts()["late"], live.facts()["on_late"], live.facts()["set_aside"]) == (
            25.0,
            "set-aside",
            1,
        )
    with open_live(tmp_path, late=0, on_late="refuse") as live:
        assert live.append([events[1]]).verdicts[0].status == "late"
        assert live.set_aside.num_rows == 1


@pytest.mark.parametrize(
    ("given", "seconds"), [("0s", 0), ("10m", 600), ("1.5 h", 5400), ("7d", 604_800), (3, 3)]
)
def test_a_tolerance_is_a_duration(given, seconds):
    assert parse_lateness(given) == seconds


def test_a_late_event_is_described_in_the_unit_of_the_stream():
    assert TimeRules(5.0).describe_late(1.0, 7.0) == "its time 1 is more than 5 before the latest one, 7"
    text = "its time 1970-01-01T00:00:01Z is more than 1 d 0 h before the latest one, 1970-01-03T00:00:00Z"
    assert TimeRules(86_400.0, is_dated=True).describe_late(1.0, 172_800.0) == text
    assert TimeRules().describe_late(1.0, 7.0) == "its time 1 is before the latest one, 7"


def test_a_query_waits_for_a_sequence_and_says_if_it_does_not_come(live):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(live.score(PAIRS, min_sequence=2, timeout=60)))
    thread.start()
    events = make_events(2)
    live.append(events, wait=False)
    thread.join()
    assert answers[0].to_pylist() == observed_scores(events)
    with raises("sequence-not-reached", FileError):
        live.score(PAIRS, min_sequence=3, timeout=0.01)
    with live.read(min_sequence=2) as view:
        assert view.sequence == 2
        with raises("sequence-not-reached", FileError):
            view.score(PAIRS, min_sequence=3)
        live.append(make_events(1, first=2))
        assert view.score(PAIRS).to_pylist() == observed_scores(events)  # as of its sequence


def test_offsets_are_written_with_their_events(live, tmp_path):
    live.append(make_events(1), source="topic-0", offset=41)
    live.append([], source="file", offset={"line": 7})
    assert live.offsets == {"file": {"line": 7}, "topic-0": 41}
    assert live.facts()["offsets"] == live.offsets


def test_a_wrong_argument_leaves_the_folder_unlocked(tmp_path):
    for wrong in ({"late": "soon"}, {"on_late": "forget"}):
        with raises("invalid-late" if "late" in wrong else "invalid-on-late", ConfigError):
            open_live(tmp_path, **wrong)
    open_live(tmp_path).close()


def test_one_process_writes_and_others_may_read(live):
    with raises("folder-locked", LockedError):
        open_live(live.path)
    with LogReader(live.path) as log:
        assert log.read_sequence() == 0
    live.close()
    with raises("live-closed", ConfigError):
        live.append(make_events(1))
    with raises("live-closed", ConfigError):
        live.score(PAIRS)
    open_live(live.path).close()


def test_a_full_disk_stops_acknowledging_but_not_answering(live):
    """Nothing of a refused append is there; when there is room, the same append is accepted."""
    events = make_events(400)
    live.append(events[:2])
    connection = live._writer._log._connect()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with raises("log-full", WriteError):
        live.append(events[2:])
    assert (live.sequence, live.applied) == (2, 2)
    assert live_scores(live) == observed_scores(events[:2])
    assert live.append(events[2:]).accepted == 398
    assert live_scores(live) == observed_scores(events)


def test_a_state_that_fails_is_said_and_the_log_has_the_event(tmp_path, monkeypatch):
    """Queries go on as of the last event that was applied; opened again, all are there."""
    events = make_events(2)
    with open_live(tmp_path) as live:
        live.append(events[:1])
        with monkeypatch.context() as patch:
            patch.setattr(ServedRun, "append", lambda *_: [][0])
            with raises("live-state-failed", FileError):
                live.append(events[1:])
        assert live_scores(live) == observed_scores(events[:1])
    with open_live(tmp_path) as live:
        assert live_scores(live) == observed_scores(events)


def test_threads_share_transactions_and_lose_nothing(live):
    """Eight threads at once: every event is acknowledged once, in the order of the log within a thread."""
    batches = [[event | {"id": f"{event['id']}-{k}"} for event in make_events(2, 0, 0.0)] for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(live.append, batches))
    numbers = sorted(verdict.sequence for answer in answers for verdict in answer.verdicts)
    assert numbers == list(range(1, 81))
    with LogReader(live.path) as log:
        (events,) = log.read_events(0, 80)
    assert [event.id for event in events if event.id.endswith("-3")] == ["e0-3", "e1-3"]


def test_waiting_appends_share_one_transaction(live, monkeypatch):
    """Group commit: what arrives while the disk is busy is flushed together, and each gets its own verdicts."""
    begun, gate, count = threading.Event(), threading.Event(), []
    transaction = EventLog.transaction
    monkeypatch.setattr(EventLog, "transaction", lambda log: (count.append(1), transaction(log))[1])
    live._writer.submit(Request(change=lambda _: (begun.set(), gate.wait())))
    begun.wait()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(live.append, [event | {"time": last_time() + 1}]) for event in make_events(8)]
        while len(live._writer._waiting) < 8:
            time.sleep(0.001)
        gate.set()
    assert sorted(answer.result().sequence for answer in answers) == list(range(1, 9))
    assert len(count) == 2


def test_a_newer_run_takes_over_without_losing_an_event(tmp_path):
    """A run of the same dataset, then one trained on `data`: scores are those of its own `observe`, also reopened."""
    events = make_events(8)
    with open_live(tmp_path / "state") as live:
        live.append(events[:4])
        newer = other_run()
        live.switch(newer)
        assert live_scores(live) == observed_scores(events[:4], newer)
        (newest,) = dm.train(live.data, "trees", epochs=1, rounds=2, out=tmp_path)
        live.append(events[4:])
        live.switch(newest.path)
        assert live_scores(live) == observed_scores(events[4:], newest)
        assert live.applied == 8
    with dm.live(newest, tmp_path / "state") as live:
        assert live_scores(live) == observed_scores(events[4:], newest)
    with open_live(tmp_path / "state") as live:  # the run of the beginning still fits
        assert live_scores(live) == observed_scores(events)
    with open_live(tmp_path / "other") as live:
        live.append(make_events(4, first=1))
        with raises("other-dataset", ConfigError):  # its events are not those that the run was trained on
            live.switch(newest)
    with raises("other-dataset", ConfigError):
        dm.live(newest, tmp_path / "other")
    with raises("run-observed-events", ConfigError):
        dm.live(newest.observe([(1, 2, last_time() + 1e6)]), tmp_path / "new")


def simulate(seed: int, folder: Path, steps: int) -> None:
    """Compare random appends, duplicates, late events, snapshots, reopenings, switches and clock jumps with a list."""
    rng, clock, model, sent = random.Random(seed), MovedClock(), PlainModel(late=30.0), []
    runs = [load_trees_run(), other_run()]
    run = runs[0]
    live = dm.live(run, folder, late=30.0, device="cpu")
    try:
        for _ in range(steps):
            match rng.choice(["append"] * 5 + ["reopen", "crash", "snapshot", "switch", "clock", "score"]):
                case "append":
                    batch = []
                    for _ in range(rng.randint(1, 4)):
                        old = sent and rng.random() < 0.2
                        event = rng.choice(sent) if old else make_events(1, len(sent))[0]
                        event = (
                            event if old else event | {"time": event["time"] + rng.choice([0, 0, -20, -90])}
                        )
                        sent += [] if old else [event]
                        batch.append(event)
                    answer = live.append(batch)
                    expected = [model.append(event) for event in batch]
                    assert [(v.status, v.sequence) for v in answer.verdicts] == expected
                case "reopen":
                    live.close()
                    live = dm.live(run, folder, device="cpu")
                case "crash":  # nothing is closed or flushed: another process would find this
                    folder = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}x")))
                    live.close()
                    live = dm.live(run, folder, device="cpu")
                case "snapshot":
                    live.snapshot()
                case "switch":
                    run = rng.choice(runs)
                    live.switch(run)
                case "clock":
                    live._writer._clock = clock
                    clock.time += rng.choice([-1e6, 1e6])
                case _:
                    assert live_scores(live) == observed_scores(model.accepted, run)
            assert live.sequence == live.applied == len(model.accepted)
        assert live_scores(live) == observed_scores(model.accepted, run)
    finally:
        live.close()


def test_a_live_run_behaves_like_a_plain_list(tmp_path):
    """For all sequences of operations: verdicts are those of the plain model, scores those of `observe`."""
    for seed in seeds("live simulation", 2):
        simulate(seed, tmp_path / f"seed-{seed}", 25)


def test_ids_keep_their_meaning_when_other_ids_appear(tmp_path):
    """'1.0' is node 1 before and after 'bob'; an id beyond 64 bits is one, also after a late event and in a ranking."""
    time, huge = last_time() + 100, 2**63
    events = [
        {"src": "1.0", "dst": 3, "time": time + 1},
        {"src": "bob", "dst": huge, "time": time + 2},
        {"src": 1.0, "dst": "bob", "time": time + 3},
        {"src": 2, "dst": huge, "time": time},
    ]
    pairs = [("1.0", "3"), ("bob", str(huge)), ("2.0", "bob")]
    run = load_trees_run().observe(
        [(str(event["src"]), str(event["dst"]), event["time"]) for event in events]
    )
    with open_live(tmp_path / "state", late="1h") as live:
        for event in events:
            assert live.append([event]).accepted == 1
            written, number = (live.score({"src": [source], "dst": [3]})["score"] for source in ("1.0", 1))
            assert written.equals(number)
        assert live.score(pairs)["score"].equals(run.score(pairs)["score"])
        for sources in ([huge], ["1.0"], ["bob"]):
            assert live.rank(sources, k=3)["score"].equals(run.rank(sources, k=3)["score"])
    known = [
        load_trees_run().observe([("bob", one, time)]).score([("1.0", "3")])["score"] for one in (1, "1.0")
    ]
    assert known[0].equals(known[1])
