"""Export of a run's scorer as a program that needs no dygmamba: torch.export (.pt2) or ONNX (.onnx).

Before the file gets its name, the program is loaded again and compared with the run. Its SHA-256 is written beside it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError, make_unreadable_error
from dygmamba.core.files.writing import write_file, write_text
from dygmamba.engine.stream import Stream
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_onnx import (
    EXPORTABLE_NETWORKS,
    export_onnx_network,
    export_onnx_trees,
    load_onnx_session,
    require_onnx,
)
from dygmamba.runs.export_torch import (
    ExportedScorer,
    Inputs,
    export_torch_program,
    load_torch_program,
    view_to_inputs,
)
from dygmamba.runs.opening import OpenRun, open_run
from dygmamba.sampling.columns import QueryColumns
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView, Request

TORCH_SUFFIX, ONNX_SUFFIX = ".pt2", ".onnx"
EXPORTABLE = f"{', '.join(EXPORTABLE_NETWORKS)}, or as {ONNX_SUFFIX} trees and walk-trees"
TOLERANCE = 1e-5  # relative difference between the logits of the program and of the run
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
            f"model '{model}' with these settings reads tables of the whole history; export a model that reads "
            f"neighbor sequences: {EXPORTABLE}",
            code="model-not-exportable",
        )


def export_inputs(scorer: Any, view: PairView) -> Inputs:
    """Return the inputs of the exported program: the tensors of the view, or the features of trees."""
    return {"numbers": scorer.features(view)} if isinstance(scorer, BoostedTrees) else view_to_inputs(view)


def check_export_path(to: Path) -> None:
    """Raise ConfigError for an unknown suffix, or if the packages that the format needs are missing."""
    if to.suffix not in (TORCH_SUFFIX, ONNX_SUFFIX):
        raise ConfigError(
            f"the suffix of {to} chooses the format; use {TORCH_SUFFIX} or {ONNX_SUFFIX}",
            code="unknown-model-format",
        )
    if to.suffix == ONNX_SUFFIX:
        require_onnx()


def export_run(path: Path, to: Path, data_dir: Path | None = None) -> Path:
    """Write the scorer of a link run as a program; return the path."""
    check_export_path(to)
    run = open_run(path, torch.device("cpu"), data_dir)
    require_exportable(run.scorer, run.about["model"])
    content = _verify_program(run, _build_program(run, to.suffix))
    write_file(to, [content])
    write_text(_digest_path(to), f"{hashlib.sha256(content).hexdigest()}  {to.name}\n")
    return to


def load_program(path: Path) -> Callable[[Inputs], Tensor]:
    """Load an exported program after comparing it with the digest in NAME.sha256.

    Raises:
        FileError: The file or its digest is missing, or they differ. A damaged ONNX graph often loads all the same.
    """
    check_export_path(path)
    try:
        content, line = path.read_bytes(), _digest_path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise make_unreadable_error(error.filename or path, error) from error
    if line.split()[:1] != [hashlib.sha256(content).hexdigest()]:
        raise FileError(
            f"{path} does not match its digest in {_digest_path(path).name}; export the run again",
            code="file-damaged",
        )
    if path.suffix == ONNX_SUFFIX:
        return load_onnx_session(content, path.name).score
    return load_torch_program(content).score


def _digest_path(program: Path) -> Path:
    """Return where the digest of a program is, in the format of sha256sum."""
    return program.with_name(f"{program.name}.sha256")


def _build_program(run: OpenRun, suffix: str) -> ExportedScorer:
    scorer, model = run.scorer, run.about["model"]
    if isinstance(scorer, BoostedTrees) and suffix == TORCH_SUFFIX:
        raise ConfigError(
            f"model '{model}' is a sum of trees, which torch.export cannot write; use the suffix {ONNX_SUFFIX}",
            code="model-not-exportable",
        )
    view = _recent_view(run, TRACE_PAIRS)
    inputs = export_inputs(scorer, view)
    about = {"model": model, "data": run.about["data"], "digest": run.about["digest"]}
    about |= {"requests": [_describe_request(request) for request in scorer.requests]}
    about |= {"inputs": {name: [str(column.dtype), list(column.shape)] for name, column in inputs.items()}}
    if isinstance(scorer, BoostedTrees):
        return export_onnx_trees(scorer, about | {"numbers": list(scorer.names)})
    return (export_torch_program if suffix == TORCH_SUFFIX else export_onnx_network)(scorer, view, about)


def _verify_program(run: OpenRun, program: ExportedScorer) -> bytes:
    """Compare a program with the run on batches of several sizes; return the content of the file."""
    with torch.no_grad():
        for count in CHECK_PAIRS:
            view = _recent_view(run, count)
            actual, expected = program.score(export_inputs(run.scorer, view)), run.scorer(view)
            difference = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))
            if not difference <= TOLERANCE:  # also true for nan
                raise ConfigError(
                    f"the logits of the exported program differ by {difference:.2g} for {count} pairs, more than "
                    f"{TOLERANCE}; nothing was written",
                    code="export-differs",
                )
    return program.content


def _recent_view(run: OpenRun, count: int) -> PairView:
    """Return what the scorer sees of the last events of the stream."""
    events = run.stream.events.select(torch.arange(len(run.stream.store))[-count:])
    pairs = PairBatch.from_pairs(events.src, events.dst, events.time)
    pairs = pairs.with_columns(QueryColumns.of_events(run.stream.store.features, events.event))
    return build_view(run.stream, run.scorer.requests, pairs, run.seed)


def build_view(stream: Stream, requests: tuple[Request, ...], pairs: PairBatch, seed: int) -> PairView:
    """Return what a scorer sees of these pairs, with the random draws of the run."""
    return stream.view(pairs.to(stream.device), requests, Draws.from_seed(seed, device=stream.device))


def _describe_request(request: Request) -> dict[str, Any]:
    if not isinstance(request, NeighborRequest):
        return {"kind": type(request).__name__}
    return {"fanout": list(request.fanout), "strategy": request.strategy, "scale": request.scale}
