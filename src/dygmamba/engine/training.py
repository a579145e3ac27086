"""The one training loop: chronological batches, one optimizer step each, exact to resume.

An epoch's negatives are a function of (seed, epoch), so a run's position is two integers; with the weights,
the optimizer and the generators of a checkpoint the rest of the run is determined.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.data.events import EventStore
from dygmamba.data.splits import Split
from dygmamba.engine.buckets import CUTS, Cut, Epoch, arrange, best_cut, pair_lengths
from dygmamba.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from dygmamba.engine.evaluation import EvaluationSet, Scores, score_by_length, score_set
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.stepping import EagerSteps, GraphSteps
from dygmamba.errors import ConfigError, DygError, EventError
from dygmamba.models.base import EncoderScorer
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.tasks.link import positives_and_negatives


class Interrupted(DygError):
    """The user stopped the run; its state is on disk."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a model is trained; the defaults are the published protocol's."""

    epochs: int = 100
    batch: int = 200
    lr: float = 1e-4
    patience: int = 20
    precision: Literal["float32", "tf32", "bf16"] = "tf32"  # of training on a GPU; evaluation is in float32
    graphs: bool = True  # on a GPU, replay the step as one captured graph
    save_every: float = 30.0  # seconds between checkpoints inside an epoch

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.patience) < 1:
            raise ConfigError("epochs, batch and patience must be at least 1")
        if not self.lr > 0 or self.save_every < 0:
            raise ConfigError("lr must be above 0 and save_every at least 0")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A stream and its split on one device, with the index training may see and the one evaluation sees."""

    store: EventStore
    split: Split
    past: NeighborIndex
    full: NeighborIndex
    destinations: Int64[Tensor, "k"]

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "TrainingData":
        """Everything training looks things up in, moved to the device once."""
        if not len(split.train):
            raise EventError("no training events are left after holding out new nodes; use a longer stream")
        on = store.to(device)
        parts = (part.to(device) for part in (split.train, split.val, split.test, split.new_nodes))
        return TrainingData(
            store=on,
            split=Split(*parts),
            past=NeighborIndex.build(store, split.train).to(device),
            full=NeighborIndex.build(store).to(device),
            destinations=torch.unique(store.dst[split.train]).to(device),
        )

    def negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One random training destination per training event, the same on every device."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        draw = torch.randint(len(self.destinations), (len(self.split.train),), generator=rng)
        return self.destinations[draw.to(self.destinations.device)]


@contextmanager
def _tf32(device: str) -> Iterator[None]:
    """Matrix products of float32 tensors on the tensor cores; nothing changes on a CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


PRECISIONS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "float32": lambda device: nullcontext(),
    "tf32": _tf32,
    "bf16": lambda device: torch.autocast(device, dtype=torch.bfloat16),
}


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who is told of a run's progress."""

    step: Callable[[int, int], None] = lambda epoch, step: None
    epoch: Callable[[dict], None] = lambda entry: None
    stop: Callable[[], bool] = lambda: False


EVALUATION_TOKENS = 64_000  # of one call without gradients; a size, no score depends on it


