"""Events dated ahead: one wrong clock does not make the events of all others late, and no true event is refused."""

import functools
import json
import math
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError
from dygmamba.live.event_log import EventLog, LogEvent, LogReader
from dygmamba.live.event_parsing import ParsedEvents
from dygmamba.live.live_run import LiveRun
from dygmamba.live.log_writer import LogWriter, Request, Retry
from dygmamba.live.verdicts import DATED_LEAD, TimeRules, choose_max_ahead, parse_lead
from dygmamba.runs.predictor import Predictor
from live_run_cases import MovedClock, last_time, make_events, open_live
from raising import raises

NOW = 1_800_000_000.0  # later than every date below
DAY = 86_400.0


def date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@functools.cache
def dated_run() -> dm.Run:
    """A run on a stream of dates that ends ten days before NOW."""
    start = datetime.fromtimestamp(NOW, UTC) - timedelta(days=25)
    rows = [(f"s{k % 7}", f"d{k % 5}", (start + timedelta(hours=3 * k)).isoformat()) for k in range(120)]
    out = Path(tempfile.mkdtemp(prefix="dated-"))
    (run,) = dm.train(dm.read(rows, name="dated"), "trees", rounds=2, device="cpu", out=out)
    return run


def open_dated(path: Path, clock: MovedClock, **options) -> LiveRun:
    return LiveRun(Predictor.open(dated_run().path, "cpu"), path, clock=clock, **options)


def statuses(answer) -> list[str]:
    return [verdict.status for verdict in answer.verdicts]


def test_one_wrong_date_is_set_aside_and_later_events_are_accepted(tmp_path):
    """A year too far, or milliseconds of the next century; when its date has come, the event can be taken in."""
    clock = MovedClock(NOW)
    far = {"id": "far", "src": "s1", "dst": "d1", "time": date(NOW + 365 * DAY)}
    good = [{"src": "s1", "dst": "d2", "time": date(NOW + 60 * k)} for k in range(3)]
    with open_dated(tmp_path, clock) as live:
        answer = live.append([far, good[0], far | {"id": None, "time": 4_000_000_000_000}, good[1], far])
        assert statuses(answer) == ["ahead", "accepted", "ahead", "accepted", "ahead"]
        assert "more than 1 d 0 h ahead of the clock, 2027-01-15T08:00:00Z; it was set aside" in (
            answer.verdicts[0].message
        )
        assert live.set_aside["status"].to_pylist() == ["ahead", "ahead"]  # once for each id
        assert live.facts()["set_aside"] == 2
        assert statuses(live.accept_set_aside()) == ["ahead", "ahead"]
        clock.time = NOW + 366 * DAY
        assert statuses(live.accept_set_aside()) == ["accepted", "ahead"]
        assert live.set_aside["id"].to_pylist() == [None]
        assert statuses(live.append([good[2]])) == ["late"]  # now a year has passed
        assert (live.sequence, live.applied) == (3, 3)
    with open_dated(tmp_path, clock) as live:
        assert live.sequence == 3


def test_a_sender_whose_clock_is_ahead_makes_nobody_late(tmp_path):
    """Within the limit its events are accepted; the others are judged as if it sent nothing, also after a restart."""
    clock = MovedClock(NOW)

    def send(live, lead: float) -> str:
        return statuses(live.append([("s1", "d1", date(clock.time + lead))]))[0]

    for hour in range(30):  # what it sent at first is past at the end
        clock.time = NOW + 3600 * hour
        with open_dated(tmp_path, clock) as live:
            for _ in range(2):
                assert send(live, 23 * 3600) == "accepted"
                assert send(live, -0.5) == "accepted"
                assert send(live, -1.5) == "late"
                clock.time += 10


def test_senders_that_are_all_ahead_do_not_end_the_limit(tmp_path):
    """Dates of another time zone: events are late that are further behind the clock than events may be ahead."""
    clock = MovedClock(NOW)
    with open_dated(tmp_path, clock) as live:
        for _ in range(3):
            assert statuses(live.append([("s1", "d1", date(clock.time + 7200))])) == ["accepted"]
            clock.time += 60
        old = [("s1", "d1", date(clock.time + lead)) for lead in (-5 * DAY, -1.1 * DAY, -0.9 * DAY)]
        assert statuses(live.append(old)) == ["late", "late", "accepted"]


def test_a_clock_that_is_set_back_ends_no_limit(tmp_path):
    """The time since the start is known anyway: an event of 2099 is ahead, and the others are accepted."""
    clock = MovedClock(NOW)
    with open_dated(tmp_path, clock) as live:
        assert statuses(live.append([("s1", "d1", date(NOW))])) == ["accepted"]
        for jump in (3 * DAY, 400 * DAY, NOW):
            clock.time = NOW - jump
            events = [("s1", "d1", "2099-01-01"), ("s1", "d1", date(NOW + 1))]
            assert statuses(live.append(events)) == ["ahead", "accepted"]


