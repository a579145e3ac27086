"""Rows of a table: the definition, the kernel under the interpreter or on a GPU, and what is refused."""

import numpy as np
import pytest
import torch

from dygmamba.core.errors import ConfigError
from dygmamba.ops.rows import gather_rows, read_rows
from interpreted import DEVICE, GPU, INTERPRETED, compile_for_hopper, kernels_run, poison
from raising import raises

SHAPES = [
    ((7, 3), (5,)),
    ((7, 172), (4, 6)),
    ((1, 1), (1, 1, 9)),
    ((9, 300), (2,)),
    ((5, 4), (0, 3)),
    ((5, 0), (2, 2)),
]


def draw(table, index, dtype=torch.int32):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(table, generator=rng), torch.randint(table[0], index, generator=rng, dtype=dtype)


@pytest.mark.parametrize(("table", "index"), SHAPES)
def test_on_one_device_it_is_indexing(table, index):
    """The public function and the definition are table[index]."""
    rows, chosen = draw(table, index)
    assert torch.equal(gather_rows(rows, chosen), rows[chosen])
    assert torch.equal(read_rows.reference(rows, chosen), rows[chosen])


def test_gradients_are_added_in_the_order_of_the_index():
    """On a CPU, with several threads: the gradient of a row has the bits of a sum from the first use to the last."""
    table, chosen = draw((50, 64), (200, 21), torch.int64)
    weight, threads = (
        torch.randn(200, 21, 64, generator=torch.Generator().manual_seed(1)),
        torch.get_num_threads(),
    )
    expected = np.zeros((50, 64), np.float32)
    np.add.at(expected, chosen.flatten().numpy(), weight.flatten(0, 1).numpy())
    torch.set_num_threads(2)
    try:
        for _ in range(3):
            rows = table.clone().requires_grad_()
            gather_rows(rows, chosen).backward(weight)
            assert rows.grad is not None
            assert np.array_equal(rows.grad.numpy(), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_table_elsewhere_must_be_pinned():
    """An index on another device than an ordinary table is refused with what to do."""
    rows, chosen = draw((7, 3), (5,))
    with raises("table-not-pinned", ConfigError):
        gather_rows(rows, chosen.to("meta"))


@kernels_run
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("table", "index"), SHAPES)
def test_the_kernel_takes_the_rows_asked_for(table, index, dtype):
    """Every row, every column, nothing beside them: from pinned memory on a GPU, from ordinary one interpreted."""
    from dygmamba.ops.rows import triton as fused

    rows, chosen = draw(table, index, dtype)
    held = rows.pin_memory() if GPU else rows
    with poison():
        found = fused.read_rows(held, chosen.to(DEVICE))
    assert torch.equal(found.cpu(), rows[chosen])


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled in this process")
def test_the_kernel_compiles_for_hopper():
    """The kernel becomes machine code, GPU or no GPU."""
    pytest.importorskip("triton")
    from dygmamba.ops.rows.triton import rows_kernel

    table = torch.zeros(1)
    arguments = {
        "table": table,
        "index": table,
        "out": table,
        "count": 1,
        "columns": 1,
        "ROWS": 8,
        "WIDTH": 128,
    }
    compile_for_hopper(rows_kernel, arguments, 4)