@torch.no_grad()
def evaluate_weights(scorer: EncoderScorer, data: TrainingData, chosen: EvaluationSet) -> Scores:
    """Scores of a set; stateless models are asked in larger batches, which changes nothing."""
    scorer.eval()
    on = chosen.to(data.store.time.device)
    if scorer.elastic and not scorer.stateful:
        return score_by_length(scorer, data.store, data.full, on, EVALUATION_TOKENS)
    tokens = sum(request.tokens for request in scorer.requests)
    size = 200 if scorer.stateful else max(200, EVALUATION_TOKENS // max(tokens, 1) // 2)
    return score_set(scorer, data.store, data.full, on, size)


class Training:
    """A run under way: model, optimizer and position, and the folder that keeps them."""

    def __init__(
        self, scorer: EncoderScorer, data: TrainingData, config: TrainConfig, run: RunFolder, seed: int
    ) -> None:
        self.scorer, self.data, self.config, self.run, self.seed = scorer, data, config, run, seed
        on_gpu = data.store.time.device.type == "cuda"
        graphed = on_gpu and config.graphs
        trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=config.lr, capturable=graphed, fused=on_gpu or None)
        self.steps = (GraphSteps if graphed else EagerSteps)(self, data.split.train, config.batch)
        self.cut = self._best_cut()
        self.progress = Progress()
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Go back to the last checkpoint; epochs it does not know of are forgotten."""
        if self.run.last.exists():
            self.progress = load_checkpoint(self.run.last, self.scorer, self.optimizer)
        self.run.write_metrics(self.run.metrics()[: self.progress.epoch])

    def fit(self, validation: EvaluationSet, report: Reporter | None = None) -> None:
        """Train until the epochs are used up or validation stops improving; then load the best weights."""
        report = report or Reporter()
        while not self.progress.finished:
            start = time.monotonic()
            self.train_epoch(report)
            trained = time.monotonic() - start
            loss = sum(self.progress.losses) / len(self.progress.losses)
            if not math.isfinite(loss):
                raise DygError(
                    f"the loss of epoch {self.progress.epoch} is {loss}; lower --lr or use float32"
                )
            metrics = self.evaluate(validation).metrics()
            entry = {
                "epoch": self.progress.epoch,
                "loss": loss,
                "val_ap": metrics.ap,
                "val_auc": metrics.auc,
                "val_ap_pooled": metrics.ap_pooled,
                "train_seconds": trained,
                "seconds": time.monotonic() - start,
            }
            self.run.write_metrics([*self.run.metrics(), entry])
            self._finish_epoch(metrics.ap, metrics.auc)
            report.epoch(entry | {"best_epoch": self.progress.best_epoch})
        load_checkpoint(self.run.best, self.scorer)

    def train_epoch(self, report: Reporter) -> None:
        """The rest of the epoch the run stands in."""
        self.scorer.train()
        if self.progress.step == 0:
            self.scorer.reset()
        negatives = self.data.negatives(self.seed, self.progress.epoch)
        losses = []  # device scalars, read once per checkpoint so that no step waits for the device
        for step in range(self.progress.step, self.steps_per_epoch):
            losses.append(self.steps(step, negatives))
            report.step(self.progress.epoch, step)
            if report.stop() or time.monotonic() - self._saved > self.config.save_every:
                self._note(losses, step + 1)
                self._save()
                if report.stop():
                    raise Interrupted(
                        f"stopped and saved; go on with: dygmamba train --resume {self.run.path}"
                    )
        self._note(losses, self.progress.step)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last one perhaps shorter."""
        return -(-len(self.data.split.train) // self.config.batch)

    def train_step(self, events: Int64[Tensor, "b"], negative: Int64[Tensor, "b"]) -> Tensor:
        """One optimizer step on a batch of positives and their negatives; the loss stays on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.accumulate(events, negative)
        self.update(events)
        return loss

    def accumulate(
        self,
        events: Int64[Tensor, "b"],
        negatives: Int64[Tensor, "b"],
        chosen: Int64[Tensor, "p"] | None = None,
        length: int | None = None,
    ) -> Tensor:
        """Add the gradients of a batch, or of some of its pairs, looked up that far back; their part of the loss."""
        batch = self.data.store.select(events)
        pairs = positives_and_negatives(batch, batch.src, negatives)
        count, requests = len(pairs), self.scorer.requests
        if chosen is not None:
            pairs = pairs.select(chosen)
        if length is not None:
            requests = tuple(request.cut(length) for request in requests)
        with PRECISIONS[self.config.precision](events.device.type):
            view = gather_view(self.data.past, self.data.store.features, pairs, requests)
            logits = self.scorer(view).float()
            loss = binary_cross_entropy_with_logits(logits, pairs.label, reduction="sum") / count
            loss.backward()
        return loss.detach()

    def update(self, events: Int64[Tensor, "b"]) -> None:
        """Change the weights, and let the model observe the batch."""
        self.optimizer.step()
        self.scorer.observe(self.data.store.select(events))

    def arrange(self, negatives: Int64[Tensor, "k"]) -> Epoch | None:
        """How the full batches of an epoch are cut by length; None: each is one part."""
        return arrange(self._lengths(negatives), self.cut, self._longest) if len(self.cut) > 1 else None

    @property
    def _longest(self) -> int:
        return max((request.tokens for request in self.scorer.requests), default=0)

    def _lengths(self, negatives: Int64[Tensor, "k"]) -> Int64[Tensor, "s 2b"]:
        store, train = self.data.store, self.data.split.train
        ends = store.src[train], store.dst[train], store.time[train]
        return pair_lengths(self.data.past, ends, negatives, self.config.batch, self._longest)

    def _best_cut(self) -> Cut:
        """Chosen by the first epoch, so that a resumed run goes on as it began."""
        if not self.scorer.elastic:
            return CUTS[0]
        return best_cut(self._lengths(self.data.negatives(self.seed, 0)), self._longest)

    def evaluate(self, chosen: EvaluationSet) -> Scores:
        """Scores of a set under the current weights."""
        return evaluate_weights(self.scorer, self.data, chosen)

    def _note(self, losses: list[Tensor], step: int) -> None:
        self.progress.losses += torch.stack(losses).tolist() if losses else []
        losses.clear()
        self.progress.step = step

    def _finish_epoch(self, ap: float, auc: float) -> None:
        """Early stopping as published: both validation AP and AUC must reach their best."""
        state = self.progress
        better = ap >= state.best_ap and auc >= state.best_auc
        if better:
            state.best_epoch, state.best_ap, state.best_auc, state.stale = state.epoch, ap, auc, 0
        else:
            state.stale += 1
        state.epoch, state.step, state.losses = state.epoch + 1, 0, []
        state.finished = state.stale >= self.config.patience or state.epoch >= self.config.epochs
        if better:
            save_checkpoint(self.run.best, self.scorer, None, state)
        self._save()

    def _save(self) -> None:
        save_checkpoint(self.run.last, self.scorer, self.optimizer, self.progress)
        self._saved = time.monotonic()
