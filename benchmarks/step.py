"""A training step of DyG-Mamba and its parts (look-up, forward, backward, update) against the reference.

On a CPU the reference needs more memory than there is for a whole batch, so it takes fewer events and its time is
scaled.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.harness import (
    BenchmarkRow,
    accumulate_gradients,
    build_trainer,
    get_training_context,
    log,
    make_last_step,
    measure_median_seconds,
    measure_step_parts,
    open_benchmark_stream,
    require,
    select_last_batch,
    synchronize,
    track_device_peak,
)
from dygmamba.engine.fit import Trainer
from dygmamba.engine.stream import Stream
from dygmamba.nn.ssm import Direction
from dygmamba.ops.dispatch import use_reference

MODEL = "dyg-mamba"
SETTINGS: dict[str, Any] = {"length": 32}
BATCH = 200
REFERENCE_BATCH = {"cpu": 25, "cuda": 200}
REPEATS = 7
TOLERANCE = 1e-3  # relative error of the loss and of each weight's gradient
MATMUL_SIDE = 1024  # of the matrix product that the step is compared with

# Operations per token, channel and state, counted by hand, an exponential as one. Forward: delta A, its exponential,
# (e^x - 1) / x, delta u B, two for h, two for C h. Backward: the forward pass again, and about twice as many.
SCAN_FORWARD, SCAN_BACKWARD = 10, 30


def run(device: str) -> list[BenchmarkRow]:
    """Check loss and gradients, then measure the whole step and its parts."""
    name, stream = open_benchmark_stream(device)
    few = REFERENCE_BATCH[device]
    log(f"checking a step on {name}")
    check_step(stream, few)
    log("timing the step")
    trainer = build_trainer(MODEL, stream, SETTINGS, batch=BATCH)
    whole, peak = measure_step(trainer, device)
    plain = build_trainer(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    ours = measure_step_parts(plain, *select_last_batch(plain), REPEATS)
    log("timing the step of the reference")
    slow = measure_reference_parts(stream, few)
    case = f"step of {BATCH} on {name}, L={SETTINGS['length']}"
    note = f"reference: {few} of {BATCH} events, scaled" if few < BATCH else None
    more = measure_arithmetic(trainer, whole) if device == "cpu" else {}
    rows = [BenchmarkRow.from_times(case, whole, sum(slow.values()), peak, note=note, **more)]
    return rows + [BenchmarkRow.from_times(f"  {part}", ours[part], slow[part]) for part in ours]


def check_step(stream: Stream, few: int) -> None:
    """Require the loss and gradients of a training step to equal those of the reference implementations."""
    loop = {"batch": BATCH, "precision": "float32", "graphs": False}
    settings = SETTINGS | {"dropout": 0.0}  # its random draws depend on how a batch is divided
    fast, exact = (build_trainer(MODEL, stream, settings, **loop) for _ in range(2))
    loss = float(make_last_step(fast)())
    with use_reference():
        truth = accumulate_gradients(exact, *select_last_batch(exact), 2 * few)
    require(
        abs(loss - truth) <= TOLERANCE * abs(truth),
        f"the loss equals that of the reference up to {TOLERANCE:g}",
    )
    weights = zip(fast.scorer.parameters(), exact.scorer.parameters(), strict=True)
    pairs = [(_get_gradient(p), _get_gradient(q)) for p, q in weights]
    # A gradient that cancels to zero consists of rounding errors: it is compared with the largest one.
    floor = TOLERANCE * max(float(q.norm()) for _, q in pairs)
    worst = max(float((p - q).norm()) / max(float(q.norm()), floor) for p, q in pairs)
    require(worst <= TOLERANCE, f"every gradient equals that of the reference up to {TOLERANCE:g}")


def _get_gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def measure_step(trainer: Trainer, device: str) -> tuple[float, float]:
    """Return the median time of a training step, and the peak of its additional memory."""
    step = make_last_step(trainer)
    with track_device_peak(device) as peak:  # of the first step: replaying a graph allocates nothing
        step()
    return measure_median_seconds(step, REPEATS), peak[0]


def measure_reference_parts(stream: Stream, few: int, repeats: int = 1) -> dict[str, float]:
    """Time the parts of a reference step; forward and backward of `few` events are scaled to the batch."""
    trainer = build_trainer(MODEL, stream, SETTINGS, batch=BATCH, graphs=False)
    events, others = select_last_batch(trainer)

    def look_up() -> None:
        get_training_context(trainer).look_up(events, others)
        synchronize(stream.device.type)

    with use_reference():
        parts = measure_step_parts(trainer, *select_last_batch(trainer, few), repeats)
        parts["look-up"] = measure_median_seconds(look_up, REPEATS)
    return parts | {part: parts[part] * BATCH / few for part in ("forward", "backward")}


def measure_arithmetic(trainer: Trainer, seconds: float) -> dict[str, float]:
    """Return the operations per second of a step, and their ratio to those of a plain matrix product."""
    rate = count_flops(trainer) / seconds
    a, b = torch.rand(2, MATMUL_SIDE, MATMUL_SIDE)
    product = 2 * MATMUL_SIDE**3 / measure_median_seconds(lambda: a @ b, REPEATS)
    return {"gflops": rate / 1e9, "bound_share": rate / product}


def count_flops(trainer: Trainer) -> float:
    """Count the operations of a step: matrix products by torch, with padding, and scans of the real tokens."""
    view, _ = get_training_context(trainer).look_up(*select_last_batch(trainer))
    rows = torch.cat([view.pairs.src_row, view.pairs.dst_row])
    tokens = view[trainer.scorer.requests[0]][0].length[rows] + 1  # the query node is a token too
    states = sum(part.log_A.numel() for part in trainer.scorer.modules() if isinstance(part, Direction))
    scans = int(tokens.sum()) * states * (SCAN_FORWARD + SCAN_BACKWARD)
    with OperationCounter() as counter:
        make_last_step(trainer)()
    return counter.total + scans


class OperationCounter(TorchDispatchMode):
    """Counts the operations of matrix products by torch's formulas.

    Torch's own `FlopCounterMode` also attributes them to modules, with hooks that fail in a step of several parts,
    whose gradients come from `torch.autograd.grad`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        count = flop_registry.get(func._overloadpacket)
        self.total += 0 if count is None else count(*args, **named, out_val=result)
        return result
