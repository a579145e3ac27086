"""Export of a neural scorer with torch.export, as a function of named tensors.

The tensors are those of a `PairView`: nodes and times of the queries, neighbor sequences, features. Ops are traced in
their reference implementation, so the program needs no kernel of this package.
"""

import io
import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as experimental

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.ops.dispatch import use_reference
from dygmamba.sampling.view import NeighborSequence, PairBatch, PairView

METADATA_KEY = "dygmamba.json"  # entry of the file that describes the program and its inputs
SEQUENCE_COLUMNS = (
    "query_node",
    "query_time",
    "node",
    "event",
    "time",
    "length",
)  # fields of NeighborSequence

Inputs = dict[str, Tensor]


class ExportedScorer(NamedTuple):
    """The content of a program file, and the program loaded from it."""

    content: bytes
    score: Callable[[Inputs], Tensor]


def view_to_inputs(view: PairView) -> Inputs:
    """Return the tensors of a view by name: `node`, `when`, `src_row`, `dst_row`, features, `past.R.H.COLUMN`.

    R is the number of a request and H that of a hop, both from 0.
    """
    pairs = view.pairs
    queries = {"node": pairs.node, "when": pairs.when, "src_row": pairs.src_row, "dst_row": pairs.dst_row}
    queries |= {"node_features": view.features.node, "edge_features": view.features.edge}
    history = {
        f"past.{request}.{hop}.{name}": column
        for request, hops in enumerate(view.neighbors)
        for hop, sequence in enumerate(hops)
        for name, column in zip(SEQUENCE_COLUMNS, sequence.columns, strict=True)
    }
    # torch.export takes no tensors that share memory
    return {name: column.clone() for name, column in (queries | history).items()}


class TensorScorer(nn.Module):
    """A scorer that takes named tensors instead of a view."""

    def __init__(self, scorer: nn.Module, hops: list[int]) -> None:
        super().__init__()
        self.scorer, self.hops = scorer, hops

    def forward(self, inputs: Inputs) -> Tensor:
        src_row = inputs["src_row"]
        pairs = PairBatch(
            inputs["node"],
            inputs["when"],
            src_row,
            inputs["dst_row"],
            torch.zeros_like(src_row).float(),
            src_row,
        )
        neighbors = tuple(
            tuple(
                NeighborSequence(*(inputs[f"past.{request}.{hop}.{name}"] for name in SEQUENCE_COLUMNS))
                for hop in range(hops)
            )
            for request, hops in enumerate(self.hops)
        )
        features = FeatureTable(inputs["node_features"], inputs["edge_features"])
        return self.scorer(PairView(pairs, neighbors, features))


def trace_scorer(scorer: nn.Module, view: PairView) -> torch.export.ExportedProgram:
    """Trace a scorer with dynamic batch size and sequence lengths."""
    module = TensorScorer(scorer, [len(hops) for hops in view.neighbors]).eval()
    inputs = view_to_inputs(view)
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


def export_torch_program(scorer: nn.Module, view: PairView, about: dict[str, Any]) -> ExportedScorer:
    """Write a scorer as .pt2 and load it again."""
    buffer = io.BytesIO()
    torch.export.save(trace_scorer(scorer, view), buffer, extra_files={METADATA_KEY: json.dumps(about)})
    return load_torch_program(buffer.getvalue())


def load_torch_program(content: bytes) -> ExportedScorer:
    """Load the content of a .pt2 file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ExportedScorer(content, torch.export.load(io.BytesIO(content)).module())
