"""The scan on a GPU: `cuda` takes what it was made for, `triton` the rest."""

from types import ModuleType

from torch import Tensor

from dygmamba.ops.scan import cuda
from dygmamba.ops.scan.inputs import Inputs, Upstream


def _kernels(x: Inputs) -> ModuleType:
    if cuda.serves(x) and cuda.works(x.u.device):
        return cuda
    from dygmamba.ops.scan import triton

    return triton


def in_place(x: Inputs) -> tuple[str, ...]:
    """The inputs whose gradients backward leaves in the checkpoints."""
    return _kernels(x).in_place(x)


def checkpoint_shape(x: Inputs) -> tuple[int, ...]:
    """What forward keeps for backward."""
    return _kernels(x).checkpoint_shape(x)


def forward(x: Inputs, rule: str, reverse: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state and the checkpoints (size 0 unless `keep`)."""
    return _kernels(x).forward(x, rule, reverse, keep)


def backward(x: Inputs, rule: str, reverse: bool, given: Upstream) -> Inputs:
    """The gradients, in the inputs' places; None where there is no input, or no wish for the span's."""
    return _kernels(x).backward(x, rule, reverse, given)
