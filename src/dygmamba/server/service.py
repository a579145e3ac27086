"""Service behind the routes: a live run with queues, batches, time limits and metrics."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dygmamba.core.clock import SYSTEM_CLOCK
from dygmamba.core.errors import DygError, FileError, WriteError
from dygmamba.data.readers.values import BadValueError
from dygmamba.live.event_sources import RETRY_SECONDS as SOURCE_RETRY_SECONDS
from dygmamba.live.event_sources import EventSource, SourceBatch, follow_source
from dygmamba.runs.queries import Predictions
from dygmamba.server.batching import MicroBatcher, WorkerPool
from dygmamba.server.formats import Event
from dygmamba.server.monitoring import Metrics
from dygmamba.server.pair_groups import PairQuery, build_table, find_table_key, group_rows
from dygmamba.server.problems import RETRY_SECONDS, Problem
from dygmamba.server.settings import ServerSettings
from dygmamba.server.status import LiveStatus

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun
    from dygmamba.live.live_view import LiveView
    from dygmamba.live.verdicts import Acknowledgement

Result = TypeVar("Result")
log = logging.getLogger("dygmamba.server")

APPENDING_THREADS = 8  # appends of several threads share a commit
QUERY_THREADS = 2  # for rankings, classifications and explanations
LOST = ("invalid", "late", "ahead", "unreadable")
POLL_SECONDS = 0.002  # between looks at the sequence that a query waits for


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Scores of the pairs of one request, in their order; `name` is the name of the column of scores."""

    name: str
    times: list[Any]
    scores: list[float]
    sequence: int  # events up to this one were visible


