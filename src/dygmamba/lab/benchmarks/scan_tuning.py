"""Choose the launch plan of the Triton scan: `python -m dygmamba.lab.benchmarks.scan_tuning [FOLDER]`.

For the shapes of the anchors it checks outputs and gradients against the reference in float64, then measures the median
time of forward and of forward + backward and the peak of additional memory, for every plan and for the kernels that a
call of the scan selects. FOLDER receives scan_tuning.json. It is run by hand on one NVIDIA H200 and takes under four
minutes with all compilations.

Legend: q sequences, l steps, d channels, n states.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.core.files.writing import write_text
from dygmamba.lab.benchmarks.harness import ANCHOR_CHANNELS, ANCHOR_STATES, SCAN_ANCHORS, Log, ScanAnchor
from dygmamba.ops.scan import reference, select_kernels
from dygmamba.ops.scan.inputs import Inputs, Upstream

DEVICE = "cuda"
TOLERANCE = 1e-5  # relative norm of the error in float32
TIME_LIMIT = 210.0  # seconds after which no new measurement starts

# Changes to the default plan. Only the first five need a compilation each.
BACKWARD_PLANS = (
    {},
    {"step": 4},
    {"registers": 200, "resident": 10},
    {"registers": 168, "resident": 12},
    {"block": 64, "warps": 2, "resident": 4},
    {"interval": 16},
    {"interval": 32},
    {"interval": 64},
    {"window": 128 << 20},
    {"resident": 16},
)
FORWARD_PLANS = (
    {},
    {"forward_step": 2},
    {"forward_step": 8},
    {"block": 64, "warps": 2},
    {"block": 128, "warps": 4},
)
KINDS = (("zoh", "span"), ("euler", "span"), ("zoh", "delta"), ("euler", "delta"))

Record = dict[str, Any]


def make_inputs(q: int, length: int, entry: str, dtype: torch.dtype = torch.float32) -> Inputs:
    """Draw inputs as in DyG-Mamba: w1, w2 and the time gaps log-uniform, A as in S4D-real."""
    generator = torch.Generator(DEVICE).manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)

    def draw_log_uniform(low: float, high: float, *shape: int) -> Tensor:
        uniform = torch.rand(*shape, generator=generator, device=DEVICE)
        return low * (high / low) ** uniform

    steps: dict[str, Tensor | None] = dict.fromkeys(("delta", "span", "w1", "w2"))
    if entry == "delta":
        steps["delta"] = draw_log_uniform(1e-3, 1e-1, q, length, ANCHOR_CHANNELS).to(dtype)
    else:
        w1, w2 = draw_log_uniform(1e-2, 1.0, ANCHOR_CHANNELS), draw_log_uniform(1.0, 100.0, ANCHOR_CHANNELS)
        steps |= {"span": draw_log_uniform(1 / length, 0.1, q, length).to(dtype), "w1": w1, "w2": w2}
    return Inputs(
        u=draw(q, length, ANCHOR_CHANNELS),
        A=-torch.arange(1.0, ANCHOR_STATES + 1, device=DEVICE).repeat(ANCHOR_CHANNELS, 1),
        B=draw(q, length, ANCHOR_STATES),
        C=draw(q, length, ANCHOR_STATES),
        D=torch.ones(ANCHOR_CHANNELS, device=DEVICE),
        z=draw(q, length, ANCHOR_CHANNELS),
        mask=None,
        state=None,
        **steps,
    )


def measure_errors(length: int, rule: str, entry: str, q: int = 2) -> dict[str, float]:
    """Return the relative errors of all outputs and gradients against the reference in float64."""
    x = make_inputs(q, length, entry)
    fused = select_kernels(x)
    dy = torch.randn(x.u.shape, device=DEVICE)
    leaves: Any = {name: t.double().requires_grad_() for name, t in x.present.items()}
    y, final = (reference.scan if entry == "delta" else reference.span_scan)(**leaves, rule=rule)
    grads = torch.autograd.grad((y * dy).sum() + final.sum(), list(leaves.values()))
    expected = {"y": y.detach(), "final": final.detach(), **dict(zip(leaves, grads, strict=True))}
    y, final, saved = fused.forward(x, rule, False, True)
    upstream = Upstream(y, saved, dy, torch.ones_like(final), entry == "span")
    actual = fused.backward(x, rule, False, upstream).present
    actual |= {"y": y, "final": final}
    return {name: ((actual[name] - t).norm() / t.norm()).item() for name, t in expected.items()}


def is_batch_invariant(anchor: ScanAnchor) -> bool:
    """Return whether two sequences have bit for bit the same results alone and in the full batch."""
    x = make_inputs(anchor.q, anchor.length, "span")
    fused = select_kernels(x)
    few = x._replace(**{name: x.present[name][:2] for name in ("u", "span", "B", "C", "z")})
    results = []
    for part in (x, few):
        y, final, saved = fused.forward(part, "zoh", False, True)
        grads = fused.backward(part, "zoh", False, Upstream(y, saved, part.u, final[:0], True))
        tokens = [grads.present[name] for name in ("u", "span", "B", "C", "z")]
        results.append([y, final, *tokens])
    return all(torch.equal(many[:2], alone) for many, alone in zip(*results, strict=True))


def measure_milliseconds(run: Callable[[], object]) -> float:
    """Return the median over repeated calls; the L2 cache is flushed between them."""
    from triton.testing import do_bench

    median: Any = do_bench(run, warmup=10, rep=60, return_mode="median")
    return median


def measure_extra_mib(run: Callable[[], object]) -> float:
    """Return the peak of memory that a call allocates, its results included."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = run()  # kept alive until the peak is read
    torch.cuda.synchronize()
    del results
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure_shape(
    anchor: ScanAnchor,
    rule: str,
    entry: str,
    changes: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, float]:
    """Measure forward, forward + backward and memory of a shape, with the selected kernels or with a changed plan."""
    from dygmamba.ops.scan import triton

    x = make_inputs(anchor.q, anchor.length, entry, dtype)
    fused: Any = select_kernels(x) if changes is None else triton
    options = {} if changes is None else {"plan": replace(triton.plan_for(x), **changes)}
    dy, none = torch.randn_like(x.u), x.u.new_empty(0, 0, 0)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        return fused.forward(x, rule, False, True, **options)

    def both() -> tuple[object, ...]:
        y, final, saved = forward()
        return y, final, fused.backward(x, rule, False, Upstream(y, saved, dy, none, False), **options)

    memory = measure_extra_mib(both)
    return {"forward": measure_milliseconds(forward), "both": measure_milliseconds(both), "mib": memory}


