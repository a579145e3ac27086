"""Where the time of a training step goes on a GPU: kernels by time, and the bandwidth that each achieves.

Times are those of replayed steps, from torch's profiler. Bytes are read and written in the GPU's memory by the same
step without CUDA graphs, from NVIDIA's Nsight Compute if `ncu` is installed. A kernel near the bandwidth of a copy is
bound by memory; one far below it by arithmetic or by latency.
"""

import csv
import io
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import BenchmarkRow, build_trainer, find_last_full_batch, log, open_benchmark_stream
from dygmamba.engine.fit import Trainer

MODEL = "dyg-mamba"
STEPS = 20  # replayed steps whose kernels are timed
SHOWN = 15  # kernels per case
METRICS = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")


@dataclass(frozen=True, slots=True)
class StepCase:
    """A training step: sequence length and events."""

    length: int
    batch: int

    def __str__(self) -> str:
        return f"L={self.length}, batch {self.batch}"


CASES = (StepCase(32, 200), StepCase(32, 20), StepCase(272, 200), StepCase(272, 20), StepCase(1024, 200))


def run(device: str) -> list[BenchmarkRow]:
    """Return a row for each case and, behind it, for each of its longest kernels."""
    if device != "cuda":
        return []
    rows = []
    for case in CASES:
        log(f"profiling {case}")
        rows += measure_case(case)
    return rows


def measure_case(case: StepCase) -> list[BenchmarkRow]:
    """Time the kernels of a replayed step, and add their bandwidth."""
    trainer = make_trainer(case, graphs=True)
    replay_steps(trainer, 3)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        replay_steps(trainer, STEPS)
    seconds, count = defaultdict[str, float](float), Counter[str]()
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            name = shorten_name(event.name)
            seconds[name] += event.device_time_total / 1e6 / STEPS
            count[name] += 1
    bandwidth = measure_bandwidth(case)
    total = sum(seconds.values())
    rows = [BenchmarkRow.from_times(f"{case}: {sum(count.values()) / STEPS:.0f} kernels", total)]
    for name, time in sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]:
        case_name = f"  {name}, {count[name] / STEPS:g} times"
        rows.append(BenchmarkRow.from_times(case_name, time, gigabytes_per_second=bandwidth.get(name)))
    return rows


def make_trainer(case: StepCase, graphs: bool) -> Trainer:
    _, stream = open_benchmark_stream("cuda")
    return build_trainer(MODEL, stream, {"length": case.length}, batch=case.batch, graphs=graphs)


def replay_steps(trainer: Trainer, steps: int) -> None:
    """Make steps at equal distances in an epoch."""
    epoch, last = trainer.epoch(0), find_last_full_batch(trainer)
    for number in range(steps):
        trainer.executor.step(trainer.batch(epoch, number * last // max(steps - 1, 1)))
    torch.cuda.synchronize()


def shorten_name(name: str) -> str:
    """Return the name of a kernel without arguments and most template parameters."""
    name = re.sub(r"\(anonymous namespace\)::|at::native::|cutlass::|^void |\(.*", "", name)
    return re.sub(r"_execute_.*|<.*", "", name)[:60]


def measure_bandwidth(case: StepCase) -> dict[str, float]:
    """Return the GB per second of each kernel of a step; empty if `ncu` is not installed or may not count."""
    program = shutil.which("ncu")
    if program is None:
        log("ncu is not installed; bandwidth is not measured")
        return {}
    command = [
        program,
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--csv",
        "--print-units",
        "base",
    ]
    command += ["--metrics", ",".join(METRICS), sys.executable, "-m", "benchmarks.kernels"]
    done = subprocess.run(
        [*command, str(case.length), str(case.batch)], capture_output=True, text=True, check=False
    )
    return read_bandwidth(done.stdout)


def read_bandwidth(text: str) -> dict[str, float]:
    """Return bytes over time, in GB per second, of each kernel in the output of `ncu --csv`."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    sums: dict[str, defaultdict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        value = row.get("Metric Value", "").replace(",", "")
        if value.replace(".", "", 1).isdigit():
            sums.setdefault(shorten_name(row["Kernel Name"]), defaultdict(float))[row["Metric Name"]] += (
                float(value)
            )
    time, *moved = METRICS
    return {
        name: sum(total[metric] for metric in moved) / total[time]  # bytes per nanosecond
        for name, total in sums.items()
        if total[time]
    }


def profile_step(length: int, batch: int) -> None:
    """Make one step whose kernels `ncu` counts."""
    trainer = make_trainer(StepCase(length, batch), graphs=False)
    replay_steps(trainer, 2)
    torch.cuda.profiler.start()
    replay_steps(trainer, 1)
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    profile_step(*map(int, sys.argv[1:]))
