"""Choose the plan of Triton's scan: python -m dygmamba.lab.benchmarks.scan_tuning [folder for scan_tuning.json].

For each shape of the anchor table: outputs and gradients against the definition in float64 first, then the median
time of forward and of forward + backward under each plan, and the peak of extra memory under the best; beside them,
the kernels which a call of the scan would choose. Made to run once on one NVIDIA H200, in under four minutes with all
compilations.

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
from dygmamba.lab.benchmarks.harness import ANCHOR_CHANNELS, ANCHOR_STATES, SCAN_ANCHORS, ScanAnchor
from dygmamba.ops.scan import reference, select_kernels
from dygmamba.ops.scan.inputs import Inputs, Upstream

DEVICE = "cuda"
TOLERANCE = 1e-5  # float32, relative norm
TIME_LIMIT = 210.0  # no plan is tried after that

# What differs from the default plan. Only the first five need a compilation each.
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

Say = Callable[[str], object]
Record = dict[str, Any]


def make_inputs(q: int, length: int, entry: str, dtype: torch.dtype = torch.float32) -> Inputs:
    """Steps as in DyG-Mamba: w1 and w2 log-uniform, spans of all sizes; A as S4D starts it."""
    generator = torch.Generator(DEVICE).manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)

    def spread(low: float, high: float, *shape: int) -> Tensor:
        share = torch.rand(*shape, generator=generator, device=DEVICE)
        return low * (high / low) ** share

    steps: dict[str, Tensor | None] = dict.fromkeys(("delta", "span", "w1", "w2"))
    if entry == "delta":
        steps["delta"] = spread(1e-3, 1e-1, q, length, ANCHOR_CHANNELS).to(dtype)
    else:
        w1, w2 = spread(1e-2, 1.0, ANCHOR_CHANNELS), spread(1.0, 100.0, ANCHOR_CHANNELS)
        steps |= {"span": spread(1 / length, 0.1, q, length).to(dtype), "w1": w1, "w2": w2}
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
    """Relative errors of two sequences against the definition in float64; a large batch must contain them exactly."""
    x = make_inputs(q, length, entry)
    fused = select_kernels(x)
    dy = torch.randn(x.u.shape, device=DEVICE)
    leaves: Any = {name: t.double().requires_grad_() for name, t in x.present.items()}
    y, final = (reference.scan if entry == "delta" else reference.span_scan)(**leaves, rule=rule)
    grads = torch.autograd.grad((y * dy).sum() + final.sum(), list(leaves.values()))
    want = {"y": y.detach(), "final": final.detach(), **dict(zip(leaves, grads, strict=True))}
    y, final, kept = fused.forward(x, rule, False, True)
    given = Upstream(y, kept, dy, torch.ones_like(final), entry == "span")
    got = fused.backward(x, rule, False, given).present
    got |= {"y": y, "final": final}
    return {name: ((got[name] - t).norm() / t.norm()).item() for name, t in want.items()}


def is_batch_invariant(anchor: ScanAnchor) -> bool:
    """Whether the first sequences of the full batch come out as they do alone, bit for bit."""
    x = make_inputs(anchor.q, anchor.length, "span")
    fused = select_kernels(x)
    few = x._replace(**{name: x.present[name][:2] for name in ("u", "span", "B", "C", "z")})
    results = []
    for part in (x, few):
        y, final, kept = fused.forward(part, "zoh", False, True)
        grads = fused.backward(part, "zoh", False, Upstream(y, kept, part.u, final[:0], True))
        tokens = [grads.present[name] for name in ("u", "span", "B", "C", "z")]
        results.append([y, final, *tokens])
    return all(torch.equal(many[:2], alone) for many, alone in zip(*results, strict=True))


def measure_milliseconds(run: Callable[[], object]) -> float:
    """Median over repeated calls, the second-level cache flushed in between."""
    from triton.testing import do_bench

    median: Any = do_bench(run, warmup=10, rep=60, return_mode="median")
    return median


def measure_extra_mib(run: Callable[[], object]) -> float:
    """Peak beyond what is allocated now, the results still held."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = run()
    torch.cuda.synchronize()
    del held
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure_shape(
    anchor: ScanAnchor,
    rule: str,
    entry: str,
    changes: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, float]:
    """Forward, forward + backward and extra memory of one shape, as called or by Triton under a changed plan."""
    from dygmamba.ops.scan import triton

    x = make_inputs(anchor.q, anchor.length, entry, dtype)
    fused: Any = select_kernels(x) if changes is None else triton
    how = {} if changes is None else {"plan": replace(triton.plan_for(x), **changes)}
    dy, none = torch.randn_like(x.u), x.u.new_empty(0, 0, 0)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        return fused.forward(x, rule, False, True, **how)

    def both() -> tuple[object, ...]:
        y, final, kept = forward()
        return y, final, fused.backward(x, rule, False, Upstream(y, kept, dy, none, False), **how)

    memory = measure_extra_mib(both)
    return {"forward": measure_milliseconds(forward), "both": measure_milliseconds(both), "mib": memory}


