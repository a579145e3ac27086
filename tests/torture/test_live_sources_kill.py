"""kill -9 of a server with four writers, two of them to files that are rotated, and switches of the run."""

import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dygmamba.api.client import Client, ServerError
from dygmamba.live.event_log import LogReader
from dygmamba.live.growing_file import GrowingFile
from dygmamba.live.live_run import LiveRun
from dygmamba.runs.predictor import Predictor
from dygmamba.server.app import JsonFormatter, LiveServer
from dygmamba.server.settings import ServerSettings
from live_run_cases import last_time, live_scores, observed_scores, open_live, other_run
from rotations import rotate_by_copying, rotate_by_renaming
from torture_cases import SECONDS, seeds, tally
from trained import load_trees_run

LATE = 60.0  # seconds of the writers' clock; the server is away for less
FORK = multiprocessing.get_context("fork")
ROTATIONS = {"renamed": rotate_by_renaming, "copied": rotate_by_copying}
WRITERS = ["http-a", "http-b", *ROTATIONS]


class Place:
    """The folder of the test: state, followed files, the link to the run, and what each writer has written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.link = folder, folder / "state", folder / "current"
        self.files = {name: folder / f"{name}.jsonl" for name in ROTATIONS}
        self.log, self.start = folder / "warnings.log", time.time()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.may_rotate, self.rotations = FORK.Event(), FORK.Value("i", 0)
        for writer in WRITERS:
            (folder / f"{writer}.written").touch()
        self.point_to(load_trees_run())

    def point_to(self, run) -> None:
        new = self.folder / "new"
        new.symlink_to(run.path)
        new.replace(self.link)

    def make_event(self, writer: str, k: int) -> dict:
        """The k-th event of a writer: `dst` says which it is, its time is now."""
        time_now = last_time() + 1 + time.time() - self.start
        return {"src": writer, "dst": str(k % 20), "time": time_now}

    def note(self, writer: str, event: dict) -> None:
        with (self.folder / f"{writer}.written").open("a") as file:
            file.write(f"{event['time']!r} {event['dst']}\n")

    def list_written(self, writer: str) -> list[tuple[float, str]]:
        lines = (self.folder / f"{writer}.written").read_text().splitlines()
        return [(float(line.split()[0]), line.split()[1]) for line in lines]


def write_to_file(place: Place, writer: str, stop, seed: int) -> None:
    """In a child: add lines to a file and rotate it now and then, also several times at once."""
    draw, path, k = random.Random(f"{seed} {writer}"), place.files[writer], 0
    while not stop.is_set():
        for _ in range(draw.choice([1, 2, 20])):
            event = place.make_event(writer, k)
            with path.open("a") as file:
                file.write(json.dumps(event) + "\n")
            place.note(writer, event)
            k += 1
        if place.may_rotate.is_set() and draw.random() < 0.04:
            ROTATIONS[writer](path)
            with place.rotations.get_lock():
                place.rotations.value += 1
        time.sleep(draw.choice([0, 0.01, 0.1]))


def send_requests(place: Place, writer: str, stop, seed: int) -> None:
    """In a child: append events, each until it was acknowledged."""
    draw, k = random.Random(f"{seed} {writer}"), 0
    with Client(f"http://127.0.0.1:{place.port}", timeout=5.0) as client:
        while not stop.is_set():
            events = []
            for _ in range(draw.randint(1, 5)):
                events.append(place.make_event(writer, k) | {"id": f"{writer}-{k}"})
                k += 1
            while True:
                with suppress(ServerError):
                    client.append(events)
                    break
                time.sleep(0.05)
            for event in events:
                place.note(writer, event)
            time.sleep(draw.choice([0, 0.02, 0.1]))


def serve(place: Place) -> None:
    """In a child: serve the run that the link leads to; SIGHUP changes to the one that it then leads to."""

    def open_run() -> LiveRun:
        return LiveRun(Predictor.open(place.link.resolve(), "cpu"), place.state, late=LATE)

    handler = logging.FileHandler(place.log)
    handler.setFormatter(JsonFormatter())
    handler.setLevel(logging.WARNING)
    logging.getLogger("dygmamba.server").addHandler(handler)
    settings = ServerSettings(port=place.port)
    server = LiveServer(open_run, settings, [GrowingFile(path) for path in place.files.values()])
    server.reload = lambda live: live.switch(place.link.resolve())
    server.run()


def start(target, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with idle threads
        process = FORK.Process(target=target, args=arguments, daemon=True)
        process.start()
    return process


@contextmanager
def writing(place: Place, seed: int):
    """Four writers at once; at the end each has finished what it began."""
    stop = FORK.Event()
    writers = [
        start(write_to_file if name in ROTATIONS else send_requests, place, name, stop, seed)
        for name in WRITERS
    ]
    try:
        yield
        stop.set()
        for writer in writers:
            writer.join(60)
        assert not any(writer.is_alive() for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()


def wait_until_ready(place: Place) -> None:
    with Client(f"http://127.0.0.1:{place.port}") as client:
        end = time.monotonic() + 60
        while not client.health():
            assert time.monotonic() < end
            time.sleep(0.02)


def wait_until_followed(place: Place) -> None:
    """A file that was rotated before it was followed is not read."""
    wait_until_ready(place)
    while not {*ROTATIONS} <= {event.src for event in read_log(place)}:
        time.sleep(0.05)
    place.may_rotate.set()


def read_log(place: Place) -> list:
    with LogReader(place.state) as log:
        return [event for some in log.read_events(0, log.read_sequence()) for event in some]


@pytest.mark.skipif(not SECONDS, reason="tests/live has the parts")
@pytest.mark.timeout(0)
def test_a_killed_server_loses_nothing_of_requests_and_rotated_files(tmp_path):
    """For all moments of a kill: each event is in the log once, in the order of its writer, and none is late."""
    runs, place, kills, switches = [load_trees_run(), other_run()], Place(tmp_path), 0, 0
    first = int(time.time())
    server = start(serve, place)
    try:
        with writing(place, first):
            wait_until_followed(place)
            for seed in seeds("kill -9, server", 0):
                draw = random.Random(seed)
                if seed % 4:  # else it may be killed while it opens the folder
                    wait_until_ready(place)
                time.sleep(draw.uniform(0, 2))
                if seed % 4 and draw.random() < 0.5:
                    place.point_to(runs[switches % 2])
                    os.kill(server.pid, signal.SIGHUP)
                    switches += 1
                    time.sleep(draw.uniform(0, 0.5))
                server.kill()
                server.join()
                kills += 1
                tally("kill -9, server", "kills")
                logged = [(event.src, event.time, event.dst) for event in read_log(place)]
                assert len(logged) == len(set(logged)), f"seed {seed}"
                for writer in WRITERS[:2]:
                    acknowledged = place.list_written(writer)
                    own = [event[1:] for event in logged if event[0] == writer]
                    assert own[: len(acknowledged)] == acknowledged, f"seed {seed}"
                server = start(serve, place)
            wait_until_ready(place)
        expected = {writer: place.list_written(writer) for writer in WRITERS}
        total, end = sum(map(len, expected.values())), time.monotonic() + 60
        while len(events := read_log(place)) < total and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(server.pid, signal.SIGTERM)
        server.join(60)
        assert server.exitcode == 0
    finally:
        server.kill()
        server.join()
        sys.stdout.write(place.log.read_text())
    for writer in WRITERS:
        assert [(event.time, event.dst) for event in events if event.src == writer] == expected[writer]
    assert len(events) == total
    assert not place.log.read_text()
    sys.stdout.write(
        f"{kills} kills of a server, {switches} switches, {place.rotations.value} rotations, {total:,} events of "
        f"{len(WRITERS)} writers\n"
    )
    with open_live(place.state, late=LATE) as live:
        rows = [{"src": event.src, "dst": event.dst, "time": event.time} for event in events]
        assert live_scores(live) == observed_scores(rows)
