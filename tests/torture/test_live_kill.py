"""kill -9 of a live run under load: every acknowledged event is there once, and scores are as if nothing had been."""

import multiprocessing
import os
import random
import sys
import threading
import time
import warnings
from pathlib import Path

from dygmamba.live.event_log import LogReader
from live_run_cases import last_time, live_scores, observed_scores, open_live
from torture_cases import SECONDS, tally
from trained import load_trees_run

KILLS = 200 if SECONDS else 3
THREADS = 2
LATE = 1e9  # threads are not in step


def make_event(thread: int, k: int) -> dict:
    return {
        "id": f"{thread}-{k}",
        "src": (3 * k + thread) % 35,
        "dst": (5 * k) % 30,
        "time": last_time() + 1 + 2.0 * k + thread,
    }


def append_until_killed(folder: Path, acknowledged: list[int], report: int, seed: int) -> None:
    """In a child: each thread appends its next events and reports how many of them were acknowledged."""
    live = open_live(folder, late=LATE)
    os.write(report, b"open\n")

    def append(thread: int) -> None:
        rng, k = random.Random(f"{seed} {thread}"), acknowledged[thread]
        while True:
            count = rng.randint(1, 4)
            live.append([make_event(thread, k + n) for n in range(count)])
            k += count
            os.write(report, f"{thread} {k}\n".encode())
            if rng.random() < 0.05:
                live.snapshot()

    workers = [threading.Thread(target=append, args=(thread,)) for thread in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def kill_while_appending(folder: Path, acknowledged: list[int], seed: int) -> None:
    """Start a child, kill it after a random time, and note what it had acknowledged until then."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a fork of a process with threads, which are idle
        child = multiprocessing.get_context("fork").Process(
            target=append_until_killed, args=(folder, list(acknowledged), writing, seed)
        )
        child.start()
    os.close(writing)
    with os.fdopen(reading) as report:
        if seed % 5:  # else it may be killed while it opens the folder
            assert report.readline() == "open\n"
        time.sleep(random.Random(seed).uniform(0, 0.3))
        child.kill()
        child.join()
        for line in report:
            if line.endswith("\n") and line != "open\n":
                thread, count = map(int, line.split())
                acknowledged[thread] = count


def test_a_killed_live_run_loses_nothing_that_it_acknowledged(tmp_path):
    """For all moments: acknowledged events are there once and in order; scores are those of an undisturbed run."""
    load_trees_run()  # trained before the first fork
    folder, acknowledged = tmp_path / "state", [0] * THREADS
    first = int(time.time()) if SECONDS else 0
    for seed in range(first, first + KILLS):
        kill_while_appending(folder, acknowledged, seed)
        tally("kill -9, live", "rounds")
        tally("kill -9, live", "kills")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a snapshot that was being written is not used, and not spoken of
            with open_live(folder, late=LATE) as live, LogReader(folder) as log:
                events = [event for some in log.read_events(0, live.sequence) for event in some]
                scores = live_scores(live)
        for thread in range(THREADS):
            own = [event.id for event in events if event.id.startswith(f"{thread}-")]
            assert own == [f"{thread}-{k}" for k in range(len(own))], f"seed {seed}"
            assert len(own) >= acknowledged[thread], f"seed {seed}"
        logged = [make_event(*map(int, event.id.split("-"))) for event in events]
        assert scores == observed_scores(logged), f"seed {seed}"
    with open_live(tmp_path / "undisturbed", late=LATE) as live:
        live.append(logged)
        assert live_scores(live) == scores
    assert sum(acknowledged) > 0
    sys.stdout.write(
        f"{KILLS} kills of a live run, seeds {first} to {first + KILLS - 1}, {len(logged):,} events\n"
    )
