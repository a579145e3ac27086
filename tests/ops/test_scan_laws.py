"""Laws of the scan, and the paper's Theorems 1 and 2, on the fused op in both precisions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dygmamba.ops.scan import scan, span_scan
from scan_cases import case

ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(params=list(ROUNDING), ids=str)
def dtype(request):
    return request.param


def near(got, want):
    """Equal to rounding, relative to the largest value."""
    assert_close(got, want, rtol=0, atol=ROUNDING[got.dtype] * float(want.abs().max()))


def run(tensors: dict[str, Any], **changes: Any) -> tuple[Tensor, Tensor]:
    """A scan of these inputs, some of them changed."""
    return scan(**{**tensors, **changes})


def plain(length: int, dtype: torch.dtype, **rest: Any) -> dict[str, Any]:
    """Small inputs of the plain entry."""
    return case("scan", (3, length, 5, 4), **rest).to(dtype).tensors


def test_zero_step_is_the_identity(dtype):
    """delta_k = 0 leaves h unchanged whatever u_k is, hence y_k = C_k h."""
    x = plain(6, dtype, parts=("state",))
    y, h = run(x, delta=torch.zeros_like(x["delta"]))
    assert torch.equal(h, x["state"])
    near(y, torch.einsum("qdn,qln->qld", h, x["C"]))


@given(kept=st.lists(st.booleans(), min_size=1, max_size=80), seed=st.integers(0, 9), reverse=st.booleans())
def test_padding_anywhere_is_harmless(kept, seed, reverse):
    """Masked steps inserted anywhere change no bit of the other steps' outputs or of the final state."""
    padded = case("span_scan", (2, len(kept), 5, 4), seed=seed).to(torch.float32)
    keep = torch.tensor(kept)
    mask = keep.expand(2, -1).contiguous()
    whole = padded.with_(mask=mask).tensors | {"reverse": reverse}
    short = {k: t[:, keep] if k in ("u", "span", "B", "C", "z") else t for k, t in padded.tensors.items()}
    y, h = span_scan(**whole)
    assert not y[:, ~keep].any()
    if keep.any():
        want_y, want_h = span_scan(**short, reverse=reverse)
        assert torch.equal(y[:, keep], want_y)
        assert torch.equal(h, want_h)
    else:
        assert torch.equal(h, whole["state"])


@given(length=st.integers(2, 70), data=st.data(), reverse=st.booleans())
def test_split_and_carry_equals_whole(length, data, reverse):
    """For all cuts: scanning the parts, the state carried over, is scanning the whole."""
    cut = data.draw(st.integers(1, length - 1))
    x = plain(length, torch.float64, mask="holes")
    pieces = [
        {k: t[:, rows] if k in ("u", "delta", "B", "C", "z", "mask") else t for k, t in x.items()}
        for rows in (slice(cut), slice(cut, None))
    ]
    first, second = reversed(pieces) if reverse else pieces
    y1, h = run(first, reverse=reverse)
    y2, h = run(second, state=h, reverse=reverse)
    whole_y, whole_h = run(x, reverse=reverse)
    assert torch.equal(h, whole_h)
    assert torch.equal(torch.cat([y2, y1] if reverse else [y1, y2], dim=1), whole_y)


def test_steps_add_up(dtype):
    """Without input, delta then delta' is delta + delta' (semigroup)."""
    x = plain(2, dtype, parts=("state",))
    x["u"] = torch.zeros_like(x["u"])
    _, two = run(x)
    short = {k: t[:, :1] if k in ("u", "delta", "B", "C") else t for k, t in x.items()}
    _, one = run(short, delta=x["delta"].sum(1, keepdim=True))
    near(two, one)


def test_reverse_is_flip_scan_flip(dtype):
    """With full masks, a reverse scan is the scan of the flipped sequence, flipped back, bit for bit."""
    x = plain(40, dtype, mask="full")
    flipped = {k: t.flip(1) if k in ("u", "delta", "B", "C", "z", "mask") else t for k, t in x.items()}
    y, h = run(x, reverse=True)
    want_y, want_h = run(flipped)
    assert torch.equal(y, want_y.flip(1))
    assert torch.equal(h, want_h)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 50.0, 1e6])
