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

from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.lab.benchmarks import size_stages
from dygmamba.lab.benchmarks.harness import BenchmarkRow, Log, require, write_tables
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart

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
CPU_TIME = " s of CPU time, "  # part of a row's note; format_markdown reads the CPU time from there


def run(
    device: str, log: Log, sizes: Sequence[int] = SIZES, folder: Path | None = None
) -> list[BenchmarkRow]:
    """Measure every stage at every size; the files of a size are removed before those of the next are written."""
    with TemporaryDirectory(dir=folder) as place:
        _check_import(Path(place))
    rows: list[BenchmarkRow] = []
    for events in sizes:
        with TemporaryDirectory(dir=folder) as place:
            rows += _run_stages(Path(place), events, log)
    return _add_growth(rows)


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


def _run_stages(folder: Path, events: int, log: Log) -> list[BenchmarkRow]:
    rows = []
    for stage in size_stages.STAGES:
        if (stage == "counts" and events > MAX_COUNTED_EVENTS) or (
            stage == "train" and events > MAX_TRAINED_EVENTS
        ):
            continue
        log(f"{stage}, {events:,} events")
        command = [sys.executable, "-m", size_stages.__name__, stage, str(folder), str(events)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += build_rows(events, json.loads(process.stdout.splitlines()[-1]))
    return rows


def build_rows(events: int, output: dict[str, Any]) -> list[BenchmarkRow]:
    """Return a row for each lap in the output of a stage."""
    rows = []
    for lap in LAPS:
        if lap in output["laps"]:
            seconds, cpu_seconds = output["laps"][lap]
            note = f"{cpu_seconds:,.3g}{CPU_TIME}{output['own'] / 1e9:.2f} GB without pages of files"
            if lap == "steps":
                note += f", {output['laps']['grown MB'][0]:,.0f} MB more after {size_stages.STEPS} steps"
            rows.append(
                BenchmarkRow.from_times(
                    f"{lap}, {events:,} events", seconds, peak_mb=output["peak"] / 1e6, note=note
                )
            )
    return rows


def _add_growth(rows: list[BenchmarkRow]) -> list[BenchmarkRow]:
    """Add to each row its growth over the previous size."""
    previous: dict[str, BenchmarkRow] = {}
    grown = []
    for row in rows:
        lap = row.case.partition(",")[0]
        before = previous.get(lap)
        if before is not None and before.seconds and row.seconds:
            row = replace(row, growth=row.seconds / before.seconds, growth_mb=row.peak_mb / before.peak_mb)
        previous[lap] = row
        grown.append(row)
    return grown


def write(rows: list[BenchmarkRow], folder: Path) -> list[Path]:
    """Write the table as CSV and Markdown, and the chart as SVG."""
    return write_tables(folder, "size", rows, format_markdown(rows), render_svg_file(build_charts(rows)))


def format_markdown(rows: list[BenchmarkRow]) -> str:
    """Format one line per stage and size."""
    columns = (
        "stage",
        "events",
        "seconds",
        "CPU seconds",
        "events per second",
        "peak GB",
        "without pages of files",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        lap, _, size = row.case.partition(", ")
        events, seconds = float(size.removesuffix(" events").replace(",", "")), row.seconds or 0.0
        cpu_seconds, _, rest = (row.note or "").partition(CPU_TIME)
        rate = f"{events / seconds:,.0f}" if lap in PER_EVENT and seconds else ""
        cells = [
            lap,
            f"{events:,.0f}",
            f"{seconds:,.3g}",
            cpu_seconds,
            rate,
            f"{row.peak_mb / 1e3:.2f}",
            rest.partition(" ")[0],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def build_charts(rows: list[BenchmarkRow]) -> list[LineChart]:
    """Plot time and memory against the size, one curve per stage."""
    times: dict[str, list[tuple[float, float]]] = {}
    peaks: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lap, _, size = row.case.partition(", ")
        if lap not in PER_EVENT:
            continue
        events = float(size.removesuffix(" events").replace(",", ""))
        times.setdefault(lap, []).append((events, row.seconds or 0.0))
        peaks.setdefault(lap, []).append((events, row.peak_mb / 1e3))
    charts = {"time": ("s", times), "peak of resident memory": ("GB", peaks)}
    return [
        LineChart(title, "events", unit, lines, x_kind="log", y_kind="log")
        for title, (unit, lines) in charts.items()
    ]
