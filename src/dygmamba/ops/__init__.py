"""Operations on tensors, each a folder with a readable reference and its kernels; nothing here knows a graph.

`reference.py` of a folder defines the operation in plain torch. The modules beside it are kernels (Numba, Triton, CUDA,
or torch with a hand-written gradient) that compute the same values and gradients faster. `dispatch.py` chooses.
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
