"""Estimate how long a training will take, once a few steps are done, and what would be faster on this machine."""

import time
from dataclasses import dataclass, field

from dygmamba.config import load_presets
from dygmamba.data.events.times import format_rough_duration
from dygmamba.engine.fit import Trainer
from dygmamba.models.base import RoundLearner

MIN_STEPS, MIN_SECONDS = 8, 5.0  # an estimate needs both, or
LATE_STEPS, LATE_SECONDS = 2, 20.0  # two slow steps
FORWARD_SHARE = 1 / 3  # time of a query in validation, in times of a training step
SHORT_SECONDS, LONG_SECONDS = 10.0, 120.0  # below the first no message, below the second no advice
# seconds on two cores of a server, from docs/how-to/train.md: of the whole run, and of an epoch
QUICK_PER_EVENT, SMALL_PER_EVENT = 3e-4, 9e-4
SMALL_EPOCHS = 12


@dataclass(slots=True)
class TimeEstimate:
    """Observes every step and epoch, and estimates once how long the rest takes."""

    fit: Trainer
    marks: list[float] = field(
        default_factory=list
    )  # ends of steps, from the first one on, which compiles kernels
    said: bool = False

    def step(self) -> str | None:
        """Observe a step; returns the estimate as a sentence as soon as there is enough to go by."""
        if self.said or isinstance(self.fit.scorer, RoundLearner):
            return None  # rounds of trees are short compared with the validation after them
        self.marks.append(time.monotonic())
        steps, spent = len(self.marks) - 1, self.marks[-1] - self.marks[0]
        if not (steps >= MIN_STEPS and spent >= MIN_SECONDS) and not (
            steps >= LATE_STEPS and spent >= LATE_SECONDS
        ):
            return None
        each, config = spent / steps, self.fit.config
        validation = len(self.fit.stream.split.val) / config.batch * each * FORWARD_SHARE
        return self._sentence(self.fit.steps_per_epoch * each + validation)

    def epoch(self, seconds: float) -> str | None:
        """Observe an epoch; the same, unless it was the first one, which compiles kernels."""
        self.marks.append(time.monotonic())
        if self.said or self.fit.state.finished or self.fit.state.epoch < 2:
            return None
        return self._sentence(seconds)

    def _sentence(self, epoch: float) -> str | None:
        self.said = True
        left = max(self.fit.config.epochs - self.fit.state.epoch, 1)
        if left * epoch < SHORT_SECONDS:
            return None
        device = "CPU" if self.fit.stream.device.type == "cpu" else "GPU"
        most = f"at most {left} more epochs of {format_rough_duration(epoch)}" if left > 1 else "one epoch"
        total = format_rough_duration(left * epoch)
        text = f"about {total} on this {device} ({most}, fewer if validation stops improving)"
        return text + self._suggest_faster(left * epoch)

    def _suggest_faster(self, seconds: float) -> str:
        if self.fit.stream.device.type != "cpu" or isinstance(self.fit.scorer, RoundLearner):
            return ""
        sections, events = self.fit.run.config(), len(self.fit.stream.store)
        options = [("`model='trees'`", QUICK_PER_EVENT * events)]
        small = load_presets("small.toml").get(sections["run"]["model"], {})
        settings = sections["train"] | sections["model"]
        if any(settings[name] != value for name, value in small.items()):
            options.append(("`preset='small'`", SMALL_EPOCHS * SMALL_PER_EVENT * events))
        faster = [
            f"{how} in about {format_rough_duration(span)}" for how, span in options if 2 * span < seconds
        ]
        return f"; {', '.join(faster)}" if seconds > LONG_SECONDS and faster else ""
