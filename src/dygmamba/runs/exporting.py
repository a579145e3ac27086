"""The scorer of a run as a file of its own: torch.export's .pt2, which torch alone runs, or ONNX, which many do.

What is written has been loaded again and held against the run's own answers.
"""

from pathlib import Path
from typing import Any

import torch

from dygmamba.engine.stream import Stream
from dygmamba.errors import ConfigError
from dygmamba.files.writing import write_file
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.onnx_files import NETWORKS, network_graph, require_onnx
from dygmamba.runs.onnx_trees import trees_graph
from dygmamba.runs.opening import OpenRun, open_run
from dygmamba.runs.programs import Inputs, Made, inputs_of, torch_file
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView, Request

TORCH, ONNX = ".pt2", ".onnx"
CAN = f"{', '.join(NETWORKS)}, or as {ONNX} trees and walk-trees"
CLOSE = 1e-5  # how far the file's logits may be from the run's own
TRACED, CHECKED = 3, (1, 2, 7, 64)  # pairs to follow the scorer with, and to check the file with


def require_exportable(scorer: Any, model: str) -> None:
    """Refuse a model whose score is no function of a few tensors."""
    if scorer.stateful:
        raise ConfigError(
            f"'{model}' keeps a memory, which a program of one call has not; export one of {CAN}"
        )
    if isinstance(scorer, BoostedTrees):
        return
    if not all(isinstance(request, NeighborRequest) for request in scorer.requests):
        raise ConfigError(
            f"'{model}' with these settings reads tables of the whole past; export one that reads sequences: {CAN}"
        )


def asked_of(scorer: Any, view: PairView) -> Inputs:
    """What the exported scorer takes instead of a view: its tensors, or of trees the numbers they ask about."""
    return {"numbers": scorer.numbers(view)} if isinstance(scorer, BoostedTrees) else inputs_of(view)


def require_ending(to: Path) -> None:
    """Refuse a name that does not say what to write, and a format whose packages are missing."""
    if to.suffix not in (TORCH, ONNX):
        raise ConfigError(f"{to} does not say what to write; let its name end in {TORCH} or {ONNX}")
    if to.suffix == ONNX:
        require_onnx()


def export_run(path: Path, to: Path, data_dir: Path | None = None) -> Path:
    """Write the scorer of a link run as a program, checked; where it is."""
    require_ending(to)
    run = open_run(path, torch.device("cpu"), data_dir)
    require_exportable(run.scorer, run.about["model"])
    content = _checked(run, _made(run, to.suffix))
    write_file(to, [content])
    return to


def _made(run: OpenRun, ending: str) -> Made:
    scorer, model = run.scorer, run.about["model"]
    if isinstance(scorer, BoostedTrees) and ending == TORCH:
        raise ConfigError(f"'{model}' adds up trees, which are no tensor program; let the name end in {ONNX}")
    view = _view(run, TRACED)
    given = asked_of(scorer, view)
    about = {"model": model, "data": run.about["data"], "digest": run.about["digest"]}
    about |= {"requests": [_said(request) for request in scorer.requests]}
    about |= {"inputs": {name: [str(column.dtype), list(column.shape)] for name, column in given.items()}}
    if isinstance(scorer, BoostedTrees):
        return trees_graph(scorer, about | {"numbers": list(scorer.names)})
    return (torch_file if ending == TORCH else network_graph)(scorer, view, about)


def _checked(run: OpenRun, made: Made) -> bytes:
    """What would be written, held against the run's own answers, for batches of several sizes."""
    with torch.no_grad():
        for count in CHECKED:
            view = _view(run, count)
            found, wanted = made.answer(asked_of(run.scorer, view)), run.scorer(view)
            far = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))
            if not far <= CLOSE:
                raise ConfigError(
                    f"the exported program is {far:.2g} off for {count} pairs, {CLOSE} is allowed; nothing was written"
                )
    return made.content


def _view(run: OpenRun, count: int) -> PairView:
    """The past of the stream's last events."""
    events = run.stream.events.select(torch.arange(len(run.stream.store))[-count:])
    return view_of(
        run.stream, run.scorer.requests, PairBatch.of(events.src, events.dst, events.time), run.seed
    )


def view_of(stream: Stream, requests: tuple[Request, ...], pairs: PairBatch, seed: int) -> PairView:
    """What a scorer sees of these pairs, its draws those of the run."""
    return stream.view(pairs.to(stream.device), requests, Draws.of(seed, device=stream.device))


def _said(request: Request) -> dict[str, Any]:
    if not isinstance(request, NeighborRequest):
        return {"kind": type(request).__name__}
    return {"fanout": list(request.fanout), "strategy": request.strategy, "scale": request.scale}
