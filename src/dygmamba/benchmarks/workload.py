"""What the benchmarks of training share: a stream, a run that is never written, its parts, and their check."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.benchmarks.definitions import definitions
from dygmamba.benchmarks.verify import require, wait
from dygmamba.config import build_config, preset
from dygmamba.data.events import EventStore
from dygmamba.data.generate import GeneratorConfig, generate_stream
from dygmamba.data.library import open_dataset
from dygmamba.data.splits import Split, chronological_split
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.training import Training
from dygmamba.engine.work import PRECISIONS, TrainConfig, TrainingData
from dygmamba.errors import ConfigError, NotFoundError
from dygmamba.experiment import split_settings
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.sampling.index import gather_view
from dygmamba.sampling.view import PairBatch, PairView
from dygmamba.tasks.link import positives_and_negatives

UCI = "uci"
STAND_IN = GeneratorConfig(nodes=1_899, events=59_835)  # as large as UCI
SEED = 0
TOLERANCE = 1e-4  # of a score, relative to the largest
OBSERVED = 1_000  # events a model with memory has seen before its scores are compared
PARTS = ("look-up", "forward", "backward", "update")

Ids = Int64[Tensor, "b"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream with its split, and the models that train on it with UCI's published settings."""

    name: str
    store: EventStore
    split: Split

    @staticmethod
    def find() -> "Workload":
        """UCI where it is, else a generated stream as large."""
        try:
            store, name = open_dataset(UCI).store, UCI
        except NotFoundError:
            store, name = generate_stream(STAND_IN), "generated"
        return Workload(name, store, chronological_split(store))

    def on(self, device: str) -> TrainingData:
        """The stream and its indices on a device."""
        return TrainingData.of(self.store, self.split, torch.device(device))

    def training(self, model: str, data: TrainingData, settings: dict[str, Any], **loop: Any) -> Training:
        """A run whose weights depend on the seed alone; nothing of it is ever saved."""
        spec = find_model(model)
        published, own = split_settings(preset(model, UCI) | settings)
        torch.manual_seed(SEED)
        facts = DatasetFacts.of(self.store, self.split.train)
        scorer = spec.build(build_config(spec.config, own), facts)
        if not isinstance(scorer, EncoderScorer):
            raise ConfigError(f"model '{model}' is not trained; a benchmark of training needs one that is")
        steps = build_config(TrainConfig, published | {"save_every": float("inf")} | loop)
        run = RunFolder(Path("never-written"))
        return Training(scorer.to(data.store.time.device).train(), data, steps, run, SEED)

    def require_same_scores(
        self, model: str, settings: dict[str, Any], device: str, pairs: int = 200
    ) -> None:
        """The same weights on a GPU and on a CPU, or on a CPU with kernels and by definition, score alike."""
        ours = scores(self.training(model, self.on(device), settings), pairs)
        with nullcontext() if device == "cuda" else definitions():
            truth = scores(self.training(model, self.on("cpu"), settings), pairs)
        worst = float((ours - truth).abs().max() / truth.abs().max())
        other = "on the CPU" if device == "cuda" else "by definition"
        require(
            worst <= TOLERANCE, f"{model}'s scores of {pairs} test pairs are those {other} to {TOLERANCE:g}"
        )


def scores(training: Training, pairs: int) -> Float32[Tensor, "p"]:
    """Logits of so many pairs, half of them test events, under the weights as they are."""
    data, scorer = training.data, training.scorer.eval()
    scorer.reset()
    with torch.no_grad():
        for events in data.store.batches(data.split.train[:OBSERVED], 200) if scorer.stateful else ():
            scorer.observe(events)
        batch = data.store.select(data.split.test[: pairs // 2])
        asked = positives_and_negatives(batch, batch.src, batch.dst.flip(0))
        logits = scorer(gather_view(data.full, data.store.features, asked, scorer.requests))
    return logits.float().cpu()


def last_full(training: Training) -> int:
    """The number of the epoch's last full batch, whose nodes have a past."""
    return len(training.data.split.train) // training.config.batch - 1


def last_step(training: Training) -> Callable[[], Tensor]:
    """A call that issues this step as training does and waits for the device; it returns the loss."""
    number, negatives = last_full(training), training.data.negatives(SEED, 0)

    def step() -> Tensor:
        loss = training.steps(number, negatives)
        wait(negatives.device.type)
        return loss

    return step


def last_batch(training: Training, size: int | None = None) -> tuple[Ids, Ids]:
    """Events and negatives of this step, or the first `size` of them."""
    first = last_full(training) * training.config.batch
    rows = slice(first, first + (size or training.config.batch))
    return training.data.split.train[rows], training.data.negatives(SEED, 0)[rows]


def look_up(training: Training, events: Ids, negative: Ids) -> tuple[PairBatch, PairView]:
    """What a step asks, and what the model sees of the past."""
    data = training.data
    batch = data.store.select(events)
    pairs = positives_and_negatives(batch, batch.src, negative)
    return pairs, gather_view(data.past, data.store.features, pairs, training.scorer.requests)


def accumulate(training: Training, events: Ids, negative: Ids, size: int) -> float:
    """The loss and gradients of a batch, `size` pairs at a time: the sums are the same, the memory is not."""
    work, view = training.work, training.work.view(events, negative)
    work.gradients.begin()
    parts = torch.arange(len(view.pairs), device=events.device).split(size)
    loss = sum(float(work.part(view, chosen)) for chosen in parts)
    work.gradients.end()
    return loss


def part_seconds(
    training: Training, events: Ids, negative: Ids, repeats: int, warmup: int = 1
) -> dict[str, float]:
    """Median time of each part of a step issued call by call, the device waited for after each."""
    laps = [_laps(training, events, negative) for _ in range(warmup + repeats)][warmup:]
    return {part: median(lap[number] for lap in laps) for number, part in enumerate(PARTS)}


def _laps(training: Training, events: Ids, negative: Ids) -> list[float]:
    device, marks = events.device.type, []

    def mark() -> None:
        wait(device)
        marks.append(time.perf_counter())

    mark()
    with PRECISIONS[training.config.precision](device):
        pairs, view = look_up(training, events, negative)
        mark()
        loss = binary_cross_entropy_with_logits(training.scorer(view).float(), pairs.label)
        mark()
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark()
    training.optimizer.step()
    training.scorer.observe(training.data.store.select(events))
    mark()
    return [after - before for before, after in pairwise(marks)]
