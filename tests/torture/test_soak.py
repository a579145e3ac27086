"""A server under constant load for a while: its memory may grow with its events only.

A state that is opened from a snapshot is mapped, and a page is copied when it is first changed, once for each of the
two replicas. These copies cannot exceed twice the file. They are counted apart from the rest of the memory, which
must not grow by more than two replicas of the appended events: more would be a leak.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from benchmarks.serve_process import RunningServer, open_predictor, start_server
from benchmarks.serve_size import STATE, EventGenerator, count_bytes_per_event, prepare_run
from torture_cases import CPU, SECONDS, SHARES

EVENTS = 1_000_000 if SECONDS else 5_000  # of the stream that the server starts with
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


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is read from /proc")
def test_memory_under_load_is_bounded(tmp_path):
    path = Path(prepare_run(tmp_path, EVENTS, CPU))
    dataset = open_predictor(path, "cpu").dataset
    with start_server(path, tmp_path / STATE, "cpu", BATCH_PAIRS) as server:
        bytes_per_event = sum(count_bytes_per_event(tmp_path / STATE, EVENTS).values())
        load = ClientLoad(server, EventGenerator(dataset, float(dataset.store.time[-1])))
        samples = load.run(SECONDS * SHARES["soak"] if SECONDS else 2.0)
    assert load.appended
    assert load.scores
    require_bounded(samples, bytes_per_event)


def test_a_leak_is_found():
    """Growth beyond two replicas of the appended events is a leak."""
    samples = [MemorySample(k, 100 * k, 0.0, 0.0, 1e9 * k) for k in range(11)]
    with pytest.raises(AssertionError, match="grew by"):
        require_bounded(samples, 1_000.0)
    require_bounded(samples, 1e7)


class ClientLoad:
    """Clients that append and score at constant rates until they are stopped."""

    def __init__(self, server: RunningServer, events: EventGenerator) -> None:
        self._server, self._events = server, events
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._errors: list[BaseException] = []
        self.appended, self.scores = 0, 0

    def run(self, seconds: float) -> list[MemorySample]:
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
                sys.stdout.write(
                    f"{sample.seconds:,.0f} s: {sample.appended:,} events appended, {sample.resident / 1e6:,.0f} MB "
                    f"resident, of which {sample.copied / 1e6:,.0f} MB are changed pages of the mapped state and "
                    f"{sample.rest / 1e6:,.0f} MB other memory\n"
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
                post("/v1/events", body)
                self.appended += GROUP

    def _score(self) -> None:
        with self._server.connect() as post:
            for _ in self._keep_pace(REQUESTS_PER_SECOND):
                pairs = [
                    {name: event[name] for name in ("src", "dst")}
                    for event in (self._next() for _ in range(PAIRS))
                ]
                post("/v1/score", {"pairs": pairs})
                self.scores += 1

    def _keep_pace(self, per_second: float) -> Iterator[int]:
        began = time.monotonic()
        for turn in count():
            if self._stop.wait(max(0.0, began + turn / per_second - time.monotonic())):
                return
            yield turn


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


def require_bounded(samples: list[MemorySample], bytes_per_event: float) -> None:
    """Fail if memory without pages of the state grew by more than two replicas of the appended events."""
    grown = samples[-1].rest - samples[1].rest
    bound = 2 * bytes_per_event * (samples[-1].appended - samples[1].appended) + SPARE_BYTES
    assert grown <= bound, (
        f"the server's memory grew by {grown / 1e6:,.0f} MB from the first tenth of the time to the end; "
        f"{bound / 1e6:,.0f} MB are the bound (two replicas of {samples[-1].appended:,} events)"
    )
