"""One training step of DyG-Mamba: look-up, forward, backward and update, against the same step by definition.

On a CPU the definition keeps more states than fit into memory, so it steps on fewer events and its time is scaled.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dygmamba.benchmarks.definitions import definitions
from dygmamba.benchmarks.verify import Row, device_peak, median_seconds, require, wait
from dygmamba.benchmarks.workload import Workload, accumulate, last_batch, last_step, look_up, part_seconds
from dygmamba.engine.training import Training
from dygmamba.engine.work import TrainingData
from dygmamba.nn.ssm import Path

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
    work = Workload.find()
    data = work.on(device)
    few = REFERENCE_BATCH[device]
    say(f"checking a step on {work.name}")
    check(work, data, few)
    say("timing the step")
    training = work.training(MODEL, data, SETTINGS, batch=BATCH)
    whole, peak = whole_step(training, device)
    plain = work.training(MODEL, data, SETTINGS, batch=BATCH, graphs=False)
    ours = part_seconds(plain, *last_batch(plain), REPEATS)
    say("timing the step by definition")
    slow = reference_parts(work, data, few)
    case = f"step of {BATCH} on {work.name}, L={SETTINGS['length']}"
    note = f"reference: {few} of {BATCH} events, scaled" if few < BATCH else None
    more = arithmetic(training, whole) if device == "cpu" else {}
    rows = [Row.of(case, whole, sum(slow.values()), peak, note=note, **more)]
    return rows + [Row.of(f"  {part}", ours[part], slow[part]) for part in ours]


def check(work: Workload, data: TrainingData, few: int) -> None:
    """Require a step as training issues it to have the loss and gradients of the batch by definition."""
    loop = {"batch": BATCH, "precision": "float32", "graphs": False}
    settings = SETTINGS | {"dropout": 0.0}  # whose draws depend on how a batch is cut
    fast, exact = (work.training(MODEL, data, settings, **loop) for _ in range(2))
    loss = float(last_step(fast)())
    with definitions():
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


def whole_step(training: Training, device: str) -> tuple[float, float]:
    """Median time of a step as training issues it, and the peak of its extra memory."""
    step = last_step(training)
    with device_peak(device) as peak:  # of the first: a replayed graph asks the allocator for nothing
        step()
    return median_seconds(step, REPEATS), peak[0]


def reference_parts(work: Workload, data: TrainingData, few: int, repeats: int = 1) -> dict[str, float]:
    """The parts of a step by definition; forward and backward of `few` events, scaled to the batch."""
    training = work.training(MODEL, data, SETTINGS, batch=BATCH, graphs=False)
    device = data.store.time.device.type
    events, negative = last_batch(training)

    def find() -> None:
        look_up(training, events, negative)
        wait(device)

    with definitions():
        parts = part_seconds(training, *last_batch(training, few), repeats)
        parts["look-up"] = median_seconds(find, REPEATS)
    return parts | {part: parts[part] * BATCH / few for part in ("forward", "backward")}


def arithmetic(training: Training, seconds: float) -> dict[str, float]:
    """Operations per second of a step, and their share of what a plain matrix product reaches here and now."""
    rate = flops(training) / seconds
    a, b = torch.rand(2, PRODUCT, PRODUCT)
    product = 2 * PRODUCT**3 / median_seconds(lambda: a @ b, REPEATS)
    return {"gflops": rate / 1e9, "bound_share": rate / product}


def flops(training: Training) -> float:
    """Matrix products as torch counts them, padding included, and the scans of the real tokens."""
    pairs, view = look_up(training, *last_batch(training))
    read = view.neighbors[0][0].length[torch.cat([pairs.src_row, pairs.dst_row])] + 1  # and the query node
    states = sum(part.log_A.numel() for part in training.scorer.modules() if isinstance(part, Path))
    scans = int(read.sum()) * states * (SCAN_FORWARD + SCAN_BACKWARD)
    with FlopCounterMode(display=False) as counter:
        last_step(training)()
    return counter.get_total_flops() + scans
