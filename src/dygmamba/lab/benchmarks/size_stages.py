"""What is done to a stream of a size, each stage a process of its own so that its memory is its own.

`python -m dygmamba.lab.benchmarks.size_stages STAGE FOLDER EVENTS` prints one line: seconds and the peak of memory.
"""

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np

NAME = "stream"
EVENTS_PER_NODE = 36  # as in tgbl-coin: 22.8 million events of 638,000 nodes
BLOCK = 1 << 20  # rows that are written at a time
PAIRS, NEIGHBORS, SCALES, STEPS = 200, 20, 8, 10
SMALL = {"length": 16, "width": 20, "blocks": 1}  # a DyG-Mamba for CPUs, as `preset small` has it

Laps = dict[str, tuple[float, float]]  # seconds that passed, and of the processor


class LapTimer:
    """How long each lap took since the one before."""

    def __init__(self) -> None:
        self.laps: Laps = {}
        self._at = self._now()

    def lap(self, name: str, times: int = 1) -> None:
        """The one that ends here, which did its work so many times."""
        now = self._now()
        self.laps[name] = ((now[0] - self._at[0]) / times, (now[1] - self._at[1]) / times)
        self._at = now

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def write_stream(folder: Path, events: int) -> Laps:
    """A Parquet file in no order: ends skewed towards few nodes, whole seconds anywhere in the period."""
    import pyarrow as pa
    from pyarrow import parquet

    rng, nodes = np.random.default_rng(0), max(10, events // EVENTS_PER_NODE)
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("time", pa.float64())])
    with parquet.ParquetWriter(folder / f"{NAME}.parquet", schema, use_dictionary=False) as file:
        for start in range(0, events, BLOCK):
            rows = min(BLOCK, events - start)
            ends = [(nodes * rng.random(rows) ** 2).astype(np.int64) for _ in range(2)]
            when = rng.integers(0, 4 * events, rows).astype(np.float64)
            file.write_table(pa.table([*map(pa.array, ends), pa.array(when)], schema=schema))
    return {}


def import_stream(folder: Path, events: int) -> Laps:
    """As `dygmamba data import` does it, with its budget."""
    from dygmamba.data.events.anomalies import find_anomalies
    from dygmamba.data.readers import ReadOptions, read_dataset
    from dygmamba.data.storage.library import save_dataset_version

    watch = LapTimer()
    options = ReadOptions(time_unit="plain", scratch=folder)
    dataset = read_dataset(folder / f"{NAME}.parquet", options)
    find_anomalies(dataset)
    save_dataset_version(dataset, folder)
    watch.lap("import")
    return watch.laps


def build_index(folder: Path, events: int) -> Laps:
    """The dataset opened and checked, the look-up made, opened once more, and asked for the first time."""
    import torch

    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.sampling.index import NeighborIndex

    watch = LapTimer()
    store = load_dataset(folder / f"{NAME}.safetensors").store
    watch.lap("open")
    NeighborIndex.build(store)
    watch.lap("index")
    found = NeighborIndex.build(store)
    watch.lap("open index")
    last = torch.arange(len(store) - PAIRS, len(store))
    node, when = torch.cat([store.src[last], store.dst[last]]), store.time[last].repeat(2)
    found.recent(node, when, NEIGHBORS)
    watch.lap("first batch")
    return watch.laps


def build_counts(folder: Path, events: int) -> Laps:
    """The fading counts of all events, and the first questions."""
    import torch

    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.sampling.counts import CountRequest
    from dygmamba.sampling.index import NeighborIndex
    from dygmamba.sampling.view import PairBatch

    store = load_dataset(folder / f"{NAME}.safetensors").store
    found = NeighborIndex.build(store)
    period = float(store.time[-1] - store.time[0])
    scales = tuple(float(scale) for scale in period * 2.0 ** -np.arange(SCALES, 0, -1))
    watch = LapTimer()
    found.counts(scales)
    watch.lap("counts")
    last = torch.arange(len(store) - PAIRS, len(store))
    asked = PairBatch.of(store.src[last], store.dst[last], store.time[last])
    found.numbers(CountRequest(scales, NEIGHBORS), asked)
    watch.lap("first counts")
    return watch.laps


def train_steps(folder: Path, events: int) -> Laps:
    """Some steps of a small DyG-Mamba at the end of the training period; the split and both look-ups come first."""
    import torch

    from dygmamba.data.events.splits import chronological_split
    from dygmamba.data.storage.dataset import load_dataset
    from dygmamba.engine.stream import Stream
    from dygmamba.lab.benchmarks.harness import build_fit, find_last_full_batch

    store = load_dataset(folder / f"{NAME}.safetensors").store
    watch = LapTimer()
    stream = Stream(store, chronological_split(store), torch.device("cpu"))
    fit = build_fit("dyg-mamba", stream, SMALL)
    epoch, last = fit.epoch(0), find_last_full_batch(fit)
    fit.executor.step(fit.batch(epoch, last))
    watch.lap("first step")
    before = _read_memory()
    for step in range(1, 1 + STEPS):
        fit.executor.step(fit.batch(epoch, last - step))
    watch.lap("steps", STEPS)
    return watch.laps | {"grown MB": ((_read_memory() - before) / 1e6, 0.0)}


STAGES: dict[str, Callable[[Path, int], Laps]] = {
    "write": write_stream,
    "import": import_stream,
    "index": build_index,
    "counts": build_counts,
    "train": train_steps,
}


class MemoryPeakThread(Thread):
    """The most that this process had for itself, pages of files aside, looked at now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._over = 0.0, Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self._over.wait(0.1):
            self.peak = max(self.peak, _read_memory("RssAnon"))

    def end(self) -> float:
        """Bytes."""
        self._over.set()
        return max(self.peak, _read_memory("RssAnon"))


def _read_memory(which: str = "VmHWM") -> float:
    """Bytes; of the peak, what this process alone had, whatever its parent has."""
    try:
        found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return 1024.0 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    own = MemoryPeakThread()
    own.start()
    laps = STAGES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps({"laps": laps, "peak": _read_memory(), "own": own.end()}) + "\n")
