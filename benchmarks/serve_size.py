"""The benchmark `serve` with a stream of a given size: first build, restart, appends, queries, memory, disk.

The run is made of a short training on the first events of a generated stream, whose trees are then carried over to a
run on the whole stream without further rounds: what a state costs depends on the stream, not on the training. Every
stage runs in a process of its own, `python -m benchmarks.serve_size STAGE FOLDER RUN`, which prints one
line of JSON. Scores after a restart must equal those before it bit for bit; those of short streams must also equal the
scores of the run that observes the same events at once.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.harness import SEED, BenchmarkRow, log, require
from benchmarks.serve_process import DATA, open_predictor, start_server
from benchmarks.size_stages import EVENTS_PER_NODE, LapTimer
from dygmamba.core.memory_budget import get_peak_memory
from dygmamba.core.progress import SILENT
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.live.live_run import LiveRun
from dygmamba.live.serving_state import ServedRun
from dygmamba.live.snapshots import list_snapshots
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.provenance import StartOptions
from dygmamba.runs.warm_start import open_warm_start

MODEL = "trees"
TRAINED_EVENTS = 60_000
SETTINGS = {"epochs": 2, "rounds": 10}
STATE = "state"
FIRST_APPENDS, APPENDS, SCORES, CHECKED_PAIRS = 20, 1_000, 500, 200
MAX_CHECKED_EVENTS = 2_000_000  # of streams whose scores are compared with those of all events read at once

Seconds = list[float]


def run(device: str, events: int, folder: Path | None = None) -> list[BenchmarkRow]:
    """Measure every stage with a stream of `events` events."""
    with TemporaryDirectory(dir=folder) as place:
        root = Path(place)
        log(
            f"generating {events:,} events, training {MODEL} on the first {min(TRAINED_EVENTS, events // 2):,}"
        )
        path = Path(prepare_run(root, events, torch.device(device)))
        found = {}
        for stage in STAGES:
            log(f"{stage}, {events:,} events")
            command = [sys.executable, "-m", __name__, stage, str(root), str(path)]
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[stage] = json.loads(process.stdout.splitlines()[-1])
        log(f"restarting a server, {events:,} events")
        server = _measure_server(path, root, device, found["reopen"]["pair"])
    require(
        found["build"]["scores"] == found["reopen"]["scores"], "scores after a restart equal those before it"
    )
    require(server["score"] == found["reopen"]["score"], "the score over HTTP equals that of the live run")
    return list_rows(events, found["build"], found["reopen"], server)


def prepare_run(folder: Path, events: int, device: torch.device) -> str:
    """Write a stream and a run on it; return the path of the run."""
    store = generate_stream(
        GeneratorConfig(nodes=max(10, events // EVENTS_PER_NODE), events=events, seed=SEED)
    )
    whole, part = (
        Dataset.from_events("generated", own, NodeIds.identity(store.num_nodes))
        for own in (store, store[: min(TRAINED_EVENTS, events // 2)])
    )
    (folder / DATA).mkdir()
    save_dataset(whole, folder / DATA)
    first = start_link_run(part, MODEL, SEED, SETTINGS, device, folder / "first")
    first(SILENT)
    start, trained = open_warm_start(first.run.path, dataset=part), len(part)
    sizes = (
        trained,
        trained // 10,
        events - trained - trained // 10,
    )  # as if it were to be trained on the first part
    rule = SplitRule(tuple(map(float, sizes)), "the first events", counted=True, protocol="time")
    options = StartOptions(split=rule, start=start)
    fit = start_link_run(whole, MODEL, SEED, {}, device, folder / "runs", options)
    fit.checkpoints.save(fit.state, better=True)
    return str(fit.run.path)


def build(folder: Path, path: Path) -> dict[str, Any]:
    """Open a run live for the first time, append a few events, write a snapshot."""
    timer = LapTimer()
    predictor = open_predictor(path, "cpu")
    live = LiveRun(predictor, folder / STATE)
    events = EventGenerator(predictor.dataset, live.latest)
    live.score([events.pair])
    timer.lap("first build")
    peak = get_peak_memory()
    sizes = count_bytes_per_event(folder / STATE, len(predictor.dataset))
    appended = [events.next() for _ in range(FIRST_APPENDS)]
    for event in appended:
        live.append([event])
    timer.lap("appends")
    live.snapshot()
    timer.lap("snapshot")
    pairs = [(event["src"], event["dst"]) for event in (events.next() for _ in range(CHECKED_PAIRS))]
    scores = read_scores(live.score(pairs))
    live.close()
    if len(predictor.dataset) <= MAX_CHECKED_EVENTS:
        table = {name: [event[name] for event in appended] for name in ("src", "dst", "time")}
        ends = {name: [pair[k] for pair in pairs] for k, name in enumerate(("src", "dst"))}
        expected = read_scores(predictor.with_events(table).score(ends).table)
        require(scores == expected, "scores of the live run equal those of all events read at once")
    return {"laps": timer.laps, "peak": peak, "sizes": sizes, "scores": scores, "pairs": pairs}


def reopen(folder: Path, path: Path) -> dict[str, Any]:
    """Open the run again from its snapshot, then append and score."""
    timer = LapTimer()
    predictor = open_predictor(path, "cpu")
    live = LiveRun(predictor, folder / STATE)
    events = EventGenerator(predictor.dataset, live.latest)
    live.score([events.pair])
    timer.lap("reopen")
    peak = get_peak_memory()
    appended = [events.next() for _ in range(FIRST_APPENDS)]
    pairs = [(event["src"], event["dst"]) for event in (events.next() for _ in range(CHECKED_PAIRS))]
    scores = read_scores(live.score(pairs))
    first, _ = measure(lambda event: live.append([event]), appended)
    whole = measure(lambda event: live.append([event]), [events.next() for _ in range(APPENDS)])
    pair = measure(
        lambda event: live.score([(event["src"], event["dst"])]), [events.next() for _ in range(SCORES)]
    )
    own = _measure_state(live._applier.served, [events.next() for _ in range(APPENDS)])
    after = get_peak_memory()
    files = sum(file.stat().st_blocks * 512 for file in (folder / STATE).rglob("*") if file.is_file())
    live.close()
    # opened again, because events that the state alone has taken are not in the log
    again = LiveRun(predictor, folder / STATE)
    score = read_scores(again.score([events.pair]))
    again.close()
    times = {"first": first, "append": whole, "score": pair, "state": own}
    return {"laps": timer.laps, "peak": peak, "after": after, "bytes": files, "times": times} | {
        "scores": scores,
        "pair": events.pair,
        "score": score,
    }


class EventGenerator:
    """Events that go on with a stream: pairs of its events, later than `latest`."""

    def __init__(self, dataset: Dataset, latest: float) -> None:
        store, self._latest, self._number = dataset.store, latest, 0
        rows = np.random.default_rng(SEED).integers(0, len(store), 10_000)
        ends = (dataset.ids.to_user(part.numpy()[rows]).to_pylist() for part in (store.src, store.dst))
        self._src, self._dst = ends
        self.pair = (str(self._src[0]), str(self._dst[0]))

    def next(self) -> dict[str, Any]:
        self._number += 1
        at = self._number % len(self._src)
        return {"src": str(self._src[at]), "dst": str(self._dst[at]), "time": self._latest + self._number}


def read_scores(table: pa.Table) -> list[float]:
    """Return the scores of a table of predictions, or its uncalibrated scores if the run has no calibration."""
    return table.columns[-1].to_pylist()


def measure(work: Callable[[Any], Any], items: Sequence[Any]) -> tuple[Seconds, Seconds]:
    """Return the wall seconds and the processor seconds of each call."""
    walls, cpus = [], []
    for item in items:
        wall, cpu = time.perf_counter(), time.process_time()
        work(item)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls, cpus


def _measure_state(served: ServedRun, events: list[dict[str, Any]]) -> tuple[Seconds, Seconds]:
    """Measure appends to the state alone, without parsing and without the log."""
    parsed = [[event for event in served.parser.parse([own]).events if event is not None] for own in events]
    return measure(served.append, parsed)


def count_bytes_per_event(folder: Path, events: int) -> dict[str, float]:
    """Return the bytes in use of each kind of table of the newest snapshot, per event; empty without a snapshot."""
    sizes: dict[str, float] = {}
    for snapshot in list_snapshots(folder)[:1]:
        for name, part in snapshot.read()["arrays"].items():
            table = (
                name.split("'")[1] if "('" in name else name.split("/")[1 if name.startswith("index/") else 0]
            )
            sizes[table] = sizes.get(table, 0.0) + part["used"] / events
    return sizes


def _measure_server(path: Path, folder: Path, device: str, pair: Sequence[str]) -> dict[str, Any]:
    """Measure the time from the start of a server process to the answer to its first query."""
    began = time.perf_counter()
    with start_server(path, folder / STATE, device, 1024) as server, server.connect() as post:
        rows = post("/v1/score", {"pairs": [{"src": pair[0], "dst": pair[1]}]})["scores"]
        seconds, memory = time.perf_counter() - began, server.memory_mb
    return {"seconds": seconds, "memory": memory, "score": [list(row.values())[-1] for row in rows]}


def list_rows(
    events: int, first: dict[str, Any], second: dict[str, Any], server: dict[str, Any]
) -> list[BenchmarkRow]:
    """Return a row for everything that was measured."""
    size, times = f", {events:,} events", second["times"]
    bytes_per_event = ", ".join(f"{name} {value:.0f}" for name, value in first["sizes"].items())
    total = sum(first["sizes"].values())

    def lap(case: str, laps: dict[str, Any], name: str, memory: float, note: str) -> BenchmarkRow:
        wall, cpu = laps[name]
        return BenchmarkRow.from_times(
            case + size, wall, peak_mb=memory / 1e6, note=f"{cpu:,.1f} s of processor time{note}"
        )

    def calls(case: str, pair: tuple[Seconds, Seconds]) -> BenchmarkRow:
        (wall, late), cpu = np.quantile(pair[0], (0.5, 0.99)), float(np.median(pair[1]))
        note = f"99th percentile {1e3 * late:.2f} ms, processor time {1e3 * cpu:.2f} ms (median)"
        return BenchmarkRow.from_times(case + size, float(wall), peak_mb=second["after"] / 1e6, note=note)

    opened = f"; {total:,.0f} bytes per event: {bytes_per_event}" if total else ""
    return [
        lap("first build to first score", first["laps"], "first build", first["peak"], opened),
        lap("snapshot", first["laps"], "snapshot", float("nan"), f"; {second['bytes'] / 1e9:.2f} GB on disk"),
        lap("reopen to first score", second["laps"], "reopen", second["peak"], ""),
        BenchmarkRow.from_times(
            "restart of a server to first score" + size, server["seconds"], peak_mb=server["memory"]
        ),
        BenchmarkRow.from_times(
            f"append 1 event, the first {FIRST_APPENDS}" + size,
            float(np.median(times["first"])),
            note=f"largest {1e3 * max(times['first']):.1f} ms",
        ),
        calls("append 1 event, durable", times["append"]),
        calls("append 1 event, state alone", times["state"]),
        calls("score 1 pair", times["score"]),
    ]


STAGES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {"build": build, "reopen": reopen}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(STAGES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))) + "\n")
