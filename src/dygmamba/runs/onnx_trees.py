"""Boosted trees as an ONNX graph: one TreeEnsemble, in 64 bits, of the numbers that a pair is known by."""

import json
from typing import Any

import numpy as np

from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.onnx_files import LOGIT, OPSET, loaded
from dygmamba.runs.programs import ABOUT, Made

TREES = 5  # opset of operators for trees: the first with sums in 64 bits
TENSORS = ("nodes_splits", "nodes_modes", "leaf_weights")  # attributes that are, the others are lists
LEQ, SUM = 0, 1  # a number that does not exceed the split goes the true way; leaves are added up


def trees_graph(scorer: BoostedTrees, about: dict[str, Any]) -> Made:
    """All trees as one node, in 64 bits: of a row of numbers the sum of its leaves, and the base."""
    from onnx import TensorProto, helper, numpy_helper

    columns: dict[str, Any] = {
        name: numpy_helper.from_array(column, name) if name in TENSORS else column.tolist()
        for name, column in _flat(scorer).items()
    }
    how: dict[str, Any] = {"n_targets": 1, "aggregate_function": SUM, "post_transform": 0}
    trees = helper.make_node("TreeEnsemble", ["exact"], ["summed"], domain="ai.onnx.ml", **how, **columns)
    held = {"base": scorer.base.cpu().double().reshape(1).numpy(), "flat": np.array([-1], np.int64)}
    nodes = [
        helper.make_node("Cast", ["numbers"], ["exact"], to=TensorProto.DOUBLE),
        trees,
        helper.make_node("Reshape", ["summed", "flat"], ["sum"]),
        helper.make_node("Add", ["sum", "base"], [LOGIT]),
    ]
    graph = helper.make_graph(
        nodes,
        about["model"],
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["pairs", len(scorer.names)])],
        [helper.make_tensor_value_info(LOGIT, TensorProto.DOUBLE, ["pairs"])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", TREES)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, {ABOUT: json.dumps(about)})
    return loaded(model.SerializeToString(), about["model"])


def _flat(scorer: BoostedTrees) -> dict[str, np.ndarray]:
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
        used = _reached(inner, left[tree], right[tree])
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


def _reached(inner: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which of a tree's places are used: those that the root leads to."""
    used, waiting = np.zeros(len(inner), bool), [0]
    while waiting:
        at = waiting.pop()
        used[at] = True
        waiting += [int(left[at]), int(right[at])] if inner[at] else []
    return used
