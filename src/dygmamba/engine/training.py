"""The one training loop: chronological batches, one optimizer step each, exact to resume.

An epoch's negatives are a function of (seed, epoch), so a run's position is two integers; with the weights,
the optimizer and the generators of a checkpoint the rest of the run is determined.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dygmamba.engine.buckets import pairs_per_pass
from dygmamba.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from dygmamba.engine.evaluation import EvaluationSet, Scores, score_by_length, score_set
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.stepping import EagerSteps, GraphSteps
from dygmamba.engine.work import LinkWork, TrainConfig, TrainingData
from dygmamba.errors import DygError
from dygmamba.models.base import EncoderScorer
from dygmamba.tasks.metrics import PUBLISHED_BATCH


class Interrupted(DygError):
    """The user stopped the run; its state is on disk."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who is told of a run's progress."""

    step: Callable[[int, int], None] = lambda epoch, step: None
    epoch: Callable[[dict], None] = lambda entry: None
    stop: Callable[[], bool] = lambda: False


@torch.no_grad()
def evaluate_weights(scorer: EncoderScorer, data: TrainingData, chosen: EvaluationSet) -> Scores:
    """Scores of a set; stateless models are asked in larger batches, which changes nothing."""
    scorer.eval()
    on = chosen.to(data.store.time.device)
    if scorer.elastic and not scorer.stateful:
        return score_by_length(scorer, data.store, data.full, on)
    many = 0 if scorer.stateful else pairs_per_pass(scorer.requests, data.store.time.device)
    return score_set(scorer, data.store, data.full, on, max(PUBLISHED_BATCH, many))


class Training:
    """A run under way: model, optimizer and position, and the folder that keeps them."""

    def __init__(
        self, scorer: EncoderScorer, data: TrainingData, config: TrainConfig, run: RunFolder, seed: int
    ) -> None:
        self.scorer, self.data, self.config, self.run, self.seed = scorer, data, config, run, seed
        self.work = LinkWork(scorer, data, config, seed)
        steps = GraphSteps if self.work.graphed else EagerSteps
        self.steps = steps(self.work, data.split.train, config.batch)
        self.optimizer = self.work.optimizer
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

    def evaluate(self, chosen: EvaluationSet) -> Scores:
        """Scores of a set under the current weights."""
        return evaluate_weights(self.scorer, self.data, chosen)

    def _note(self, losses: list[Tensor], step: int) -> None:
        self.progress.losses += torch.stack(losses).tolist() if losses else []
        losses.clear()
        self.progress.step = step

    def _finish_epoch(self, ap: float, auc: float) -> None:
        """Early stopping as published: both validation AP and AUC must reach their best."""
        better = ap >= self.progress.best_ap and auc >= self.progress.best_auc
        self.progress.end_epoch(ap, auc, better, self.config.epochs, self.config.patience)
        if better:
            save_checkpoint(self.run.best, self.scorer, None, self.progress)
        self._save()

    def _save(self) -> None:
        save_checkpoint(self.run.last, self.scorer, self.optimizer, self.progress)
        self._saved = time.monotonic()
