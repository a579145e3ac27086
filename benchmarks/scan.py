"""Forward and backward of the fused scan against its reference implementation, at the size of one layer.

The reference stores every state for autograd, about 7 GB at this size. On a GPU the shapes of the anchors follow,
which are too large for the reference.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import (
    ANCHOR_CHANNELS,
    ANCHOR_STATES,
    SCAN_ANCHORS,
    BenchmarkRow,
    ScanAnchor,
    anchors_apply,
    log,
    measure_median_seconds,
    require,
    synchronize,
    track_device_peak,
)
from dygmamba.ops.scan import reference, select_kernels, span_scan
from dygmamba.ops.scan.inputs import Inputs, Upstream

SIZE = (64, 256, 400, 16)  # sequences, steps, channels, states
SMALL = (3, 70, 80, 16)  # size of the check
TOLERANCE = 1e-5

Scan = Callable[..., tuple[Tensor, Tensor]]


def run(device: str) -> list[BenchmarkRow]:
    """Check values and gradients of `span_scan` with skip and gate in float32, then time it."""
    check_scan(device)
    x = make_inputs(*SIZE, device)
    log("timing the fused scan")
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(lambda: run_forward_backward(span_scan, x), repeats=7)
    log("timing the reference loop once")
    slow = measure_median_seconds(lambda: run_forward_backward(reference.span_scan, x), repeats=1, warmup=0)
    rows = [BenchmarkRow.from_times("scan " + "x".join(map(str, SIZE)), seconds, slow, peak[0])]
    return [*rows, *measure_anchor_shapes()] if device == "cuda" else rows


def check_scan(device: str) -> None:
    """Require every output and gradient to equal the reference in float64, up to the tolerance."""
    claim = f"the fused scan is within {TOLERANCE:g} of the float64 reference"
    require(measure_error(device) < TOLERANCE, claim)


def measure_anchor_shapes() -> list[BenchmarkRow]:
    """Measure forward + backward for every shape of the anchors and both rules, after a check of a large shape.

    The scan of the anchors uses Euler's rule; the exact rule, which is our default, computes more.
    """
    log("checking a large shape")
    first, known = SCAN_ANCHORS[0], anchors_apply("cuda")
    for rule in reference.RULES:
        worst = max(measure_anchor_errors(first.length, rule).values())
        claim = f"the fused scan of {first.length} steps is within {TOLERANCE:g} of the float64 reference ({rule})"
        require(worst <= TOLERANCE, claim)
    require(is_batch_invariant(first), "a sequence has the same result alone and in a large batch")
    rows = []
    for rule, anchor in product(
        reference.RULES, sorted(SCAN_ANCHORS, key=lambda shape: (shape.length, shape.q))
    ):
        log(f"timing {anchor.q} sequences of {anchor.length} steps ({rule})")
        seconds, peak = measure_shape(anchor, rule)
        theirs = {"anchor_seconds": anchor.both / 1e3, "anchor_mb": anchor.mib} if known else {}
        case = f"scan {anchor.q}x{anchor.length}x{ANCHOR_CHANNELS}x{ANCHOR_STATES} {rule}"
        rows.append(BenchmarkRow.from_times(case, seconds, peak_mb=peak, **theirs))
    return rows


def make_inputs(q: int, length: int, d: int, n: int, device: str) -> dict[str, Tensor]:
    """Draw time gaps that sum to about 1 per sequence, w1 and w2 in the range of the model, and A as in S4D-real."""
    g = torch.Generator().manual_seed(0)
    x = {
        "u": torch.randn(q, length, d, generator=g),
        "span": 2 * torch.rand(q, length, generator=g) / length,
        "w1": 1e-2 * 10 ** (2 * torch.rand(d, generator=g)),
        "w2": 10 ** (2 * torch.rand(d, generator=g)),
        "A": -torch.arange(1.0, n + 1).repeat(d, 1),
        "B": torch.randn(q, length, n, generator=g),
        "C": torch.randn(q, length, n, generator=g),
        "D": torch.randn(d, generator=g),
        "z": torch.randn(q, length, d, generator=g),
    }
    return {name: t.to(device).requires_grad_(name != "span") for name, t in x.items()}


def run_forward_backward(scan: Scan, x: dict[str, Tensor]) -> list[Tensor]:
    """Return y, the final state and the gradients of a weighted sum of both."""
    y, state = scan(**x)
    weight, last = torch.linspace(-1, 1, y.shape[1]).to(y)[:, None].expand_as(y), torch.ones_like(state)
    grads = torch.autograd.grad((y, state), [t for t in x.values() if t.requires_grad], (weight, last))
    synchronize(y.device.type)
    return [y.detach(), state.detach(), *grads]


def measure_error(device: str) -> float:
    """Return the largest relative error of any output or gradient, in the maximum norm."""
    x = make_inputs(*SMALL, device)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    pairs = zip(
        run_forward_backward(span_scan, x), run_forward_backward(reference.span_scan, exact), strict=True
    )
    return max(float((ours - true).abs().max() / true.abs().max()) for ours, true in pairs)


def make_anchor_inputs(q: int, length: int) -> Inputs:
    """Draw inputs of the anchors' size on the GPU: w1, w2 and the time gaps log-uniform, A as in S4D-real."""
    generator = torch.Generator("cuda").manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    def draw_log_uniform(low: float, high: float, *shape: int) -> Tensor:
        return low * (high / low) ** torch.rand(*shape, generator=generator, device="cuda")

    w1, w2 = draw_log_uniform(1e-2, 1.0, ANCHOR_CHANNELS), draw_log_uniform(1.0, 100.0, ANCHOR_CHANNELS)
    return Inputs(
        delta=None,
        span=draw_log_uniform(1 / length, 0.1, q, length),
        w1=w1,
        w2=w2,
        u=draw(q, length, ANCHOR_CHANNELS),
        A=-torch.arange(1.0, ANCHOR_STATES + 1, device="cuda").repeat(ANCHOR_CHANNELS, 1),
        B=draw(q, length, ANCHOR_STATES),
        C=draw(q, length, ANCHOR_STATES),
        D=torch.ones(ANCHOR_CHANNELS, device="cuda"),
        z=draw(q, length, ANCHOR_CHANNELS),
        mask=None,
        state=None,
    )


