"""Speed and memory of the server: acknowledged events per second, latency of scores, batched against direct scoring.

The state folder is in the temporary folder, whose disk decides how fast events are acknowledged. Before anything is
timed, scores over HTTP are compared with those of the run that observed the same events at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import serve_size
from benchmarks.harness import (
    SEED,
    STAND_IN_STREAM,
    UCI,
    BenchmarkRow,
    log,
    require,
)
from benchmarks.serve_process import DATA, RunningServer, open_predictor, start_server
from dygmamba.core.errors import NotFoundError
from dygmamba.core.files.writing import make_folder
from dygmamba.core.progress import SILENT
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import generate_stream
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.predictor import Predictor
from dygmamba.server.settings import ServerSettings

MODELS: dict[str, dict[str, Any]] = {serve_size.MODEL: {}, "dyg-mamba": {"length": 32}}
GROUP = 100  # events of a request
EVENTS = 20_000
CLIENTS = 8
REQUESTS = {1: 1_000, 100: 200}  # requests by their number of pairs
WARMUP = 20
MAX_SECONDS = 20.0  # a slow model gets fewer requests of a kind
CHECKED_PAIRS = 200


def run(device: str, events: int | None = None, folder: Path | None = None) -> list[BenchmarkRow]:
    """Measure the server; with `events` one that starts with a generated stream of that size.

    Trees are trained; DyG-Mamba has the weights that it starts with, which score as fast as any.
    """
    if events is not None:
        return serve_size.run(device, events, folder)
    with TemporaryDirectory(dir=folder) as place:
        root, dataset = Path(place), open_stream()
        make_folder(root / DATA)
        save_dataset(dataset, root / DATA)
        rows = []
        for model, settings in MODELS.items():
            fit = start_link_run(dataset, model, SEED, settings, torch.device(device), root / "runs")
            if fit.scorer.rounds_per_epoch:  # has nothing to score with before its first round
                log(f"training {model} on {dataset.name}")
                fit(SILENT)
            else:
                fit.checkpoints.save(fit.state, better=True)
            rows += _measure_model(model, fit.run.path, root, device, dataset)
    return rows


def _measure_model(model: str, path: Path, folder: Path, device: str, dataset: Dataset) -> list[BenchmarkRow]:
    """Check the scores of a server, then measure it with batches and without."""
    load, rows = RequestLoad.continue_stream(dataset), []
    for name, pairs in (("direct", 1), ("batched", ServerSettings().batch_pairs)):
        log(f"measuring the server of {model}, {name}")
        with start_server(path, folder / model / name, device, pairs) as server:
            _check_scores(server, open_predictor(path, device), load)
            rows.append(_measure(server, load))
    direct, batched = rows
    batched[-1] = BenchmarkRow.from_times(
        f"score 1 pair, {CLIENTS} clients, batched",
        batched[-1].seconds or 0.0,
        direct[-1].seconds,
        note=f"{1 / (batched[-1].seconds or 1):,.0f} requests/s, each alone {1 / (direct[-1].seconds or 1):,.0f}",
    )
    return [replace(row, case=f"{model}: {row.case}") for row in batched]


def open_stream() -> Dataset:
    """Open UCI if it is installed, else a generated stream of the same size."""
    try:
        return open_dataset(UCI)
    except NotFoundError:
        store = generate_stream(STAND_IN_STREAM)
        return Dataset.from_events("generated", store, NodeIds.identity(store.num_nodes))


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Events and pairs to send: the last events of a stream again, later."""

    events: list[dict[str, Any]]
    pairs: list[dict[str, Any]]

    @staticmethod
    def continue_stream(dataset: Dataset) -> "RequestLoad":
        store, count = dataset.store, EVENTS + GROUP
        rows = np.arange(count) % min(len(store), count) + max(0, len(store) - count)
        src, dst = (dataset.ids.to_user(part.numpy()[rows]).to_pylist() for part in (store.src, store.dst))
        last = float(store.time[-1])
        step = (last - float(store.time[0])) / len(store)
        events = [
            {"id": f"e{k}", "src": str(a), "dst": str(b), "time": last + step * (k + 1)}
            for k, (a, b) in enumerate(zip(src, dst, strict=True))
        ]
        return RequestLoad(events, [{"src": event["src"], "dst": event["dst"]} for event in events])