class LiveService:
    """A live run that many requests use at once; until `attach` it is not ready."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.is_draining = False
        self.status = LiveStatus(SYSTEM_CLOCK)
        self.model: dict[str, Any] = {}  # name and version of the run in use
        self._live: LiveRun | None = None
        self._stopping, self._followers = threading.Event(), list[threading.Thread]()
        self._arriving = 0  # requests that will ask for scores
        self._appends = WorkerPool("log", APPENDING_THREADS, settings.max_waiting)
        self._queries = WorkerPool("model", QUERY_THREADS, settings.max_waiting)
        self._scores: MicroBatcher[Sequence[PairQuery], ScoredPairs] = MicroBatcher(
            self._score_batch,
            size=settings.batch_pairs,
            window=settings.batch_window,
            waiting=settings.max_waiting,
            expected=lambda: self._arriving,
        )

    def start(self) -> None:
        """Begin to process batches; inside a running event loop."""
        self._scores.start()

    def attach(self, live: "LiveRun") -> None:
        """Use this live run; from now on the service is ready."""
        self.note_run(live)
        self._live = live

    def note_run(self, live: "LiveRun") -> None:
        """Note which run answers, at the start and after a change."""
        facts = live.facts()
        self.model = {"name": facts["dataset"], "version": facts["digest"][:12], "task": facts["task"]}
        self.status.attach(live)

    def follow(self, sources: "Sequence[EventSource]") -> None:
        """Append the events of these sources, each in a thread, until the service stops."""
        for source in sources:
            thread = threading.Thread(
                target=self._follow, args=(source,), name="dygmamba-source", daemon=True
            )
            self._followers.append(thread)
            thread.start()

    def _follow(self, source: "EventSource") -> None:
        """Append the events of a source; one that fails is tried again, with an alert until it is back."""
        counts: Counter[str] = Counter()

        def count(batch: SourceBatch, answer: "Acknowledgement") -> None:
            self.count_verdicts(batch.events, answer, batch.unreadable)
            self.status.failed_sources.pop(source.name, None)
            found = Counter(verdict.status for verdict in answer.verdicts) + Counter(
                unreadable=batch.unreadable
            )
            counts.update(found)
            lost = {status: found[status] for status in LOST if found[status]}
            if lost:  # a source is not answered, so that nobody else hears of them
                log.warning("events of a source were not taken", extra={"fields": lost})
            if batch.warning:
                log.warning(batch.warning)
                self.metrics.source_gaps.inc()
                self.status.source_gaps += 1

        while not self._stopping.is_set():
            try:
                follow_source(self.live, source, self._stopping, count)
                break
            except DygError as error:
                if self.status.failed_sources.get(source.name) != error.code:
                    log.error(str(error))
                self.status.failed_sources[source.name] = error.code
                self._stopping.wait(SOURCE_RETRY_SECONDS)
            except Problem:  # the server was stopped before the source began
                return
        log.info("source ended", extra={"fields": dict(+counts)})

    async def stop(self) -> None:
        """Finish what has begun."""
        self.is_draining = True
        self._stopping.set()
        for thread in self._followers:
            await asyncio.to_thread(thread.join)
        await self._scores.stop()
        await asyncio.to_thread(self._appends.stop)
        await asyncio.to_thread(self._queries.stop)
        await asyncio.to_thread(self.status.stop)

    @property
    def is_ready(self) -> bool:
        return self._live is not None and not self.is_draining

    @property
    def live(self) -> "LiveRun":
        """The live run.

        Raises:
            Problem: It is still being loaded, or the server is being stopped (503).
        """
        if self._live is None or self.is_draining:
            what = "is being stopped" if self.is_draining else "is loading its run"
            raise Problem(503, "not-ready", f"the server {what}; try again", retry_after=RETRY_SECONDS)
        return self._live

    async def append(self, events: Sequence[Event]) -> "Acknowledgement":
        """Append events to the log; when this returns, accepted ones are on disk."""
        live = self.live
        self._check_count(len(events), "events")
        end = time.monotonic() + self.settings.timeout
        try:
            # the call itself keeps the time limit, because only it knows whether the events were written
            answer = await self._appends.run(
                lambda: live.append(list(events), wait=False, timeout=end - time.monotonic()), None
            )
        except WriteError:
            self.status.last_failure = "the disk cannot be written to."
            raise
        except DygError as error:
            if error.code == "live-state-failed":
                self.status.last_failure = (
                    "the state failed; restart the server, no acknowledged event is lost."
                )
            raise
        self.status.last_failure = ""
        self.count_verdicts(events, answer)
        return answer

    def count_verdicts(self, events: Sequence[Event], answer: "Acknowledgement", unreadable: int = 0) -> None:
        """Count events by verdict; a sample of the accepted ones is scored to watch the quality of scores."""
        for status, verdicts in groupby(sorted(verdict.status for verdict in answer.verdicts)):
            self.metrics.events.labels(status).inc(len(list(verdicts)))
        if unreadable:
            self.metrics.events.labels("unreadable").inc(unreadable)
        accepted = [events[one.index] for one in answer.verdicts if one.status == "accepted"]
        ahead = sum(one.status == "ahead" for one in answer.verdicts)
        self.status.count_events(accepted, len(events) - len(accepted) + unreadable, ahead)

    async def score(self, queries: Sequence[PairQuery], min_sequence: int | None = None) -> ScoredPairs:
        """Score pairs, together with those of other requests."""
        _ = self.live
        self._check_count(len(queries), "pairs")
        self._arriving += 1
        try:
            await self.wait_for(min_sequence)
            return await self._scores.submit(queries, len(queries), self.settings.timeout)
        finally:
            self._arriving -= 1

    async def query(
        self, ask: Callable[["LiveView"], Result], min_sequence: int | None = None
    ) -> tuple[Result, int]:
        """Return the result of queries on one state, and the sequence of its last event."""
        live = self.live
        await self.wait_for(min_sequence)

        def run() -> tuple[Result, int]:
            with live.read() as view:
                return ask(view), view.sequence

        return await self._queries.run(run, self.settings.timeout)

    async def wait_for(self, sequence: int | None) -> None:
        """Wait until events up to a sequence are visible.

        Raises:
            Problem: They are not within the time limit (503).
        """
        if sequence is None:
            return
        deadline = time.monotonic() + self.settings.timeout
        live = self.live
        while (applied := live.applied) < sequence:
            if time.monotonic() > deadline or sequence > live.sequence:
                raise Problem(
                    503,
                    "sequence-not-visible",
                    f"events up to sequence {sequence} are not visible yet, the last one is {applied}; try again",
                    retry_after=RETRY_SECONDS,
                )
            await asyncio.sleep(POLL_SECONDS)

    def refresh_metrics(self) -> None:
        """Set the metrics that follow the live run."""
        if self._live is not None:
            self.metrics.acknowledged.set(self._live.sequence)
            self.metrics.applied.set(self._live.applied)
            self.metrics.unknown_share.set(self.status.unknown.share)
            quality = self.status.quality
            self.metrics.drift.set(math.nan if quality.drift is None else quality.drift)
            error = quality.calibration_error
            self.metrics.calibration.set(math.nan if error is None else error)
            with self._live.read() as view:
                is_dated = bool(view.predictor.dataset.origin.time_origin)
            self.metrics.lag.set(SYSTEM_CLOCK.now() - self._live.latest if is_dated else math.nan)

    def _check_count(self, count: int, what: str) -> None:
        if count > self.settings.max_rows:
            raise Problem(
                413,
                "too-many-rows",
                f"a request may have {self.settings.max_rows:,} {what}, this one has {count:,}; send several requests",
            )

    def _score_batch(self, requests: Sequence[Sequence[PairQuery]]) -> Sequence[ScoredPairs | Exception]:
        """Score the pairs of several requests; if one of them is wrong, each on its own."""
        try:
            merged = self._score_pairs([query for request in requests for query in request])
        except DygError as error:
            if len(requests) == 1:
                return [error]
            return [self._score_batch([request])[0] for request in requests]
        parts, start = [], 0
        for request in requests:
            rows = slice(start, start + len(request))
            parts.append(ScoredPairs(merged.name, merged.times[rows], merged.scores[rows], merged.sequence))
            start += len(request)
        return parts

    def _score_pairs(self, queries: Sequence[PairQuery]) -> ScoredPairs:
        live = self._live
        assert (
            live is not None
        )  # `score` asked for it; while the server is being stopped, what has begun goes on
        name, unknown = "score", 0
        times: list[Any] = [None] * len(queries)
        scores: list[float] = [0.0] * len(queries)
        with live.read() as view:
            for rows in group_rows(map(find_table_key, queries)).values():
                try:
                    found = view.predictor.score(build_table([queries[row] for row in rows]))
                except BadValueError as error:
                    # its row is that of the group, and its advice may be an option of files
                    advice = error.advice.partition(", or give `")[0]
                    text = f"pair {rows[error.row]}: {error.problem}; {advice}"
                    raise FileError(text, code=error.code) from error
                table, unknown = found.table, unknown + len(found.unknown_ids) + len(found.wrong_sides)
                name = table.column_names[-1]
                shown, values = table["time"].to_pylist(), table[name].to_pylist()
                for row, time_shown, score in zip(rows, shown, values, strict=True):
                    given = queries[row].time
                    times[row], scores[row] = time_shown if given is None else given, score
        self.metrics.batch_pairs.observe(len(queries))
        self._count_ids(queries, unknown)
        return ScoredPairs(name, times, scores, view.sequence)

    def _count_ids(self, queries: Sequence[PairQuery], unknown: int) -> None:
        ids = {id for query in queries for id in (query.src, query.dst)}
        self.metrics.queried_ids.inc(len(ids))
        self.metrics.unknown_ids.inc(unknown)
        self.status.unknown.add(len(ids), unknown)


def list_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table of predictions as plain values."""
    return table.to_pylist()


def describe_missing_history(found: Predictions) -> list[str]:
    """Say which ids have no history where they were given; their rows are those of a node without events."""
    unknown = [f"{name} has no event, so it has no history" for name in found.unknown_ids]
    return [*unknown, *found.wrong_sides.describe()]
