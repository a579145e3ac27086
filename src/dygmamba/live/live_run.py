"""A trained run that takes events as they happen and answers queries with all events so far.

An append returns when its events are on the disk and in the state. Queries read one consistent state and never wait for
appends. Opening the folder again gives the same scores to the bit, as does `observe` with all events of the log.
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.argument_types import check_arguments
from dygmamba.core.clock import SYSTEM_CLOCK, Clock
from dygmamba.core.errors import ConfigError, DygError, WriteError
from dygmamba.data.storage.dataset import Dataset
from dygmamba.live.array_file import ArrayWriter
from dygmamba.live.backup import lock_folder, write_backup
from dygmamba.live.event_log import EventLog, LogEvent, LogReader, RunRecord
from dygmamba.live.event_parsing import EventLayout, EventParser, collect_events
from dygmamba.live.live_view import TIMEOUT, LiveQueries, LiveView, make_unreached_error
from dygmamba.live.log_writer import LogWriter, Request, Retry, encode_offset
from dygmamba.live.replica import Replica, is_long, open_replicas
from dygmamba.live.serving_state import REPLAY_SIZE, Applier, ServedRun, count_trained_events, describe_run
from dygmamba.live.snapshots import list_snapshots, load_newest, remove_others, write_snapshot
from dygmamba.live.state import LiveState, require_live_support
from dygmamba.live.verdicts import (
    Acknowledgement,
    TimeRules,
    check_on_late,
    choose_max_ahead,
    parse_lateness,
    parse_lead,
)
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.run_names import get_run_path

SNAPSHOT_EVENTS = 100_000  # events after which a snapshot is written by itself, and
SNAPSHOT_SHARE = 0.25  # at least this share of all events, so that large states are not written all the time
CLOSING_EVENTS = 1_000  # events after which closing writes one: reading fewer of the log takes no time, and
CLOSING_SHARE = 0.01  # at least this share of all events, so that a large state is closed in time


class LiveRun(LiveQueries):
    """A run, the log of events that it has taken since it was trained, and the state that knows all of them.

    Made by `dygmamba.live`. All methods may be called from several threads. One process at a time has a folder open.
    """

    def __init__(
        self,
        predictor: Predictor,
        path: Path,
        *,
        late: str | float | None = None,
        on_late: str | None = None,
        max_ahead: str | float | None = None,
        fill: float | None = None,
        data_dir: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path, self._fill, self._data_dir, self._clock = path, fill, data_dir, clock
        given = {
            "late": None if late is None else parse_lateness(late),
            "on_late": None if on_late is None else check_on_late(on_late),
            "max_ahead": None if max_ahead is None else parse_lead(max_ahead),
        }
        require_live_support(predictor)
        self._lock = lock_folder(path)
        self._snapshot_lock, self._snapshots = threading.Lock(), None
        self._is_closed = False
        log = None
        try:
            log = EventLog(path)
            self.recovery = log.recovery
            with LogReader(path) as reader:
                stored, runs = reader.read_meta(), reader.read_runs()
                record = self._find_run(predictor, log, stored, runs)
                parser = EventParser(predictor, fill)
                layout = parser.layout
                kept = {"late": stored.get("late", 0.0), "on_late": stored.get("on_late", "refuse")}
                facts = stored | kept | {key: value for key, value in given.items() if value is not None}
                is_dated = bool(predictor.dataset.origin.time_origin)
                limit = choose_max_ahead(facts.get("max_ahead"), is_dated)
                self.rules = TimeRules(facts["late"], facts["on_late"], limit, is_dated)
                facts |= {
                    "features": [*layout.features],
                    "types": [*layout.types],
                    "bipartite": layout.bipartite,
                }
                if facts != stored or not runs or runs[-1][:6] != record[:6]:
                    self._record(log, record, facts, runs)
                _, replicas = load_newest(path, record, predictor, reader, copies=2)
                state = LiveState(*replicas) if replicas else self._build(record, predictor, reader)
                served = ServedRun(record, predictor, parser, state)
                self._snapshot_sequence = served.applied
                served.replay(reader, log.sequence)
            with served.read() as (known, _):
                times = known.dataset.store.time.numpy()
                latest, watermark = float(times[-1]), facts.get("watermark")
            if watermark is None:
                watermark = self.rules.find_watermark(times, clock.now())
            self._applier = Applier(served)
            self._writer = LogWriter(log, latest, self.rules, self._publish, clock, watermark)
        except BaseException:
            if log is not None:
                log.close()
            self._lock.release()
            raise

    def _build(self, record: RunRecord, predictor: Predictor, log: LogReader) -> LiveState:
        """Return the state of a run with the events of its dataset; of a long one a snapshot is written first."""
        if not is_long(predictor):
            return LiveState.open(predictor)
        try:
            snapshot = write_snapshot(self.path, record, log, lambda writer: Replica.build(predictor, writer))
        except WriteError:  # a full disk: the state is built for this process only
            return LiveState.open(predictor)
        return LiveState(*snapshot.load(predictor, 2))

    def _find_run(
        self, predictor: Predictor, log: EventLog, facts: dict[str, Any], runs: list[RunRecord]
    ) -> RunRecord:
        """Return what the log is to record about the run, after checking that the log can go on with it."""
        layout, content = EventLayout.of_dataset(predictor.dataset), predictor.dataset.content
        columns = [*layout.features], [*layout.types], layout.bipartite
        if facts and (facts["features"], facts["types"], facts["bipartite"]) != columns:
            raise ConfigError(
                f"the events of {self.path} have other columns than those of the run ({layout.describe()}); give a run "
                "with the same columns",
                code="other-columns",
            )
        base = 0
        if runs:
            known = [record.base for record in runs if record.content == content]
            if not known:
                raise ConfigError(
                    f"{self.path} holds events that follow the dataset '{runs[-1].dataset}' of {runs[-1].path}, and "
                    "the run was trained on another one; open it with that run and call `switch`, or give another "
                    "folder",
                    code="other-dataset",
                )
            base = known[-1]
        return describe_run(predictor, base, log.sequence)

    def _record(self, log: EventLog, record: RunRecord, facts: dict[str, Any], runs: list[RunRecord]) -> None:
        """Write what the log says about itself."""
        with log.transaction() as connection:
            EventLog.write_meta(connection, {"log": uuid.uuid4().hex, **facts})
            if not runs or runs[-1][:6] != record[:6]:
                EventLog.write_run(connection, record, self._clock.now())

    def _publish(self, first: int, events: list[LogEvent]) -> None:
        self._applier.publish(first, events)
        count = first + len(events) - 1 - self._snapshot_sequence
        if count >= max(SNAPSHOT_EVENTS, SNAPSHOT_SHARE * self._count_events()):
            self._snapshot_sequence = first + len(events) - 1
            self._snapshots = threading.Thread(
                target=self._snapshot_quietly, name="dygmamba-snapshot", daemon=True
            )
            self._snapshots.start()

    def _count_events(self) -> int:
        """Return the number of events of the dataset and of those applied since."""
        served = self._applier.served
        return len(served.predictor.dataset.store) + served.state.applied

    def _snapshot_quietly(self) -> None:
        """Write a snapshot that nobody asked for; without one, the next opening takes longer and nothing is lost."""
        try:
            self.snapshot()
        except (DygError, OSError):
            return

    @check_arguments
    def append(
        self,
        events: Any,
        *,
        source: str | None = None,
        offset: Any = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Acknowledgement:
        """Append events: all that `Run.observe` takes, or a list of dicts; an `id` makes sending again harmless.

        Returns when the accepted events are on the disk and queries see them. Events are judged one by one, in the
        given order: accepted, duplicate (its id is in the log), late (more than `late` before the latest event), ahead
        (dated more than `max_ahead` ahead of the clock, and set aside), or invalid. Events that are not accepted do not
        affect the others.

        Args:
            events: A file, a table, a data frame, or a list of (src, dst, time) or of dicts.
            source: Name of where the events come from, if `offset` is given.
            offset: How far the source was read, any JSON value; it is written in the same transaction as the events,
                and `offsets` has it.
            wait: Whether to wait until queries see the events; otherwise use `min_sequence` in queries.
            timeout: Most seconds until the events are on the disk.

        Raises:
            FileError: They were not on the disk in time: none is written, or (`append-unconfirmed`) they may be.
            WriteError: The disk is full or failing. No event was acknowledged; append again later.
        """
        self._applier.require_intact()
        parsed = self.parser.parse(events)
        answer = self._writer.write(Request(parsed, source, encode_offset(offset)), timeout)
        if wait:
            self._applier.follow(answer.sequence).result()
        return answer

    @check_arguments
    def accept_set_aside(
        self, *, late: str | float | None = None, max_ahead: str | float | None = None
    ) -> Acknowledgement:
        """Judge the events of `set_aside` again; accepted ones, and those whose id is in the log by now, leave it.

        Returns one verdict for each row of `set_aside` before the call.

        Args:
            late: How much earlier than the latest event they may be, in this call only. Default: as for other events.
            max_ahead: How far ahead they may be dated, in this call only, or "off". Default: as for other events.

        Raises:
            WriteError: The disk is full or failing. Nothing was changed.
        """
        self._applier.require_intact()
        rules = self.rules
        if late is not None:
            rules = replace(rules, late=parse_lateness(late))
        if max_ahead is not None:
            rules = replace(rules, max_ahead=choose_max_ahead(parse_lead(max_ahead), rules.is_dated))
        retry = Retry(rules, self.parser.find_problems)
        answer = self._writer.write(Request(retry=retry))
        self._applier.follow(answer.sequence).result()
        return answer

    @contextmanager
    def read(self, min_sequence: int | None = None, timeout: float = TIMEOUT) -> Iterator[LiveView]:
        """Context manager: a view in which all queries see one state, with at least the events up to `min_sequence`.

        It waits for that event at most `timeout` seconds.
        """
        if self._is_closed:
            raise ConfigError("this live run is closed; open it again", code="live-closed")
        if min_sequence is not None:
            applied = self.follow(min_sequence)
            try:
                applied.result(timeout)
            except TimeoutError:
                applied.cancel()
                raise make_unreached_error(min_sequence, self.applied) from None
        with self._applier.served.read() as (predictor, sequence):
            yield LiveView(predictor, sequence)

    def follow(self, sequence: int) -> "Future[None]":
        """Return a future that is done when queries see an event of the log; cancel it to wait no longer."""
        return self._applier.follow(sequence)

    @property
    def parser(self) -> EventParser:
        """Reads events and times for the run in use."""
        return self._applier.served.parser

    @property
    def failure(self) -> str:
        """Why the state takes no more events; empty if it does."""
        return self._applier.failure

    @property
    def sequence(self) -> int:
        """Number of the last event that is on the disk; the first has number 1."""
        return self._writer.sequence

    @property
    def applied(self) -> int:
        """Number of the last event that queries see."""
        return self._applier.served.applied

    @property
    def latest(self) -> float:
        """The latest time of any event."""
        return self._writer.latest

    @property
    def data(self) -> Dataset:
        """All events: those of the run's dataset and those of the log; a newer run can be trained on it."""
        with LogReader(self.path) as log:
            served = self._applier.served
            return served.extend_dataset(log, served.applied)

    @property
    def offsets(self) -> dict[str, Any]:
        """Last offset of each source, as given to `append`."""
        with LogReader(self.path) as log:
            return log.read_offsets()

    @property
    def set_aside(self) -> pa.Table:
        """Events that were set aside: columns src, dst, time, id, and status, which is "late" or "ahead"."""
        with LogReader(self.path) as log:
            found = log.read_set_aside()
        columns = {
            name: [getattr(event, name) for event, _ in found] for name in ("src", "dst", "time", "id")
        }
        columns["status"] = ["ahead" if event.time > latest else "late" for event, latest in found]
        types = {"time": pa.float64()}
        return pa.table(
            {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
        )

    def facts(self) -> dict[str, Any]:
        """Return what is known about this live run: model, dataset, counts, tolerance, versions."""
        served = self._applier.served
        with served.read() as (predictor, sequence), LogReader(self.path) as log:
            return {
                "run": served.record.path,
                "model": served.record.model,
                "task": predictor.run.folder.task,
                "dataset": served.record.dataset,
                "digest": served.record.digest,
                "events": len(predictor.dataset.store),
                "nodes": predictor.dataset.store.num_nodes,
                "sequence": self.sequence,
                "applied": sequence,
                "latest": self.latest,
                "late": self.rules.late,
                "on_late": self.rules.on_late,
                "max_ahead": self.rules.max_ahead,
                "set_aside": log.count_set_aside(),
                "offsets": log.read_offsets(),
                "columns": [*served.layout.features, *served.layout.types],
                "snapshot": max((found.sequence for found in list_snapshots(self.path)), default=None),
                "recovery": self.recovery.describe(),
                "sqlite": sqlite3.sqlite_version,
            }

    def switch(self, run: Any) -> None:
        """Change to a newer run of the same dataset, or one that was trained on `data`; queries go on meanwhile.

        The state of the new run is built beside the present one from the log. Then it takes its place between two
        events: each query is answered by one of both runs, and no event is lost.

        Args:
            run: A `Run` or the path of its directory.
        """
        old = self._applier.served
        device, options = old.predictor.run.stream.device.type, old.predictor.options
        predictor = Predictor.open(get_run_path(run), device, self._data_dir, options)
        if EventLayout.of_dataset(predictor.dataset) != old.layout:
            raise ConfigError(
                f"the new run reads other columns ({EventLayout.of_dataset(predictor.dataset).describe()}) than the "
                f"present one ({old.layout.describe()}); train it on the same columns",
                code="other-columns",
            )
        with LogReader(self.path) as log:
            base = count_trained_events(old, log, predictor.dataset)
            record = describe_run(predictor, base, self.sequence)
            state = LiveState.open(predictor)
            new = ServedRun(record, predictor, EventParser(predictor, self._fill), state)
            new.replay(log, self.applied)
            now = self._clock.now()
            self._writer.write(Request(change=lambda connection: EventLog.write_run(connection, record, now)))

            def catch_up(present: ServedRun) -> ServedRun:
                new.replay(log, present.applied)
                return new

            self._applier.exchange(catch_up)

    def snapshot(self) -> int:
        """Write the state to the folder, so that opening it reads only later events; return its sequence number.

        The state is made of the previous snapshot and the log, beside the one that queries read: appends go on.
        """
        with self._snapshot_lock, LogReader(self.path) as log:
            served = self._applier.served
            record, predictor, sequence = served.record, served.predictor, self.sequence
            if sequence == record.base:
                return sequence
            snapshot, replicas = load_newest(self.path, record, predictor, log, copies=1)
            if snapshot is not None and snapshot.sequence == sequence:
                remove_others(self.path, snapshot)
            else:
                (replica,) = replicas or open_replicas(predictor, 1)
                added = [
                    collect_events(events, served.layout)
                    for events in log.read_events(record.base + replica.applied, sequence, REPLAY_SIZE)
                ]

                def advance(writer: ArrayWriter) -> Replica:
                    replica.apply(added, writer)
                    return replica

                write_snapshot(self.path, record, log, advance)
            self._snapshot_sequence = sequence
            return sequence

    @check_arguments
    def backup(self, to: Path | str) -> Path:
        """Write the log to one file, while appends and queries go on; returns its path."""
        return write_backup(self.path, Path(to)).path

    def close(self) -> None:
        """Write what was submitted, and end the threads; the folder may be opened again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self._applier.close()
        if self._snapshots is not None:
            self._snapshots.join()
        try:
            least = max(CLOSING_EVENTS, CLOSING_SHARE * self._count_events())
            if self.applied - self._snapshot_sequence >= least and not self._applier.failure:
                self.snapshot()
        except DygError:  # a full disk: the log has everything
            pass
        finally:
            self._lock.release()

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        served = self._applier.served
        return f"<LiveRun {served.record.model} on {served.record.dataset!r}: {self.sequence:,} events since training>"
