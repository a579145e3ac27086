"""Steps of a network that ONNX, or how torch writes it, does not know, said in steps that it does.

Each is the same function; `NotImplemented` leaves a step as it is.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


def _roll(x: Tensor, shifts: list[int], dims: tuple[int, ...] = ()) -> Any:
    """Around by a number that is a size, which ONNX's own way has to know beforehand."""
    dims = dims or (0,) * (x.ndim == 1)
    if len(shifts) != 1 or len(dims) != 1:
        return NotImplemented
    at = x.shape[dims[0]] - shifts[0]
    return torch.cat([x.narrow(dims[0], at, shifts[0]), x.narrow(dims[0], 0, at)], dims[0])


def _view(x: Tensor, shape: list[int]) -> Any:
    """What holds no number, such as features that are not there, made anew: its shape is not to be worked out."""
    empty = any(isinstance(size, int) and size == 0 for size in x.shape)
    return x.new_zeros(shape) if empty else NotImplemented


def _split(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Into pieces, each cut out on its own."""
    starts = accumulate(sizes[:-1], initial=0)
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _halves(x: Tensor, size: int, dim: int = 0) -> Any:
    """The same into pieces of one size."""
    count = -(-x.shape[dim] // size)
    return _split(x, [*[size] * (int(count) - 1), x.shape[dim] - (int(count) - 1) * size], dim)


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of positive numbers, m in [0.5, 1) and e with x = m 2^e; a logarithm that is one off is put right."""
    power = x.log2().floor() + 1
    mantissa = x / power.exp2()
    high, low = mantissa >= 1, mantissa < 0.5
    power = power + high.to(x.dtype) - low.to(x.dtype)
    return x / power.exp2(), power.int()


def _index(x: Tensor, places: list[Tensor | None]) -> Any:
    """Rows by their number, in 64 bits: ONNX takes no other."""
    wide = [place.long() if place is not None and place.dtype == torch.int32 else place for place in places]
    changed = any(one is not other for one, other in zip(wide, places, strict=True))
    return torch.ops.aten.index.Tensor(x, wide) if changed else NotImplemented


def _searchsorted(
    among: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    **more: Any,
) -> Tensor:
    """How many of a row are below a value, counted one by one: ONNX has no search."""
    rows, value = among[..., None, :], values[..., :, None]
    below = rows <= value if right or side == "right" else rows < value
    return below.sum(dim=-1, dtype=torch.int32 if out_int32 else torch.int64)


IN_OTHER_STEPS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.roll.default: _roll,
    torch.ops.aten.view.default: _view,
    torch.ops.aten.split_with_sizes.default: _split,
    torch.ops.aten.split.Tensor: _halves,
    torch.ops.aten.frexp.Tensor: _frexp,
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.searchsorted.Tensor: _searchsorted,
}
