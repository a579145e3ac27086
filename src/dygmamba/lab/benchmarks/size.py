"""What a stream costs against its size: written in no order, imported, indexed, counted, trained on; time and memory.

Every stage is a process of its own (`size_stages`), under the budgets that users have. Before anything is timed, a
small stream goes both ways, through memory and over the disk, and has to be the same.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.lab.benchmarks import size_stages
from dygmamba.lab.benchmarks.harness import BenchmarkRow, require
from dygmamba.lab.benchmarks.length import format_csv
from dygmamba.report.charts import render_svg_file
from dygmamba.report.document import LineChart

SIZES = (1_000_000, 4_000_000, 16_000_000)
CHECKED_EVENTS = 20_000  # events that go both ways
MAX_COUNTED_EVENTS = (
    30_000_000  # counts of more events take more of the disk than most have: 430 bytes an event
)
MAX_TRAINED_EVENTS = 30_000_000  # the split of more is not made in little memory
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
PER_EVENT = ("import", "index", "counts")

Say = Callable[[str], Any]


def run(
    device: str, say: Say, sizes: Sequence[int] = SIZES, folder: Path | None = None
) -> list[BenchmarkRow]:
    """A row per size and lap; files of a size are removed before those of the next are made."""
    with TemporaryDirectory(dir=folder) as place:
        _check_import(Path(place))
    rows: list[BenchmarkRow] = []
    for events in sizes:
        with TemporaryDirectory(dir=folder) as place:
            rows += _run_stages(Path(place), events, say)
    return _add_growth(rows)


def _check_import(folder: Path) -> None:
    """A few dozen rows at a time on the disk, or all at once: the same events."""
    size_stages.write_stream(folder, CHECKED_EVENTS)
    path, options = folder / f"{size_stages.NAME}.parquet", ReadOptions(time_unit="plain")
    memory, disk = (
        read_dataset(path, replace(options, memory=most, scratch=folder)).content for most in (10**9, 10**5)
    )
    require(
        memory == disk, f"{CHECKED_EVENTS:,} events imported over the disk are those imported through memory"
    )


def _run_stages(folder: Path, events: int, say: Say) -> list[BenchmarkRow]:
    rows = []
    for stage in size_stages.STAGES:
        if (stage == "counts" and events > MAX_COUNTED_EVENTS) or (
            stage == "train" and events > MAX_TRAINED_EVENTS
        ):
            continue
        say(f"{stage}, {events:,} events")
        command = [sys.executable, "-m", size_stages.__name__, stage, str(folder), str(events)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += build_rows(events, json.loads(done.stdout.splitlines()[-1]))
    return rows


def build_rows(events: int, found: dict[str, Any]) -> list[BenchmarkRow]:
    """What one stage said, a row for each of its laps."""
    rows = []
    for lap in LAPS:
        if lap in found["laps"]:
            seconds, own = found["laps"][lap]
            note = f"{own:,.3g} s of the processor, {found['own'] / 1e9:.2f} GB without pages of files"
            if lap == "steps":
                note += f", {found['laps']['grown MB'][0]:,.0f} MB more after {size_stages.STEPS} steps"
            rows.append(
                BenchmarkRow.of(f"{lap}, {events:,} events", seconds, peak_mb=found["peak"] / 1e6, note=note)
            )
    return rows


def _add_growth(rows: list[BenchmarkRow]) -> list[BenchmarkRow]:
    """The same rows with each lap's growth against the size before it."""
    last: dict[str, BenchmarkRow] = {}
    found = []
    for row in rows:
        lap = row.case.partition(",")[0]
        before = last.get(lap)
        if before is not None and before.seconds and row.seconds:
            row = replace(row, growth=row.seconds / before.seconds, growth_mb=row.peak_mb / before.peak_mb)
        last[lap] = row
        found.append(row)
    return found


def write(rows: list[BenchmarkRow], folder: Path) -> list[Path]:
    """The table as CSV and markdown, and the picture as SVG."""
    make_folder(folder)
    texts = {"csv": format_csv(rows), "md": format_markdown(rows), "svg": render_svg_file(build_charts(rows))}
    for kind, text in texts.items():
        write_text(folder / f"size.{kind}", text)
    return [folder / f"size.{kind}" for kind in texts]


def format_markdown(rows: list[BenchmarkRow]) -> str:
    """One line per lap and size."""
    heads = (
        "lap",
        "events",
        "seconds",
        "of the processor",
        "events a second",
        "peak GB",
        "without pages of files",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        lap, _, size = row.case.partition(", ")
        events, seconds = float(size.removesuffix(" events").replace(",", "")), row.seconds or 0.0
        own, _, rest = (row.note or "").partition(" s of the processor, ")
        pace = f"{events / seconds:,.0f}" if lap in PER_EVENT and seconds else ""
        cells = [
            lap,
            f"{events:,.0f}",
            f"{seconds:,.3g}",
            own,
            pace,
            f"{row.peak_mb / 1e3:.2f}",
            rest.partition(" ")[0],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def build_charts(rows: list[BenchmarkRow]) -> list[LineChart]:
    """Time and memory against size, a line per lap."""
    times: dict[str, list[tuple[float, float]]] = {}
    peaks: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lap, _, size = row.case.partition(", ")
        if lap not in PER_EVENT:
            continue
        events = float(size.removesuffix(" events").replace(",", ""))
        times.setdefault(lap, []).append((events, row.seconds or 0.0))
        peaks.setdefault(lap, []).append((events, row.peak_mb / 1e3))
    named = {"time": ("s", times), "peak of resident memory": ("GB", peaks)}
    return [
        LineChart(title, "events", unit, lines, x_kind="log", y_kind="log")
        for title, (unit, lines) in named.items()
    ]
