"""Theorem 3: bounded W_B and W_C bound the effect of noise, stated as it really holds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.ops.scan.reference import span_delta, span_scan

CHANNELS, STATES = 6, 4


def contraction(rng, rows, columns):
    """A random matrix of spectral norm 1."""
    weight = torch.randn(rows, columns, generator=rng, dtype=torch.float64)
    return weight / torch.linalg.matrix_norm(weight, ord=2)


def inside_ball(rng, length, radius):
    """Tokens of norm at most `radius`."""
    x = torch.randn(1, length, CHANNELS, generator=rng, dtype=torch.float64)
    return radius * x / x.norm(dim=-1).max()


class System:
    """A selective scan whose step comes from time spans alone, as in Eq. 11."""

    def __init__(self, seed, length):
        rng = torch.Generator().manual_seed(seed)
        uniform = {"generator": rng, "dtype": torch.float64}
        self.W_B, self.W_C = contraction(rng, STATES, CHANNELS), contraction(rng, STATES, CHANNELS)
        self.A = -(0.1 + 2 * torch.rand(CHANNELS, STATES, **uniform))
        self.w1, self.w2 = 0.05 + torch.rand(CHANNELS, **uniform), 1 + 9 * torch.rand(CHANNELS, **uniform)
        self.span = torch.rand(1, length, **uniform)
        self.rng = rng

    def __call__(self, m):
        return span_scan(m, self.span, self.w1, self.w2, self.A, m @ self.W_B.T, m @ self.W_C.T)[0]

    @property
    def gain(self):
        """(1 - e^(gamma T)) / |gamma|: the sum over the past of what a step lets through, gamma = max A."""
        total = span_delta(self.span, self.w1, self.w2).sum(dim=1).max()
        gamma = self.A.max()
        return (1 - torch.exp(gamma * total)) / -gamma


def noisy(system, length, radius, scale):
    """Clean tokens and the same tokens with noise, both inside the ball of the given radius."""
    clean = inside_ball(system.rng, length, radius * (1 - scale))
    return clean, clean + inside_ball(system.rng, length, radius * scale)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 40),
    radius=st.sampled_from([0.3, 1.0, 4.0]),
    scale=st.sampled_from([1e-3, 0.1, 0.5]),
)
def test_the_output_perturbation_is_bounded(seed, length, radius, scale):
    """|y'_k - y_k| <= 3 R^2 (1 - e^(gamma T)) / |gamma| * max_j |m'_j - m_j| if all |m|, |m'| <= R.

    Assumptions: diagonal A with negative entries, gamma its largest; |W_B|, |W_C| <= 1; the step depends on
    time only, T is its sum. The output is trilinear in (m_k, m_j, m_j) and the step weights telescope to
    (1 - e^(gamma T)) / |gamma|, hence the factor 3 R^2, which the printed theorem leaves out.
    """
    system = System(seed, length)
    clean, moved = noisy(system, length, radius, scale)
    change = (system(moved) - system(clean)).norm(dim=-1).max()
    noise = (moved - clean).norm(dim=-1).max()
    assert change <= 3 * radius**2 * system.gain * noise * (1 + 1e-9)


def test_the_printed_bound_needs_bounded_inputs():
    """Without the factor R^2 the inequality is false: large tokens break it."""
    system = System(0, 10)
    clean, moved = noisy(system, 10, radius=20.0, scale=0.1)
    change = (system(moved) - system(clean)).norm(dim=-1).max()
    assert change > system.gain * (moved - clean).norm()


def test_unbounded_maps_let_more_noise_through():
    """The bound is what the constraint buys: maps of norm 3 exceed it on the same tokens."""
    system = System(1, 20)
    clean, moved = noisy(system, 20, radius=1.0, scale=0.1)
    before = (system(moved) - system(clean)).norm(dim=-1).max()
    system.W_B, system.W_C = 3 * system.W_B, 3 * system.W_C
    after = (system(moved) - system(clean)).norm(dim=-1).max()
    torch.testing.assert_close(after, 9 * before)
