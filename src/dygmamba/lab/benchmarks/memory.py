"""Peak memory of the fused scan and of its reference, which stores every state, and of whole training steps.

On a CPU it is the sampled resident memory of the process. Small cases are inexact there, because the allocator reuses
memory.
"""

from dataclasses import replace

from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks import scan
from dygmamba.lab.benchmarks.harness import (
    ANCHOR_CHANNELS,
    ANCHOR_STATES,
    BenchmarkRow,
    Log,
    anchors_apply,
    build_trainer,
    ignore_message,
    make_last_step,
    measure_median_seconds,
    open_benchmark_stream,
    require_same_scores,
    track_device_peak,
)
from dygmamba.ops.scan import reference, span_scan

# (sequences, length); per token and channel the reference stores about 28 times as much as the 16 states take
SIZES = {
    "cpu": ((8, 64), (16, 128), (32, 128)),
    "cuda": ((64, 64), (64, 256), (64, 512)),
}
MODEL = "dyg-mamba"
LENGTHS = (32, 256, 1024)
BATCH = {"cpu": 8, "cuda": 200}
PAIRS = 200


def run(device: str, log: Log = ignore_message) -> list[BenchmarkRow]:
    """Check the scan and the scores of the model, then measure peaks."""
    scan.check_scan(device)
    name, stream = open_benchmark_stream(device)
    log(f"checking {MODEL} on {name}")
    require_same_scores(MODEL, stream, {"length": LENGTHS[0]}, PAIRS)
    rows = []
    for q, length in SIZES[device]:
        log(f"scanning {q} sequences of {length} steps")
        rows.append(measure_scan(q, length, device))
    rows += scan.measure_anchor_shapes(log) if anchors_apply(device) else []
    steps: list[BenchmarkRow] = []
    for length in LENGTHS:
        log(f"training at L={length}")
        row = measure_step(name, stream, length)
        has_previous = bool(steps) and steps[-1].peak_mb > 0
        steps.append(replace(row, growth_mb=row.peak_mb / steps[-1].peak_mb) if has_previous else row)
    return rows + steps


def measure_scan(q: int, length: int, device: str) -> BenchmarkRow:
    """Measure forward and backward of one layer's scan, fused and by the reference implementation."""
    x = scan.make_inputs(q, length, ANCHOR_CHANNELS, ANCHOR_STATES, device)

    def measure(function: scan.Scan) -> tuple[float, float]:
        with track_device_peak(device) as peak:
            seconds = measure_median_seconds(
                lambda: scan.run_forward_backward(function, x), repeats=1, warmup=0
            )
        return seconds, peak[0]

    scan.run_forward_backward(span_scan, x)  # compile before measuring
    (seconds, ours), (slow, theirs) = measure(span_scan), measure(reference.span_scan)
    case = f"scan {q}x{length}x{ANCHOR_CHANNELS}x{ANCHOR_STATES}"
    return BenchmarkRow.from_times(case, seconds, slow, ours, reference_mb=theirs)


def measure_step(name: str, stream: Stream, length: int) -> BenchmarkRow:
    """Measure a training step without CUDA graphs."""
    device = stream.device.type
    batch = BATCH[device]
    step = make_last_step(build_trainer(MODEL, stream, {"length": length}, batch=batch, graphs=False))
    step()
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(step, repeats=1, warmup=0)
    return BenchmarkRow.from_times(f"step of {batch} on {name}, L={length}", seconds, peak_mb=peak[0])