def test_one_step_is_the_closed_form(size, dtype):
    """Theorem 1: for all t, h_1 = e^{a t} h_0 + (e^{a t} - 1) / a B u, and |e^{a t}| <= 1."""
    x = plain(1, dtype, parts=("state",))
    x["delta"] = x["delta"] * size
    _, h = run(x)
    a, t = x["A"].double(), x["delta"].double().mT  # [d n], [q d 1]
    push = (x["B"] * x["u"].mT).double()  # [q d n]
    want = torch.exp(a * t) * x["state"].double() + torch.expm1(a * t) / a * push
    near(h.double(), want) if dtype == torch.float64 else near(h, want.float())
    assert (torch.exp(a * t) <= 1).all()


def test_never_diverges(dtype):
    """Theorem 1: |h| <= max |B u / A| over 10^5 steps of any size: each step is a convex mix."""
    x = case("scan", (1, 100_000, 4, 2), parts=()).to(dtype).tensors
    x["delta"] = x["delta"] * 10 ** torch.linspace(-6, 6, 100_000, dtype=dtype)[None, :, None]
    y, h = run(x)
    bound = x["u"].abs().max() * x["B"].abs().max() / x["A"].abs().min()
    assert h.abs().max() <= bound * (1 + ROUNDING[dtype])
    assert y.isfinite().all()


def test_vanishing_step_ignores_the_input(dtype):
    """Theorem 1: delta -> 0 keeps the state and lets no input in."""
    x = plain(30, dtype, parts=("state",))
    _, h = run(x, delta=torch.full_like(x["delta"], 1e-30))
    assert torch.equal(h, x["state"])


def test_output_is_the_sum_over_past_events():
    """Theorem 2: y_k = sum_{j <= k} C_k (prod_{j < i <= k} A-bar_i) B-bar_j u_j, to float64 rounding."""
    x = plain(24, torch.float64, parts=())
    rate = x["delta"][..., None] * x["A"]  # [q l d n], log A-bar
    elapsed = rate.cumsum(1)
    kept = torch.exp(elapsed[:, :, None] - elapsed[:, None])  # [q k j d n]: the product from j + 1 to k
    kept = kept * torch.ones(24, 24, dtype=torch.float64).tril()[:, :, None, None]
    entered = torch.expm1(rate) / x["A"] * x["B"][:, :, None] * x["u"][..., None]  # B-bar_j u_j
    near(run(x)[0], torch.einsum("qkn,qkjdn,qjdn->qkd", x["C"], kept, entered))


def test_exponential_is_accurate():
    """float32 e^x and (e^x - 1) / x, read off one step, are within 4e-7 of the truth on [-87, 88]."""
    x = torch.cat([torch.linspace(-87, 88, 4001), -torch.logspace(-38, 1.9, 4001), torch.zeros(1)])
    d, one = len(x), torch.ones(1, 1, len(x))
    A, B = x.sign()[:, None], torch.ones(1, 1, 1)
    step = x.abs()[None, None]
    _, decayed = scan(one * 0, step, A, B, B, state=torch.ones(1, d, 1))
    _, entered = scan(one, step, A, B, B)
    exact = x.double()
    assert_close(decayed.flatten().double(), exact.exp(), rtol=4e-7, atol=1e-38)
    assert_close(entered.flatten().double(), exact.expm1().abs(), rtol=4e-7, atol=0)


@pytest.mark.parametrize("A", [-1.0, -1e-4, -1e-20, 0.0, 1e-4])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.05, 0.3, 0.35, 1.0])
def test_gradients_near_zero(A, delta, dtype):
    """For all delta A near 0, h = phi(delta A) delta has d/d delta = e^x and d/dA = delta^2 phi'(x)."""
    rate = torch.full((1, 1), A, dtype=dtype, requires_grad=True)
    step = torch.full((1, 1, 1), delta, dtype=dtype, requires_grad=True)
    one = torch.ones(1, 1, 1, dtype=dtype)
    _, h = scan(one, step, rate, one, one)
    d_step, d_rate = torch.autograd.grad(h.sum(), (step, rate))
    t = float(step.detach())
    x = float(rate.detach()) * t
    slope = sum((i + 1) * x**i / math.factorial(i + 2) for i in range(30))
    wants = (t * sum(x**i / math.factorial(i + 1) for i in range(30)), math.exp(x), t * t * slope)
    for got, want in zip((h, d_step, d_rate), wants, strict=True):
        assert float(got.detach()) == pytest.approx(want, rel=10 * torch.finfo(dtype).eps, abs=1e-44)
