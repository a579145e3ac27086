"""Steps of a network that ONNX, or how torch writes it, does not know, said in steps that it does.

Each is the same function; `NotImplemented` leaves a step as it is.

A network as an ONNX graph, by way of torch.export, and any graph loaded again by onnxruntime.

onnx, onnxscript and onnxruntime are the extra `onnx` and are imported when they are needed.

Boosted trees as an ONNX graph: one TreeEnsemble, in 64 bits, of the numbers that a pair is known by.
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

from dygmamba.core.errors import ConfigError, first_line
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_torch import METADATA_KEY, ExportedScorer, Inputs, trace_scorer, view_to_inputs
from dygmamba.sampling.view import PairView


def _decompose_roll(x: Tensor, shifts: list[int], dims: tuple[int, ...] = ()) -> Any:
    """Around by a number that is a size, which ONNX's own way has to know beforehand."""
    dims = dims or (0,) * (x.ndim == 1)
    if len(shifts) != 1 or len(dims) != 1:
        return NotImplemented
    at = x.shape[dims[0]] - shifts[0]
    return torch.cat([x.narrow(dims[0], at, shifts[0]), x.narrow(dims[0], 0, at)], dims[0])


def _decompose_view(x: Tensor, shape: list[int]) -> Any:
    """What holds no number, such as features that are not there, made anew: its shape is not to be worked out."""
    empty = any(isinstance(size, int) and size == 0 for size in x.shape)
    return x.new_zeros(shape) if empty else NotImplemented


