"""The training loop of every task: steps on batches, validation, early stopping, exact resume.

Batches come in the order of time, or in random order for models without memory. The queries and draws of an epoch are
functions of (seed, epoch), so the position of a run is two integers (epoch and step). Together with weights, optimizer
and generators of a checkpoint it determines the rest of the run.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.core.deadline import NO_DEADLINE, Deadline
from dygmamba.core.errors import ConfigError, Interrupted, ScoreError
from dygmamba.core.interrupts import allow_interrupts, defer_interrupts, interrupt_requested
from dygmamba.core.progress import SILENT, Advance, Progress, no_advance
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.data.storage.mapped_file import mark_in_use
from dygmamba.engine.checkpoint import CheckpointManager, TrainingState
from dygmamba.engine.distributed import PeerLostError
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.executor import Batch, Epoch, choose_executor
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.draws import Draws, draw_batch_order
from dygmamba.models.base import Scorer
from dygmamba.tasks.base import EvaluationSet, Task

# steps between two copies of the losses from the device: a diverged run ends soon, few steps wait
STEPS_PER_READ = 32


StopCondition = Callable[[], bool]  # called after every step


def never_stop() -> bool:
    """Train to the end."""
    return False


def check_order(scorer: Scorer, config: FitConfig) -> None:
    """Raise ConfigError if the training order is random and the model has a memory."""
    if config.order == "random" and scorer.stateful:
        raise ConfigError(
            "`order='random'` needs a model without memory, which sees every earlier event in any order; use "
            "`order='time'`",
            code="memory-needs-time-order",
        )


class Trainer:
    """A training run: task, model, stream, position and run directory."""

    def __init__(
        self, task: Task, scorer: nn.Module, stream: Stream, config: FitConfig, run: RunDirectory, seed: int
    ) -> None:
        assert isinstance(scorer, Scorer)
        self.task, self.scorer, self.stream = task, scorer, stream
        self.config, self.run, self.seed, self.processes = config, run, seed, stream.processes
        check_order(scorer, config)
        self.executor = choose_executor(task, scorer, stream, config, self.epoch)
        self.state = TrainingState()
        self.checkpoints = CheckpointManager(run, scorer, self.executor.optimizer)
        schedule = MemorySchedule.from_periods(stream.store, (stream.split.train,), config.batch)
        # for each step, the number of batches that a memory has observed before it
        self._visible_batches = (
            schedule.visible_batches(config.visible) if scorer.stateful else [0] * self.steps_per_epoch
        )
        self._last_save = time.monotonic()

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches, or of rounds, of an epoch."""
        return self.executor.steps

    def epoch(self, number: int) -> Epoch:
        """Draw the negatives of an epoch, the order of its batches and the key for sampling neighbors."""
        draws = Draws.from_seed(self.seed, number, self.stream.device)
        events, others = self.stream.train, self.task.draw_negatives(self.seed, number)
        if self.config.order == "random":
            order = draw_batch_order(self.seed, number, len(events), self.config.batch).to(events.device)
            events, others = events[order], others[order]
        return Epoch(number, events, others, draws)

    def batch(self, epoch: Epoch, number: int) -> Batch:
        """Return the input of one step, with the memory batches that became visible since the previous step."""
        observed = self._visible_batches[number - 1] if number else 0
        return Batch(epoch, number, range(observed, self._visible_batches[number]))

    def resume(self) -> None:
        """Restore the last checkpoint, if there is one; what was trained after it is trained again."""
        self.run.lock()
        self.state = self.checkpoints.restore()
        # epochs or patience may have been raised
        self.state.update_finished(self.config.epochs, self.config.patience)

    def __call__(
        self,
        progress: Progress = SILENT,
        *,
        name: str = "training",
        stop: StopCondition = never_stop,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        """Train until the epochs are used up or validation stops improving; then load the best weights.

        After the deadline the training ends with the epochs that are complete, but not before the first one. From then
        on the run's setting `epochs` is their number, so it is the run that those settings give without a deadline.

        Args:
            progress: Observer; one unit of its stage `name` is a step.
            name: Name of that stage.
            stop: Called after every step; if it returns True, the run is saved and `Interrupted` is raised.
            deadline: When to end the training.
        """
        self.run.lock()
        steps, state = self.steps_per_epoch, self.state
        total, done = self.config.epochs * steps, state.epoch * steps + state.step
        try:
            with (
                mark_in_use(self.stream.store.source),
                defer_interrupts(),
                progress.stage(name, total, done=done) as stage,
            ):
                self._run(stage, stop, deadline)
        except PeerLostError as error:
            raise PeerLostError(
                "another process of this training ended; checkpoints are kept, resume with: "
                f"`dygmamba.resume({str(self.run.path)!r})`"
            ) from error
        finally:
            self.run.unlock()

    def _run(self, progress: Progress, stop: StopCondition, deadline: Deadline) -> None:
        while not self.state.finished:
            if self._is_over(deadline):
                self._end_early()
                break
            start = time.monotonic()
            self.train_epoch(progress, stop, deadline)
            if self.state.step < self.steps_per_epoch:
                continue  # the deadline came within the epoch
            train_seconds = time.monotonic() - start
            metrics = self._validate_epoch(progress)
            entry = {
                "epoch": self.state.epoch,
                "loss": sum(self.state.losses) / len(self.state.losses),
                **{f"val_{name}": value for name, value in metrics.items() if isinstance(value, float)},
                "train_seconds": train_seconds,
                "seconds": time.monotonic() - start,
            }
            self.state.entries.append(entry)
            self.finish_epoch(metrics)
            self.run.write_metrics(self.state.entries)
            progress.epoch(entry | {"best_epoch": self.state.best_epoch})
        self.checkpoints.load_best()

    def _is_over(self, deadline: Deadline) -> bool:
        """Return whether the time is up and there is an epoch to end with; the first process decides for all."""
        return self.processes.run_on_first(lambda: self.state.epoch > 0 and deadline.is_over)

    def _end_early(self) -> None:
        """Finish with the complete epochs, and record their number as the setting `epochs`."""
        if self.run.writes:
            self.run.extend({"epochs": self.state.epoch})
        self.processes.barrier()
        self.config = replace(self.config, epochs=self.state.epoch)
        self.state.finished = True
        self._save()

    def _validate_epoch(self, progress: Progress) -> dict[str, Any]:
        """Validate the epoch; if interrupted, save the trained epoch, which is validated again after a resume."""
        evaluation_set = self.task.validation
        if evaluation_set is None:
            return {}
        try:
            # nothing needs to be undone here, so a Ctrl-C may come at any moment
            with allow_interrupts(), progress.stage("validation", len(evaluation_set.pairs)) as stage:
                metrics = self.validate(stage.advance)
            # the first process decides about early stopping, so that rounding cannot separate the processes
            return self.processes.run_on_first(lambda: metrics)
        except KeyboardInterrupt:
            self._save()
            raise self._interrupted("stopped during validation") from None

    def _interrupted(self, what: str) -> Interrupted:
        return Interrupted(f"{what} and saved; resume with: `dygmamba.resume({str(self.run.path)!r})`")

    def train_epoch(
        self, progress: Progress = SILENT, stop: StopCondition = never_stop, deadline: Deadline = NO_DEADLINE
    ) -> None:
        """Train the rest of the current epoch, or the part of it before the deadline if it is not the first."""
        self.scorer.train()
        if self.state.step == 0:
            self.scorer.reset()
            self.scorer.delete_saved_memory()
        self._build_table(progress)
        epoch = self.epoch(self.state.epoch)
        losses = []  # scalars on the device; reading each one would make every step wait
        for step in range(self.state.step, self.steps_per_epoch):
            losses.append(self.executor.step(self.batch(epoch, step)))
            progress.advance(1)
            # true if true in any process, so that all processes stop and save at the same step
            stopped, due, over = self.processes.any(
                stop() or interrupt_requested(),
                self._is_save_due,
                self.state.epoch > 0 and step + 1 < self.steps_per_epoch and deadline.is_over,
            )
            if stopped or due or over or len(losses) == STEPS_PER_READ:
                self._record_losses(losses, step + 1)
            if stopped or due or over:
                self._save()
                if stopped:
                    raise self._interrupted("stopped")
                if over:
                    return
        # the last losses of the epoch; without any left the position is already right
        self._record_losses(losses, self.state.step if not losses else self.steps_per_epoch)
        if self.scorer.saves_memory and self.scorer.saved_prefix is None:
            self._save_memory(epoch)

    def _save_memory(self, epoch: Epoch) -> None:
        """Let the memory observe the rest of the training events and save it with the weights."""
        observed = self._visible_batches[-1] if self._visible_batches else 0
        self.executor.catch_up(Batch(epoch, self.steps_per_epoch, range(observed, self.steps_per_epoch)))
        later = torch.cat([self.stream.split.val, self.stream.split.test])
        num_trained = int(later.min()) if len(later) else len(self.stream.store)
        self.scorer.save_memory(StreamPrefix.from_store(self.stream.store, num_trained))

    @property
    def _is_save_due(self) -> bool:
        """Whether it is time to save; only the process that writes decides."""
        return self.run.writes and time.monotonic() - self._last_save > self.config.save_every

    def _build_table(self, progress: Progress) -> None:
        """Build the training table of a model that needs one (trees); if interrupted, save the unchanged position."""
        if self.state.step == self.steps_per_epoch or not self.executor.pending_queries:
            return
        try:
            with allow_interrupts(), progress.stage("training table", self.executor.pending_queries) as stage:
                self.executor.build_table(stage.advance)
        except KeyboardInterrupt:
            self._save()
            raise self._interrupted("stopped before the first step") from None

    def validate(self, advance: Advance = no_advance) -> dict[str, Any]:
        """Return the task's validation metrics of the current weights."""
        evaluation_set = self.task.validation
        assert evaluation_set is not None
        return self.task.metrics(self.score(evaluation_set, advance), evaluation_set)

    def score(self, evaluation_set: EvaluationSet, advance: Advance = no_advance) -> Tensor:
        """Return the score of each pair of an evaluation set."""
        return score_evaluation_set(
            self.scorer, self.stream, evaluation_set, self.config.rule, self.seed, advance
        )

    def finish_epoch(self, metrics: dict[str, Any]) -> None:
        """Record the validation metrics of an epoch and save; without validation the last weights are the best."""
        better = not metrics or self.task.is_better(metrics, self.state.best)
        self.state.end_epoch(metrics, better, self.config.epochs, self.config.patience)
        self._save(better)

    def _record_losses(self, losses: list[Tensor], step: int) -> None:
        """Copy the losses from the device; raise ScoreError before anything is saved if the run diverged."""
        values = torch.stack(losses).tolist() if losses else []
        non_finite = [number for number, loss in enumerate(values) if not math.isfinite(loss)]
        if non_finite:
            raise self._diverged(f"the loss became {values[non_finite[0]]}")
        self.state.losses += values
        losses.clear()
        self.state.step = step

    def _diverged(self, what: str) -> ScoreError:
        return ScoreError(
            f"{what} in epoch {self.state.epoch}; earlier checkpoints are kept. Train again with an lr below "
            f"{self.config.lr:g}",
            code="diverged",
        )

    def _save(self, better: bool = False) -> None:
        self.stream.store.check_unchanged()
        weights = [parameter.detach().isfinite().all() for parameter in self.scorer.parameters()]
        if weights and not bool(torch.stack(weights).all()):
            raise self._diverged("a weight became infinite or nan")
        self.checkpoints.save(self.state, better)
        self._last_save = time.monotonic()
