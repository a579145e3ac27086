"""Operations on tensors, a folder for each idea; nothing here knows a graph.

A reference defines an operation in plain torch: the body of the public function, or `reference.py` beside it. The other
modules of a folder are kernels (Numba, Triton, CUDA, or torch with hand-written gradients) that compute the same values
and gradients faster. `dispatch.py` chooses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dygmamba.ops.mamba import selective_scan_fn as selective_scan_fn
    from dygmamba.ops.scan import scan

    selective_scan = scan

_LAZY = {"selective_scan": ("scan", "scan"), "selective_scan_fn": ("mamba", "selective_scan_fn")}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dygmamba.ops' has no attribute '{name}'")
    module, attribute = _LAZY[name]
    return getattr(import_module(f"dygmamba.ops.{module}"), attribute)
