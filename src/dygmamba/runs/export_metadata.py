"""Metadata of an exported program: model and data, inputs and outputs, and how to get probabilities.

It is stored in the file as JSON under `dygmamba.json`: in an extra file of a .pt2, in the metadata of an ONNX graph.
The page docs/how-to/interoperate.md documents the keys.
"""

import json
from dataclasses import asdict
from typing import Any

from torch import Tensor

from dygmamba._version import __version__
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.settings import load
from dygmamba.history.view import NeighborRequest, Request
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.recipes import OpenRun
from dygmamba.tasks.calibration import Calibration

METADATA_KEY = "dygmamba.json"
NEW_ENDS_INPUT = "new_ends"
LOGIT_OUTPUT, PROBABILITY_OUTPUT = "logit", "probability"
Inputs = dict[str, Tensor]

# first dimension and meaning of each input; those of neighbor sequences are named by their last part
INPUT_MEANINGS = {
    "node": ("rows", "node number of each query row, from 0 in the order of the dataset's nodes"),
    "when": ("rows", "query time of each row, in the time unit of the dataset"),
    "src_row": ("pairs", "row of each pair's source"),
    "dst_row": ("pairs", "row of each pair's destination"),
    "node_features": ("nodes", "features of each node, by node number; 0 for an unknown node"),
    "edge_features": ("events", "features of each event, by event number"),
    "event_codes": ("events", "codes of the categorical columns of each event, by event number"),
    "numbers": ("pairs", "features of each pair, in the order of `numbers`"),
    NEW_ENDS_INPUT: (
        "pairs",
        "whether the source, and whether the destination, has no training event strictly before the query time; "
        "only the probability depends on it",
    ),
}
SEQUENCE_MEANINGS = {
    "query_node": ("sequences", "node whose neighbors these are"),
    "query_time": ("sequences", "time before which the events are, strictly"),
    "node": ("sequences", "neighbors, oldest first, padded at the end"),
    "event": ("sequences", "event numbers, rows of `edge_features`"),
    "time": ("sequences", "times of the events"),
    "length": ("sequences", "number of entries that are not padding"),
}
OUTPUT_MEANINGS = {
    LOGIT_OUTPUT: "score of each pair before calibration",
    PROBABILITY_OUTPUT: "calibrated probability that a pair is an event and not a random one, both equally likely",
}


def describe_program(run: OpenRun, inputs: Inputs, has_probability: bool) -> dict[str, Any]:
    """Return the metadata of a program.

    Args:
        run: The run whose scorer it is.
        inputs: Example inputs.
        has_probability: Whether the program of a calibrated run also returns the probability.
    """
    scorer, store, train = run.scorer, run.stream.store, run.stream.split.train
    calibration = load_calibration(run.folder)
    outputs = list(OUTPUT_MEANINGS) if has_probability and calibration is not None else [LOGIT_OUTPUT]
    about: dict[str, Any] = {
        "version": __version__,
        "model": run.model,
        "data": run.config.run.data,
        "digest": run.config.run.digest,
        "training_period": [float(store.time[row]) for row in (train[0], train[-1])] if len(train) else None,
        "requests": [_describe_request(request) for request in scorer.requests],
        "inputs": {name: _describe_input(name, column) for name, column in inputs.items()},
        "outputs": {name: OUTPUT_MEANINGS[name] for name in outputs},
        "calibration": None if calibration is None else asdict(calibration),
    }
    return about | ({"numbers": list(scorer.names)} if isinstance(scorer, BoostedTrees) else {})


def read_stored_calibration(about: dict[str, Any]) -> Calibration | None:
    """Return the calibration in the metadata; None for an uncalibrated run and for programs written before.

    Raises:
        FileError: It has numbers that no calibration has.
    """
    values = about.get("calibration")
    try:
        return None if values is None else load(Calibration, values)
    except ConfigError as error:
        raise FileError(
            f"the calibration in {METADATA_KEY} of the program is damaged; export the run again",
            code="damaged-calibration",
        ) from error


def parse_metadata(text: str) -> dict[str, Any]:
    """Parse the JSON of a program; empty for a program of another origin."""
    try:
        about = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _describe_input(name: str, column: Tensor) -> dict[str, Any]:
    is_sequence = name.startswith("past.")
    size, meaning = SEQUENCE_MEANINGS[name.split(".")[-1]] if is_sequence else INPUT_MEANINGS[name]
    dtype = str(column.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": [size, *column.shape[1:]], "meaning": meaning}


def _describe_request(request: Request) -> dict[str, Any]:
    if not isinstance(request, NeighborRequest):
        return {"kind": type(request).__name__}
    return {"fanout": list(request.fanout), "strategy": request.strategy, "scale": request.scale}
