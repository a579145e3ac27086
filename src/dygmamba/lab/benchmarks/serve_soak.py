"""The benchmark `serve` as a soak test: a server under constant load, whose memory may grow with its events only.

A state that is opened from a snapshot is mapped, and a page is copied when it is first changed, once for each of the
two replicas. These copies cannot exceed twice the file. They are counted apart from the rest of the memory, which
must not grow by more than two replicas of the appended events: more would be a leak.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dygmamba.core.errors import DygError
from dygmamba.lab.benchmarks.harness import BenchmarkRow, Log
from dygmamba.lab.benchmarks.serve_process import RunningServer, open_predictor, start_server
from dygmamba.lab.benchmarks.serve_size import (
    MODEL,
    STATE,
    EventGenerator,
    count_bytes_per_event,
    prepare_run,
)

EVENTS = 1_000_000  # of the stream that the server starts with
GROUP, GROUPS_PER_SECOND = 20, 5
PAIRS, REQUESTS_PER_SECOND = 10, 10
TENTHS = 10
BATCH_PAIRS = 1_024
SPARE_BYTES = 64e6  # by which the allocator may grow without a leak


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory of the server process in bytes, after so many seconds and appended events."""

    seconds: float
    appended: int
    resident: float
    copied: float  # pages of the mapped state that were changed
    rest: float  # other memory that is not of files


def run(
    device: str, log: Log, seconds: float, events: int = EVENTS, folder: Path | None = None
) -> list[BenchmarkRow]:
    """Keep a server under load for so many seconds; raise DygError if its memory grows beyond the bound."""
    with TemporaryDirectory(dir=folder) as place:
        root = Path(place)
        log(f"training {MODEL} for a stream of {events:,} events")
        path = Path(prepare_run(root, events, torch.device(device)))
        dataset = open_predictor(path, device).dataset
        log("starting the server, which builds the state")
        with start_server(path, root / STATE, device, BATCH_PAIRS) as server:
            bytes_per_event = sum(count_bytes_per_event(root / STATE, events).values())
            load = ClientLoad(server, EventGenerator(dataset, float(dataset.store.time[-1])))
            samples = load.run(seconds, log)
    require_bounded(samples, bytes_per_event)
    return list_rows(samples, load, bytes_per_event)


class ClientLoad:
    """Clients that append and score at constant rates until they are stopped."""

    def __init__(self, server: RunningServer, events: EventGenerator) -> None:
        self._server, self._events = server, events
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._errors: list[BaseException] = []
        self.appended = 0
        self.appends: list[float] = []  # seconds of each request
        self.scores: list[float] = []

    def run(self, seconds: float, log: Log) -> list[MemorySample]:
        """Run the load and return the memory of the server at each tenth of the time."""
        clients = [threading.Thread(target=self._guard, args=(work,)) for work in (self._append, self._score)]
        began = time.monotonic()
        samples = [read_memory(self._server.process, 0.0, 0)]
        for client in clients:
            client.start()
        try:
            for tenth in range(1, TENTHS + 1):
                self._stop.wait(max(0.0, began + seconds * tenth / TENTHS - time.monotonic()))
                sample = read_memory(self._server.process, time.monotonic() - began, self.appended)
                log(
                    f"{sample.seconds:,.0f} s: {sample.appended:,} events appended, {sample.resident / 1e6:,.0f} MB "
                    f"resident, of which {sample.copied / 1e6:,.0f} MB are changed pages of the mapped state and "
                    f"{sample.rest / 1e6:,.0f} MB other memory"
                )
                samples.append(sample)
        finally:
            self._stop.set()
            for client in clients:
                client.join()
        if self._errors:
            raise self._errors[0]
        return samples

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def _next(self) -> dict[str, object]:
        with self._lock:
            return self._events.next()

    def _append(self) -> None:
        with self._server.connect() as post:
            for _ in self._keep_pace(GROUPS_PER_SECOND):
                body = {"events": [self._next() for _ in range(GROUP)]}
                self.appends.append(_time(lambda body=body: post("/v1/events", body)))
                self.appended += GROUP

    def _score(self) -> None:
        with self._server.connect() as post:
            for _ in self._keep_pace(REQUESTS_PER_SECOND):
                pairs = [
                    {name: event[name] for name in ("src", "dst")}
                    for event in (self._next() for _ in range(PAIRS))
                ]
                self.scores.append(_time(lambda pairs=pairs: post("/v1/score", {"pairs": pairs})))

    def _keep_pace(self, per_second: float) -> Iterator[int]:
        began = time.monotonic()
        for turn in count():
            if self._stop.wait(max(0.0, began + turn / per_second - time.monotonic())):
                return
            yield turn


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_memory(process: int, seconds: float, appended: int) -> MemorySample:
    """Read the memory of a process from /proc."""
    sizes = {"Rss": 0.0, "Anonymous": 0.0}
    copied, is_state = 0.0, False
    for line in Path(f"/proc/{process}/smaps").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in sizes:
            size = 1024.0 * int(value.split()[0])
            sizes[name] += size
            copied += size if name == "Anonymous" and is_state else 0.0
        elif "-" in name.split(" ")[0]:  # the first line of a mapping
            is_state = "tables-" in line
    return MemorySample(seconds, appended, sizes["Rss"], copied, sizes["Anonymous"] - copied)


def fit_slope(samples: list[MemorySample]) -> float:
    """Return the growth of the memory without pages of the state, in bytes per appended event, over the last half."""
    last = samples[len(samples) // 2 :]
    return float(np.polyfit([one.appended for one in last], [one.rest for one in last], 1)[0])


def require_bounded(samples: list[MemorySample], bytes_per_event: float) -> None:
    """Raise DygError if memory without pages of the state grew by more than two replicas of the appended events."""
    grown = samples[-1].rest - samples[1].rest
    bound = 2 * bytes_per_event * (samples[-1].appended - samples[1].appended) + SPARE_BYTES
    if grown > bound:
        raise DygError(
            f"the server's memory grew by {grown / 1e6:,.0f} MB from the first tenth of the time to the end; "
            f"{bound / 1e6:,.0f} MB are the bound (two replicas of {samples[-1].appended:,} events). Look for a leak",
            code="memory-grows",
        )


def list_rows(samples: list[MemorySample], load: ClientLoad, bytes_per_event: float) -> list[BenchmarkRow]:
    """Return a row for each kind of request, with the memory of the server at each tenth."""
    resident, copied, rest = (
        ", ".join(f"{getattr(one, name) / 1e6:,.0f}" for one in samples)
        for name in ("resident", "copied", "rest")
    )
    notes = (
        f"{samples[-1].appended:,} events in {samples[-1].seconds:,.0f} s; resident MB at each tenth: {resident}; "
        f"of them changed pages of the mapped state: {copied}",
        f"{len(load.scores):,} requests; other memory, MB: {rest}; over the last half {fit_slope(samples):,.0f} bytes "
        f"more per event, {2 * bytes_per_event:,.0f} are allowed",
    )
    cases = ((f"append {GROUP} events", load.appends), (f"score {PAIRS} pairs", load.scores))
    return [
        BenchmarkRow.from_times(
            f"{case}, under load",
            float(np.median(seconds)),
            peak_mb=max(one.resident for one in samples) / 1e6,
            note=f"99th percentile {1e3 * float(np.quantile(seconds, 0.99)):.0f} ms; {note}",
        )
        for (case, seconds), note in zip(cases, notes, strict=True)
    ]
