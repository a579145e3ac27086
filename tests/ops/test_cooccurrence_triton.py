"""The Triton kernel of co-occurrence counts against the definition, on a GPU or under Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.tokens.counts import cooccurrence, count_pair_tokens
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

pytest.importorskip("triton")


def draw(pairs: int, lengths: tuple[int, int], nodes: int = 7, scale: int = 1) -> tuple[Tensor, ...]:
    """Ids and masks of both sequences of each pair; the first sequence is masked as a whole."""
    rng = torch.Generator().manual_seed(pairs + sum(lengths))
    ids = [scale * torch.randint(nodes, (pairs, k), generator=rng, dtype=torch.int32) for k in lengths]
    masks = [torch.rand(pairs, k, generator=rng) < 0.8 for k in lengths]
    masks[0][:1] = False
    return tuple(t.to(DEVICE) for t in (*ids, *masks))


def count_by_definition(node: Tensor, mask: Tensor) -> Tensor:
    with use_reference():
        return count_pair_tokens(node, mask)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize("columns", [1, 128])
def test_the_kernel_compiles_for_hopper(columns: int) -> None:
    """The kernel becomes machine code, GPU or no GPU."""
    from dygmamba.ops.tokens.triton_kernels import count_kernel

    ids = dict.fromkeys(("node", "left", "right", "out"), torch.zeros(1, dtype=torch.int32))
    masks = dict.fromkeys(("mask", "left_mask", "right_mask"), torch.zeros(1, dtype=torch.uint8))
    compile_for_hopper(count_kernel, ids | masks | {"ROWS": 32, "COLUMNS": columns}, 4)


@kernels_run
@pytest.mark.parametrize("lengths", [(1, 1), (5, 3), (1, 40), (33, 31), (130, 2), (0, 4), (3, 0)])
def test_every_length_is_counted_exactly(lengths: tuple[int, int]) -> None:
    """For all lengths and masks, the counts equal the definition's."""
    from dygmamba.ops.tokens import triton as fused

    for scale in (1, 70_000):
        given = draw(3, lengths, scale=scale)
        for found, true in zip(fused.cooccurrence(*given), cooccurrence.reference(*given), strict=True):
            assert found.dtype == true.dtype
            assert torch.equal(found, true)


@kernels_run
@pytest.mark.parametrize("length", [1, 32, 45])
@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_the_halves_of_a_batch_are_its_pairs(pairs: int, length: int) -> None:
    """Sequence i of the first half is counted with sequence i of the second."""
    from dygmamba.ops.tokens import triton as fused

    left, right, left_mask, right_mask = draw(pairs, (length, length))
    given = torch.cat([left, right]), torch.cat([left_mask, right_mask])
    assert torch.equal(fused.count_pair_tokens(*given), count_by_definition(*given))


@kernels_run
def test_a_cut_batch_is_counted() -> None:
    """Columns of wider tensors, as a batch of shorter sequences has them, give what their copies give."""
    from dygmamba.ops.tokens import triton as fused

    left, _, left_mask, _ = draw(6, (9, 9))
    cut = left[:, :4], left_mask[:, :4]
    assert torch.equal(fused.count_pair_tokens(*cut), count_by_definition(*cut))


@pytest.mark.parametrize("size", [(400, 32), (40, 1000), (3, 8192)])
class TestLarge:
    """Sizes for the compiler."""

    pytestmark = on_gpu

    def test_long_sequences_are_counted_exactly(self, size: tuple[int, int]) -> None:
        """No tile is left out, and a captured graph counts what it is given later."""
        left, right, left_mask, right_mask = draw(size[0], (size[1], size[1]), nodes=300)
        node, mask = torch.cat([left, right]), torch.cat([left_mask, right_mask])
        assert torch.equal(count_pair_tokens(node, mask), count_by_definition(node, mask))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counts = count_pair_tokens(node, mask)
        node.copy_(node.roll(1, 0))
        graph.replay()
        assert torch.equal(counts, count_by_definition(node, mask))
