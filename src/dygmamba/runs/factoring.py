"""A score in two factors: whom a source chooses, by any model, and which source acts, by its rate.

score = what the model says + weight * log rate of the source. The rate is fitted on the training events. The weight is
chosen on the validation period, one for each kind of negatives: random ones keep the source, so there the rate says
nothing and the weight is 0 by definition; historical and inductive ones replace it. Nothing of the test chooses.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from dygmamba.engine.stream import Stream
from dygmamba.sampling.senders import Senders
from dygmamba.tasks.activity import Activity, best_weight, fit_activity
from dygmamba.tasks.base import Exam
from dygmamba.tasks.link import has_events, link_exam

WITHIN_A_SOURCE = ("random",)  # negatives that keep the source
CHOSEN_ON = ("val", "transductive")

Ask = Callable[[Exam], Tensor]  # what a model says of the pairs of an exam


class Alone:
    """The model's score as it is."""

    def __call__(self, exam: Exam, score: Tensor, ask: Ask) -> tuple[Tensor, dict[str, Any]]:
        """The score, and nothing to say of it."""
        return score, {}

    @property
    def about(self) -> dict[str, Any]:
        """Nothing was fitted."""
        return {}


@dataclass(frozen=True, slots=True)
class WithActivity:
    """The same with the rate of the source; made for one model, whose weights it keeps."""

    stream: Stream
    rate: Activity
    senders: Senders
    weights: dict[str, float] = field(default_factory=dict)  # by kind of negatives

    @staticmethod
    def of(stream: Stream) -> "WithActivity":
        """The rate of the training events' sources, to be asked about every event before a question."""
        store, train = stream.store, stream.split.train
        known = Senders.of(store, train)
        rate = fit_activity(known, store.src[train], store.time[train])
        return WithActivity(stream, rate, known.among(store.src, store.time))

    def __call__(self, exam: Exam, score: Tensor, ask: Ask) -> tuple[Tensor, dict[str, Any]]:
        """The factored score and its stamp; `ask` is asked about the validation period where that is still open."""
        weight = self._weight(exam, score, ask)
        stamp = {"activity_weight": weight}
        return (score.double() + weight * self._log_rate(exam) if weight else score), stamp

    @property
    def about(self) -> dict[str, Any]:
        """What was fitted and chosen."""
        return {"activity": asdict(self.rate) | {"weight": dict(self.weights)}}

    def _weight(self, exam: Exam, score: Tensor, ask: Ask) -> float:
        kind, store, split = exam.about["negatives"], self.stream.store, self.stream.split
        if kind in WITHIN_A_SOURCE or not has_events(store, split, *CHOSEN_ON):
            return 0.0
        if kind not in self.weights:
            if (exam.about["split"], exam.about["setting"]) != CHOSEN_ON:
                exam = link_exam(store, split, *CHOSEN_ON, strategy=kind)
                score = ask(exam)
            asked = (self._log_rate(exam), exam.pairs.label, exam.pairs.group)
            self.weights[kind] = best_weight(score, *asked)
        return self.weights[kind]

    def _log_rate(self, exam: Exam) -> Tensor:
        return self.rate.log_rate(self.senders, exam.pairs.src, exam.pairs.time)


Factoring = Alone | WithActivity


def factoring(activity: bool, stream: Stream) -> Factoring:
    """How scores of this stream are made of what a model says."""
    return WithActivity.of(stream) if activity else Alone()
