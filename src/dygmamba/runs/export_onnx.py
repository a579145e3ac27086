"""Export of a scorer as an ONNX graph by way of torch.export; boosted trees become one TreeEnsemble.

The packages onnx, onnxscript and onnxruntime are the extra `onnx`; they are imported when they are needed.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError, first_line, make_package_error
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_metadata import METADATA_KEY, Inputs, parse_metadata, read_stored_calibration
from dygmamba.runs.export_torch import Compute, trace_scorer

# Decompositions: aten operators that ONNX or torch's exporter lacks, written with operators that it has. Each computes
# the same function; NotImplemented leaves an operator as it is.


def _decompose_roll(x: Tensor, shifts: list[int], dims: tuple[int, ...] = ()) -> Any:
    """Roll by a dynamic size; torch's exporter needs a constant."""
    dims = dims or (0,) * (x.ndim == 1)
    if len(shifts) != 1 or len(dims) != 1:
        return NotImplemented
    at = x.shape[dims[0]] - shifts[0]
    return torch.cat([x.narrow(dims[0], at, shifts[0]), x.narrow(dims[0], 0, at)], dims[0])


def _decompose_view(x: Tensor, shape: list[int]) -> Any:
    """Create an empty tensor, such as absent features, instead of reshaping it: ONNX cannot infer the shape."""
    empty = any(isinstance(size, int) and size == 0 for size in x.shape)
    return x.new_zeros(shape) if empty else NotImplemented


