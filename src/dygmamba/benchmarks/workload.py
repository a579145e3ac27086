"""What the benchmarks of training share: a stream, a fit that is never written, its parts, and their check."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.benchmarks.verify import require, wait
from dygmamba.config import build_config, preset
from dygmamba.data.generate import GeneratorConfig, generate_stream
from dygmamba.data.library import open_dataset
from dygmamba.data.splits import chronological_split
from dygmamba.engine.clock import Clock
from dygmamba.engine.executor.cuts import WHOLE
from dygmamba.engine.executor.eager import Parts, Whole, Work
from dygmamba.engine.fit import Fit
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Walk
from dygmamba.errors import ConfigError, NotFoundError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.ops.dispatch import use_reference
from dygmamba.runs.link import split_settings
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.link import LinkTask

UCI = "uci"
STAND_IN = GeneratorConfig(nodes=1_899, events=59_835)  # as large as UCI
SEED = 0
TOLERANCE = 1e-4  # of a score, relative to the largest
OBSERVED = 1_000  # events a model with memory has seen before its scores are compared
PARTS = ("look-up", "forward", "backward", "update")

Ids = Int64[Tensor, "b"]


def find_stream(device: str) -> tuple[str, Stream]:
    """UCI where it is, else a generated stream as large, and its name."""
    try:
        store, name = open_dataset(UCI).store, UCI
    except NotFoundError:
        store, name = generate_stream(STAND_IN), "generated"
    return name, Stream(store, chronological_split(store), torch.device(device))


def fit_of(model: str, stream: Stream, settings: dict[str, Any], **loop: Any) -> Fit:
    """A run with UCI's published settings, whose weights depend on the seed alone; nothing of it is ever saved."""
    spec = find_model(model)
    published, own = split_settings(preset(model, UCI) | settings)
    torch.manual_seed(SEED)
    scorer = spec.build(build_config(spec.config, own), DatasetFacts.of(stream.store, stream.split.train))
    if not isinstance(scorer, EncoderScorer):
        raise ConfigError(f"model '{model}' is not trained; a benchmark of training needs one that is")
    config = build_config(FitConfig, published | {"save_every": 1e9} | loop)
    task = LinkTask.of(stream.store, stream.split, stream.device)
    run = RunFolder(Path("never-written"))
    return Fit(task, scorer.to(stream.device).train(), stream, config, run, SEED)


def require_same_scores(model: str, stream: Stream, settings: dict[str, Any], pairs: int = 200) -> None:
    """The same weights on a GPU and on a CPU, or on a CPU with kernels and by definition, score alike."""
    ours = scores(fit_of(model, stream, settings), pairs)
    on_gpu = stream.device.type == "cuda"
    here = Stream(stream.store, stream.split, torch.device("cpu"))
    with nullcontext() if on_gpu else use_reference():
        truth = scores(fit_of(model, here, settings), pairs)
    worst = float((ours - truth).abs().max() / truth.abs().max())
    other = "on the CPU" if on_gpu else "by definition"
    require(worst <= TOLERANCE, f"{model}'s scores of {pairs} test pairs are those {other} to {TOLERANCE:g}")


def scores(fit: Fit, pairs: int) -> Float[Tensor, "p"]:
    """Logits of so many pairs, half of them test events, under the weights as they are."""
    store, split = fit.stream.store, fit.stream.split
    events = split.test[: pairs // 2]
    src, dst, time = store.src[events], store.dst[events], store.time[events]
    asked = PairBatch.of(src.repeat(2), torch.cat([dst, dst.flip(0)]), time.repeat(2))
    clock = Clock.of(store, (split.train[:OBSERVED],))
    return Walk(fit.scorer, fit.stream, SEED, clock)(asked, clock.earlier_cells(asked.time))


def last_full(fit: Fit) -> int:
    """The number of the epoch's last full batch, whose nodes have a past."""
    return len(fit.stream.train) // fit.config.batch - 1


def last_step(fit: Fit) -> Callable[[], Tensor]:
    """A call that issues this step as training does and waits for the device; it returns the loss."""
    batch = fit.batch(fit.epoch(0), last_full(fit))
    fit.scorer.train()

    def step() -> Tensor:
        loss = fit.executor.step(batch)
        wait(fit.stream.device.type)
        return loss

    return step


def last_batch(fit: Fit, size: int | None = None) -> tuple[Ids, Ids]:
    """Events and other nodes of this step, or the first `size` of them."""
    first = last_full(fit) * fit.config.batch
    rows = slice(first, first + (size or fit.config.batch))
    return fit.stream.train[rows], fit.epoch(0).others[rows]


def work_of(fit: Fit) -> Work:
    """What a step that follows a gradient is made of."""
    if not isinstance(fit.executor, Whole):
        raise ConfigError("this model learns in rounds; a step of it has no parts to time")
    return fit.executor.work


def accumulate(fit: Fit, events: Ids, others: Ids, size: int) -> float:
    """The loss and gradients of a batch, `size` pairs at a time: the sums are the same, the memory is not."""
    parts = Parts(work_of(fit), WHOLE)
    view = parts.work.view(events, others)
    parts.gradients.begin()
    chunks = torch.arange(len(view.pairs), device=events.device).split(size)
    loss = sum(float(parts.part(view, chosen)) for chosen in chunks)
    return loss


def part_seconds(fit: Fit, events: Ids, others: Ids, repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median time of each part of a step issued call by call, the device waited for after each."""
    laps = [_laps(fit, events, others) for _ in range(warmup + repeats)][warmup:]
    return {part: median(lap[number] for lap in laps) for number, part in enumerate(PARTS)}


def _laps(fit: Fit, events: Ids, others: Ids) -> list[float]:
    work, marks = work_of(fit), []

    def mark() -> None:
        wait(work.device)
        marks.append(time.perf_counter())

    mark()
    with work.precision():
        view = work.view(events, others)
        mark()
        loss = work.loss(view) / len(view.pairs)
        mark()
        work.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark()
    work.optimizer.step()
    work.tell(events)
    mark()
    return [after - before for before, after in pairwise(marks)]
