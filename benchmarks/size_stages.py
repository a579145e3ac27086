"""The stages of the benchmark `size`, each run in a process of its own to measure its memory alone.

`python -m benchmarks.size_stages STAGE FOLDER EVENTS` prints one line of JSON with times and peaks. The
functions import what they need, so that a stage has nothing else in memory.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np

from dygmamba.core.memory_budget import get_peak_memory

NAME = "stream"
EVENTS_PER_NODE = 36  # as in tgbl-coin: 22.8 million events of 638,000 nodes
BLOCK = 1 << 20  # rows per write
PAIRS, NEIGHBORS, SCALES, STEPS = 200, 20, 8, 10
SMALL = {"length": 16, "width": 20, "blocks": 1}  # the preset `small` of DyG-Mamba, for CPUs

Laps = dict[str, tuple[float, float]]  # wall seconds and CPU seconds


class LapTimer:
    """Measures the time between consecutive calls of `lap`."""

    def __init__(self) -> None:
        self.laps: Laps = {}
        self._at = self._now()

    def lap(self, name: str, times: int = 1) -> None:
        """End a lap; its time is divided by `times`, the number of repetitions in it."""
        now = self._now()
        self.laps[name] = ((now[0] - self._at[0]) / times, (now[1] - self._at[1]) / times)
        self._at = now

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def write_stream(folder: Path, events: int) -> Laps:
    """Write an unsorted Parquet file: few nodes have most events, times are whole seconds."""
    import pyarrow as pa
    from pyarrow import parquet

    rng, nodes = np.random.default_rng(0), max(10, events // EVENTS_PER_NODE)
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("time", pa.float64())])
    with parquet.ParquetWriter(folder / f"{NAME}.parquet", schema, use_dictionary=False) as file:
        for start in range(0, events, BLOCK):
            rows = min(BLOCK, events - start)
            ends = [(nodes * rng.random(rows) ** 2).astype(np.int64) for _ in range(2)]
            time_ = rng.integers(0, 4 * events, rows).astype(np.float64)
            file.write_table(pa.table([*map(pa.array, ends), pa.array(time_)], schema=schema))
    return {}


def import_stream(folder: Path, events: int) -> Laps:
    """Import the file as `dygmamba data import` does, with the default memory budget."""
    from dygmamba.data.events.anomalies import find_anomalies
    from dygmamba.data.readers import ReadOptions, read_dataset
    from dygmamba.data.storage.library import save_dataset_version

    timer = LapTimer()
    options = ReadOptions(time_unit="plain", scratch=folder)
    dataset = read_dataset(folder / f"{NAME}.parquet", options)
    find_anomalies(dataset)
    save_dataset_version(dataset, folder)
    timer.lap("import")
    return timer.laps


def build_index(folder: Path, events: int) -> Laps:
    """Open the dataset, build its neighbor index, open the stored index, and look up a first batch."""
    import torch

    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.history.index import Index

    timer = LapTimer()
    store = load_dataset(folder / f"{NAME}.safetensors").store
    timer.lap("open")
    Index(store)
    timer.lap("index")
    index = Index(store)  # now it is on the disk and only opened
    timer.lap("open index")
    last = torch.arange(len(store) - PAIRS, len(store))
    node, query_time = torch.cat([store.src[last], store.dst[last]]), store.time[last].repeat(2)
    index.recent(node, query_time, NEIGHBORS)
    timer.lap("first batch")
    return timer.laps


def build_counts(folder: Path, events: int) -> Laps:
    """Build the decayed counts of all events, and compute the features of a first batch."""
    import torch

    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.history.counts import CountFeatures
    from dygmamba.history.index import Index
    from dygmamba.history.view import PairBatch

    store = load_dataset(folder / f"{NAME}.safetensors").store
    index = Index(store)
    period = float(store.time[-1] - store.time[0])
    scales = tuple(float(scale) for scale in period * 2.0 ** -np.arange(SCALES, 0, -1))
    timer = LapTimer()
    index.counts(scales)
    timer.lap("counts")
    last = torch.arange(len(store) - PAIRS, len(store))
    queries = PairBatch.from_pairs(store.src[last], store.dst[last], store.time[last])
    index.compute_features(CountFeatures(scales, NEIGHBORS), queries)
    timer.lap("first counts")
    return timer.laps


def train_steps(folder: Path, events: int) -> Laps:
    """Train a small DyG-Mamba for some steps at the end of the training period.

    The first step includes the split and both neighbor indices.
    """
    import torch

    from benchmarks.harness import build_trainer, find_last_full_batch
    from dygmamba.data.events.splits import chronological_split
    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.engine.stream import Stream

    store = load_dataset(folder / f"{NAME}.safetensors").store
    timer = LapTimer()
    stream = Stream(store, chronological_split(store), torch.device("cpu"))
    trainer = build_trainer("dyg-mamba", stream, SMALL)
    epoch, last = trainer.epoch(0), find_last_full_batch(trainer)
    trainer.executor.step(trainer.batch(epoch, last))
    timer.lap("first step")
    before = _read_memory()
    for step in range(1, 1 + STEPS):
        trainer.executor.step(trainer.batch(epoch, last - step))
    timer.lap("steps", STEPS)
    return timer.laps | {"grown MB": ((_read_memory() - before) / 1e6, 0.0)}


STAGES: dict[str, Callable[[Path, int], Laps]] = {
    "write": write_stream,
    "import": import_stream,
    "index": build_index,
    "counts": build_counts,
    "train": train_steps,
}


class MemoryPeakThread(Thread):
    """Samples the anonymous memory of this process, that is without pages of mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._stopped = 0.0, Event()

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            self.peak = max(self.peak, _read_memory("RssAnon"))

    def stop(self) -> float:
        """Stop sampling and return the peak in bytes."""
        self._stopped.set()
        return max(self.peak, _read_memory("RssAnon"))


def _read_memory(which: str = "VmHWM") -> float:
    """Return a memory field of this process in bytes; the peak by default, and where there is no /proc."""
    try:
        match = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    except OSError:
        match = None
    return 1024.0 * int(match[1]) if match else float(get_peak_memory())


if __name__ == "__main__":
    sampler = MemoryPeakThread()
    sampler.start()
    laps = STAGES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps({"laps": laps, "peak": _read_memory(), "own": sampler.stop()}) + "\n")
