"""The thread that writes the log: appends of several threads share a transaction (group commit).

A transaction holds all requests that were waiting when it began. Under load it grows, and the cost of flushing the disk
is shared. Each request is judged in its order of arrival: duplicates by id, lateness by the watermark, dates ahead by
the clock. A wall clock that is set back changes no verdict: the time since the start is counted by another one.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from sqlite3 import Connection
from typing import Any

from dygmamba.core.clock import Clock
from dygmamba.core.errors import ConfigError, DygError, FileError
from dygmamba.live.event_log import EventLog, LogEvent
from dygmamba.live.event_parsing import ParsedEvents
from dygmamba.live.verdicts import Acknowledgement, TimeRules, Verdict

MAX_GROUP = 20_000  # events in a transaction, but for a larger request of its own
CLOCK_STEP = 60.0  # seconds; a clock that is set back further is not believed
ALREADY_LOGGED = "an event with this id is in the log"


@dataclass(frozen=True, slots=True)
class Retry:
    """Judge the events that were set aside again: by these rules, and without those that have another problem."""

    rules: TimeRules
    find_problems: Callable[[Sequence[LogEvent]], dict[int, str]]


@dataclass(slots=True, eq=False)
class Request:
    """Events to append, or another change of the log; `done` is set when it is on the disk, or has failed."""

    events: ParsedEvents = field(default_factory=lambda: ParsedEvents([]))
    source: str | None = None
    offset: str = "null"  # JSON
    change: Callable[[Connection], None] | None = None
    retry: Retry | None = None
    done: threading.Event = field(default_factory=threading.Event)
    answer: Acknowledgement | None = None
    error: BaseException | None = None

    def get(self) -> Acknowledgement:
        """Wait for the answer; raise the error if the request failed."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