def _check_scores(server: RunningServer, predictor: Predictor, load: RequestLoad) -> None:
    """Require the scores of a run that observed the first events at once."""
    events, pairs = load.events[:GROUP], load.pairs[:CHECKED_PAIRS]
    table = {name: [event[name] for event in events] for name in ("src", "dst", "time")}
    # before the server is asked, whose answers have a time limit: it finds the compiled kernels on the disk
    known = predictor.with_events(table)
    expected = known.score({name: [pair[name] for pair in pairs] for name in ("src", "dst")}).table
    with server.connect() as post:
        answer = post("/v1/events", {"events": events})
        rows = post("/v1/score", {"pairs": pairs, "min_sequence": answer["sequence"]})["scores"]
    scores = [list(row.values())[-1] for row in rows]
    require(scores == expected[expected.column_names[-1]].to_pylist(), "scores over HTTP")


def _measure(server: RunningServer, load: RequestLoad) -> list[BenchmarkRow]:
    rows = [_measure_appends(server, load.events[GROUP:])]
    for pairs, requests in REQUESTS.items():
        seconds = _measure_scores(server, load.pairs, pairs, requests)
        low, high = np.quantile(seconds, (0.5, 0.99))
        case = f"score {pairs} pair" + "s" * (pairs > 1)
        note = f"median of {len(seconds)}, 99th percentile {1e3 * high:.1f} ms"
        rows.append(BenchmarkRow.from_times(case, float(low), peak_mb=server.memory_mb, note=note))
    alone = rows[1].seconds or 0.0
    rows.append(
        _measure_concurrent(server, load.pairs, max(CLIENTS, min(REQUESTS[1], int(MAX_SECONDS / alone))))
    )
    return rows


def _measure_appends(server: RunningServer, events: Sequence[dict[str, Any]]) -> BenchmarkRow:
    """Append events by several clients at once, each waiting for the acknowledgement of its last group."""
    groups = deque(list(events[start : start + GROUP]) for start in range(0, len(events), GROUP))
    seconds: list[float] = []

    def append(groups: deque[list[dict[str, Any]]]) -> None:
        with server.connect() as post:
            while groups:
                try:
                    group = groups.popleft()
                except IndexError:  # another client took the last one
                    return
                began = time.perf_counter()
                post("/v1/events", {"events": group})
                seconds.append(time.perf_counter() - began)

    total = _run_clients([groups] * CLIENTS, append)
    note = f"{len(events) / total:,.0f} events/s acknowledged, {CLIENTS} clients, groups of {GROUP}"
    return BenchmarkRow.from_times(
        f"append {GROUP} events", median(seconds), peak_mb=server.memory_mb, note=note
    )


def _measure_scores(
    server: RunningServer, pairs: Sequence[dict[str, Any]], size: int, requests: int
) -> list[float]:
    seconds = []
    with server.connect() as post:
        for k in range(WARMUP + requests):
            if sum(seconds) > MAX_SECONDS and len(seconds) > WARMUP:
                break
            body = {"pairs": [pairs[(size * k + row) % len(pairs)] for row in range(size)]}
            began = time.perf_counter()
            post("/v1/score", body)
            seconds.append(time.perf_counter() - began)
    return seconds[WARMUP:]


def _measure_concurrent(
    server: RunningServer, pairs: Sequence[dict[str, Any]], requests: int
) -> BenchmarkRow:
    def score(mine: Sequence[dict[str, Any]]) -> None:
        with server.connect() as post:
            for pair in mine:
                post("/v1/score", {"pairs": [pair]})

    total = _run_clients([pairs[k:requests:CLIENTS] for k in range(CLIENTS)], score)
    return BenchmarkRow.from_times(
        f"score 1 pair, {CLIENTS} clients", total / requests, peak_mb=server.memory_mb
    )


def _run_clients(shares: Sequence[Any], work: Callable[[Any], None]) -> float:
    """Run a function with each share in a thread of its own; return the seconds until the last one ends."""
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began
