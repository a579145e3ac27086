"""How exact float32 matrix products are: to the last bit, or on a GPU's tensor cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Torch's "highest", "high" (TF32) or "medium" inside, and what was in use before afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
