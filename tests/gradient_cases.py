"""Compare an op that has hand-written gradients with its reference, in values and gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Op = Callable[..., Any]


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that a gradient which is not written is noticed."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def results(op: Op, leaves: tuple[Tensor, ...], *rest: Any) -> list[Tensor]:
    """Return the outputs of an op and the gradients of all leaves in one fixed direction."""
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    found = op(*leaves, *rest)
    outputs = found if isinstance(found, tuple) else (found,)
    rng = torch.Generator().manual_seed(7)
    directions = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y) for y in outputs]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, leaves, directions)]


def assert_same(op: Op, reference: Op, leaves: tuple[Tensor, ...], *rest: Any, **near: float) -> None:
    """Assert that values, dtypes and all gradients are those of the reference."""
    for ours, true in zip(results(op, leaves, *rest), results(reference, leaves, *rest), strict=True):
        assert ours.dtype == true.dtype
        torch.testing.assert_close(ours, true, **near)
