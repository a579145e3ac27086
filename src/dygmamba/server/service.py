"""Service behind the routes: a live run with queues, batches, time limits and metrics."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from dygmamba.core.clock import SYSTEM_CLOCK
from dygmamba.core.errors import DygError, FileError, WriteError
from dygmamba.core.progress import Progress
from dygmamba.data.readers.bad_rows import BadValueError
from dygmamba.live.event_sources import RETRY_SECONDS as SOURCE_RETRY_SECONDS
from dygmamba.live.event_sources import EventSource, SourceBatch, follow_source
from dygmamba.live.live_view import make_unreached_error
from dygmamba.live.value_groups import group_rows
from dygmamba.runs.queries import Predictions, WrongSides
from dygmamba.server.batching import Cancellation, MicroBatcher, WorkerPool
from dygmamba.server.formats import Event, require_few_rows, require_few_values
from dygmamba.server.monitoring import Metrics
from dygmamba.server.problems import RETRY_SECONDS, Problem
from dygmamba.server.schemas import PairQuery
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
PARSING_THREADS = 1  # parsing holds the interpreter, and a parsed body takes memory
PART_PAIRS = 1_024  # pairs of one request that are scored in a row
PART_SECONDS = 0.25  # that a part of a ranking or a classification should take, and
PART_GROWTH = 8  # how many times larger than the part before it may be
LOST = ("invalid", "late", "ahead", "unreadable")


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Scores of the pairs of one request, in their order; `name` is the name of the column of scores."""

    name: str
    times: list[Any]
    scores: list[float]
    sequence: int  # events up to this one were visible


@dataclass(frozen=True, slots=True)
class PairsPart:
    """Pairs of one request that are scored in a row; `first` is the position of the first one in the request."""

    first: int
    queries: Sequence[PairQuery]


