"""The scorer of a run as a file of its own: torch.export's .pt2, which torch alone runs, or ONNX, which many do.

What is written has been loaded again and held against the run's own answers.
"""

from pathlib import Path
from typing import Any

import torch

from dygmamba.core.errors import ConfigError
from dygmamba.core.files.writing import write_file
from dygmamba.engine.stream import Stream
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_onnx import (
    EXPORTABLE_NETWORKS,
    export_onnx_network,
    export_onnx_trees,
    require_onnx,
)
from dygmamba.runs.export_torch import ExportedScorer, Inputs, export_torch_program, view_to_inputs
from dygmamba.runs.opening import OpenRun, open_run
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView, Request

TORCH_SUFFIX, ONNX_SUFFIX = ".pt2", ".onnx"
EXPORTABLE = f"{', '.join(EXPORTABLE_NETWORKS)}, or as {ONNX_SUFFIX} trees and walk-trees"
TOLERANCE = 1e-5  # how far the file's logits may be from the run's own
TRACE_PAIRS, CHECK_PAIRS = 3, (1, 2, 7, 64)  # pairs to follow the scorer with, and to check the file with


def require_exportable(scorer: Any, model: str) -> None:
    """Refuse a model whose score is no function of a few tensors."""
    if scorer.stateful:
        raise ConfigError(
            f"'{model}' keeps a memory, which a program of one call has not; export one of {EXPORTABLE}"
        )
    if isinstance(scorer, BoostedTrees):
        return
    if not all(isinstance(request, NeighborRequest) for request in scorer.requests):
        raise ConfigError(
            f"'{model}' with these settings reads tables of the whole past; export one that reads sequences: {EXPORTABLE}"
        )


def export_inputs(scorer: Any, view: PairView) -> Inputs:
    """What the exported scorer takes instead of a view: its tensors, or of trees the numbers they ask about."""
    return {"numbers": scorer.numbers(view)} if isinstance(scorer, BoostedTrees) else view_to_inputs(view)


def check_export_path(to: Path) -> None:
    """Refuse a name that does not say what to write, and a format whose packages are missing."""
    if to.suffix not in (TORCH_SUFFIX, ONNX_SUFFIX):
        raise ConfigError(
            f"{to} does not say what to write; let its name end in {TORCH_SUFFIX} or {ONNX_SUFFIX}"
        )
    if to.suffix == ONNX_SUFFIX:
        require_onnx()


def export_run(path: Path, to: Path, data_dir: Path | None = None) -> Path:
    """Write the scorer of a link run as a program, checked; where it is."""
    check_export_path(to)
    run = open_run(path, torch.device("cpu"), data_dir)
    require_exportable(run.scorer, run.about["model"])
    content = _verify_program(run, _build_program(run, to.suffix))
    write_file(to, [content])
    return to


def _build_program(run: OpenRun, ending: str) -> ExportedScorer:
    scorer, model = run.scorer, run.about["model"]
    if isinstance(scorer, BoostedTrees) and ending == TORCH_SUFFIX:
        raise ConfigError(
            f"'{model}' adds up trees, which are no tensor program; let the name end in {ONNX_SUFFIX}"
        )
    view = _recent_view(run, TRACE_PAIRS)
    given = export_inputs(scorer, view)
    about = {"model": model, "data": run.about["data"], "digest": run.about["digest"]}
    about |= {"requests": [_describe_request(request) for request in scorer.requests]}
    about |= {"inputs": {name: [str(column.dtype), list(column.shape)] for name, column in given.items()}}
    if isinstance(scorer, BoostedTrees):
        return export_onnx_trees(scorer, about | {"numbers": list(scorer.names)})
    return (export_torch_program if ending == TORCH_SUFFIX else export_onnx_network)(scorer, view, about)


def _verify_program(run: OpenRun, made: ExportedScorer) -> bytes:
    """What would be written, held against the run's own answers, for batches of several sizes."""
    with torch.no_grad():
        for count in CHECK_PAIRS:
            view = _recent_view(run, count)
            found, wanted = made.answer(export_inputs(run.scorer, view)), run.scorer(view)
            far = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))
            if not far <= TOLERANCE:
                raise ConfigError(
                    f"the exported program is {far:.2g} off for {count} pairs, {TOLERANCE} is allowed; nothing was written"
                )
    return made.content


def _recent_view(run: OpenRun, count: int) -> PairView:
    """The past of the stream's last events."""
    events = run.stream.events.select(torch.arange(len(run.stream.store))[-count:])
    return build_view(
        run.stream, run.scorer.requests, PairBatch.of(events.src, events.dst, events.time), run.seed
    )


def build_view(stream: Stream, requests: tuple[Request, ...], pairs: PairBatch, seed: int) -> PairView:
    """What a scorer sees of these pairs, its draws those of the run."""
    return stream.view(pairs.to(stream.device), requests, Draws.of(seed, device=stream.device))


def _describe_request(request: Request) -> dict[str, Any]:
    if not isinstance(request, NeighborRequest):
        return {"kind": type(request).__name__}
    return {"fanout": list(request.fanout), "strategy": request.strategy, "scale": request.scale}