def format_line(anchor: ScanAnchor, label: str, found: dict[str, float], both: float | None = None) -> str:
    """One measurement beside its anchor."""
    ratio, memory = (both or anchor.both) / found["both"], found["mib"] / anchor.mib
    times = f"forward {found['forward']:7.3f} ms  both {found['both']:7.3f} ms  {ratio:5.2f}x"
    return f"q {anchor.q:3} l {anchor.length:4}  {times}  {found['mib']:6.0f} MiB {memory:4.2f}  {label}"


def check_errors(say: Say, record: Record) -> bool:
    """Print the errors of every kind, of long sequences and of a ragged length; whether all are small enough."""
    cases = [(256, kind) for kind in KINDS] + [
        (2048, KINDS[0]),
        (2048, KINDS[1]),
        (8192, KINDS[0]),
        (257, KINDS[0]),
    ]
    worst = 0.0
    for length, (rule, entry) in cases:
        found = measure_errors(length, rule, entry)
        worst = max(worst, *found.values())
        record[f"error {rule} {entry} {length}"] = found
        say(f"l {length} {rule} {entry} " + " ".join(f"{name} {value:.1e}" for name, value in found.items()))
    same = all(is_batch_invariant(anchor) for anchor in SCAN_ANCHORS[:4])
    say(f"worst error {worst:.1e}; a sequence is the same alone and in its batch: {same}")
    return worst <= TOLERANCE and same


def tune_backward(say: Say, record: Record, anchor: ScanAnchor) -> None:
    """Every change to the default plan on one shape."""
    for change in BACKWARD_PLANS:
        found = record[f"{anchor.q} {anchor.length} {change}"] = measure_shape(anchor, "zoh", "span", change)
        say(format_line(anchor, str(change), found))


def tune_forward(say: Say, record: Record, anchor: ScanAnchor) -> None:
    """The same for forward alone."""
    from dygmamba.ops.scan import triton as fused

    x = make_inputs(anchor.q, anchor.length, "span")
    for change in FORWARD_PLANS:
        plan = replace(fused.plan_for(x), **change)
        found = record[f"forward {change}"] = measure_milliseconds(
            partial(fused.forward, x, "zoh", False, True, plan)
        )
        say(f"forward {found:.3f} ms {change}")


def measure_kinds(say: Say, record: Record, anchor: ScanAnchor) -> None:
    """One shape as called, every kind."""
    for rule, entry in KINDS:
        found = record[f"{anchor.q} {anchor.length} {rule} {entry}"] = measure_shape(anchor, rule, entry)
        say(format_line(anchor, f"{rule} {entry}", found))
    found = record[f"{anchor.q} {anchor.length} bf16"] = measure_shape(
        anchor, "zoh", "span", None, torch.bfloat16
    )
    say(format_line(anchor, "zoh span bf16", found, anchor.both16))


def run(say: Say, folder: Path | None = None) -> bool:
    """Errors, changes of plan on three shapes, and all shapes and kinds as called."""
    began = time.monotonic()
    record: Record = {"anchors": [asdict(anchor) for anchor in SCAN_ANCHORS]}
    right = check_errors(say, record)
    stages = [partial(tune_backward, anchor=anchor) for anchor in SCAN_ANCHORS[:3]]
    stages += [
        partial(tune_forward, anchor=SCAN_ANCHORS[0]),
        *(partial(measure_kinds, anchor=anchor) for anchor in SCAN_ANCHORS),
    ]
    for stage in stages:
        if time.monotonic() - began < TIME_LIMIT:
            stage(say, record)
            say(f"after {time.monotonic() - began:.0f} s")
    say(f"right: {right}")
    if folder is not None:
        write_text(folder / "scan_tuning.json", json.dumps(record, indent=1))
    return right


if __name__ == "__main__":
    done = run(lambda text: sys.stdout.write(text + "\n"), Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    sys.exit(0 if done else 1)
