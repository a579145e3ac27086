"""Export of a run's scorer as a program that needs no dygmamba: torch.export (.pt2), ONNX (.onnx) or numpy (.zip).

Before the file gets its name, the program is loaded again and compared with the run. Its SHA-256 is written beside it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError, make_unreadable_error
from dygmamba.core.files.writing import write_file, write_text
from dygmamba.engine.stream import Stream
from dygmamba.history.draws import Draws
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import NeighborRequest, PairBatch, PairView, Request
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_metadata import (
    LOGIT_OUTPUT,
    NEW_ENDS_INPUT,
    PROBABILITY_OUTPUT,
    Inputs,
    describe_program,
    read_stored_calibration,
)
from dygmamba.runs.export_numpy import export_numpy_scorer, score_last_events
from dygmamba.runs.export_onnx import (
    EXPORTABLE_NETWORKS,
    export_onnx_program,
    load_onnx_program,
    require_onnx,
)
from dygmamba.runs.export_torch import Compute, export_torch_program, load_torch_program, view_to_inputs
from dygmamba.runs.opening import open_run
from dygmamba.runs.recipes import OpenRun
from dygmamba.tasks.calibration import Calibration

TORCH_SUFFIX, ONNX_SUFFIX, NUMPY_SUFFIX = ".pt2", ".onnx", ".zip"
EXPORTABLE = f"{', '.join(EXPORTABLE_NETWORKS)}, or as {ONNX_SUFFIX} trees and walk-trees"
TOLERANCE = 1e-5  # relative difference between the logits of the program and of the run
PROBABILITY_TOLERANCE = 1e-9  # difference between probabilities of the same logits
TRACE_PAIRS, CHECK_PAIRS = 3, (1, 2, 7, 64)  # batch sizes for tracing and for the comparison


def require_exportable(scorer: Any, model: str) -> None:
    """Raise ConfigError for a model whose score is not a function of a few tensors."""
    if scorer.stateful:
        raise ConfigError(
            f"model '{model}' has a node memory, which a program cannot keep between calls; export one of {EXPORTABLE}",
            code="model-not-exportable",
        )
    if isinstance(scorer, BoostedTrees):
        return
    if not all(isinstance(request, NeighborRequest) for request in scorer.requests):
        raise ConfigError(
            f"model '{model}' with these settings reads tables of the whole history or of node features; export a "
            f"model that reads neighbor sequences only: {EXPORTABLE}",
            code="model-not-exportable",
        )


@dataclass(frozen=True, slots=True)
class Program:
    """An exported scorer: a function from what `Run.inputs` returns to logits, or to probabilities.

    Attributes:
        compute: A function of its inputs and of the name of an output.
        about: Metadata in the file: version, model, data, inputs, outputs, calibration; empty if it has none.
        calibration: The calibration in the metadata.
    """

    compute: Compute
    about: dict[str, Any]
    calibration: Calibration | None

    @staticmethod
    def load(content: bytes, suffix: str, model: str) -> "Program":
        """Load the content of a .pt2 or .onnx file; `model` is its name in errors."""
        is_onnx = suffix == ONNX_SUFFIX
        compute, about = load_onnx_program(content, model) if is_onnx else load_torch_program(content)
        return Program(compute, about, read_stored_calibration(about))

    def __call__(self, inputs: Inputs) -> Tensor:
        """Return the logit of each pair.

        Raises:
            ConfigError: An input is missing.
        """
        with torch.no_grad():
            return self.compute(self._select_inputs(inputs), LOGIT_OUTPUT)

    def probability(self, inputs: Inputs) -> Tensor:
        """Return the calibrated probability of each pair in 64 bits, the score of `Run.score`.

        Raises:
            ConfigError: The program has no calibration, or an input is missing.
        """
        if self.calibration is None:
            raise ConfigError(
                "the program has no calibration: its run had none, or it was exported by an older version; calibrate "
                "the run with `dygmamba.resume` and export it again",
                code="program-not-calibrated",
            )
        return self.calibration.probability(self(inputs), inputs[NEW_ENDS_INPUT])

    def _select_inputs(self, inputs: Inputs) -> Inputs:
        """Return the inputs that the program takes; older programs take no `new_ends`."""
        names = list(self.about.get("inputs", inputs))
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ConfigError(
                f"the program takes an input '{missing[0]}', which is missing; give what `Run.inputs` returns",
                code="missing-input",
            )
        return {name: inputs[name] for name in names}


def export_inputs(scorer: Any, view: PairView, new_ends: Tensor) -> Inputs:
    """Return the inputs of the exported program: the tensors of the view, or the features of trees, and new ends."""
    is_trees = isinstance(scorer, BoostedTrees)
    inputs = {"numbers": scorer.features(view)} if is_trees else view_to_inputs(view, scorer.requests)
    return inputs | {NEW_ENDS_INPUT: new_ends}


def check_export_path(to: Path) -> None:
    """Raise ConfigError for an unknown suffix, or if the packages that the format needs are missing."""
    if to.suffix not in (TORCH_SUFFIX, ONNX_SUFFIX, NUMPY_SUFFIX):
        raise ConfigError(
            f"the suffix of {to} chooses the format; use {TORCH_SUFFIX}, {ONNX_SUFFIX} or {NUMPY_SUFFIX}",
            code="unknown-model-format",
        )
    if to.suffix == ONNX_SUFFIX:
        require_onnx()


def export_run(path: Path, to: Path, data_dir: Path | None = None) -> Path:
    """Write the scorer of a link run as a program; return the path."""
    check_export_path(to)
    run = open_run(path, torch.device("cpu"), data_dir)
    require_exportable(run.scorer, run.model)
    if to.suffix == NUMPY_SUFFIX:
        content = _verify_numpy_scorer(run, export_numpy_scorer(run))
    else:
        content = _export_program(run, to.suffix)
        _verify_program(run, Program.load(content, to.suffix, run.model))
    write_file(to, [content])
    write_text(_digest_path(to), f"{hashlib.sha256(content).hexdigest()}  {to.name}\n")
    return to


def load_program(path: Path) -> Program:
    """Load an exported program after comparing it with the digest in NAME.sha256.

    Raises:
        FileError: The file or its digest is missing, or they differ. A damaged ONNX graph often loads all the same.
    """
    check_export_path(path)
    if path.suffix == NUMPY_SUFFIX:
        raise ConfigError(
            f"{path} computes its features itself; load it with `Scorer.load({str(path)!r})` of its scorer.py",
            code="numpy-program",
        )
    try:
        content, line = path.read_bytes(), _digest_path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise make_unreadable_error(error.filename or path, error) from error
    if line.split()[:1] != [hashlib.sha256(content).hexdigest()]:
        raise FileError(
            f"{path} does not match its digest in {_digest_path(path).name}; export the run again",
            code="file-damaged",
        )
    return Program.load(content, path.suffix, path.name)


def _digest_path(program: Path) -> Path:
    """Return where the digest of a program is, in the format of sha256sum."""
    return program.with_name(f"{program.name}.sha256")


def _export_program(run: OpenRun, suffix: str) -> bytes:
    scorer, model = run.scorer, run.model
    if isinstance(scorer, BoostedTrees) and suffix == TORCH_SUFFIX:
        raise ConfigError(
            f"model '{model}' is a sum of trees, which torch.export cannot write; use the suffix {ONNX_SUFFIX}",
            code="model-not-exportable",
        )
    inputs = export_inputs(scorer, _recent_view(run, TRACE_PAIRS), _mix_new_ends(TRACE_PAIRS))
    about = describe_program(run, inputs, has_probability=suffix == ONNX_SUFFIX)
    export_program = export_onnx_program if suffix == ONNX_SUFFIX else export_torch_program
    return export_program(scorer, inputs, about)


def _verify_program(run: OpenRun, program: Program) -> None:
    """Compare a program with the run on batches of several sizes."""
    with torch.no_grad():
        for count in CHECK_PAIRS:
            view, new_ends = _recent_view(run, count), _mix_new_ends(count)
            inputs, expected = export_inputs(run.scorer, view, new_ends), run.scorer(view)
            relative = (program(inputs) - expected).abs() / expected.abs().max().clamp(min=1)
            _require_small("logits", relative, TOLERANCE)
            if PROBABILITY_OUTPUT in program.about["outputs"]:
                actual = program.compute(inputs, PROBABILITY_OUTPUT)
                difference = (actual - program.probability(inputs)).abs()
                _require_small("probabilities", difference, PROBABILITY_TOLERANCE)


def _verify_numpy_scorer(run: OpenRun, content: bytes) -> bytes:
    """Compare the numpy program with the run on the last events; return the content of the file."""
    count = CHECK_PAIRS[-1]
    with torch.no_grad():
        expected = run.scorer(_recent_view(run, count))
    logit = torch.from_numpy(score_last_events(run, content, count))
    _require_small("logits", (logit - expected).abs() / expected.abs().max().clamp(min=1), TOLERANCE)
    return content


def _require_small(what: str, difference: Tensor, tolerance: float) -> None:
    largest = float(difference.max())
    if not largest <= tolerance:  # also true for nan
        raise ConfigError(
            f"the {what} of the exported program differ by {largest:.2g} for {len(difference)} pairs, more than "
            f"{tolerance}; nothing was written",
            code="export-differs",
        )


def _mix_new_ends(count: int) -> Tensor:
    """Return which ends of pairs are new, with all four combinations in turn."""
    number = torch.arange(count)
    return torch.stack([number % 2 > 0, number % 4 > 1], dim=1)


def _recent_view(run: OpenRun, count: int) -> PairView:
    """Return what the scorer sees of the last events of the stream."""
    events = run.stream.events.select(torch.arange(len(run.stream.store))[-count:])
    pairs = PairBatch.from_pairs(events.src, events.dst, events.time)
    pairs = pairs.with_columns(QueryColumns.of_events(run.stream.store.features, events.event))
    return build_view(run.stream, run.scorer.requests, pairs, run.seed)


def build_view(stream: Stream, requests: tuple[Request, ...], pairs: PairBatch, seed: int) -> PairView:
    """Return what a scorer sees of these pairs, with the random draws of the run."""
    return stream.view(pairs.to(stream.device), requests, Draws.from_seed(seed, device=stream.device))