def format_line(anchor: ScanAnchor, label: str, measured: dict[str, float], both: float | None = None) -> str:
    """Format a measurement with its ratios to the anchor."""
    ratio, memory = (both or anchor.both) / measured["both"], measured["mib"] / anchor.mib
    times = f"forward {measured['forward']:7.3f} ms  both {measured['both']:7.3f} ms  {ratio:5.2f}x"
    return f"q {anchor.q:3} l {anchor.length:4}  {times}  {measured['mib']:6.0f} MiB {memory:4.2f}  {label}"


def check_errors(log: Log, record: Record) -> bool:
    """Measure the errors of every kind, of long sequences and of an odd length; return whether all are small."""
    cases = [(256, kind) for kind in KINDS] + [
        (2048, KINDS[0]),
        (2048, KINDS[1]),
        (8192, KINDS[0]),
        (257, KINDS[0]),
    ]
    worst = 0.0
    for length, (rule, entry) in cases:
        errors = measure_errors(length, rule, entry)
        worst = max(worst, *errors.values())
        record[f"error {rule} {entry} {length}"] = errors
        log(f"l {length} {rule} {entry} " + " ".join(f"{name} {value:.1e}" for name, value in errors.items()))
    same = all(is_batch_invariant(anchor) for anchor in SCAN_ANCHORS[:4])
    log(f"worst error {worst:.1e}; a sequence is the same alone and in its batch: {same}")
    return worst <= TOLERANCE and same


def tune_backward(log: Log, record: Record, anchor: ScanAnchor) -> None:
    """Measure every change to the default plan on one shape."""
    for change in BACKWARD_PLANS:
        measured = measure_shape(anchor, "zoh", "span", change)
        record[f"{anchor.q} {anchor.length} {change}"] = measured
        log(format_line(anchor, str(change), measured))


def tune_forward(log: Log, record: Record, anchor: ScanAnchor) -> None:
    """Measure every change to the default plan of the forward pass alone."""
    from dygmamba.ops.scan import triton as fused

    x = make_inputs(anchor.q, anchor.length, "span")
    for change in FORWARD_PLANS:
        plan = replace(fused.plan_for(x), **change)
        milliseconds = measure_milliseconds(partial(fused.forward, x, "zoh", False, True, plan))
        record[f"forward {change}"] = milliseconds
        log(f"forward {milliseconds:.3f} ms {change}")


def measure_kinds(log: Log, record: Record, anchor: ScanAnchor) -> None:
    """Measure every kind of scan on one shape with the kernels that a call selects."""
    for rule, entry in KINDS:
        measured = measure_shape(anchor, rule, entry)
        record[f"{anchor.q} {anchor.length} {rule} {entry}"] = measured
        log(format_line(anchor, f"{rule} {entry}", measured))
    measured = measure_shape(anchor, "zoh", "span", None, torch.bfloat16)
    record[f"{anchor.q} {anchor.length} bf16"] = measured
    log(format_line(anchor, "zoh span bf16", measured, anchor.both16))


def run(log: Log, folder: Path | None = None) -> bool:
    """Check errors, try plans on three shapes, measure all shapes and kinds; return whether the errors are small."""
    start = time.monotonic()
    record: Record = {"anchors": [asdict(anchor) for anchor in SCAN_ANCHORS]}
    correct = check_errors(log, record)
    stages = [partial(tune_backward, anchor=anchor) for anchor in SCAN_ANCHORS[:3]]
    stages += [
        partial(tune_forward, anchor=SCAN_ANCHORS[0]),
        *(partial(measure_kinds, anchor=anchor) for anchor in SCAN_ANCHORS),
    ]
    for stage in stages:
        if time.monotonic() - start < TIME_LIMIT:
            stage(log, record)
            log(f"after {time.monotonic() - start:.0f} s")
    log(f"correct: {correct}")
    if folder is not None:
        write_text(folder / "scan_tuning.json", json.dumps(record, indent=1))
    return correct


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.exit(0 if run(lambda text: sys.stdout.write(text + "\n"), target) else 1)
