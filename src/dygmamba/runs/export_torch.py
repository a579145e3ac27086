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
from dygmamba.runs.export_metadata import LOGIT_OUTPUT, METADATA_KEY, Inputs, parse_metadata
from dygmamba.sampling.view import NeighborSequence, PairBatch, PairView

SEQUENCE_COLUMNS = (
    "query_node",
    "query_time",
    "node",
    "event",
    "time",
    "length",
)  # fields of NeighborSequence


class ExportedScorer(NamedTuple):
    """The content of a program file, and the program loaded from it.

    Attributes:
        content: The bytes of the file.
        compute: The program: a function of its inputs and of the name of an output.
        about: Its metadata; empty for a program of another origin.
    """

    content: bytes
    compute: Callable[[Inputs, str], Tensor]
    about: dict[str, Any]

    def score(self, inputs: Inputs) -> Tensor:
        """Return the logits of pairs."""
        return self.compute(inputs, LOGIT_OUTPUT)


def view_to_inputs(view: PairView) -> Inputs:
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
        f"past.{request}.{hop}.{name}": column
        for request, hops in enumerate(view.neighbors)
        for hop, sequence in enumerate(hops)
        for name, column in zip(SEQUENCE_COLUMNS, sequence.columns, strict=True)
    }
    # torch.export takes no tensors that share memory
    return {name: column.clone() for name, column in (queries | history).items()}


class TensorScorer(nn.Module):
    """A scorer that takes named tensors instead of a view; it ignores those that only the calibration reads."""

    def __init__(self, scorer: nn.Module, hops: list[int]) -> None:
        super().__init__()
        self.scorer, self.hops = scorer, hops

    def forward(self, inputs: Inputs) -> Tensor:
        pairs = PairBatch(inputs["node"], inputs["when"], inputs["src_row"], inputs["dst_row"])
        neighbors = tuple(
            tuple(
                NeighborSequence(*(inputs[f"past.{request}.{hop}.{name}"] for name in SEQUENCE_COLUMNS))
                for hop in range(hops)
            )
            for request, hops in enumerate(self.hops)
        )
        features = FeatureTable(inputs["node_features"], inputs["edge_features"], inputs.get("event_codes"))
        return self.scorer(PairView(pairs, neighbors, features))


def trace_scorer(scorer: nn.Module, view: PairView, inputs: Inputs) -> torch.export.ExportedProgram:
    """Trace a scorer with dynamic numbers of pairs, query rows, nodes and events."""
    module = TensorScorer(scorer, [len(hops) for hops in view.neighbors]).eval()
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


def export_torch_program(
    scorer: nn.Module, view: PairView, inputs: Inputs, about: dict[str, Any]
) -> ExportedScorer:
    """Write a scorer of these inputs as .pt2 and load it again."""
    buffer = io.BytesIO()
    program = trace_scorer(scorer, view, inputs)
    torch.export.save(program, buffer, extra_files={METADATA_KEY: json.dumps(about)})
    return load_torch_program(buffer.getvalue())


def load_torch_program(content: bytes) -> ExportedScorer:
    """Load the content of a .pt2 file; its only output is the logit."""
    extra_files = {METADATA_KEY: ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(content), extra_files=extra_files).module()
    return ExportedScorer(
        content, lambda inputs, _: module(inputs), parse_metadata(extra_files[METADATA_KEY])
    )
