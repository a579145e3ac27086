"""The Triton kernel of co-occurrence counts against the definition, on a GPU or under Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from dygmamba.ops.tokens import count_pair_tokens
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")


def draw(pairs: int, length: int, nodes: int = 7, scale: int = 1) -> tuple[Tensor, Tensor]:
    """Ids and masks of both sequences of each pair; the first sequence is masked as a whole."""
    rng = torch.Generator().manual_seed(pairs + length)
    ids = scale * torch.randint(nodes, (2 * pairs, length), generator=rng, dtype=torch.int32)
    mask = torch.rand(2 * pairs, length, generator=rng) < 0.8
    mask[:1] = False
    return ids.to(DEVICE), mask.to(DEVICE)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("columns", [1, 128])
def test_the_kernel_compiles_for_hopper(columns: int) -> None:
    """The kernel becomes machine code, GPU or no GPU."""
    from dygmamba.ops.tokens.triton_kernels import count_kernel

    ids = dict.fromkeys(("node", "out"), torch.zeros(1, dtype=torch.int32))
    mask = {"mask": torch.zeros(1, dtype=torch.uint8)}
    compile_for_hopper(count_kernel, ids | mask | {"ROWS": 32, "COLUMNS": columns}, 4)


@kernels_run
@pytest.mark.parametrize("length", [0, 1, 5, 32, 33, 45, 130])
@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_every_length_is_counted_exactly(pairs: int, length: int) -> None:
    """For all lengths and masks, the counts equal the definition's."""
    from dygmamba.ops.tokens import triton as fused

    for scale in (1, 70_000):
        given = draw(pairs, length, scale=scale)
        found, true = fused.count_pair_tokens(*given), count_pair_tokens.reference(*given)
        assert found.dtype == true.dtype
        assert torch.equal(found, true)


@kernels_run
def test_a_cut_batch_is_counted() -> None:
    """Columns of wider tensors, as a batch of shorter sequences has them, give what their copies give."""
    from dygmamba.ops.tokens import triton as fused

    cut = [t[:, :4] for t in draw(3, 9)]
    assert torch.equal(fused.count_pair_tokens(*cut), count_pair_tokens.reference(*cut))


@pytest.mark.parametrize("size", [(400, 32), (40, 1000), (3, 8192)])
class TestLarge:
    """Sizes for the compiler."""

    pytestmark = on_gpu

    def test_long_sequences_are_counted_exactly(self, size: tuple[int, int]) -> None:
        """No tile is left out, and a captured graph counts what it is given later."""
        node, mask = draw(*size, nodes=300)
        assert torch.equal(count_pair_tokens(node, mask), count_pair_tokens.reference(node, mask))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counts = count_pair_tokens(node, mask)
        node.copy_(node.roll(1, 0))
        graph.replay()
        assert torch.equal(counts, count_pair_tokens.reference(node, mask))
