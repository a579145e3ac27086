"""A network's scorer as a function of tensors by name, followed by torch.export.

The tensors are what a view holds: who is asked about and when, what is known of their past, features. Every op is in
the program by its definition, so no kernel of this package is needed.
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

METADATA_KEY = "dygmamba.json"  # beside the program: what it is, and what its inputs are
SEQUENCE_COLUMNS = (
    "query_node",
    "query_time",
    "node",
    "event",
    "time",
    "length",
)  # of a sequence, as it has them

Inputs = dict[str, Tensor]


class ExportedScorer(NamedTuple):
    """What a file is to hold, and how it answers, loaded again from that."""

    content: bytes
    answer: Callable[[Inputs], Tensor]


def view_to_inputs(view: PairView) -> Inputs:
    """The tensors of a view by name: `node`, `when`, `src_row`, `dst_row`, features, and `past.R.H.COLUMN`.

    R is the number of a request and H that of a hop, from 0.
    """
    pairs = view.pairs
    asked = {"node": pairs.node, "when": pairs.when, "src_row": pairs.src_row, "dst_row": pairs.dst_row}
    asked |= {"node_features": view.features.node, "edge_features": view.features.edge}
    past = {
        f"past.{request}.{hop}.{name}": column
        for request, hops in enumerate(view.neighbors)
        for hop, sequence in enumerate(hops)
        for name, column in zip(SEQUENCE_COLUMNS, sequence.columns, strict=True)
    }
    return {
        name: column.clone() for name, column in (asked | past).items()
    }  # exported tensors share no memory


class TensorScorer(nn.Module):
    """A scorer that takes tensors by name."""

    def __init__(self, scorer: nn.Module, hops: list[int]) -> None:
        super().__init__()
        self.scorer, self.hops = scorer, hops

    def forward(self, inputs: Inputs) -> Tensor:
        """One logit per pair."""
        src_row = inputs["src_row"]
        asked = PairBatch(
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
        return self.scorer(PairView(asked, neighbors, features))


def trace_scorer(scorer: nn.Module, view: PairView) -> torch.export.ExportedProgram:
    """The scorer followed along a few pairs, sizes left open."""
    program = TensorScorer(scorer, [len(hops) for hops in view.neighbors]).eval()
    given = view_to_inputs(view)
    open_sizes = {name: {0: torch.export.Dim.AUTO} for name in given}
    make: Any = experimental  # its functions are made at import, where pyright cannot see them
    one_too = make.patch(backed_size_oblivious=True)  # or a batch of one pair would be another program
    with use_reference(), torch.no_grad(), one_too, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its tracing
        found = torch.export.export(program, (given,), dynamic_shapes=(open_sizes,), strict=False)
    for node in found.graph.nodes:
        node.meta.pop("stack_trace", None)  # lines of files of this machine
    return found


def export_torch_program(scorer: nn.Module, view: PairView, about: dict[str, Any]) -> ExportedScorer:
    """A .pt2, loaded again."""
    held = io.BytesIO()
    torch.export.save(trace_scorer(scorer, view), held, extra_files={METADATA_KEY: json.dumps(about)})
    content = held.getvalue()
    held.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ExportedScorer(content, torch.export.load(held).module())
