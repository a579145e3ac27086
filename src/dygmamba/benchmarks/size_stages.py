"""What is done to a stream of a size, each stage a process of its own so that its memory is its own.

`python -m dygmamba.benchmarks.size_stages STAGE FOLDER EVENTS` prints one line: seconds and the peak of memory.
"""

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

NAME = "stream"
EVENTS_PER_NODE = 36  # as in tgbl-coin: 22.8 million events of 638,000 nodes
BLOCK = 1 << 20  # rows that are written at a time
PAIRS, NEIGHBORS, SCALES, STEPS = 200, 20, 8, 10
SMALL = {"length": 16, "width": 20, "blocks": 1}  # a DyG-Mamba for CPUs, as `preset small` has it

Laps = dict[str, float]


def write(folder: Path, events: int) -> Laps:
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


def import_(folder: Path, events: int) -> Laps:
    """As `dygmamba data import` does it, with its budget."""
    from dygmamba.data.checkup import check
    from dygmamba.data.formats import ReadOptions, read_dataset
    from dygmamba.data.versions import save_version

    start = time.perf_counter()
    options = ReadOptions(time_unit="plain", scratch=folder)
    dataset = read_dataset(folder / f"{NAME}.parquet", options)
    check(dataset)
    save_version(dataset, folder)
    return {"import": time.perf_counter() - start}


def index(folder: Path, events: int) -> Laps:
    """The dataset opened and checked, the look-up made, opened once more, and asked for the first time."""
    import torch

    from dygmamba.data.store import load_dataset
    from dygmamba.sampling.index import NeighborIndex

    marks = [time.perf_counter()]
    store = load_dataset(folder / f"{NAME}.safetensors").store
    marks.append(time.perf_counter())
    NeighborIndex.build(store)
    marks.append(time.perf_counter())
    found = NeighborIndex.build(store)
    marks.append(time.perf_counter())
    last = torch.arange(len(store) - PAIRS, len(store))
    node, when = torch.cat([store.src[last], store.dst[last]]), store.time[last].repeat(2)
    found.recent(node, when, NEIGHBORS)
    marks.append(time.perf_counter())
    spans = [after - before for before, after in pairwise(marks)]
    return dict(zip(("open", "index", "open index", "first batch"), spans, strict=True))


def counts(folder: Path, events: int) -> Laps:
    """The fading counts of all events, and the first questions."""
    import torch

    from dygmamba.data.store import load_dataset
    from dygmamba.sampling.counts import CountRequest
    from dygmamba.sampling.index import NeighborIndex
    from dygmamba.sampling.view import PairBatch

    store = load_dataset(folder / f"{NAME}.safetensors").store
    found = NeighborIndex.build(store)
    period = float(store.time[-1] - store.time[0])
    scales = tuple(float(scale) for scale in period * 2.0 ** -np.arange(SCALES, 0, -1))
    start = time.perf_counter()
    found.counts(scales)
    made = time.perf_counter()
    last = torch.arange(len(store) - PAIRS, len(store))
    asked = PairBatch.of(store.src[last], store.dst[last], store.time[last])
    found.numbers(CountRequest(scales, NEIGHBORS), asked)
    return {"counts": made - start, "first counts": time.perf_counter() - made}


def train(folder: Path, events: int) -> Laps:
    """Some steps of a small DyG-Mamba at the end of the training period; the split and both look-ups come first."""
    import torch

    from dygmamba.benchmarks.workload import fit_of, last_full
    from dygmamba.data.splits import chronological_split
    from dygmamba.data.store import load_dataset
    from dygmamba.engine.stream import Stream

    store = load_dataset(folder / f"{NAME}.safetensors").store
    start = time.perf_counter()
    stream = Stream(store, chronological_split(store), torch.device("cpu"))
    fit = fit_of("dyg-mamba", stream, SMALL)
    epoch, last = fit.epoch(0), last_full(fit)
    fit.executor.step(fit.batch(epoch, last))
    ready, before = time.perf_counter(), _memory()
    for step in range(STEPS):
        fit.executor.step(fit.batch(epoch, last - step))
    spent = time.perf_counter() - ready
    return {"first step": ready - start, "steps": spent / STEPS, "grown MB": (_memory() - before) / 1e6}


STAGES: dict[str, Callable[[Path, int], Laps]] = {
    "write": write,
    "import": import_,
    "index": index,
    "counts": counts,
    "train": train,
}


def _memory(which: str = "VmHWM") -> float:
    """Bytes; of the peak, what this process alone had, whatever its parent has."""
    try:
        found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return 1024.0 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    laps = STAGES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"laps": laps, "peak": _memory(), "cpu": used.ru_utime + used.ru_stime}
    sys.stdout.write(json.dumps(found) + "\n")
