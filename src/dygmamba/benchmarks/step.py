"""One training step of DyG-Mamba: look-up, forward, backward and update, against the same step by definition.

On a CPU the definition keeps more states than fit into memory, so it steps on fewer events and its time is scaled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dygmamba.benchmarks.verify import Row, device_peak, median_seconds, require, wait
from dygmamba.benchmarks.workload import (
    accumulate,
    find_stream,
    fit_of,
    last_batch,
    last_step,
    part_seconds,
    work_of,
)
from dygmamba.engine.fit import Fit
from dygmamba.engine.stream import Stream
from dygmamba.nn.ssm import Direction
from dygmamba.ops.dispatch import use_reference

MODEL = "dyg-mamba"
SETTINGS: dict[str, Any] = {"length": 32}
BATCH = 200
REFERENCE_BATCH = {"cpu": 25, "cuda": 200}
REPEATS = 7
TOLERANCE = 1e-3  # of the loss and of each weight's gradient
PRODUCT = 1024  # side of the plain matrix product

# Operations per token, channel and state, counted by hand, an exponential as one. Forward: delta A, its exponential,
# (e^x - 1) / x, delta u B, two for h, two for C h. Backward: forward's again, then about twice as many.
SCAN_FORWARD, SCAN_BACKWARD = 10, 30


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Loss and gradients checked first; then the whole step and its parts."""
    name, stream = find_stream(device)
    few = REFERENCE_BATCH[device]
    say(f"checking a step on {name}")
    check(stream, few)
    say("timing the step")
    fit = fit_of(MODEL, stream, SETTINGS, batch=BATCH)
    whole, peak = whole_step(fit, device)
    plain = fit_of(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    ours = part_seconds(plain, *last_batch(plain), REPEATS)
    say("timing the step by definition")
    slow = reference_parts(stream, few)
    case = f"step of {BATCH} on {name}, L={SETTINGS['length']}"
    note = f"reference: {few} of {BATCH} events, scaled" if few < BATCH else None
    more = arithmetic(fit, whole) if device == "cpu" else {}
    rows = [Row.of(case, whole, sum(slow.values()), peak, note=note, **more)]
    return rows + [Row.of(f"  {part}", ours[part], slow[part]) for part in ours]


def check(stream: Stream, few: int) -> None:
    """Require a step as training issues it to have the loss and gradients of the batch by definition."""
    loop = {"batch": BATCH, "precision": "float32", "graphs": False}
    settings = SETTINGS | {"dropout": 0.0}  # whose draws depend on how a batch is cut
    fast, exact = (fit_of(MODEL, stream, settings, **loop) for _ in range(2))
    loss = float(last_step(fast)())
    with use_reference():
        truth = accumulate(exact, *last_batch(exact), 2 * few)
    require(abs(loss - truth) <= TOLERANCE * abs(truth), f"the loss is the definition's to {TOLERANCE:g}")
    weights = zip(fast.scorer.parameters(), exact.scorer.parameters(), strict=True)
    pairs = [(_gradient(p), _gradient(q)) for p, q in weights]
    # a gradient that cancels to nothing is all error: it is compared with the largest one
    floor = TOLERANCE * max(float(q.norm()) for _, q in pairs)
    worst = max(float((p - q).norm()) / max(float(q.norm()), floor) for p, q in pairs)
    require(worst <= TOLERANCE, f"every gradient is the definition's to {TOLERANCE:g}")


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def whole_step(fit: Fit, device: str) -> tuple[float, float]:
    """Median time of a step as training issues it, and the peak of its extra memory."""
    step = last_step(fit)
    with device_peak(device) as peak:  # of the first: a replayed graph asks the allocator for nothing
        step()
    return median_seconds(step, REPEATS), peak[0]


def reference_parts(stream: Stream, few: int, repeats: int = 1) -> dict[str, float]:
    """The parts of a step by definition; forward and backward of `few` events, scaled to the batch."""
    fit = fit_of(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    events, others = last_batch(fit)

    def find() -> None:
        work_of(fit).view(events, others)
        wait(stream.device.type)

    with use_reference():
        parts = part_seconds(fit, *last_batch(fit, few), repeats)
        parts["look-up"] = median_seconds(find, REPEATS)
    return parts | {part: parts[part] * BATCH / few for part in ("forward", "backward")}


def arithmetic(fit: Fit, seconds: float) -> dict[str, float]:
    """Operations per second of a step, and their share of what a plain matrix product reaches here and now."""
    rate = flops(fit) / seconds
    a, b = torch.rand(2, PRODUCT, PRODUCT)
    product = 2 * PRODUCT**3 / median_seconds(lambda: a @ b, REPEATS)
    return {"gflops": rate / 1e9, "bound_share": rate / product}


def flops(fit: Fit) -> float:
    """Matrix products as torch counts them, padding included, and the scans of the real tokens."""
    view = work_of(fit).view(*last_batch(fit))
    rows = torch.cat([view.pairs.src_row, view.pairs.dst_row])
    read = view.neighbors[0][0].length[rows] + 1  # and the query node
    states = sum(part.log_A.numel() for part in fit.scorer.modules() if isinstance(part, Direction))
    scans = int(read.sum()) * states * (SCAN_FORWARD + SCAN_BACKWARD)
    with FlopCounterMode(display=False) as counter:
        last_step(fit)()
    return counter.get_total_flops() + scans