class LogWriter:
    """Writes requests to a log, in a thread of its own, and passes accepted events on in the order of the log.

    Args:
        log: The log.
        latest: The latest time of any event so far, of the dataset too.
        rules: Which events are late or ahead.
        publish: Called in the thread with the events of each transaction and the sequence of the first.
        clock: Says when events arrived.
        watermark: The time by which lateness is judged; by default `latest`.
    """

    def __init__(
        self,
        log: EventLog,
        latest: float,
        rules: TimeRules,
        publish: Callable[[int, list[LogEvent]], None],
        clock: Clock,
        watermark: float | None = None,
    ) -> None:
        self._log, self._rules, self._publish, self._clock = log, rules, publish, clock
        self._started = clock.now() - clock.monotonic()
        self.latest, self.watermark = latest, latest if watermark is None else watermark
        self.sequence = log.sequence  # acknowledged
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="dygmamba-log", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Request:
        with self._changed:
            if self._is_closing:
                raise ConfigError("this live run is closed; open it again", code="live-closed")
            self._waiting.append(request)
            self._changed.notify()
        return request

    def write(self, request: Request, timeout: float | None = None) -> Acknowledgement:
        """Submit a request and return its answer.

        Raises:
            FileError: It was not on the disk after `timeout` seconds: withdrawn (`timeout`), or being written
                (`append-unconfirmed`).
        """
        if timeout is not None and timeout <= 0:
            raise _timed_out()
        if not self.submit(request).done.wait(timeout):
            with self._changed:  # the thread takes requests under the same lock
                if request in self._waiting:
                    self._waiting.remove(request)
                    raise _timed_out()
            if not request.done.is_set():
                raise FileError(
                    "the events were being written when the time limit ended, so they may be in the log; if each has "
                    "an id, send them again, which is harmless, else look at the log first",
                    code="append-unconfirmed",
                )
        return request.get()

    def close(self) -> None:
        """Write what is waiting, then end the thread and close the log."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._log.close()

    def _run(self) -> None:
        while group := self._take_group():
            try:
                accepted = self._commit(group)
                for request in group:
                    request.done.set()
                if accepted:
                    self._publish(self.sequence - len(accepted) + 1, accepted)
            except BaseException as error:  # a defect must not leave callers waiting
                for request in group:
                    request.error = request.error or error
            finally:
                for request in group:
                    request.done.set()

    def _take_group(self) -> list[Request]:
        """Wait for requests and take all that fit into a transaction; none when the log is being closed."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            group: list[Request] = []
            size = 0
            while self._waiting and (not group or size + len(self._waiting[0].events) <= MAX_GROUP):
                group.append(self._waiting.popleft())
                size += len(group[-1].events)
            return group

    def _commit(self, group: list[Request]) -> list[LogEvent]:
        """Write a group in one transaction and return its accepted events; on an error none of it is there."""
        before, accepted, answers = (self.latest, self.watermark), [], []
        try:
            with self._log.transaction() as connection:
                for request in group:
                    if request.change is not None:
                        request.change(connection)
                    judge = self._append if request.retry is None else self._retry
                    answers.append(judge(connection, request, accepted))
                if self.watermark != before[1]:
                    EventLog.write_meta(connection, {"watermark": self.watermark})
        except DygError as error:
            self.latest, self.watermark = before
            for request in group:
                # each caller gets an error of its own: the traceback of a shared one would grow
                request.error = type(error)(str(error), code=error.code)
                request.error.__cause__ = error.__cause__
            return []
        except BaseException:
            self.latest, self.watermark = before
            raise
        self.sequence = self._log.sequence
        for request, answer in zip(group, answers, strict=True):
            request.answer = answer
        return accepted

    def _append(self, connection: Connection, request: Request, accepted: list[LogEvent]) -> Acknowledgement:
        verdicts, fresh = self._judge(connection, request.events, self._rules)
        return self._write(connection, request, verdicts, fresh, accepted)

    def _retry(self, connection: Connection, request: Request, accepted: list[LogEvent]) -> Acknowledgement:
        """Append the events that were set aside and are accepted now, in the order of time; the others stay there."""
        assert request.retry is not None
        kept = EventLog.read_set_aside(connection)
        numbers = sorted(kept, key=lambda number: kept[number].time)
        problems = request.retry.find_problems([kept[number] for number in numbers])
        events = [None if row in problems else kept[number] for row, number in enumerate(numbers)]
        verdicts, fresh = self._judge(
            connection, ParsedEvents(events, problems), request.retry.rules, keeps_refused=False
        )
        done = [numbers[one.index] for one in verdicts if one.status in ("accepted", "duplicate")]
        EventLog.drop_set_aside(connection, done)
        place = {number: row for row, number in enumerate(kept)}  # as `LiveRun.set_aside` listed them
        verdicts = [replace(one, index=place[numbers[one.index]]) for one in verdicts]
        verdicts.sort(key=lambda verdict: verdict.index)
        return self._write(connection, request, verdicts, fresh, accepted)

    def _judge(
        self, connection: Connection, parsed: ParsedEvents, rules: TimeRules, keeps_refused: bool = True
    ) -> tuple[list[Verdict], list[LogEvent]]:
        """Return the verdict on each event, and the accepted ones; `latest` and the watermark follow them."""
        now, expected = self._clock.now(), self._started + self._clock.monotonic()
        now = expected if now < expected - CLOCK_STEP else now
        ids = [event.id for event in parsed.events if event is not None and event.id is not None]
        known = EventLog.find_ids(connection, ids) if ids else {}
        verdicts: list[Verdict] = []
        fresh: list[LogEvent] = []
        for index, event in enumerate(parsed.events):
            if event is None:
                verdicts.append(Verdict(index, "invalid", None, parsed.problems[index]))
            elif event.id is not None and event.id in known:
                verdicts.append(Verdict(index, "duplicate", known[event.id], ALREADY_LOGGED))
            elif (refused := rules.judge(index, event.time, self.watermark, now)) is not None:
                if keeps_refused and rules.keeps(refused):
                    EventLog.set_aside(connection, event, now, self.watermark)
                    refused = replace(refused, message=f"{refused.message}; it was set aside")
                verdicts.append(refused)
            else:
                fresh.append(event)
                sequence = self._log.sequence + len(fresh)
                if event.id is not None:
                    known[event.id] = sequence
                self.latest = max(self.latest, event.time)
                self.watermark = self._rules.advance(self.watermark, event.time, now)
                verdicts.append(Verdict(index, "accepted", sequence))
        return verdicts, fresh

    def _write(
        self,
        connection: Connection,
        request: Request,
        verdicts: list[Verdict],
        fresh: list[LogEvent],
        accepted: list[LogEvent],
    ) -> Acknowledgement:
        """Insert accepted events, and how far their source was read."""
        if fresh:
            self._log.append(connection, fresh, self._clock.now())
            accepted += fresh
        if request.source is not None:
            EventLog.write_offset(connection, request.source, request.offset)
        last = max((verdict.sequence for verdict in verdicts if verdict.sequence), default=self._log.sequence)
        return Acknowledgement(last, len(fresh), verdicts)


def encode_offset(offset: Any) -> str:
    """Return an offset as JSON; raise ConfigError if it has no such form."""
    try:
        return json.dumps(offset, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"`offset` takes a number, a string, or a list or dict of these; got a {type(offset).__name__}",
            code="offset-not-json",
        ) from error


def _timed_out() -> FileError:
    return FileError("the time limit ended before any event was written; send them again", code="timeout")