@dataclass(frozen=True, slots=True)
class Answer(Generic[Result]):
    """Result of a query, the last event that it saw, and how long it took."""

    result: Result
    sequence: int
    seconds: float


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
        self._parsers = WorkerPool("parser", PARSING_THREADS, settings.max_waiting)
        self._appends = WorkerPool("log", APPENDING_THREADS, settings.max_waiting)
        self._queries = WorkerPool("model", QUERY_THREADS, settings.max_waiting)
        self._scores: MicroBatcher[PairsPart, ScoredPairs] = MicroBatcher(
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
        for pool in (self._parsers, self._appends, self._queries):
            await asyncio.to_thread(pool.stop)
        await asyncio.to_thread(self.status.stop)

    @property
    def is_ready(self) -> bool:
        return self._live is not None and not self.is_draining

    def require_ready(self) -> None:
        """Raise Problem unless queries are answered and events taken (503)."""
        if self.live.failure:
            raise Problem.state_failed()

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

    async def parse(self, read: Callable[[bytes], Result], body: bytes) -> Result:
        """Return a body as `read` reads it, in a thread, unless it holds too many values."""

        def parse() -> Result:
            require_few_values(body, self.settings.max_values)
            return read(body)

        return await self._parsers.run(parse, self.settings.timeout)

    async def append(self, events: Sequence[Event]) -> "Acknowledgement":
        """Append events to the log; when this returns, accepted ones are on disk."""
        live = self.live
        end = time.monotonic() + self.settings.timeout
        try:
            # the call itself keeps the time limit, because only it knows whether the events were written
            answer = await self._appends.run(
                lambda: live.append(list(events), wait=False, timeout=end - time.monotonic()), None
            )
        except WriteError:
            self.status.last_failure = "the disk cannot be written to."
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
        require_few_rows(len(queries), "pairs", self.settings.max_rows)
        deadline, found = time.monotonic() + self.settings.timeout, list[ScoredPairs]()
        self._arriving += 1
        try:
            await self.wait_for(min_sequence)
            for first in range(0, len(queries), PART_PAIRS):
                part = PairsPart(first, queries[first : first + PART_PAIRS])
                left = deadline - time.monotonic()
                found.append(await self._scores.submit(part, len(part.queries), left))
        finally:
            self._arriving -= 1
        return ScoredPairs(
            found[0].name,
            [time for part in found for time in part.times],
            [score for part in found for score in part.scores],
            min(part.sequence for part in found),
        )

    async def query(
        self, ask: Callable[["LiveView", Progress], Result], min_sequence: int | None = None
    ) -> "Answer[Result]":
        """Return the result of queries on one state; `ask` ends early when nobody waits for it any more."""
        live = self.live
        await self.wait_for(min_sequence)
        return await self._read(live, ask, self.settings.timeout)

    async def _read(
        self, live: "LiveRun", ask: Callable[["LiveView", Progress], Result], timeout: float
    ) -> "Answer[Result]":
        progress = Cancellation()

        def run() -> Answer[Result]:
            progress.advance()
            began = time.monotonic()
            with live.read() as view:
                return Answer(ask(view, progress), view.sequence, time.monotonic() - began)

        try:
            return await self._queries.run(run, timeout)
        finally:
            progress.is_cancelled = True

    async def query_parts(
        self,
        ids: Sequence[str],
        ask: Callable[["LiveView", Sequence[str], Progress], Result],
        min_sequence: int | None = None,
    ) -> tuple[list[Result], int]:
        """Return the results of queries about some of the ids at a time, and the last event that all of them saw.

        Between parts other requests have their turn, and the writer gets the state that was read.
        """
        live = self.live  # asked for once: while the server is being stopped, what has begun goes on
        await self.wait_for(min_sequence)
        deadline, found, first, size = time.monotonic() + self.settings.timeout, [], 0, 1
        while first < len(ids):
            part = ids[first : first + size]
            left = deadline - time.monotonic()
            found.append(await self._read(live, lambda view, stage, part=part: ask(view, part, stage), left))
            first, share = first + len(part), PART_SECONDS / max(found[-1].seconds, 1e-9)
            size = max(1, int(len(part) * min(share, PART_GROWTH)))
        return [answer.result for answer in found], min(answer.sequence for answer in found)

    def require_affordable(self, sources: int, candidates: int, k: int) -> None:
        """Raise Problem if a ranking has too many sources, pairs or rows."""
        limits = self.settings
        require_few_rows(sources, "sources", limits.max_rows)
        require_few_rows(sources * candidates, "pairs of source and candidate", limits.max_ranked_pairs)
        require_few_rows(sources * min(k, candidates), "rows in its answer", limits.max_answer_rows)

    async def wait_for(self, sequence: int | None) -> None:
        """Wait until events up to a sequence are visible; raise FileError if they are not within the time limit."""
        if sequence is None:
            return
        live = self.live
        # one that is not in the log is not waited for
        timeout = self.settings.timeout if sequence <= live.sequence else 0
        try:
            await asyncio.wait_for(asyncio.wrap_future(live.follow(sequence)), timeout)
        except TimeoutError:
            raise make_unreached_error(sequence, live.applied) from None

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

    def _score_batch(self, requests: Sequence[PairsPart]) -> Sequence[ScoredPairs | Exception]:
        """Score the pairs of several requests; if one of them is wrong, each on its own."""
        try:
            queries = [query for request in requests for query in request.queries]
            merged = self._score_pairs(queries, requests[0].first)
        except DygError as error:
            if len(requests) == 1:
                return [error]
            return [self._score_batch([request])[0] for request in requests]
        parts, start = [], 0
        for request in requests:
            rows = slice(start, start + len(request.queries))
            parts.append(ScoredPairs(merged.name, merged.times[rows], merged.scores[rows], merged.sequence))
            start += len(request.queries)
        return parts

    def _score_pairs(self, queries: Sequence[PairQuery], first: int) -> ScoredPairs:
        live = self._live
        assert (
            live is not None
        )  # `score` asked for it; while the server is being stopped, what has begun goes on
        name, unknown = "score", 0
        times: list[Any] = [None] * len(queries)
        scores: list[float] = [0.0] * len(queries)
        with live.read() as view:
            given = dict.fromkeys(name for query in queries for name, _ in query.columns)
            view.predictor.query_parser.require_read_columns(given)
            for rows in group_rows(map(find_table_key, queries)):
                some = [queries[row] for row in rows]
                try:
                    at = None
                    if some[0].time is not None:
                        at = live.parser.parse_query_times([query.time for query in some])
                    found = view.predictor.score(build_table(some), at)
                except BadValueError as error:
                    # its row is that of the group, and its advice may be an option of files
                    advice = error.advice.partition(", or give `")[0]
                    text = f"pair {first + rows[error.row]}: {error.problem}; {advice}"
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


def find_table_key(query: PairQuery) -> Hashable:
    """Return a key; queries with equal keys can be scored in one table, whose columns have one type each."""
    return query.time is None, tuple((name, type(value)) for name, value in query.columns)


def build_table(queries: Sequence[PairQuery]) -> dict[str, list[Any]]:
    """Return ids and columns of queries with equal keys."""
    table = {"src": [query.src for query in queries], "dst": [query.dst for query in queries]}
    for position, (name, _) in enumerate(queries[0].columns):
        table[name] = [query.columns[position][1] for query in queries]
    return table


def list_rows(tables: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of tables of predictions as plain values; ids are integers if they are so in all tables."""
    rows = [row for table in tables for row in table.to_pylist()]
    for name in {"src", "dst", "node"} & {*tables[0].column_names}:
        if len({table[name].type for table in tables}) > 1:
            rows = [row | {name: str(row[name])} for row in rows]
    return rows


def describe_missing_history(found: Sequence[Predictions]) -> list[str]:
    """Say which ids have no history where they were given; their rows are those of a node without events."""
    unknown = [f"{name} has no event, so it has no history" for part in found for name in part.unknown_ids]
    destinations = tuple(name for part in found for name in part.wrong_sides.only_destinations)
    sources = tuple(name for part in found for name in part.wrong_sides.only_sources)
    return [*unknown, *WrongSides(destinations, sources).describe()]
