"""The fused scan against its definition: forward and backward of one layer's worth of sequences.

The reference keeps every state for torch to differentiate, about 7 GB at this size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dygmamba.benchmarks.verify import Row, median_seconds, peak_memory, require
from dygmamba.ops.scan import reference, span_scan

SIZE = (64, 256, 400, 16)  # sequences, steps, channels, states
SMALL = (3, 70, 80, 16)
TOLERANCE = 1e-5

Scan = Callable[..., tuple[Tensor, Tensor]]


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """span_scan with skip and gate, float32: values and gradients checked first, then timed."""
    require(_error(device) < TOLERANCE, f"the fused scan is within {TOLERANCE:g} of the float64 reference")
    x = _inputs(*SIZE, device)
    say("timing the fused scan")
    with _peak(device) as peak:
        seconds = median_seconds(lambda: _both_ways(span_scan, x), repeats=7)
    say("timing the reference loop once")
    slow = median_seconds(lambda: _both_ways(reference.span_scan, x), repeats=1, warmup=0)
    return [Row("scan " + "x".join(map(str, SIZE)), seconds, slow, slow / seconds, peak[0])]


def _inputs(q: int, length: int, d: int, n: int, device: str) -> dict[str, Tensor]:
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


def _both_ways(scan: Scan, x: dict[str, Tensor]) -> list[Tensor]:
    """y, the final state and every gradient of their weighted sum."""
    y, state = scan(**x)
    weight, last = torch.linspace(-1, 1, y.shape[1]).to(y)[:, None].expand_as(y), torch.ones_like(state)
    grads = torch.autograd.grad((y, state), [t for t in x.values() if t.requires_grad], (weight, last))
    if y.is_cuda:
        torch.cuda.synchronize()
    return [y.detach(), state.detach(), *grads]


def _error(device: str) -> float:
    """The largest relative error of any output or gradient, in the maximum norm."""
    x = _inputs(*SMALL, device)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in x.items()}
    pairs = zip(_both_ways(span_scan, x), _both_ways(reference.span_scan, exact), strict=True)
    return max(float((ours - true).abs().max() / true.abs().max()) for ours, true in pairs)


@contextmanager
def _peak(device: str) -> Iterator[list[float]]:
    """Peak of extra memory in MB: the allocator's on CUDA, the process's resident size on a CPU."""
    if torch.device(device).type != "cuda":
        with peak_memory() as peak:
            yield peak
        return
    torch.cuda.reset_peak_memory_stats()
    base, peak = torch.cuda.memory_allocated(), [float("nan")]
    yield peak
    peak[0] = (torch.cuda.max_memory_allocated() - base) / 2**20
