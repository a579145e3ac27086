"""Peak memory: of the scan beside its definition, which keeps every state, and of whole training steps.

On a CPU it is the process's resident size, sampled; small cases are blurred by what the allocator keeps.
"""

from collections.abc import Callable
from dataclasses import replace

from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks import scan
from dygmamba.lab.benchmarks.harness import (
    ANCHOR_CHANNELS,
    ANCHOR_STATES,
    BenchmarkRow,
    anchors_apply,
    build_fit,
    make_last_step,
    measure_median_seconds,
    open_benchmark_stream,
    require_same_scores,
    track_device_peak,
)
from dygmamba.ops.scan import reference, span_scan

SIZES = {  # sequences and steps; the definition needs about 28 times 16 states of each token and channel
    "cpu": ((8, 64), (16, 128), (32, 128)),
    "cuda": ((64, 64), (64, 256), (64, 512)),
}
MODEL = "dyg-mamba"
LENGTHS = (32, 256, 1024)
BATCH = {"cpu": 8, "cuda": 200}
PAIRS = 200


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """Values and gradients of the scan and scores of the model checked; then peaks."""
    scan.check_scan(device)
    name, stream = open_benchmark_stream(device)
    say(f"checking {MODEL} on {name}")
    require_same_scores(MODEL, stream, {"length": LENGTHS[0]}, PAIRS)
    rows = []
    for q, length in SIZES[device]:
        say(f"scanning {q} sequences of {length} steps")
        rows.append(measure_scan(q, length, device))
    rows += scan.measure_anchor_shapes(say) if anchors_apply(device) else []
    steps: list[BenchmarkRow] = []
    for length in LENGTHS:
        say(f"training at L={length}")
        row = measure_step(name, stream, length)
        grown = bool(steps) and steps[-1].peak_mb > 0
        steps.append(replace(row, growth_mb=row.peak_mb / steps[-1].peak_mb) if grown else row)
    return rows + steps


def measure_scan(q: int, length: int, device: str) -> BenchmarkRow:
    """Forward and backward of one layer's scan, fused and by definition."""
    x = scan.make_inputs(q, length, ANCHOR_CHANNELS, ANCHOR_STATES, device)

    def measured(one: scan.Scan) -> tuple[float, float]:
        with track_device_peak(device) as peak:
            seconds = measure_median_seconds(lambda: scan.run_forward_backward(one, x), repeats=1, warmup=0)
        return seconds, peak[0]

    scan.run_forward_backward(span_scan, x)  # compiled before it is measured
    (seconds, ours), (slow, theirs) = measured(span_scan), measured(reference.span_scan)
    case = f"scan {q}x{length}x{ANCHOR_CHANNELS}x{ANCHOR_STATES}"
    return BenchmarkRow.of(case, seconds, slow, ours, reference_mb=theirs)


def measure_step(name: str, stream: Stream, length: int) -> BenchmarkRow:
    """One training step, issued call by call."""
    device = stream.device.type
    batch = BATCH[device]
    step = make_last_step(build_fit(MODEL, stream, {"length": length}, batch=batch, graphs=False))
    step()
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(step, repeats=1, warmup=0)
    return BenchmarkRow.of(f"step of {batch} on {name}, L={length}", seconds, peak_mb=peak[0])