def _decompose_split(x: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """Into pieces, each cut out on its own."""
    starts = accumulate(sizes[:-1], initial=0)
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _decompose_even_split(x: Tensor, size: int, dim: int = 0) -> Any:
    """The same into pieces of one size."""
    count = -(-x.shape[dim] // size)
    return _decompose_split(x, [*[size] * (int(count) - 1), x.shape[dim] - (int(count) - 1) * size], dim)


def _decompose_frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of positive numbers, m in [0.5, 1) and e with x = m 2^e; a logarithm that is one off is put right."""
    power = x.log2().floor() + 1
    mantissa = x / power.exp2()
    high, low = mantissa >= 1, mantissa < 0.5
    power = power + high.to(x.dtype) - low.to(x.dtype)
    return x / power.exp2(), power.int()


def _decompose_index(x: Tensor, places: list[Tensor | None]) -> Any:
    """Rows by their number, in 64 bits: ONNX takes no other."""
    wide = [place.long() if place is not None and place.dtype == torch.int32 else place for place in places]
    changed = any(one is not other for one, other in zip(wide, places, strict=True))
    return torch.ops.aten.index.Tensor(x, wide) if changed else NotImplemented


def _decompose_searchsorted(
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
OPSET = 18  # of the standard operators: what torch.onnx writes
NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
LOG_ERROR = 3  # what onnxruntime writes to the terminal, and nothing below
LOGIT_OUTPUT = "logit"
# networks that read sequences and keep no memory: tried, and held against their runs (docs/interoperate.md)
EXPORTABLE_NETWORKS = ("dyg-mamba", "mamba", "tgat", "cawn", "graphmixer", "tcl", "dygformer", "freedyg")


def require_onnx() -> None:
    """Complain about a missing package before the work, not after it."""
    try:
        for name in ONNX_PACKAGES:
            import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs the packages {', '.join(ONNX_PACKAGES)}; install them with: pip install 'dyg-mamba[onnx]'"
        ) from error


def export_onnx_network(scorer: nn.Module, view: PairView, about: dict[str, Any]) -> ExportedScorer:
    """The program of torch.export, every step of it as ONNX has it."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    program = trace_scorer(scorer, view)
    with _silence_exporter():
        try:
            made = torch.onnx.export(
                program.run_decompositions(dict(ONNX_DECOMPOSITIONS)),
                input_names=list(view_to_inputs(view)),
                output_names=[LOGIT_OUTPUT],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
        except RuntimeError as error:  # the parent of what torch.onnx and onnx_ir raise
            raise unsupported_model_error(about["model"], error) from error
        assert made is not None  # it is where no file is named
        ClearMetadataAndDocStringPass()(made.model)  # where each step came from, in nine tenths of the bytes
    made.model.metadata_props[METADATA_KEY] = json.dumps(about)
    return load_onnx_session(made.model_proto.SerializeToString(), about["model"])


def load_onnx_session(content: bytes, model: str) -> ExportedScorer:
    """The graph as onnxruntime runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = LOG_ERROR
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds of errors have no common parent below this one
        raise unsupported_model_error(model, error) from error
    return ExportedScorer(content, _session_runner(session))


def _session_runner(session: Any) -> Callable[[Inputs], Tensor]:
    def answer(inputs: Inputs) -> Tensor:
        (found,) = session.run(None, {name: column.numpy() for name, column in inputs.items()})
        return torch.from_numpy(found)

    return answer


def unsupported_model_error(model: str, error: BaseException) -> ConfigError:
    """What to say of a model with a step that is not among those ONNX has."""
    while error.__cause__ is not None:
        error = error.__cause__
    return ConfigError(
        f"'{model}' has a step that ONNX or onnxruntime does not take ({first_line(error)}); let the name end in .pt2, "
        f"or export one of {', '.join(EXPORTABLE_NETWORKS)}"
    )


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Without what the exporter and its parts warn about and log while they work."""
    talkers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [talker.level for talker in talkers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for talker in talkers:
            talker.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for talker, level in zip(talkers, levels, strict=True):
                talker.setLevel(level)


TREE_OPSET = 5  # opset of operators for trees: the first with sums in 64 bits
TENSOR_ATTRIBUTES = (
    "nodes_splits",
    "nodes_modes",
    "leaf_weights",
)  # attributes that are, the others are lists
LEQ, SUM = 0, 1  # a number that does not exceed the split goes the true way; leaves are added up


def export_onnx_trees(scorer: BoostedTrees, about: dict[str, Any]) -> ExportedScorer:
    """All trees as one node, in 64 bits: of a row of numbers the sum of its leaves, and the base."""
    from onnx import TensorProto, helper, numpy_helper

    columns: dict[str, Any] = {
        name: numpy_helper.from_array(column, name) if name in TENSOR_ATTRIBUTES else column.tolist()
        for name, column in _flatten_trees(scorer).items()
    }
    how: dict[str, Any] = {"n_targets": 1, "aggregate_function": SUM, "post_transform": 0}
    trees = helper.make_node("TreeEnsemble", ["exact"], ["summed"], domain="ai.onnx.ml", **how, **columns)
    held = {"base": scorer.base.cpu().double().reshape(1).numpy(), "flat": np.array([-1], np.int64)}
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
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", TREE_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, {METADATA_KEY: json.dumps(about)})
    return load_onnx_session(model.SerializeToString(), about["model"])


def _flatten_trees(scorer: BoostedTrees) -> dict[str, np.ndarray]:
    """Splits and leaves of all trees one after another, each with its place among its own kind.

    A tree of one leaf is a split whose two ways lead there.
    """
    trees = scorer.trees(0, max(int(scorer.grown), 1))  # one that is not grown yet is a leaf of 0
    feature, left, right = (column.cpu().numpy() for column in (trees.feature, trees.left, trees.right))
    threshold, value = trees.threshold.cpu().double().numpy(), trees.value.cpu().numpy()
    parts: dict[str, list[Any]] = {
        name: []
        for name in (
            *(
                "nodes_featureids",
                "nodes_splits",
                "nodes_truenodeids",
                "nodes_trueleafs",
                "nodes_falsenodeids",
            ),
            *("nodes_falseleafs", "leaf_weights", "tree_roots"),
        )
    }
    splits = leaves = 0
    for tree in range(len(feature)):
        inner = feature[tree] >= 0
        used = _reachable_nodes(inner, left[tree], right[tree])
        split, leaf = np.flatnonzero(used & inner), np.flatnonzero(used & ~inner)
        place = np.zeros(len(inner), np.int64)
        place[split], place[leaf] = splits + np.arange(len(split)), leaves + np.arange(len(leaf))
        root = split if len(split) else leaf  # a lone leaf stands for its own split
        ways = (left[tree][root], right[tree][root]) if len(split) else (root, root)
        parts["tree_roots"].append(np.array([splits]))
        parts["nodes_featureids"].append(np.maximum(feature[tree][root], 0))
        parts["nodes_splits"].append(threshold[tree][root])
        for side, way in zip(("true", "false"), ways, strict=True):
            parts[f"nodes_{side}nodeids"].append(place[way])
            parts[f"nodes_{side}leafs"].append((~inner[way]).astype(np.int64))
        parts["leaf_weights"].append(value[tree][leaf])
        splits, leaves = splits + len(root), leaves + len(leaf)
    found = {name: np.concatenate(columns) for name, columns in parts.items()}
    modes, targets = np.full(splits, LEQ, np.uint8), np.zeros(leaves, np.int64)
    return found | {"nodes_modes": modes, "leaf_targetids": targets}


def _reachable_nodes(inner: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which of a tree's places are used: those that the root leads to."""
    used, waiting = np.zeros(len(inner), bool), [0]
    while waiting:
        at = waiting.pop()
        used[at] = True
        waiting += [int(left[at]), int(right[at])] if inner[at] else []
    return used