def test_an_event_far_ahead_that_was_taken_in_spoils_nothing(tmp_path):
    """The limit goes on for the next ones, and nobody is late because of it."""
    far, clock = NOW + 300 * DAY, MovedClock(NOW)
    with open_dated(tmp_path, clock) as live:
        assert statuses(live.append([("s1", "d1", date(far))])) == ["ahead"]
        assert statuses(live.accept_set_aside(max_ahead="off")) == ["accepted"]
        assert statuses(live.append([("s1", "d1", date(far)), ("s1", "d1", date(NOW))])) == [
            "ahead",
            "accepted",
        ]
        assert live.set_aside["status"].to_pylist() == ["ahead"]


def test_an_event_is_corrected_by_sending_it_again(tmp_path):
    """Under the same id with another date: it is accepted, and the wrong one leaves what was set aside."""
    event = {"id": "m", "src": "s1", "dst": "d1", "time": date(NOW + 99 * DAY)}
    with open_dated(tmp_path, MovedClock(NOW)) as live:
        assert statuses(live.append([event])) == ["ahead"]
        assert statuses(live.append([event | {"time": date(NOW)}])) == ["accepted"]
        assert statuses(live.accept_set_aside(max_ahead="off")) == ["duplicate"]
        assert (live.sequence, live.set_aside.num_rows) == (1, 0)


def test_late_events_that_were_set_aside_are_taken_in_too(tmp_path):
    """With a tolerance for one call: scores are those of a run that had it from the beginning; columns are kept."""
    events = make_events(6)
    with open_live(tmp_path / "a", on_late="set-aside") as live:
        live.append([events[k] for k in (0, 5, 2, 4)])
        assert statuses(live.accept_set_aside()) == ["late", "late"]
        assert statuses(live.accept_set_aside(late="35s")) == ["accepted", "accepted"]
        assert live.set_aside.num_rows == 0
        assert statuses(live.append([events[1]])) == ["late"]  # the tolerance of others is as it was
        found = live.score([(3, 5), (1, 2)]).to_pylist()
    with open_live(tmp_path / "b", late="99s") as live:
        live.append([events[k] for k in (0, 5, 2, 4)])
        assert live.score([(3, 5), (1, 2)]).to_pylist() == found


def test_the_tolerance_is_kept_and_can_be_changed(tmp_path):
    clock = MovedClock(NOW)
    event = {"src": "s1", "dst": "d1", "time": date(NOW + 2 * 3600)}
    with open_dated(tmp_path, clock, max_ahead="1h") as live:
        assert statuses(live.append([event])) == ["ahead"]
    with open_dated(tmp_path, clock) as live:
        assert live.facts()["max_ahead"] == 3600
        assert statuses(live.append([event])) == ["ahead"]
    with open_dated(tmp_path, clock, max_ahead="off") as live:
        assert statuses(live.append([event])) == ["accepted"]
    with open_dated(tmp_path, clock) as live:
        assert live.facts()["max_ahead"] is None
    for wrong in ("soon", "-1s", math.nan):
        with raises("invalid-max-ahead", ConfigError):
            open_dated(tmp_path, clock, max_ahead=wrong)


def test_plain_numbers_have_no_limit_unless_one_is_given(tmp_path):
    """Gaps of relative times may have any length; with a limit it counts from the latest event."""
    far = last_time() + 1e9
    with open_live(tmp_path / "a") as live:
        assert live.facts()["max_ahead"] is None
        assert statuses(live.append([(1, 2, far)])) == ["accepted"]
    with open_live(tmp_path / "b", max_ahead=100) as live:
        first, second = last_time() + 100, last_time() + 200
        answer = live.append([(1, 2, far), (1, 2, first), (1, 2, first + 101), (1, 2, second)])
        assert statuses(answer) == ["ahead", "accepted", "ahead", "accepted"]
        assert "is more than 100 after the latest one" in answer.verdicts[0].message


def test_a_clock_that_says_nothing_about_the_stream_sets_nothing_aside(tmp_path):
    """The clock of a machine that starts in 1970, and a stream of future dates, such as bookings."""
    for name, now in (("a", 0.0), ("b", NOW - 400 * DAY)):
        with open_dated(tmp_path / name, MovedClock(now)) as live:
            assert statuses(live.append([("s1", "d1", date(NOW)), ("s1", "d1", date(NOW + 9 * DAY))])) == [
                "accepted",
                "accepted",
            ]


GAPS = st.one_of(st.floats(0, 1e-3), st.floats(0, 1e3), st.floats(0, 1e9))


