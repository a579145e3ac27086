"""mamba_ssm's selective scan: values and gradients of its definition, in its layouts."""

import pytest
import torch
from torch.nn.functional import silu, softplus

import dygmamba as dm
from dygmamba.core.errors import ConfigError
from raising import raises

Q, D, L, N = 2, 4, 9, 3
SHAPES = {"shared": (Q, N, L), "two groups": (Q, 2, N, L), "a group each": (Q, D, N, L), "fixed": (D, N)}


def definition(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False):
    """h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t, y_t = C_t h_t, step by step; the last state too."""
    delta = delta if delta_bias is None else delta + delta_bias[:, None]
    delta = softplus(delta) if delta_softplus else delta

    def each(x):  # [b d n l]
        if x.dim() == 2:
            return x[None, :, :, None].expand(u.shape[0], -1, -1, u.shape[2])
        x = x[:, None] if x.dim() == 3 else x
        return x.repeat_interleave(u.shape[1] // x.shape[1], dim=1)

    B, C, h, ys = each(B), each(C), u.new_zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        h = torch.exp(delta[:, :, t, None] * A) * h + delta[:, :, t, None] * B[..., t] * u[:, :, t, None]
        ys.append((h * C[..., t]).sum(-1))
    y = torch.stack(ys, dim=2)
    y = y if D is None else y + D[:, None] * u
    return (y if z is None else y * silu(z)), h


def inputs(b="shared", c="shared", dtype=torch.float64, seed=0):
    """Positional arguments and the optional ones, all of which want a gradient."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    first = [draw(Q, D, L), draw(Q, D, L), -draw(D, N).exp(), draw(*SHAPES[b]), draw(*SHAPES[c])]
    more = {"D": draw(D), "z": draw(Q, D, L), "delta_bias": draw(D)}
    return [x.requires_grad_() for x in first], {name: x.requires_grad_() for name, x in more.items()}


@pytest.mark.parametrize(
    ("b", "c"), [(b, c) for b in SHAPES for c in SHAPES if {b, c} != {"two groups", "fixed"}]
)
def test_values_and_gradients_are_those_of_the_definition(b, c):
    """For all layouts of B and C: y, the last state and every gradient, in float64."""
    if {b, c} == {"two groups", "a group each"}:
        pytest.skip("mamba_ssm has as many groups of B as of C")
    first, more = inputs(b, c)
    found = dm.ops.selective_scan_fn(*first, **more, delta_softplus=True, return_last_state=True)
    expected = definition(*first, **more, delta_softplus=True)
    every = [*first, *more.values()]
    weights = [torch.randn_like(x, generator=None) for x in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(pair, weights, strict=True)), every)
        for pair in (found, expected)
    ]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_left_out_is_left_out():
    """Without D, z, bias and softplus, y alone comes back."""
    first, _ = inputs()
    torch.testing.assert_close(dm.ops.selective_scan_fn(*first), definition(*first)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_is_of_the_inputs_kind(dtype):
    """Half precision is computed in float32 and rounded once."""
    first, more = inputs(dtype=dtype)
    wide, wider = [x.detach().float() for x in first], {name: x.detach().float() for name, x in more.items()}
    y = dm.ops.selective_scan_fn(*first, **more)
    assert y.dtype == dtype
    torch.testing.assert_close(y, definition(*wide, **wider)[0].to(dtype), rtol=2e-2, atol=1e-3)


def test_impossible_groups_and_complex_inputs_are_errors():
    """Groups that do not divide the channels, complex numbers."""
    first, _ = inputs()
    with raises("scan-group-mismatch", ConfigError):
        dm.ops.selective_scan_fn(*first[:3], torch.ones(Q, 3, N, L), torch.ones(Q, 3, N, L))
    with raises("complex-scan-input", ConfigError):
        dm.ops.selective_scan_fn(*first[:2], first[2] + 0j, *first[3:])