def _decompose_split(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    starts = accumulate(sizes[:-1], initial=0)
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _decompose_even_split(x: Tensor, size: int, dim: int = 0) -> Any:
    count = -(-x.shape[dim] // size)
    return _decompose_split(x, [*[size] * (int(count) - 1), x.shape[dim] - (int(count) - 1) * size], dim)


def _decompose_frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return m in [0.5, 1) and e with x = m 2^e, for positive x; rounding of the logarithm is corrected."""
    power = x.log2().floor() + 1
    mantissa = x / power.exp2()
    high, low = mantissa >= 1, mantissa < 0.5
    power = power + high.to(x.dtype) - low.to(x.dtype)
    return x / power.exp2(), power.int()


def _decompose_index(x: Tensor, indices: list[Tensor | None]) -> Any:
    """Cast 32-bit indices to 64 bits; ONNX takes no others."""
    wide = [index.long() if index is not None and index.dtype == torch.int32 else index for index in indices]
    has_changed = any(new is not old for new, old in zip(wide, indices, strict=True))
    return torch.ops.aten.index.Tensor(x, wide) if has_changed else NotImplemented


def _decompose_searchsorted(
    sorted_sequence: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    **more: Any,
) -> Tensor:
    """Count the entries below each value by comparing all of them; ONNX has no binary search."""
    rows, value = sorted_sequence[..., None, :], values[..., :, None]
    is_below = rows <= value if right or side == "right" else rows < value
    return is_below.sum(dim=-1, dtype=torch.int32 if out_int32 else torch.int64)


ONNX_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.roll.default: _decompose_roll,
    torch.ops.aten.view.default: _decompose_view,
    torch.ops.aten.split_with_sizes.default: _decompose_split,
    torch.ops.aten.split.Tensor: _decompose_even_split,
    torch.ops.aten.frexp.Tensor: _decompose_frexp,
    torch.ops.aten.index.Tensor: _decompose_index,
    torch.ops.aten.searchsorted.Tensor: _decompose_searchsorted,
}


ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18  # of the standard operators, as torch.onnx writes them
NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
LOG_ERROR = 3  # severity from which onnxruntime writes to the terminal
# networks that read sequences and have no memory; the export of each was compared with a run (see the page on
# interoperability, docs/how-to/interoperate.md)
EXPORTABLE_NETWORKS = ("dyg-mamba", "mamba", "tgat", "cawn", "graphmixer", "tcl", "dygformer", "freedyg")

TENSOR_ATTRIBUTES = ("nodes_splits", "nodes_modes", "leaf_weights")  # the other attributes are lists
LEQ, SUM = 0, 1  # values up to the threshold go to the true branch; leaves are summed


def require_onnx() -> None:
    """Raise ConfigError if a package is missing, before any work is done."""
    try:
        for name in ONNX_PACKAGES:
            import_module(name)
    except ImportError as error:
        raise make_package_error("ONNX", " or ".join(ONNX_PACKAGES), "'dyg-mamba[onnx]'") from error


def export_onnx_program(scorer: nn.Module, inputs: Inputs, about: dict[str, Any]) -> bytes:
    """Return a scorer of these inputs as an ONNX file; that of a calibrated run also returns the probability."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    program = trace_scorer(scorer, inputs, read_stored_calibration(about))
    with _silence_exporter():
        try:
            exported = torch.onnx.export(
                program.run_decompositions(dict(ONNX_DECOMPOSITIONS)),
                input_names=list(inputs),
                output_names=list(about["outputs"]),
                opset_version=OPSET,
                external_data=False,
                verbose=False,
                custom_translation_table=_translate_trees(scorer)
                if isinstance(scorer, BoostedTrees)
                else None,
            )
        except RuntimeError as error:  # base class of the errors of torch.onnx and onnx_ir
            raise unsupported_model_error(about["model"], error) from error
        assert exported is not None  # it is None only if a file name is given
        # the origin of each operator takes nine tenths of the bytes
        ClearMetadataAndDocStringPass()(exported.model)
    exported.model.metadata_props[METADATA_KEY] = json.dumps(about)
    return exported.model_proto.SerializeToString()


def load_onnx_program(content: bytes, model: str) -> tuple[Compute, dict[str, Any]]:
    """Load an ONNX file with onnxruntime: the program and its metadata."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = LOG_ERROR
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no other base class
        raise unsupported_model_error(model, error) from error

    def compute(inputs: Inputs, output: str) -> Tensor:
        (values,) = session.run([output], {name: column.numpy() for name, column in inputs.items()})
        return torch.from_numpy(values)

    return compute, parse_metadata(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, ""))


def unsupported_model_error(model: str, error: BaseException) -> ConfigError:
    """Return the error for a model with an operator that ONNX lacks, with the first cause of `error`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return ConfigError(
        f"model '{model}' has an operator that ONNX or onnxruntime does not support ({first_line(error)}); use the "
        f"suffix .pt2, or export one of {', '.join(EXPORTABLE_NETWORKS)}",
        code="model-not-exportable",
    )


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence warnings and logs of the exporter."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _translate_trees(scorer: BoostedTrees) -> dict[Any, Callable[..., Any]]:
    """Return the translation of `sum_trees`: a TreeEnsemble in 64 bits that sums the leaves of a row of features."""
    from onnx import TensorProto, numpy_helper
    from onnxscript.onnx_opset import opset18, opset_ai_onnx_ml5

    standard: Any = opset18
    with_trees: Any = opset_ai_onnx_ml5  # the first with sums in 64 bits
    attributes: dict[str, Any] = {
        name: numpy_helper.from_array(column, name) if name in TENSOR_ATTRIBUTES else column.tolist()
        for name, column in _flatten_trees(scorer).items()
    }
    attributes |= {"n_targets": 1, "aggregate_function": SUM, "post_transform": 0}

    def translate(numbers: Any) -> Any:
        exact = standard.Cast(numbers, to=TensorProto.DOUBLE)
        sums = with_trees.TreeEnsemble(exact, **attributes)
        return standard.Squeeze(sums, standard.Constant(value_ints=[1]))

    return {torch.ops.dygmamba.sum_trees.default: translate}


def _flatten_trees(scorer: BoostedTrees) -> dict[str, np.ndarray]:
    """Return the attributes of TreeEnsemble: splits and leaves of all trees, each kind numbered on its own.

    TreeEnsemble has no trees without a split, so a tree of one leaf becomes a split with that leaf on both branches.
    """
    trees = scorer.trees(0, max(int(scorer.grown), 1))  # before training there is one tree, a leaf of 0
    feature, left, right = (column.cpu().numpy() for column in (trees.feature, trees.left, trees.right))
    threshold, value = trees.threshold.cpu().double().numpy(), trees.value.cpu().numpy()
    place = np.arange(feature.size).reshape(feature.shape)
    is_leaf = feature < 0  # unused places of a tree are leaves that no split leads to
    is_node = ~is_leaf
    is_node[:, 0] = True
    node_number, leaf_number = (np.cumsum(kind).reshape(kind.shape) - 1 for kind in (is_node, is_leaf))
    number = np.where(is_leaf, leaf_number, node_number)
    attributes = {
        "tree_roots": node_number[:, 0],
        "nodes_featureids": np.maximum(feature, 0)[is_node],
        "nodes_splits": threshold[is_node],
        "nodes_modes": np.full(is_node.sum(), LEQ, np.uint8),
        "leaf_weights": value[is_leaf],
        "leaf_targetids": np.zeros(is_leaf.sum(), np.int64),
    }
    for side, child in (("true", left), ("false", right)):
        branch = np.where(is_leaf, place, place[:, :1] + child)[is_node]
        attributes[f"nodes_{side}nodeids"] = number.flat[branch]
        attributes[f"nodes_{side}leafs"] = is_leaf.flat[branch].astype(np.int64)
    return attributes
