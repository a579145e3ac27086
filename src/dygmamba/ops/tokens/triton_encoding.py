"""The encodings on a GPU: a matrix F of all features of the tokens, a matrix W of all weights, one product Z = F W.

The product, and F^T dZ of the gradients, have torch's precision of float32 products, or autocast's, in which F and Z
are then stored; the kernels multiply the weights of two layers in full float32 precision. There are no atomics: two
runs agree in every bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.dispatch import serving
from dygmamba.ops.projections import autocast_dtype
from dygmamba.ops.tokens import triton_encoding_kernels as kernels
from dygmamba.ops.tokens.encoding import FeatureRows, PairCounts, Part, TimeSpans
from dygmamba.ops.tokens.triton import count_pair_tokens

ROWS, BLOCK, WARPS = 16, 64, 4  # a tile of F
MOST = {TimeSpans: 1, PairCounts: 1, FeatureRows: 2}  # parts of each kind
SECTIONS = ("TIME", "HIDDEN", "A", "B")
TABLES = [f"{letter}_{name}" for letter in "ab" for name in ("table", "index", "present", "scale")]
INPUTS = ("age", "omega", "phase", "counts", *TABLES)
LAYERS = ("hidden", "second", "count", "time", "a", "b")
WEIGHTS = [f"{layer}_{name}" for layer in LAYERS for name in ("weight", "bias")]

Tensors = dict[str, Tensor | None]


def _are_served(parts: Sequence[Part]) -> bool:
    """Return whether the kernels compute these parts: weights in float32, and gradients only of them."""
    kinds, widths = [type(part) for part in parts], {part.bias.shape for part in parts}
    known = all(kinds.count(kind) <= most for kind, most in MOST.items()) and len(widths) == 1
    return known and all(_is_served(part) for part in parts)


def _is_served(part: Part) -> bool:
    fixed = [part.age, part.omega, part.phase] if isinstance(part, TimeSpans) else []
    if isinstance(part, FeatureRows):
        fixed = [part.table] if part.scale is None else [part.table, part.scale]
        # of another table the reference says what is wrong with it
        readable = part.table.device == part.index.device or part.table.is_pinned()
        if not readable or not part.table.is_contiguous() or part.table.shape[1] != part.weight.shape[0]:
            return False
    floats = all(t.dtype == torch.float32 for t in (*fixed, part.weight, part.bias))
    return floats and not any(t.requires_grad for t in fixed)


@serving(_are_served)
def encode_tokens(parts: Sequence[Part]) -> Tensor:
    """Return the encodings of all parts side by side, [r l d]."""
    sizes, inputs, weights = _lay_out(parts)
    if torch.is_grad_enabled() and any(t.requires_grad for t in weights.values()):
        sizes["ROW"] += 2 * sizes["H"]
    shape, names = parts[0].shape, tuple(weights)
    z = EncodedTokens.apply(sizes, inputs, shape.numel(), names, *weights.values())
    return z.view(*shape, sizes["D"])


def _lay_out(parts: Sequence[Part]) -> tuple[dict[str, int], Tensors, dict[str, Tensor]]:
    """Return the constants of all kernels, the inputs of F and the weights."""
    width, letters = parts[0].bias.shape[0], iter("ab")
    sizes = {"WIDTH": width, "D": width * len(parts)} | dict.fromkeys(SECTIONS, 0)
    sizes |= {f"{name}_OUT": -1 for name in SECTIONS}
    inputs: Tensors = dict.fromkeys(INPUTS)
    weights: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        match part:
            case TimeSpans():
                section, last, columns = "TIME", "time", part.omega.shape[0]
                inputs |= {"age": part.age, "omega": part.omega, "phase": part.phase}
            case PairCounts():
                section, last, columns = "HIDDEN", "count", part.first_bias.shape[0]
                inputs["counts"] = count_pair_tokens(part.node, part.mask)
                weights |= {"hidden_weight": part.first_weight, "hidden_bias": part.first_bias}
                weights |= {"second_weight": part.second_weight, "second_bias": part.second_bias}
            case FeatureRows():
                last, columns = next(letters), part.table.shape[1]
                section = last.upper()
                present = part.present.contiguous().view(torch.uint8)
                table = (part.table, part.index, present, part.scale)
                inputs |= dict(zip([name for name in TABLES if name[0] == last], table, strict=True))
        weights |= {f"{last}_weight": part.weight, f"{last}_bias": part.bias}
        sizes |= {section: columns, f"{section}_OUT": width * number}
    at = 0
    for section in SECTIONS:
        sizes[f"{section}_AT"] = at
        at += _pad(sizes[section], 4)
    sizes |= {"ONES_AT": at, "K": _pad(at + 1, 8), "H": _pad(sizes["HIDDEN"], 4), "ROW": _pad(at + 1, 8)}
    return sizes, {name: None if t is None else t.contiguous() for name, t in inputs.items()}, weights


def _pad(columns: int, multiple: int) -> int:
    return -(-columns // multiple) * multiple


class EncodedTokens(torch.autograd.Function):
    """Z = F W as a function of the weights, `names`."""

    @staticmethod
    def forward(
        ctx: Any, sizes: dict[str, int], inputs: Tensors, count: int, names: tuple[str, ...], *weights: Tensor
    ) -> Tensor:
        """Return Z [r l d] as a matrix [count d]."""
        given: Tensors = dict.fromkeys(WEIGHTS)
        given |= {name: t.detach().contiguous() for name, t in zip(names, weights, strict=True)}
        device, dtype = weights[0].device, autocast_dtype(weights[0])
        features = torch.empty(count, sizes["ROW"], dtype=dtype, device=device)
        product = torch.empty(sizes["K"], sizes["D"], dtype=torch.float32, device=device)
        with torch.cuda.device_of(features):
            if count > 0:
                _launch(
                    kernels.features_kernel,
                    (triton.cdiv(count, ROWS),),
                    sizes | inputs | given | {"out": features, "count": count, "ROWS": ROWS},
                )
            grid = sizes["K"], triton.cdiv(sizes["WIDTH"], BLOCK)
            _launch(kernels.weights_kernel, grid, sizes | given | {"out": product})
        ctx.sizes, ctx.names = sizes, names
        ctx.save_for_backward(features, product, *weights)
        return features[:, : sizes["K"]] @ product.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the weights that need one."""
        features, product, *weights = ctx.saved_tensors
        sizes, (dz,) = ctx.sizes, grads
        given: Tensors = dict.fromkeys(WEIGHTS)
        given |= {name: t.detach().contiguous() for name, t in zip(ctx.names, weights, strict=True)}
        found = {
            name: None if t is None else torch.empty(t.shape, dtype=torch.float32, device=t.device)
            for name, t in given.items()
        }
        most = max(sizes["WIDTH"], sizes["HIDDEN"])
        with torch.cuda.device_of(features):
            arguments = given | {f"d{name}": t for name, t in found.items()}
            arguments |= sizes | {"p": (features.mT @ dz).float(), "product": product}
            grid = max(sizes["K"], most), triton.cdiv(most, BLOCK)
            _launch(kernels.gradients_kernel, grid, arguments)
        # weights of features without columns get none, as in the reference, which does not use them
        needed = [need and t.numel() > 0 for need, t in zip(ctx.needs_input_grad[4:], weights, strict=True)]
        wanted = zip(ctx.names, needed, strict=True)
        return None, None, None, None, *(found[name] if need else None for name, need in wanted)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Launch with those of the arguments that the kernel has."""
    arguments = arguments | {"BLOCK": BLOCK}
    kernel[grid](**{name: arguments[name] for name in kernel.arg_names}, num_warps=WARPS)