@given(
    start=st.floats(4e8, 2e9),
    arrivals=st.lists(st.tuples(GAPS, st.floats(-14 * 3600, 14 * 3600)), max_size=20),
    skew=st.floats(-1e10, 3 * 3600),
)
def test_no_event_that_has_happened_is_ahead(start, arrivals, skew):
    """For all gaps, time zones taken for UTC, and clocks that are behind by any amount or some hours ahead.

    An event comes at or after its time; its date is off by at most a time zone.
    """
    rule, latest, true = (
        TimeRules(max_ahead=choose_max_ahead(None, is_dated=True), is_dated=True),
        start,
        start,
    )
    for gap, zone in arrivals:
        true += gap
        time = true + zone
        is_clock_right = skew > -9 * 3600
        if is_clock_right or latest > true + skew + DATED_LEAD:
            assert not rule.is_ahead(time, latest, true + skew)
        latest = max(latest, time)


@given(times=st.lists(st.floats(-1e15, 1e15), max_size=20))
def test_no_plain_number_is_ahead(times):
    rule = TimeRules(max_ahead=choose_max_ahead(None, is_dated=False))
    assert not any(rule.is_ahead(time, 0.0, NOW) for time in times)


@given(lead=st.floats(DATED_LEAD * 1.001, 1e12), gap=st.floats(0, 1e9))
def test_a_date_beyond_the_limit_is_ahead_whatever_the_gaps(lead, gap):
    """For all streams that end before the clock: one wrong date never becomes the latest time."""
    assert TimeRules(max_ahead=choose_max_ahead(None, is_dated=True), is_dated=True).is_ahead(
        NOW + lead, NOW - gap, NOW
    )


class Events:
    """A log of its own, judged event by event; `groups` says which are sent together."""

    def __init__(self, folder: Path, rules: TimeRules, clock: MovedClock, latest: float) -> None:
        self.writer = LogWriter(EventLog(folder), latest, rules, lambda first, events: None, clock)

    def append(self, events: list[LogEvent]) -> list[str]:
        return statuses(self.writer.submit(Request(ParsedEvents(list(events)))).get())


@settings(max_examples=25, deadline=None)
@given(
    leads=st.lists(
        st.sampled_from([-5 * DAY, -60.0, 0.0, 60.0, 0.9 * DAY, 1.1 * DAY, 900 * DAY]), max_size=12
    ),
    size=st.integers(1, 4),
    on_late=st.sampled_from(["refuse", "set-aside"]),
)
def test_nothing_ahead_is_lost_or_taken_twice_however_events_are_grouped(leads, size, on_late):
    """For all streams: verdicts do not depend on the groups; taken in later, each event is in the log exactly once."""
    events = [LogEvent(None, "a", "b", NOW + lead) for lead in leads]
    rules = TimeRules(0.0, on_late, DATED_LEAD, True)
    found = []
    for group in (1, size):
        with tempfile.TemporaryDirectory() as folder:
            log = Events(Path(folder), rules, MovedClock(NOW), NOW - 30 * DAY)
            found.append(
                [one for k in range(0, len(events), group) for one in log.append(events[k : k + group])]
            )
            everything = TimeRules(1e9, on_late, None, True)
            retry = Retry(everything, lambda events: {})
            kept = {"ahead"} | ({"late"} if on_late == "set-aside" else set())
            answer = log.writer.submit(Request(retry=retry)).get()
            assert statuses(answer) == ["accepted"] * sum(one in kept for one in found[-1])
            log.writer.close()
            with LogReader(Path(folder)) as reader:
                logged = [
                    event.time for some in reader.read_events(0, reader.read_sequence()) for event in some
                ]
                assert reader.count_set_aside() == 0
            verdicts = zip(events, found[-1], strict=True)
            assert sorted(logged) == sorted(e.time for e, one in verdicts if one in kept | {"accepted"})
    assert found[0] == found[1]
    for event, verdict in zip(events, found[0], strict=True):
        assert (verdict == "ahead") == (event.time > NOW + DAY)


@pytest.mark.parametrize(("given", "expected"), [("1h", 3600.0), (5, 5.0), ("Off", "off"), ("7d", 7 * DAY)])
def test_a_limit_is_a_duration_or_off(given, expected):
    assert parse_lead(given) == expected


def test_the_command_takes_set_aside_events_in(tmp_path, monkeypatch, capsys):
    """`live accept` uses the run that the folder was last opened with; what is still ahead stays there."""
    with open_dated(tmp_path, MovedClock(NOW), max_ahead="1h") as live:
        live.append([("s1", "d1", date(NOW + 2 * 3600)), ("s1", "d1", date(NOW + 9 * DAY))])
    monkeypatch.setattr("dygmamba.core.clock.Clock.now", lambda clock: NOW)
    code, out, err = invoke(monkeypatch, capsys, "live", "accept", str(tmp_path), "--max-ahead", "1d")
    assert (code, out, err) == (0, "events accepted: 1; still set aside: 1\n", "")
    code, out, _ = invoke(
        monkeypatch, capsys, "live", "accept", str(tmp_path), "--max-ahead", "off", "--json"
    )
    assert (json.loads(out)["accepted"], json.loads(out)["set_aside"]) == (1, 0)
    with open_dated(tmp_path, MovedClock(NOW)) as live:
        assert (live.sequence, live.facts()["max_ahead"]) == (2, 3600)
