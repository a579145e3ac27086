"""What the routes do: a live run behind queues, batches, time limits and metrics."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dygmamba.core.errors import DygError
from dygmamba.server.batching import MicroBatcher, WorkerPool
from dygmamba.server.formats import Event
from dygmamba.server.monitoring import Metrics
from dygmamba.server.pair_groups import PairQuery, build_table, find_table_key, group_rows
from dygmamba.server.problems import RETRY_SECONDS, Problem
from dygmamba.server.settings import ServerSettings

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun

APPENDING_THREADS = 8  # appends of several threads share a commit
QUERY_THREADS = 2  # for rankings, classifications and explanations
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
        self.started = time.time()
        self.on_events: Callable[[Sequence[Event]], None] = lambda events: None  # told of accepted events
        self._live: LiveRun | None = None
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
        self._live = live

    async def stop(self) -> None:
        """Finish what has begun."""
        self.is_draining = True
        await self._scores.stop()
        await asyncio.to_thread(self._appends.stop)
        await asyncio.to_thread(self._queries.stop)

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

    async def append(self, events: Sequence[Event]) -> Any:
        """Append events to the log; when this returns, accepted ones are on disk."""
        live = self.live
        self._check_count(len(events), "events")
        acknowledgement = await self._appends.run(lambda: live.append(list(events)), self.settings.timeout)
        verdicts = acknowledgement.verdicts
        for verdict in verdicts:
            self.metrics.events.labels(verdict.status).inc()
        self.on_events([events[verdict.index] for verdict in verdicts if verdict.status == "accepted"])
        return acknowledgement

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
        self, ask: Callable[["LiveRun"], Any], min_sequence: int | None = None
    ) -> tuple[Any, int]:
        """Return the result of a function of the live run, and a sequence whose events it saw."""
        live = self.live
        await self.wait_for(min_sequence)

        def run() -> tuple[Any, int]:
            sequence = live.applied
            return ask(live), sequence

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
        sequence, name = live.applied, "score"
        times: list[Any] = [None] * len(queries)
        scores: list[float] = [0.0] * len(queries)
        for rows in group_rows(map(find_table_key, queries)).values():
            table = live.score(build_table([queries[row] for row in rows]))
            name = table.column_names[-1]
            for row, shown, score in zip(
                rows, table["time"].to_pylist(), table[name].to_pylist(), strict=True
            ):
                given = queries[row].time
                times[row], scores[row] = shown if given is None else given, score
        self.metrics.batch_pairs.observe(len(queries))
        return ScoredPairs(name, times, scores, sequence)


def list_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table of predictions as plain values."""
    return table.to_pylist()
