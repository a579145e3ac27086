"""The bound of W_B and W_C, from weights of any size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.nn.selection import BoundedSelection
from dygmamba.ops.projections import MOST_ROWS, SQUARINGS, autograd, power_of_two, spectral_bound
from gradient_cases import assert_same

TIGHT = 0.5 ** (sum(SQUARINGS) + 2)
scales = st.floats(-37, 36).map(lambda exponent: 10.0**exponent) | st.sampled_from([1e-30, 1e-20, 1e20, 1e30])


def matrices(seed, scale, rank=5, states=5):
    """Two matrices of a rank at most this, their entries about as large as `scale`."""
    rng = torch.Generator().manual_seed(seed)
    factors = torch.randn(2, states, rank, generator=rng), torch.randn(2, rank, 40, generator=rng)
    return ((factors[0] @ factors[1]).double() * scale).float()


@given(
    seed=st.integers(0, 50), scale=st.sampled_from([1e-3, 0.1, 1.0, 30.0]) | scales, rank=st.integers(1, 5)
)
def test_the_spectral_bound_never_underestimates_and_is_tight(seed, scale, rank):
    """The bound holds: sigma <= bound <= n^(1/2^10) sigma, for all matrices, of any rank and size."""
    weight = matrices(seed, scale, rank)
    sigma = torch.linalg.matrix_norm(weight.double(), ord=2)
    bound = spectral_bound(weight)
    assert bool((bound >= sigma * (1 - 1e-4)).all())
    assert bool((bound <= sigma * 5**TIGHT * (1 + 1e-4)).all())


@given(seed=st.integers(0, 50), scale=scales, rank=st.integers(1, 5))
def test_by_hand_it_is_its_definition(seed, scale, rank):
    """For all matrices: bound and gradient."""
    assert_same(
        autograd.spectral_bound,
        spectral_bound.reference,
        (matrices(seed, scale, rank),),
        rtol=1e-5,
        atol=1e-6,
    )


@given(seed=st.integers(0, 50), scale=scales)
def test_the_gradient_is_that_of_the_singular_value(seed, scale):
    """That is, d sigma = u^T dW v, a matrix of norm 1 whatever the size of the weights."""
    weight = matrices(seed, scale).requires_grad_()
    spectral_bound(weight).sum().backward()
    u, sigma, v = torch.linalg.svd(weight.detach().double(), full_matrices=False)
    apart = (
        sigma[:, 1] < 0.9 * sigma[:, 0]
    )  # where the two largest are near, the powers have not told them apart
    expected = u[:, :, :1] * v[:, :1]
    torch.testing.assert_close(weight.grad[apart].double(), expected[apart], rtol=1e-3, atol=1e-4)
    assert bool((weight.grad.flatten(1).norm(dim=1) > 0.5).all())


@given(seed=st.integers(0, 50), exponent=st.integers(-120, 110))
def test_a_power_of_two_scales_bound_and_nothing_else(seed, exponent):
    """spectral_bound(2^k W) = 2^k spectral_bound(W) and the gradient is the same, to the last bit."""
    plain, scaled = (matrices(seed, scale).requires_grad_() for scale in (1.0, 2.0**exponent))
    bounds = [spectral_bound(weight) for weight in (plain, scaled)]
    for bound in bounds:
        bound.sum().backward()
    assert torch.equal(bounds[1], bounds[0] * 2.0**exponent)
    assert torch.equal(scaled.grad, plain.grad)


def test_a_zero_matrix_has_a_bound_and_a_gradient():
    """At zero the bound is zero and the subgradient finite; the other matrix is not touched by it."""
    weight = matrices(0, 1.0)
    weight[0] = 0
    weight.requires_grad_()
    bound = spectral_bound(weight)
    bound.sum().backward()
    assert not bound[0].any()
    assert torch.equal(bound[1:], spectral_bound(weight[1:]))
    assert bool(torch.isfinite(weight.grad).all())
    assert bool(weight.grad[1].any())


def test_the_bound_holds_for_the_most_states():
    """As many directions as are allowed, all equally long: the slowest case of the power iteration."""
    bound = spectral_bound(torch.eye(MOST_ROWS)[None])
    assert 1 - 1e-4 <= float(bound) <= MOST_ROWS**TIGHT * (1 + 1e-4)


def test_a_step_from_zero_weights_is_finite():
    """Training may begin with W_B = W_C = 0, or come there."""
    part = BoundedSelection(40, 8)
    torch.nn.init.zeros_(part.weight)
    optimizer = torch.optim.Adam(part.parameters(), lr=0.1)
    x = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        B, C = (x @ part.maps().flatten(0, 1).T).chunk(2, dim=-1)
        optimizer.zero_grad()
        ((B - 1).square() + (C - 2).square()).sum().backward()
        assert bool(part.weight.grad.any())
        optimizer.step()
    assert bool(torch.isfinite(part.weight).all())


@given(size=st.floats(2.0**-126, 2.0**127, width=32))
def test_a_unit_is_a_power_of_two(size):
    """With unit <= size < 2 unit for all normal numbers, to the last bit; zero gets the least of them."""
    size = torch.tensor([size, 0.0])
    unit = power_of_two(size)
    assert unit[0] <= size[0] < 2 * unit[0].double()
    assert torch.equal(torch.frexp(unit).mantissa, torch.tensor([0.5, 0.5]))
    assert float(unit[1]) == 2.0**-126


def test_the_bound_is_computed_in_full_precision():
    """Under TF32 and autocast the bound is that of float32, and what was in use before is in use after."""
    weight = torch.randn(2, 16, 40, generator=torch.Generator().manual_seed(0))
    expected, before = spectral_bound(weight), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(spectral_bound(weight), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@given(scale=st.sampled_from([0.01, 1.0, 50.0]))
def test_bounded_maps_have_spectral_norm_at_most_one(scale):
    """||W_B||, ||W_C|| <= 1 whatever the weights; weights already inside the bound are left alone."""
    part = BoundedSelection(40, 8)
    torch.nn.init.normal_(part.weight, std=scale)
    sigma = torch.linalg.matrix_norm(part.weight, ord=2)
    applied = torch.linalg.matrix_norm(part.maps(), ord=2)
    assert bool((applied <= 1 + 1e-4).all())
    if bool((sigma < 0.9).all()):
        assert torch.equal(part.maps(), part.weight)
