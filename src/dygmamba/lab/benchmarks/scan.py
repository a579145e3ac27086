"""The fused scan against its definition: forward and backward of one layer's worth of sequences.

The reference keeps every state for torch to differentiate, about 7 GB at this size. On a GPU the shapes of the
anchor table follow, which are too large for the reference.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from dygmamba.lab.benchmarks import scan_tuning
from dygmamba.lab.benchmarks.harness import (
    SCAN_ANCHORS,
    BenchmarkRow,
    anchors_apply,
    measure_median_seconds,
    require,
    synchronize,
    track_device_peak,
)
from dygmamba.ops.scan import reference, span_scan

SIZE = (64, 256, 400, 16)  # sequences, steps, channels, states
SMALL = (3, 70, 80, 16)
TOLERANCE = 1e-5

Scan = Callable[..., tuple[Tensor, Tensor]]


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """span_scan with skip and gate, float32: values and gradients checked first, then timed."""
    check_scan(device)
    x = make_inputs(*SIZE, device)
    say("timing the fused scan")
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(lambda: run_forward_backward(span_scan, x), repeats=7)
    say("timing the reference loop once")
    slow = measure_median_seconds(lambda: run_forward_backward(reference.span_scan, x), repeats=1, warmup=0)
    rows = [BenchmarkRow.of("scan " + "x".join(map(str, SIZE)), seconds, slow, peak[0])]
    return [*rows, *measure_anchor_shapes(say)] if device == "cuda" else rows


def check_scan(device: str) -> None:
    """Require every output and gradient to be the reference's in float64."""
    require(
        measure_error(device) < TOLERANCE, f"the fused scan is within {TOLERANCE:g} of the float64 reference"
    )


def measure_anchor_shapes(say: Callable[[str], None]) -> list[BenchmarkRow]:
    """Two rows per shape of the anchor table, forward + backward; two of its sequences are checked first.

    The scan behind the anchors follows Euler's rule; the exact one, which is our default, computes more.
    """
    say("checking a large shape")
    first, known = SCAN_ANCHORS[0], anchors_apply("cuda")
    for rule in reference.RULES:
        worst = max(scan_tuning.measure_errors(first.length, rule, "span").values())
        claim = f"the fused scan of {first.length} steps is within {TOLERANCE:g} of the float64 reference ({rule})"
        require(worst <= TOLERANCE, claim)
    require(scan_tuning.is_batch_invariant(first), "a sequence comes out of a large batch as it does alone")
    rows = []
    for rule, anchor in product(reference.RULES, sorted(SCAN_ANCHORS, key=lambda one: (one.length, one.q))):
        say(f"timing {anchor.q} sequences of {anchor.length} steps ({rule})")
        found = scan_tuning.measure_shape(anchor, rule, "span")
        there = {"anchor_seconds": anchor.both / 1e3, "anchor_mb": anchor.mib} if known else {}
        case = f"scan {anchor.q}x{anchor.length}x{scan_tuning.ANCHOR_CHANNELS}x{scan_tuning.ANCHOR_STATES} {rule}"
        rows.append(BenchmarkRow.of(case, found["both"] / 1e3, peak_mb=found["mib"], **there))
    return rows


def make_inputs(q: int, length: int, d: int, n: int, device: str) -> dict[str, Tensor]:
    """Spans summing to about 1 per sequence, w1 and w2 in the model's range, A as S4D-real starts."""
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
    """y, the final state and every gradient of their weighted sum."""
    y, state = scan(**x)
    weight, last = torch.linspace(-1, 1, y.shape[1]).to(y)[:, None].expand_as(y), torch.ones_like(state)
    grads = torch.autograd.grad((y, state), [t for t in x.values() if t.requires_grad], (weight, last))
    synchronize(y.device.type)
    return [y.detach(), state.detach(), *grads]


def measure_error(device: str) -> float:
    """The largest relative error of any output or gradient, in the maximum norm."""
    x = make_inputs(*SMALL, device)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    pairs = zip(
        run_forward_backward(span_scan, x), run_forward_backward(reference.span_scan, exact), strict=True
    )
    return max(float((ours - true).abs().max() / true.abs().max()) for ours, true in pairs)
