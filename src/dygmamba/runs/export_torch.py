"""Trace of a scorer with torch.export, as a function of named tensors, and its file (.pt2).

The tensors are those of a `PairView`: nodes and times of the queries, neighbor sequences, features; of trees, the
features of each pair. Ops are traced in their reference implementation, so the program needs no kernel of this package.
"""

import io
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as experimental

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.view import NeighborSequence, PairBatch, PairView, Request
from dygmamba.models.trees import BoostedTrees
from dygmamba.ops.dispatch import use_reference
from dygmamba.runs.export_metadata import METADATA_KEY, NEW_ENDS_INPUT, Inputs, parse_metadata
from dygmamba.tasks.calibration import Calibration

# fields of NeighborSequence
SEQUENCE_COLUMNS = ("query_node", "query_time", "node", "event", "time", "length")
Compute = Callable[[Inputs, str], Tensor]  # a program: a function of its inputs and of the name of an output


def view_to_inputs(view: PairView, requests: tuple[Request, ...]) -> Inputs:
    """Return the tensors of a view by name: `node`, `when`, `src_row`, `dst_row`, features, `past.R.H.COLUMN`.

    A stream with categorical columns also has `event_codes`.

    R is the number of a request and H that of a hop, both from 0.
    """
    pairs = view.pairs
    queries = {"node": pairs.node, "when": pairs.when, "src_row": pairs.src_row, "dst_row": pairs.dst_row}
    queries |= {"node_features": view.features.node, "edge_features": view.features.edge}
    if view.features.codes is not None:
        queries["event_codes"] = view.features.codes
    history = {
        f"past.{number}.{hop}.{name}": column
        for number, request in enumerate(requests)
        for hop, sequence in enumerate(view[request])
        for name, column in zip(SEQUENCE_COLUMNS, sequence.columns, strict=True)
    }
    # torch.export takes no tensors that share memory
    return {name: column.clone() for name, column in (queries | history).items()}


# `sum_trees` stands for the trees while a scorer is traced: it has a shape and no implementation (see export_onnx)
torch.library.define("dygmamba::sum_trees", "(Tensor numbers) -> Tensor")


@torch.library.register_fake("dygmamba::sum_trees")
def _allocate_sums(numbers: Tensor) -> Tensor:
    return numbers.new_empty(numbers.shape[0], dtype=torch.float64)


class TensorScorer(nn.Module):
    """A scorer of named tensors instead of a view: it returns the logit, with a calibration also the probability."""

    def __init__(self, scorer: nn.Module, calibration: Calibration | None) -> None:
        super().__init__()
        self.scorer, self.calibration = scorer, calibration

    def forward(self, inputs: Inputs) -> Tensor | tuple[Tensor, Tensor]:
        logit = self._score(inputs)
        if self.calibration is None:
            return logit
        return logit, self.calibration.probability(logit, inputs[NEW_ENDS_INPUT])

    def _score(self, inputs: Inputs) -> Tensor:
        scorer: Any = self.scorer
        if isinstance(scorer, BoostedTrees):
            return scorer.base + torch.ops.dygmamba.sum_trees(inputs["numbers"])
        pairs = PairBatch(inputs["node"], inputs["when"], inputs["src_row"], inputs["dst_row"])
        found = {
            request: tuple(
                NeighborSequence(*(inputs[f"past.{number}.{hop}.{name}"] for name in SEQUENCE_COLUMNS))
                for hop in range(len(request.fanout))
            )
            for number, request in enumerate(scorer.requests)
        }
        features = FeatureTable(inputs["node_features"], inputs["edge_features"], inputs.get("event_codes"))
        return scorer(PairView(pairs, features, found))


def trace_scorer(
    scorer: nn.Module, inputs: Inputs, calibration: Calibration | None = None
) -> torch.export.ExportedProgram:
    """Trace a scorer with dynamic numbers of pairs, query rows, nodes and events."""
    module = TensorScorer(scorer, calibration).eval()
    dynamic_sizes = {name: {0: torch.export.Dim.AUTO} for name in inputs}
    config: Any = experimental  # its functions are made at import, where pyright cannot see them
    # otherwise torch specializes sizes of 1, and the program would not take a single pair
    allow_size_one = config.patch(backed_size_oblivious=True)
    with use_reference(), torch.no_grad(), allow_size_one, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own tracing
        program = torch.export.export(module, (inputs,), dynamic_shapes=(dynamic_sizes,), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # has paths of this machine
    return program


def export_torch_program(scorer: nn.Module, inputs: Inputs, about: dict[str, Any]) -> bytes:
    """Return a scorer of these inputs as a .pt2 file, whose only output is the logit."""
    buffer = io.BytesIO()
    torch.export.save(trace_scorer(scorer, inputs), buffer, extra_files={METADATA_KEY: json.dumps(about)})
    return buffer.getvalue()


def load_torch_program(content: bytes) -> tuple[Compute, dict[str, Any]]:
    """Load a .pt2 file: the program and its metadata."""
    extra_files = {METADATA_KEY: ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(content), extra_files=extra_files).module()
    return lambda inputs, _: module(inputs), parse_metadata(extra_files[METADATA_KEY])