def measure_anchor_errors(length: int, rule: str) -> dict[str, float]:
    """Return the relative errors of all outputs and gradients of two sequences against the reference in float64."""
    x = make_anchor_inputs(2, length)
    fused, dy = select_kernels(x), torch.randn(x.u.shape, device="cuda")
    leaves: Any = {name: t.double().requires_grad_() for name, t in x.present.items()}
    y, final = reference.span_scan(**leaves, rule=rule)
    grads = torch.autograd.grad((y * dy).sum() + final.sum(), list(leaves.values()))
    expected = {"y": y.detach(), "final": final.detach(), **dict(zip(leaves, grads, strict=True))}
    y, final, saved = fused.forward(x, rule, False, True)
    upstream = Upstream(y, saved, dy, torch.ones_like(final), True)
    actual = fused.backward(x, rule, False, upstream).present | {"y": y, "final": final}
    return {name: ((actual[name] - t).norm() / t.norm()).item() for name, t in expected.items()}


def is_batch_invariant(anchor: ScanAnchor) -> bool:
    """Return whether two sequences have bit for bit the same results alone and in the full batch."""
    x = make_anchor_inputs(anchor.q, anchor.length)
    fused = select_kernels(x)
    few = x._replace(**{name: x.present[name][:2] for name in ("u", "span", "B", "C", "z")})
    results = []
    for part in (x, few):
        y, final, saved = fused.forward(part, "zoh", False, True)
        grads = fused.backward(part, "zoh", False, Upstream(y, saved, part.u, final[:0], True))
        tokens = [grads.present[name] for name in ("u", "span", "B", "C", "z")]
        results.append([y, final, *tokens])
    return all(torch.equal(many[:2], alone) for many, alone in zip(*results, strict=True))


def measure_shape(anchor: ScanAnchor, rule: str) -> tuple[float, float]:
    """Return the median seconds of forward + backward and the peak of additional memory, results included."""
    from triton.testing import do_bench  # it flushes the L2 cache between calls

    x = make_anchor_inputs(anchor.q, anchor.length)
    fused = select_kernels(x)
    dy, none = torch.randn_like(x.u), x.u.new_empty(0, 0, 0)

    def both() -> tuple[object, ...]:
        y, final, saved = fused.forward(x, rule, False, True)
        return y, final, fused.backward(x, rule, False, Upstream(y, saved, dy, none, False))

    with track_device_peak("cuda") as peak:
        both()
    median: Any = do_bench(both, warmup=10, rep=60, return_mode="median")
    return median / 1e3, peak[0]
