"""One training step of DyG-Mamba: look-up, forward, backward and update, against the same step by definition.

On a CPU the definition keeps more states than fit into memory, so it steps on fewer events and its time is scaled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dygmamba.engine.fit import Trainer
from dygmamba.engine.stream import Stream
from dygmamba.lab.benchmarks.harness import (
    BenchmarkRow,
    accumulate_gradients,
    build_fit,
    get_step_work,
    make_last_step,
    measure_median_seconds,
    measure_step_parts,
    open_benchmark_stream,
    require,
    select_last_batch,
    synchronize,
    track_device_peak,
)
from dygmamba.nn.ssm import Direction
from dygmamba.ops.dispatch import use_reference

MODEL = "dyg-mamba"
SETTINGS: dict[str, Any] = {"length": 32}
BATCH = 200
REFERENCE_BATCH = {"cpu": 25, "cuda": 200}
REPEATS = 7
TOLERANCE = 1e-3  # of the loss and of each weight's gradient
MATMUL_SIDE = 1024  # side of the plain matrix product

# Operations per token, channel and state, counted by hand, an exponential as one. Forward: delta A, its exponential,
# (e^x - 1) / x, delta u B, two for h, two for C h. Backward: forward's again, then about twice as many.
SCAN_FORWARD, SCAN_BACKWARD = 10, 30


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """Loss and gradients checked first; then the whole step and its parts."""
    name, stream = open_benchmark_stream(device)
    few = REFERENCE_BATCH[device]
    say(f"checking a step on {name}")
    check_step(stream, few)
    say("timing the step")
    fit = build_fit(MODEL, stream, SETTINGS, batch=BATCH)
    whole, peak = measure_step(fit, device)
    plain = build_fit(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    ours = measure_step_parts(plain, *select_last_batch(plain), REPEATS)
    say("timing the step by definition")
    slow = measure_reference_parts(stream, few)
    case = f"step of {BATCH} on {name}, L={SETTINGS['length']}"
    note = f"reference: {few} of {BATCH} events, scaled" if few < BATCH else None
    more = measure_arithmetic(fit, whole) if device == "cpu" else {}
    rows = [BenchmarkRow.of(case, whole, sum(slow.values()), peak, note=note, **more)]
    return rows + [BenchmarkRow.of(f"  {part}", ours[part], slow[part]) for part in ours]


def check_step(stream: Stream, few: int) -> None:
    """Require a step as training issues it to have the loss and gradients of the batch by definition."""
    loop = {"batch": BATCH, "precision": "float32", "graphs": False}
    settings = SETTINGS | {"dropout": 0.0}  # whose draws depend on how a batch is cut
    fast, exact = (build_fit(MODEL, stream, settings, **loop) for _ in range(2))
    loss = float(make_last_step(fast)())
    with use_reference():
        truth = accumulate_gradients(exact, *select_last_batch(exact), 2 * few)
    require(abs(loss - truth) <= TOLERANCE * abs(truth), f"the loss is the definition's to {TOLERANCE:g}")
    weights = zip(fast.scorer.parameters(), exact.scorer.parameters(), strict=True)
    pairs = [(_get_gradient(p), _get_gradient(q)) for p, q in weights]
    # a gradient that cancels to nothing is all error: it is compared with the largest one
    floor = TOLERANCE * max(float(q.norm()) for _, q in pairs)
    worst = max(float((p - q).norm()) / max(float(q.norm()), floor) for p, q in pairs)
    require(worst <= TOLERANCE, f"every gradient is the definition's to {TOLERANCE:g}")


def _get_gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def measure_step(fit: Trainer, device: str) -> tuple[float, float]:
    """Median time of a step as training issues it, and the peak of its extra memory."""
    step = make_last_step(fit)
    with track_device_peak(device) as peak:  # of the first: a replayed graph asks the allocator for nothing
        step()
    return measure_median_seconds(step, REPEATS), peak[0]


def measure_reference_parts(stream: Stream, few: int, repeats: int = 1) -> dict[str, float]:
    """The parts of a step by definition; forward and backward of `few` events, scaled to the batch."""
    fit = build_fit(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    events, others = select_last_batch(fit)

    def find() -> None:
        get_step_work(fit).view(events, others)
        synchronize(stream.device.type)

    with use_reference():
        parts = measure_step_parts(fit, *select_last_batch(fit, few), repeats)
        parts["look-up"] = measure_median_seconds(find, REPEATS)
    return parts | {part: parts[part] * BATCH / few for part in ("forward", "backward")}


def measure_arithmetic(fit: Trainer, seconds: float) -> dict[str, float]:
    """Operations per second of a step, and their share of what a plain matrix product reaches here and now."""
    rate = count_flops(fit) / seconds
    a, b = torch.rand(2, MATMUL_SIDE, MATMUL_SIDE)
    product = 2 * MATMUL_SIDE**3 / measure_median_seconds(lambda: a @ b, REPEATS)
    return {"gflops": rate / 1e9, "bound_share": rate / product}


def count_flops(fit: Trainer) -> float:
    """Matrix products as torch counts them, padding included, and the scans of the real tokens."""
    view = get_step_work(fit).view(*select_last_batch(fit))
    rows = torch.cat([view.pairs.src_row, view.pairs.dst_row])
    read = view.neighbors[0][0].length[rows] + 1  # and the query node
    states = sum(part.log_A.numel() for part in fit.scorer.modules() if isinstance(part, Direction))
    scans = int(read.sum()) * states * (SCAN_FORWARD + SCAN_BACKWARD)
    with FlopCounterMode(display=False) as counter:
        make_last_step(fit)()
    return counter.get_total_flops() + scans
