"""The tokens of sequences: the Triton kernel gives the bits of the definition, on a GPU or interpreted."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dygmamba.ops.tokens import Sequences, build_tokens
from interpreted import DEVICE, INTERPRETED, compile_for_hopper, kernels_run, on_gpu

KINDS = list(product(("last", "first", "absent"), ("preceding", "following")))


def draw(count: int = 5, slots: int = 4, wide: int = 0) -> Sequences:
    """Sequences of all lengths with odd times, equal ones among them; padding is not zero. `wide` columns are cut."""
    g = torch.Generator().manual_seed(count + slots)
    length = torch.randint(slots + 1, (count,), generator=g)
    length[: slots + 1] = torch.arange(slots + 1)[:count]
    shape = count, slots + wide
    time = (1.3e9 + 1e6 * torch.rand(shape, generator=g, dtype=torch.float64)).sort(dim=1).values
    time[:, 1::3] = time[:, : shape[1] - 1 : 3][:, : time[:, 1::3].shape[1]]
    tau = time[:, :slots].amax(dim=1) if slots else torch.full((count,), 3.7, dtype=torch.float64)
    tau = tau + 7 * torch.rand(count, generator=g, dtype=torch.float64).round(decimals=1)
    ids = [torch.randint(99, shape, generator=g, dtype=torch.int32) for _ in range(2)]
    node, event, time = (column.to(DEVICE)[:, :slots] for column in (*ids, time))
    return Sequences(torch.arange(count).to(DEVICE), tau.to(DEVICE), node, event, time, length.to(DEVICE))


def assert_equal(seq: Sequences, rows: Tensor | None) -> None:
    """Every column has the bits, shape and dtype of the definition's, for all kinds of tokens."""
    from dygmamba.ops.tokens import triton as fused

    for query, span in KINDS:
        found = fused.build_tokens(seq, rows, query, span)
        for ours, true in zip(found, build_tokens.reference(seq, rows, query, span), strict=True):
            assert ours.dtype == true.dtype
            assert torch.equal(ours, true), (query, span)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
@pytest.mark.parametrize(("query", "span"), KINDS)
def test_the_kernel_compiles_for_hopper(query: str, span: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel becomes machine code, GPU or no GPU."""
    pytest.importorskip("triton")
    from dygmamba.ops.tokens import triton as fused
    from dygmamba.ops.tokens.triton_kernels import tokens_kernel

    class Compiled:
        def __getitem__(self, grid: Any) -> Any:
            return lambda **arguments: compile_for_hopper(tokens_kernel, arguments, 4)

    monkeypatch.setattr(fused, "tokens_kernel", Compiled())
    seq = Sequences(*(column.cpu() for column in draw()))
    fused.build_tokens(seq, None if span == "following" else torch.arange(3), query, span)


@kernels_run
@pytest.mark.parametrize("slots", [0, 1, 2, 31])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_every_size_has_the_bits_of_the_definition(count: int, slots: int) -> None:
    """For all numbers of sequences and slots, none included."""
    assert_equal(draw(count, slots), None)


@kernels_run
def test_chosen_and_cut_sequences_are_read_where_they_lie() -> None:
    """Rows in any order, several times or not at all, of columns that are cut from wider ones."""
    seq = draw(9, 5, wide=3)
    assert not seq.time.is_contiguous()
    assert_equal(seq, torch.tensor([8, 0, 0, 3, 5], device=DEVICE))
    assert_equal(seq, torch.arange(0, device=DEVICE))
    assert_equal(seq._replace(event=seq.event.contiguous()), None)


class TestLarge:
    """Sizes for the compiler."""

    pytestmark = on_gpu

    @pytest.mark.parametrize(("count", "slots"), [(600, 31), (90, 1023), (3, 8191)])
    def test_a_captured_graph_has_the_bits_of_the_definition(self, count: int, slots: int) -> None:
        """Also of sequences that are written after the capture."""
        seq, rows = draw(count, slots), torch.randint(count, (800,), device=DEVICE)
        assert_equal(seq, rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = build_tokens(seq, rows, "last", "preceding")
        seq.time.sub_(0.25)
        rows.copy_(rows.flip(0))
        graph.replay()
        for ours, true in zip(found, build_tokens.reference(seq, rows, "last", "preceding"), strict=True):
            assert torch.equal(ours, true)
