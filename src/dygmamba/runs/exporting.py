"""The scorer of a run as a program of its own: torch.export's .pt2, which torch alone loads and runs.

It is a function of the tensors that a view holds: who is asked about and when, what is known of their past, features.
Every op is in it by its definition, so no kernel of this package is needed. What is written has been loaded again and
held against the run's own answers.
"""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as experimental

from dygmamba.data.events import FeatureTable
from dygmamba.engine.stream import Stream
from dygmamba.errors import ConfigError
from dygmamba.files.writing import write_file
from dygmamba.models.base import RoundLearner
from dygmamba.ops.dispatch import use_reference
from dygmamba.runs.opening import OpenRun, open_run
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request

SUFFIX = ".pt2"
ABOUT = "dygmamba.json"  # beside the program: what it is, and what its inputs are
COLUMNS = ("query_node", "query_time", "node", "event", "time", "length")  # of a sequence, as it has them
CLOSE = 1e-5  # how far the program's logits may be from the run's own
TRACED, CHECKED = 3, (1, 2, 7, 64)  # pairs to follow the scorer with, and to check the program with

Inputs = dict[str, Tensor]


def inputs_of(view: PairView) -> Inputs:
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
        for name, column in zip(COLUMNS, sequence.columns, strict=True)
    }
    return {
        name: column.clone() for name, column in (asked | past).items()
    }  # exported tensors share no memory


class Program(nn.Module):
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
                NeighborSequence(*(inputs[f"past.{request}.{hop}.{name}"] for name in COLUMNS))
                for hop in range(hops)
            )
            for request, hops in enumerate(self.hops)
        )
        features = FeatureTable(inputs["node_features"], inputs["edge_features"])
        return self.scorer(PairView(asked, neighbors, features))


def require_exportable(scorer: Any, model: str) -> None:
    """Refuse a model whose score is no function of a few sequences."""
    if isinstance(scorer, RoundLearner):
        raise ConfigError(f"'{model}' counts the past and adds up trees; export a network, such as dyg-mamba")
    if scorer.stateful:
        raise ConfigError(
            f"'{model}' keeps a memory, which a program of one call has not; export dyg-mamba or tgat"
        )
    if not all(isinstance(request, NeighborRequest) for request in scorer.requests):
        raise ConfigError(
            f"'{model}' with these settings reads tables of the whole past; export one that reads sequences alone"
        )


def export_run(path: Path, to: Path, data_dir: Path | None = None) -> Path:
    """Write the scorer of a link run as a program, checked; where it is."""
    if to.suffix != SUFFIX:
        raise ConfigError(f"{to} does not say what to write; let its name end in {SUFFIX}")
    run = open_run(path, torch.device("cpu"), data_dir)
    require_exportable(run.scorer, run.about["model"])
    content = _exported(run)
    write_file(to, [content])
    return to


def _exported(run: OpenRun) -> bytes:
    view = _view(run, TRACED)
    program = Program(run.scorer, [len(hops) for hops in view.neighbors]).eval()
    given = inputs_of(view)
    open_sizes = {name: {0: torch.export.Dim.AUTO} for name in given}
    make: Any = experimental  # its functions are made at import, where pyright cannot see them
    one_too = make.patch(backed_size_oblivious=True)  # or a batch of one pair would be another program
    with use_reference(), torch.no_grad(), one_too, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its tracing
        exported = torch.export.export(program, (given,), dynamic_shapes=(open_sizes,), strict=False)
    held = io.BytesIO()
    about = {"model": run.about["model"], "data": run.about["data"], "digest": run.about["digest"]}
    about |= {"requests": [_said(request) for request in run.scorer.requests]}
    about |= {"inputs": {name: [str(column.dtype), list(column.shape)] for name, column in given.items()}}
    torch.export.save(exported, held, extra_files={ABOUT: json.dumps(about)})
    _check(run, held)
    return held.getvalue()


def _check(run: OpenRun, held: io.BytesIO) -> None:
    """Hold what would be written against the run's own answers, for batches of several sizes."""
    held.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(held).module()
    with torch.no_grad():
        for count in CHECKED:
            view = _view(run, count)
            found, wanted = program(inputs_of(view)), run.scorer(view)
            far = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))
            if not far <= CLOSE:
                raise ConfigError(
                    f"the exported program is {far:.2g} off for {count} pairs, {CLOSE} is allowed; nothing was written"
                )


def _view(run: OpenRun, count: int) -> PairView:
    """The past of the stream's last events."""
    events = run.stream.events.select(torch.arange(len(run.stream.store))[-count:])
    return view_of(
        run.stream, run.scorer.requests, PairBatch.of(events.src, events.dst, events.time), run.seed
    )


def view_of(stream: Stream, requests: tuple[Request, ...], pairs: PairBatch, seed: int) -> PairView:
    """What a scorer sees of these pairs, its draws those of the run."""
    return stream.view(pairs.to(stream.device), requests, Draws.of(seed, device=stream.device))


def _said(request: NeighborRequest) -> dict[str, Any]:
    return {"fanout": list(request.fanout), "strategy": request.strategy, "scale": request.scale}
