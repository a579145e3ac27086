"""Export of a scorer as an ONNX graph: networks by way of torch.export, boosted trees as one TreeEnsemble.

The graph of a calibrated run has the probability as a second output; its operators are appended to those of the logit.
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
from dygmamba.runs.export_metadata import (
    LOGIT_OUTPUT,
    METADATA_KEY,
    NEW_ENDS_INPUT,
    PROBABILITY_OUTPUT,
    Inputs,
    parse_metadata,
    read_stored_calibration,
)
from dygmamba.runs.export_torch import ExportedScorer, trace_scorer, view_to_inputs
from dygmamba.sampling.view import PairView
from dygmamba.tasks.calibration import Calibration

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

TREE_OPSET = 5  # of the operators for trees: the first with sums in 64 bits
TENSOR_ATTRIBUTES = ("nodes_splits", "nodes_modes", "leaf_weights")  # the other attributes are lists
LEQ, SUM = 0, 1  # values up to the threshold go to the true branch; leaves are summed


def require_onnx() -> None:
    """Raise ConfigError if a package is missing, before any work is done."""
    try:
        for name in ONNX_PACKAGES:
            import_module(name)
    except ImportError as error:
        raise make_package_error("ONNX", " or ".join(ONNX_PACKAGES), "'dyg-mamba[onnx]'") from error


def export_onnx_network(scorer: nn.Module, view: PairView, about: dict[str, Any]) -> ExportedScorer:
    """Convert the traced program of a network to ONNX and load it again."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    inputs = view_to_inputs(view)  # without that of the calibration, which is appended below
    program = trace_scorer(scorer, view, inputs)
    with _silence_exporter():
        try:
            exported = torch.onnx.export(
                program.run_decompositions(dict(ONNX_DECOMPOSITIONS)),
                input_names=list(inputs),
                output_names=[LOGIT_OUTPUT],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
        except RuntimeError as error:  # base class of the errors of torch.onnx and onnx_ir
            raise unsupported_model_error(about["model"], error) from error
        assert exported is not None  # it is None only if a file name is given
        # the origin of each operator takes nine tenths of the bytes
        ClearMetadataAndDocStringPass()(exported.model)
    return _complete_graph(exported.model_proto, about)


def load_onnx_session(content: bytes, model: str) -> ExportedScorer:
    """Load a graph with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = LOG_ERROR
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no other base class
        raise unsupported_model_error(model, error) from error
    about = parse_metadata(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, ""))
    return ExportedScorer(content, _session_runner(session), about)


def _session_runner(session: Any) -> Callable[[Inputs, str], Tensor]:
    def compute(inputs: Inputs, output: str) -> Tensor:
        (values,) = session.run([output], {name: column.numpy() for name, column in inputs.items()})
        return torch.from_numpy(values)

    return compute


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


def export_onnx_trees(scorer: BoostedTrees, about: dict[str, Any]) -> ExportedScorer:
    """Write boosted trees as a graph: one TreeEnsemble in 64 bits that sums the leaves of a row of features."""
    from onnx import TensorProto, helper, numpy_helper

    columns: dict[str, Any] = {
        name: numpy_helper.from_array(column, name) if name in TENSOR_ATTRIBUTES else column.tolist()
        for name, column in _flatten_trees(scorer).items()
    }
    options: dict[str, Any] = {"n_targets": 1, "aggregate_function": SUM, "post_transform": 0}
    trees = helper.make_node("TreeEnsemble", ["exact"], ["summed"], domain="ai.onnx.ml", **options, **columns)
    constants = {"base": scorer.base.cpu().double().reshape(1).numpy(), "flat": np.array([-1], np.int64)}
    nodes = [
        helper.make_node("Cast", ["numbers"], ["exact"], to=TensorProto.DOUBLE),
        trees,
        helper.make_node("Reshape", ["summed", "flat"], ["sum"]),
        helper.make_node("Add", ["sum", "base"], [LOGIT_OUTPUT]),
    ]
    graph = helper.make_graph(
        nodes,
        about["model"],
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["pairs", len(scorer.names)])],
        [helper.make_tensor_value_info(LOGIT_OUTPUT, TensorProto.DOUBLE, ["pairs"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", TREE_OPSET)]
    return _complete_graph(helper.make_model(graph, opset_imports=opsets, ir_version=10), about)


def _complete_graph(model: Any, about: dict[str, Any]) -> ExportedScorer:
    """Add the input `new_ends`, the probability of a calibrated run and the metadata to a graph; load it."""
    from onnx import TensorProto, helper, numpy_helper

    graph, calibration = model.graph, read_stored_calibration(about)
    # also without a calibration, so that every program of a run takes what `Run.inputs` returns
    graph.input.append(helper.make_tensor_value_info(NEW_ENDS_INPUT, TensorProto.BOOL, ["pairs", 2]))
    if calibration is not None:
        constants = {
            f"calibration.{name}": value for name, value in _tabulate_calibration(calibration).items()
        }
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        graph.node.extend(_calibration_nodes())
        graph.output.append(helper.make_tensor_value_info(PROBABILITY_OUTPUT, TensorProto.DOUBLE, ["pairs"]))
    helper.set_model_props(model, {METADATA_KEY: json.dumps(about)})
    return load_onnx_session(model.SerializeToString(), about["model"])


def _tabulate_calibration(calibration: Calibration) -> dict[str, np.ndarray]:
    """Return the curve as line segments, the first and the last of them unbounded, and the offsets of new ends.

    Segment s is for logits above s knots: log-odds = value[s] + rise[s] * (logit - start[s]).
    """
    has_curve = len(calibration.knots) > 1
    x, f = np.array(calibration.knots if has_curve else [(0.0, calibration.bias)], np.float64).T
    source, destination = calibration.new_source, calibration.new_destination
    return {
        "knots": x.copy(),
        "start": np.concatenate([x[:1], x]),
        "value": np.concatenate([f[:1], f]),
        "rise": np.concatenate([[calibration.slope], np.diff(f) / np.diff(x), [calibration.slope]]),
        "offsets": np.array([0.0, source, destination, source + destination + calibration.both_new]),
        "bits": np.array([1, 2], np.int64),  # number of an offset: source + 2 * destination
        "last": np.array([-1], np.int64),
    }


def _calibration_nodes() -> list[Any]:
    """Return the operators from the logits and `new_ends` to the probability, in 64 bits."""
    from onnx import TensorProto, helper

    steps = [
        ("Cast", (LOGIT_OUTPUT,), "z", {"to": TensorProto.DOUBLE}),
        ("Unsqueeze", ("z", "last"), "column", {}),
        ("Less", ("knots", "column"), "is_below", {}),
        ("Cast", ("is_below",), "below", {"to": TensorProto.INT64}),
        ("ReduceSum", ("below", "last"), "segment", {"keepdims": 0}),
        ("Gather", ("start", "segment"), "from", {}),
        ("Gather", ("value", "segment"), "base", {}),
        ("Gather", ("rise", "segment"), "slope", {}),
        ("Sub", ("z", "from"), "distance", {}),
        ("Mul", ("slope", "distance"), "change", {}),
        ("Add", ("base", "change"), "curve", {}),
        ("Cast", (NEW_ENDS_INPUT,), "ends", {"to": TensorProto.INT64}),
        ("MatMul", ("ends", "bits"), "number", {}),
        ("Gather", ("offsets", "number"), "offset", {}),
        ("Add", ("curve", "offset"), "odds", {}),
        ("Sigmoid", ("odds",), PROBABILITY_OUTPUT, {}),
    ]
    outer = (LOGIT_OUTPUT, NEW_ENDS_INPUT, PROBABILITY_OUTPUT)

    def qualify(name: str) -> str:  # no name of the scorer's own graph may be used twice
        return name if name in outer else f"calibration.{name}"

    return [
        helper.make_node(kind, [qualify(name) for name in given], [qualify(result)], **options)
        for kind, given, result, options in steps
    ]


def _flatten_trees(scorer: BoostedTrees) -> dict[str, np.ndarray]:
    """Return the attributes of TreeEnsemble: splits and leaves of all trees, each kind numbered on its own.

    TreeEnsemble has no trees without a split, so a tree of one leaf becomes a split with that leaf on both branches.
    """
    trees = scorer.trees(0, max(int(scorer.grown), 1))  # before training there is one tree, a leaf of 0
    feature, left, right = (column.cpu().numpy() for column in (trees.feature, trees.left, trees.right))
    threshold, value = trees.threshold.cpu().double().numpy(), trees.value.cpu().numpy()
    parts: dict[str, list[Any]] = {
        name: []
        for name in (
            "nodes_featureids",
            "nodes_splits",
            "nodes_truenodeids",
            "nodes_trueleafs",
            "nodes_falsenodeids",
            "nodes_falseleafs",
            "leaf_weights",
            "tree_roots",
        )
    }
    num_splits = num_leaves = 0
    for tree in range(len(feature)):
        is_split = feature[tree] >= 0
        is_used = _find_reachable(is_split, left[tree], right[tree])
        splits, leaves = np.flatnonzero(is_used & is_split), np.flatnonzero(is_used & ~is_split)
        number = np.zeros(len(is_split), np.int64)
        number[splits], number[leaves] = (
            num_splits + np.arange(len(splits)),
            num_leaves + np.arange(len(leaves)),
        )
        nodes = splits if len(splits) else leaves
        branches = (left[tree][nodes], right[tree][nodes]) if len(splits) else (nodes, nodes)
        parts["tree_roots"].append(np.array([num_splits]))
        parts["nodes_featureids"].append(np.maximum(feature[tree][nodes], 0))
        parts["nodes_splits"].append(threshold[tree][nodes])
        for side, branch in zip(("true", "false"), branches, strict=True):
            parts[f"nodes_{side}nodeids"].append(number[branch])
            parts[f"nodes_{side}leafs"].append((~is_split[branch]).astype(np.int64))
        parts["leaf_weights"].append(value[tree][leaves])
        num_splits, num_leaves = num_splits + len(nodes), num_leaves + len(leaves)
    attributes = {name: np.concatenate(columns) for name, columns in parts.items()}
    modes, targets = np.full(num_splits, LEQ, np.uint8), np.zeros(num_leaves, np.int64)
    return attributes | {"nodes_modes": modes, "leaf_targetids": targets}


def _find_reachable(is_split: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Mark the nodes of a tree that can be reached from the root; arrays have unused places."""
    is_used, waiting = np.zeros(len(is_split), bool), [0]
    while waiting:
        node = waiting.pop()
        is_used[node] = True
        waiting += [int(left[node]), int(right[node])] if is_split[node] else []
    return is_used
