"""Random draws: a function of seed, epoch, node, time, hop and slot, uniform and independent."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.history.draws import Draws

INTS = st.integers(-(2**70), 2**70)
QUERY = torch.tensor([3]), torch.tensor([1.08e9], dtype=torch.float64)
COUNT = 40_000


def splitmix(x):
    """The next output of SplitMix64 in state x, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def signed(x):
    return x - 2**64 if x >= 2**63 else x


@given(
    seed=INTS,
    epoch=st.none() | st.integers(0, 10**6),
    node=st.integers(-1, 2**31),
    time=st.floats(-1e18, 1e18),
)
def test_draws_are_splitmix64(seed, epoch, node, time):
    """For all seeds, epochs, nodes and times: bit for bit what Python's unbounded integers give."""
    draws = Draws.from_seed(seed, epoch)
    key = splitmix(splitmix(seed % 2**64) ^ (0 if epoch is None else epoch + 1))
    assert int(draws.key) == signed(key)
    when = torch.tensor([time], dtype=torch.float64)
    bits = int((when + 0.0).view(torch.int64)) % 2**64
    query = splitmix(splitmix(splitmix(key ^ (node % 2**64)) ^ bits) ^ 2)
    expected = [(splitmix((query + slot * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53 for slot in range(5)]
    assert draws.uniform(torch.tensor([node]), when, 2, 5).tolist() == [expected]


def test_splitmix_is_the_published_generator():
    """From state 1234567 the published sequence begins with these numbers."""
    state, golden = 1234567, 0x9E3779B97F4A7C15
    found = [splitmix((state + k * golden) % 2**64) for k in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(
    node=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    k=st.integers(0, 6),
    seed=st.integers(0, 99),
    hop=st.integers(0, 2),
)
def test_a_draw_does_not_depend_on_the_batch(node, k, seed, hop):
    """Alone, reversed or with more slots: the same numbers, all in [0, 1)."""
    nodes, draws = torch.tensor(node), Draws.from_seed(seed)
    time = nodes.double() / 3
    together = draws.uniform(nodes, time, hop, k)
    assert bool(((together >= 0) & (together < 1)).all())
    assert torch.equal(draws.uniform(nodes.flip(0), time.flip(0), hop, k), together.flip(0))
    assert torch.equal(draws.uniform(nodes, time, hop, k + 3)[:, :k], together)
    for row in range(len(node)):
        alone = draws.uniform(nodes[row : row + 1], time[row : row + 1], hop, k)
        assert torch.equal(alone, together[row : row + 1])


def test_minus_zero_is_zero_and_a_key_may_change_in_place():
    """The instant -0.0 is 0.0; writing another epoch's key into the tensor gives that epoch's draws."""
    node, zero = torch.tensor([5]), torch.zeros(1, dtype=torch.float64)
    draws, other = Draws.from_seed(1, 0), Draws.from_seed(1, 1)
    assert torch.equal(draws.uniform(node, zero, 0, 9), draws.uniform(node, -zero, 0, 9))
    assert not torch.equal(draws.uniform(node, zero, 0, 9), other.uniform(node, zero, 0, 9))
    draws.key.copy_(other.key)
    assert torch.equal(draws.uniform(node, zero, 0, 9), other.uniform(node, zero, 0, 9))


def along_nodes():
    return Draws.from_seed(0).uniform(torch.arange(COUNT), QUERY[1].expand(COUNT), 0, 1)[:, 0]


def along_times():
    """Times one unit in the last place apart."""
    start = int(QUERY[1].view(torch.int64))
    times = torch.arange(start, start + COUNT).view(torch.float64)
    assert float(times[1] - times[0]) < 1e-6
    return Draws.from_seed(0).uniform(QUERY[0].expand(COUNT), times, 0, 1)[:, 0]


def along_slots():
    return Draws.from_seed(0).uniform(*QUERY, 0, COUNT)[0]


def along_hops():
    return torch.cat([Draws.from_seed(0).uniform(*QUERY, hop, 1)[0] for hop in range(COUNT // 40)])


def along_seeds():
    return torch.cat([Draws.from_seed(seed - 500).uniform(*QUERY, 0, 1)[0] for seed in range(COUNT // 40)])


def along_epochs():
    epochs = [None, *range(COUNT // 40)]
    return torch.cat([Draws.from_seed(0, epoch).uniform(*QUERY, 0, 1)[0] for epoch in epochs])


AXES = [along_nodes, along_times, along_slots, along_hops, along_seeds, along_epochs]


@pytest.mark.parametrize("axis", AXES)
def test_draws_are_uniform_and_independent_along_every_axis(axis):
    """Kolmogorov-Smirnov, chi-square over 64 cells, over pairs of neighbours in 8 x 8 cells, correlations: chance.

    Each bound is one that chance exceeds once in about 10,000 times.
    """
    u = axis()
    n = len(u)
    place = torch.arange(1, n + 1) / n
    assert float((u.sort().values - place).abs().max()) < 2.23 / n**0.5 + 1 / n
    for cells in (
        (u * 64).long(),
        (u * 2**20 * 64).long() % 64,
        (u[:-1] * 8).long() * 8 + (u[1:] * 8).long(),
    ):
        expected = len(cells) / 64
        chi = float(((torch.bincount(cells, minlength=64) - expected) ** 2 / expected).sum())
        assert 25 < chi < 114  # 63 degrees of freedom
    for lag in (1, 2, 3, 20, 64):
        correlation = float(torch.corrcoef(torch.stack([u[:-lag], u[lag:]]))[0, 1])
        assert abs(correlation) < 3.9 / n**0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_bits():
    """For many nodes and times both devices draw the same bits, also from a captured graph."""
    node, time = torch.arange(1000), torch.rand(1000, dtype=torch.float64) * 1e9
    there = Draws.from_seed(7, 0, "cuda")
    asked = node.cuda(), time.cuda()
    assert torch.equal(there.uniform(*asked, 1, 64).cpu(), Draws.from_seed(7, 0).uniform(node, time, 1, 64))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = there.uniform(*asked, 1, 64)
    there.key.copy_(Draws.from_seed(7, 1).key)
    graph.replay()
    assert torch.equal(found.cpu(), Draws.from_seed(7, 1).uniform(node, time, 1, 64))
