"""Where events rank among candidates: how it is asked for, and the result rows.

A score in two factors: whom a source chooses, by any model, and which source acts, by its rate.

score = what the model says + weight * log rate of the source. The rate is fitted on the training events. The weight is
chosen on the validation period, one for each kind of negatives: random ones keep the source, so there the rate says
nothing and the weight is 0 by definition; historical and inductive ones replace it. Nothing of the test chooses.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import Leaderboard, load_leaderboard
from dygmamba.engine.evaluation import rank_evaluation_set
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models.base import Scorer
from dygmamba.sampling.negatives import PUBLISHED_SEEDS
from dygmamba.sampling.source_activity import SourceActivity
from dygmamba.tasks.activity import ActivityRate, choose_activity_weight, fit_activity
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import BoardCandidates, CandidateSet, SampledCandidates
from dygmamba.tasks.link import build_link_set, has_events
from dygmamba.tasks.metric_names import BOARD_CANDIDATES, DEFAULT_CANDIDATES
from dygmamba.tasks.metrics import rank_metrics

Choice = tuple[str, str, str]  # negatives, split, setting


@dataclasses.dataclass(frozen=True, slots=True)
class Ranking:
    """Which ranks are asked for: metrics such as mrr and hits@10, and among how many candidates, None for all.

    With a board they are among those that it lists, and `count` says no more than that.
    """

    metrics: tuple[str, ...]
    count: int | str | None = DEFAULT_CANDIDATES
    filtered: bool = False
    seed: int | None = None  # of the candidates, by default the published one of the exam's negatives
    most: int | None = (
        None  # events that are ranked, drawn with the same seed where there are more; None for all
    )
    board: Leaderboard | None = None

    def on(self, dataset: Dataset) -> "Ranking":
        """The same with the dataset's own scoreboard, where that is what is asked for."""
        return (
            dataclasses.replace(self, board=load_leaderboard(dataset))
            if self.count == BOARD_CANDIDATES
            else self
        )

    @property
    def drawn(self) -> bool:
        """Whether candidates are drawn, so that another seed draws others."""
        return isinstance(self.count, int)

    def row(
        self,
        scorer: Scorer,
        stream: Stream,
        evaluation_set: EvaluationSet,
        rule: VisibilityRule,
        seed: int = 0,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """What a result row says of an exam's ranks; the exam's negatives are not asked about."""
        name, setting = evaluation_set.about["split"], evaluation_set.about["setting"]
        drawn = PUBLISHED_SEEDS[name, setting] if self.seed is None else self.seed
        among = self._among(stream, evaluation_set, drawn)
        rank = rank_evaluation_set(
            scorer,
            stream,
            evaluation_set,
            among,
            rule,
            seed,
            advance,
            self._chosen(len(evaluation_set.events), drawn),
        )
        found = rank_metrics(rank, self.metrics)
        about = {"split": name, "setting": setting, **among.about, **rule.about}
        return {**about, **found, "n": len(rank)}

    def _among(self, stream: Stream, evaluation_set: EvaluationSet, seed: int) -> CandidateSet:
        if self.board is not None:
            return BoardCandidates.of(
                self.board, "val" if evaluation_set.about["split"] == "val" else "test", evaluation_set.events
            )
        assert not isinstance(self.count, str)
        return SampledCandidates.of(stream.store, self.count, seed, self.filtered)

    def questions(self, evaluation_set: EvaluationSet) -> int:
        """Pairs that are scored where the candidates are counted; of all, at least so many."""
        events = (
            len(evaluation_set.events) if self.most is None else min(self.most, len(evaluation_set.events))
        )
        return events * (1 + (self.count if isinstance(self.count, int) else 0))

    def _chosen(self, events: int, seed: int) -> Tensor | None:
        if self.most is None or self.most >= events:
            return None
        drawn = np.random.default_rng([seed % 2**64, events]).choice(events, self.most, replace=False)
        return torch.from_numpy(np.sort(drawn))


def evaluate_ranks(
    scorer: Scorer,
    stream: Stream,
    about: dict[str, Any],
    chosen: list[Choice],
    rule: VisibilityRule,
    ranking: Ranking,
) -> list[dict[str, Any]]:
    """One result row per split and setting that has events: where each event ranks among its candidates."""
    rows = []
    for name, setting in dict.fromkeys((name, setting) for _, name, setting in chosen):
        if has_events(stream.store, stream.split, name, setting):
            evaluation_set = build_link_set(stream.store, stream.split, name, setting)
            rows.append({**about, **ranking.row(scorer, stream, evaluation_set, rule, about["seed"])})
    return rows


SAME_SOURCE_NEGATIVES = ("random",)  # negatives that keep the source
WEIGHT_CHOSEN_ON = ("val", "transductive")

ScoreFunction = Callable[[EvaluationSet], Tensor]  # what a model says of the pairs of an exam


class NoActivity:
    """The model's score as it is."""

    def __call__(
        self, evaluation_set: EvaluationSet, score: Tensor, ask: ScoreFunction
    ) -> tuple[Tensor, dict[str, Any]]:
        """The score, and nothing to say of it."""
        return score, {}

    @property
    def about(self) -> dict[str, Any]:
        """Nothing was fitted."""
        return {}


@dataclass(frozen=True, slots=True)
class ActivityFactor:
    """The same with the rate of the source; made for one model, whose weights it keeps."""

    stream: Stream
    rate: ActivityRate
    senders: SourceActivity
    weights: dict[str, float] = field(default_factory=dict)  # by kind of negatives

    @staticmethod
    def of(stream: Stream) -> "ActivityFactor":
        """The rate of the training events' sources, to be asked about every event before a question."""
        store, train = stream.store, stream.split.train
        known = SourceActivity.of(store, train)
        rate = fit_activity(known, store.src[train], store.time[train])
        return ActivityFactor(stream, rate, known.among(store.src, store.time))

    def __call__(
        self, evaluation_set: EvaluationSet, score: Tensor, ask: ScoreFunction
    ) -> tuple[Tensor, dict[str, Any]]:
        """The factored score and its stamp; `ask` is asked about the validation period where that is still open."""
        weight = self._weight(evaluation_set, score, ask)
        stamp = {"activity_weight": weight}
        return (score.double() + weight * self._log_rate(evaluation_set) if weight else score), stamp

    @property
    def about(self) -> dict[str, Any]:
        """What was fitted and chosen."""
        return {"activity": asdict(self.rate) | {"weight": dict(self.weights)}}

    def _weight(self, evaluation_set: EvaluationSet, score: Tensor, ask: ScoreFunction) -> float:
        kind, store, split = evaluation_set.about["negatives"], self.stream.store, self.stream.split
        if kind in SAME_SOURCE_NEGATIVES or not has_events(store, split, *WEIGHT_CHOSEN_ON):
            return 0.0
        if kind not in self.weights:
            if (evaluation_set.about["split"], evaluation_set.about["setting"]) != WEIGHT_CHOSEN_ON:
                evaluation_set = build_link_set(store, split, *WEIGHT_CHOSEN_ON, strategy=kind)
                score = ask(evaluation_set)
            asked = (self._log_rate(evaluation_set), evaluation_set.pairs.label, evaluation_set.pairs.group)
            self.weights[kind] = choose_activity_weight(score, *asked)
        return self.weights[kind]

    def _log_rate(self, evaluation_set: EvaluationSet) -> Tensor:
        return self.rate.log_rate(self.senders, evaluation_set.pairs.src, evaluation_set.pairs.time)


ScoreFactor = NoActivity | ActivityFactor


def build_score_factor(activity: bool, stream: Stream) -> ScoreFactor:
    """How scores of this stream are made of what a model says."""
    return ActivityFactor.of(stream) if activity else NoActivity()
