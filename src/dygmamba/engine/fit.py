"""The one training loop: chronological batches, one optimizer step each, exact to resume, whatever the task.

An epoch's questions and draws are functions of (seed, epoch), so a run's position is two integers; with the weights,
the optimizer and the generators of a checkpoint the rest of the run is determined.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.core.errors import DygError, ScoreError
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.engine.checkpoint import CheckpointManager, TrainingState
from dygmamba.engine.distributed import PeerLostError
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.executor import Batch, Epoch, choose_executor
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.models.base import MemorySaver, Scorer
from dygmamba.sampling.draws import Draws
from dygmamba.tasks.base import EvaluationSet, Task

STEPS_PER_READ = 32  # steps after which losses are read off the device: a run that diverged goes on no longer


Stage = Callable[[str, int], AbstractContextManager[Advance]]  # a name, and of how many questions it is


def unfollowed(name: str, total: int) -> AbstractContextManager[Advance]:
    """A stage that nobody follows."""
    return nullcontext(unwatched)


class Interrupted(DygError):
    """The user stopped the run; its state is on disk."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who is told of a run's progress.

    A stage is work between steps, such as validation: so many questions, after which nothing is left to undo, so that a
    KeyboardInterrupt may come at any moment of it.
    """

    step: Callable[[int, int], None] = lambda epoch, step: None
    epoch: Callable[[dict], None] = lambda entry: None
    stop: Callable[[], bool] = lambda: False
    stage: Stage = unfollowed


class Trainer:
    """A run under way: task, model, stream and position, and the folder that keeps them."""

    def __init__(
        self, task: Task, scorer: nn.Module, stream: Stream, config: FitConfig, run: RunDirectory, seed: int
    ) -> None:
        assert isinstance(scorer, Scorer)
        self.task, self.scorer, self.stream = task, scorer, stream
        self.config, self.run, self.seed, self.ranks = config, run, seed, stream.ranks
        self.executor = choose_executor(task, scorer, stream, config, self.epoch)
        self.progress, self.keeper = TrainingState(), CheckpointManager(run, scorer, self.executor.optimizer)
        clock = MemorySchedule.of(stream.store, (stream.split.train,), config.batch)
        self._tellable = clock.steps(config.visible) if scorer.stateful else [0] * self.steps_per_epoch
        self._carrier = scorer if isinstance(scorer, MemorySaver) and scorer.carries else None
        self._saved = time.monotonic()

    @property
    def steps_per_epoch(self) -> int:
        """Batches, or rounds, of an epoch."""
        return self.executor.steps

    def epoch(self, number: int) -> Epoch:
        """What is asked and drawn in an epoch."""
        draws = Draws.of(self.seed, number, self.stream.device)
        return Epoch(number, self.task.others(self.seed, number), draws)

    def batch(self, epoch: Epoch, number: int) -> Batch:
        """A step of an epoch; before it a memory is told of the cells that became visible since the last one."""
        told = self._tellable[number - 1] if number else 0
        return Batch(epoch, number, range(told, self._tellable[number]))

    def resume(self) -> None:
        """Go back to the last checkpoint; epochs it does not know of are forgotten."""
        self.run.lock()
        self.progress = self.keeper.restore()
        self.progress.judge(self.config.epochs, self.config.patience)  # which may be more than it began with

    def __call__(self, report: Reporter | None = None) -> None:
        """Train until the epochs are used up or validation stops improving; then load the best weights."""
        self.run.lock()
        try:
            self._run(report or Reporter())
        except PeerLostError as error:
            raise PeerLostError(
                f"another process of this training ended; what was saved before is kept, go on with: "
                f"`dygmamba.resume('{self.run.path}')`"
            ) from error
        finally:
            self.run.unlock()

    def _run(self, report: Reporter) -> None:
        while not self.progress.finished:
            start = time.monotonic()
            self.train_epoch(report)
            trained = time.monotonic() - start
            found = self._validated(report)
            entry = {
                "epoch": self.progress.epoch,
                "loss": sum(self.progress.losses) / len(self.progress.losses),
                **{f"val_{name}": value for name, value in found.items() if isinstance(value, float)},
                "train_seconds": trained,
                "seconds": time.monotonic() - start,
            }
            self.progress.entries.append(entry)
            self.finish_epoch(found)
            self.run.write_metrics(self.progress.entries)
            report.epoch(entry | {"best_epoch": self.progress.best_epoch})
        self.keeper.load_best()

    def _validated(self, report: Reporter) -> dict[str, Any]:
        """Validation; whoever stops it finds the epoch's training kept, and validates again."""
        evaluation_set = self.task.validation
        if evaluation_set is None:
            return {}
        try:
            with report.stage("validation", len(evaluation_set.pairs)) as advance:
                found = self.validate(advance)
            return self.ranks.led(lambda: found)  # early stopping is decided once
        except KeyboardInterrupt:
            self._save()
            raise self._interrupted("stopped in validation") from None

    def _interrupted(self, what: str) -> Interrupted:
        return Interrupted(f"{what} and saved; go on with: `dygmamba.resume('{self.run.path}')`")

    def train_epoch(self, report: Reporter) -> None:
        """The rest of the epoch the run stands in."""
        self.scorer.train()
        if self.progress.step == 0:
            self.scorer.reset()
            if self._carrier is not None:
                self._carrier.let_go()
        self._study(report)
        epoch = self.epoch(self.progress.epoch)
        losses = []  # device scalars, read now and then so that no step waits for the device
        for step in range(self.progress.step, self.steps_per_epoch):
            losses.append(self.executor.step(self.batch(epoch, step)))
            report.step(epoch.number, step)
            asked, due = self.ranks.any(report.stop(), self._due)
            if asked or due or len(losses) == STEPS_PER_READ:
                self._note(losses, step + 1)
            if asked or due:
                self._save()
                if asked:
                    raise self._interrupted("stopped")
        self._note(losses, self.progress.step if not losses else self.steps_per_epoch)
        if self._carrier is not None and self._carrier.carried is None:
            self._carry(self._carrier, epoch)

    def _carry(self, carrier: MemorySaver, epoch: Epoch) -> None:
        """Let the memory take in what is left of the training events, and keep it; once an epoch, for it goes on."""
        told = self._tellable[-1] if self._tellable else 0
        self.executor.catch_up(Batch(epoch, self.steps_per_epoch, range(told, self.steps_per_epoch)))
        later = torch.cat([self.stream.split.val, self.stream.split.test])
        trained = int(later.min()) if len(later) else len(self.stream.store)
        carrier.carry(StreamPrefix.at(self.stream.store, trained))

    @property
    def _due(self) -> bool:
        """Whether it is time to save; who does not write goes by who does."""
        return self.run.writes and time.monotonic() - self._saved > self.config.save_every

    def _study(self, report: Reporter) -> None:
        """What the executor makes once, before the first step; stopped there, the run stands where it stood."""
        if self.progress.step == self.steps_per_epoch or not self.executor.unstudied:
            return
        try:
            with report.stage("training table", self.executor.unstudied) as advance:
                self.executor.study(advance)
        except KeyboardInterrupt:
            self._save()
            raise self._interrupted("stopped before the first step") from None

    def validate(self, advance: Advance = unwatched) -> dict[str, Any]:
        """The task's metrics on its validation exam under the current weights."""
        evaluation_set = self.task.validation
        assert evaluation_set is not None
        return self.task.metrics(self.examine(evaluation_set, advance), evaluation_set)

    def examine(self, evaluation_set: EvaluationSet, advance: Advance = unwatched) -> Tensor:
        """A score per pair of an exam."""
        return score_evaluation_set(
            self.scorer, self.stream, evaluation_set, self.config.rule, self.seed, advance
        )

    def finish_epoch(self, found: dict[str, Any]) -> None:
        """Early stopping: the task says which weights are better; where nothing was found out, the last ones are."""
        ap, auc = found.get("ap", self.progress.best_ap), found.get("auc", self.progress.best_auc)
        better = not found or self.task.better(found, self.progress.best_ap, self.progress.best_auc)
        self.progress.end_epoch(ap, auc, better, self.config.epochs, self.config.patience)
        self._save(better)

    def _note(self, losses: list[Tensor], step: int) -> None:
        """Read the losses off the device; a run that diverged ends here, before anything is saved."""
        found = torch.stack(losses).tolist() if losses else []
        wrong = [number for number, loss in enumerate(found) if not math.isfinite(loss)]
        if wrong:
            raise self._diverged(f"the loss became {found[wrong[0]]}")
        self.progress.losses += found
        losses.clear()
        self.progress.step = step

    def _diverged(self, what: str) -> ScoreError:
        return ScoreError(
            f"{what} in epoch {self.progress.epoch}; what was saved before is kept, train again with an lr below "
            f"{self.config.lr:g}"
        )

    def _save(self, better: bool = False) -> None:
        self.stream.store.check_unchanged()
        weights = [parameter.detach().isfinite().all() for parameter in self.scorer.parameters()]
        if weights and not bool(torch.stack(weights).all()):
            raise self._diverged("a weight became infinite or nan")
        self.keeper.save(self.progress, better)
        self._saved = time.monotonic()
