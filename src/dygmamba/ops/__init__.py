"""Operations on tensors, a folder for each idea; nothing here knows a graph.

A reference defines an operation in plain torch: the body of the public function, or `reference.py` beside it. The other
modules of a folder are kernels (Numba, Triton, CUDA, or torch with hand-written gradients) that compute the same values
and gradients faster. `dispatch.py` chooses. `dir(dygmamba.ops)` lists the operations that take tensors alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dygmamba.ops.attention import gated_sum as gated_sum
    from dygmamba.ops.attention import masked_softmax as masked_softmax
    from dygmamba.ops.attention import pair_attention as pair_attention
    from dygmamba.ops.conv import conv_silu as conv_silu
    from dygmamba.ops.mamba import selective_scan_fn as selective_scan_fn
    from dygmamba.ops.projections import spectral_bound as spectral_bound
    from dygmamba.ops.projections import split_projection as split_projection
    from dygmamba.ops.residual_norm import add_layer_norm as add_layer_norm
    from dygmamba.ops.residual_norm import add_rms_norm as add_rms_norm
    from dygmamba.ops.rows import gather_rows as gather_rows
    from dygmamba.ops.scan import scan
    from dygmamba.ops.scan import span_scan as span_scan
    from dygmamba.ops.tokens import count_pair_tokens as count_pair_tokens

    selective_scan = scan

# operation -> module
_PUBLIC = {
    "add_layer_norm": "residual_norm",
    "add_rms_norm": "residual_norm",
    "conv_silu": "conv",
    "count_pair_tokens": "tokens",
    "gated_sum": "attention",
    "gather_rows": "rows",
    "masked_softmax": "attention",
    "pair_attention": "attention",
    "selective_scan": "scan",
    "selective_scan_fn": "mamba",
    "span_scan": "scan",
    "spectral_bound": "projections",
    "split_projection": "projections",
}
_INSIDE = {"selective_scan": "scan"}  # names inside the package, where they differ


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dygmamba.ops' has no attribute '{name}'")
    return getattr(import_module(f"dygmamba.ops.{_PUBLIC[name]}"), _INSIDE.get(name, name))


def __dir__() -> list[str]:
    return list(_PUBLIC)
