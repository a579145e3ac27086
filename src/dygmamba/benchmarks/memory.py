"""Peak memory: of the scan beside its definition, which keeps every state, and of whole training steps.

On a CPU it is the process's resident size, sampled; small cases are blurred by what the allocator keeps.
"""

from collections.abc import Callable
from dataclasses import replace

from dygmamba.benchmarks import scan
from dygmamba.benchmarks.anchors import ANCHOR_CHANNELS, ANCHOR_STATES, hold_on
from dygmamba.benchmarks.verify import Row, device_peak, median_seconds
from dygmamba.benchmarks.workload import find_stream, fit_of, last_step, require_same_scores
from dygmamba.engine.stream import Stream
from dygmamba.ops.scan import reference, span_scan

SIZES = {  # sequences and steps; the definition needs about 28 times 16 states of each token and channel
    "cpu": ((8, 64), (16, 128), (32, 128)),
    "cuda": ((64, 64), (64, 256), (64, 512)),
}
MODEL = "dyg-mamba"
LENGTHS = (32, 256, 1024)
BATCH = {"cpu": 8, "cuda": 200}
PAIRS = 200


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Values and gradients of the scan and scores of the model checked; then peaks."""
    scan.check(device)
    name, stream = find_stream(device)
    say(f"checking {MODEL} on {name}")
    require_same_scores(MODEL, stream, {"length": LENGTHS[0]}, PAIRS)
    rows = []
    for q, length in SIZES[device]:
        say(f"scanning {q} sequences of {length} steps")
        rows.append(one_scan(q, length, device))
    rows += scan.anchored(say) if hold_on(device) else []
    steps: list[Row] = []
    for length in LENGTHS:
        say(f"training at L={length}")
        row = one_step(name, stream, length)
        grown = bool(steps) and steps[-1].peak_mb > 0
        steps.append(replace(row, growth_mb=row.peak_mb / steps[-1].peak_mb) if grown else row)
    return rows + steps


def one_scan(q: int, length: int, device: str) -> Row:
    """Forward and backward of one layer's scan, fused and by definition."""
    x = scan.inputs(q, length, ANCHOR_CHANNELS, ANCHOR_STATES, device)

    def measured(one: scan.Scan) -> tuple[float, float]:
        with device_peak(device) as peak:
            seconds = median_seconds(lambda: scan.both_ways(one, x), repeats=1, warmup=0)
        return seconds, peak[0]

    scan.both_ways(span_scan, x)  # compiled before it is measured
    (seconds, ours), (slow, theirs) = measured(span_scan), measured(reference.span_scan)
    case = f"scan {q}x{length}x{ANCHOR_CHANNELS}x{ANCHOR_STATES}"
    return Row.of(case, seconds, slow, ours, reference_mb=theirs)


def one_step(name: str, stream: Stream, length: int) -> Row:
    """One training step, issued call by call."""
    device = stream.device.type
    batch = BATCH[device]
    step = last_step(fit_of(MODEL, stream, {"length": length}, batch=batch, graphs=False))
    step()
    with device_peak(device) as peak:
        seconds = median_seconds(step, repeats=1, warmup=0)
    return Row.of(f"step of {batch} on {name}, L={length}", seconds, peak_mb=peak[0])
