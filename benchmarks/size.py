"""Time and memory of import, index, counts and training against the size of a stream.

Every stage runs in a process of its own (`size_stages`), with the default memory budget. Before anything is timed, a
small stream is imported in memory and over the disk, and both must give the same dataset.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import size_stages
from benchmarks.harness import BenchmarkRow, log, require
from dygmamba.data.readers import ReadOptions, read_dataset

SIZES = (1_000_000, 4_000_000, 16_000_000)
CHECKED_EVENTS = 20_000  # size of the stream that is imported both ways
MAX_COUNTED_EVENTS = 30_000_000  # counts need 430 bytes of disk per event
MAX_TRAINED_EVENTS = 30_000_000  # splitting a longer stream needs more than the memory budget
LAPS = (
    "import",
    "open",
    "index",
    "open index",
    "first batch",
    "counts",
    "first counts",
    "first step",
    "steps",
)
PER_EVENT = ("import", "index", "counts")  # stages whose time grows with the stream


def run(device: str, sizes: Sequence[int] = SIZES, folder: Path | None = None) -> list[BenchmarkRow]:
    """Measure every stage at every size; the files of a size are removed before those of the next are written."""
    with TemporaryDirectory(dir=folder) as place:
        _check_import(Path(place))
    rows: list[BenchmarkRow] = []
    previous: dict[str, BenchmarkRow] = {}
    for events in sizes:
        with TemporaryDirectory(dir=folder) as place:
            found = _run_stages(Path(place), events)
        rows += [row.compare_growth(previous.get(lap)) for lap, row in found.items()]
        previous = found
    return rows


def _check_import(folder: Path) -> None:
    """Require the same events from an import in memory and from one with a tiny memory budget."""
    size_stages.write_stream(folder, CHECKED_EVENTS)
    path, options = folder / f"{size_stages.NAME}.parquet", ReadOptions(time_unit="plain")
    memory, disk = (
        read_dataset(path, replace(options, memory=budget, scratch=folder)).content
        for budget in (10**9, 10**5)
    )
    require(
        memory == disk, f"importing {CHECKED_EVENTS:,} events over the disk equals importing them in memory"
    )


def _run_stages(folder: Path, events: int) -> dict[str, BenchmarkRow]:
    """Return a row for each lap of each stage."""
    rows = {}
    for stage in size_stages.STAGES:
        if (stage == "counts" and events > MAX_COUNTED_EVENTS) or (
            stage == "train" and events > MAX_TRAINED_EVENTS
        ):
            continue
        log(f"{stage}, {events:,} events")
        command = [sys.executable, "-m", size_stages.__name__, stage, str(folder), str(events)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        output = json.loads(process.stdout.splitlines()[-1])
        rows |= {lap: _build_row(lap, events, output) for lap in LAPS if lap in output["laps"]}
    return rows


def _build_row(lap: str, events: int, output: dict[str, Any]) -> BenchmarkRow:
    seconds, cpu_seconds = output["laps"][lap]
    note = f"{cpu_seconds:,.3g} s of CPU time, {output['own'] / 1e9:.2f} GB without pages of files"
    if lap in PER_EVENT:
        note = f"{events / seconds:,.0f} events per second, {note}"
    if lap == "steps":
        note += f", {output['laps']['grown MB'][0]:,.0f} MB more after {size_stages.STEPS} steps"
    return BenchmarkRow.from_times(
        f"{lap}, {events:,} events", seconds, peak_mb=output["peak"] / 1e6, note=note
    )
