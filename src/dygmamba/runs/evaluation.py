"""Evaluation of link predictors: result rows of a trained scorer, of heuristics and of ranks among candidates.

A score can have two factors: which destination a source chooses (any model) and how active the source is:

    score = logit of the model + weight * log rate of the source

The rate is fitted on the training events. The weight is chosen on the validation period, one per kind of negatives.
Random negatives keep the source of the event, so the rate cannot tell them apart and the weight is 0 by definition;
historical and inductive negatives replace the source. The test period chooses nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import Leaderboard, load_leaderboard
from dygmamba.engine.evaluation import STRICT_RULE, rank_evaluation_set, score_evaluation_set
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models import find_model
from dygmamba.models.base import FittedHeuristic, Scorer
from dygmamba.runs.opening import build_link_stream
from dygmamba.sampling.columns import find_query_columns
from dygmamba.sampling.negatives import PUBLISHED_SEEDS, SAMPLERS
from dygmamba.sampling.source_activity import SourceActivity
from dygmamba.sampling.view import LabelledView
from dygmamba.tasks.activity import ActivityRate, choose_activity_weight, fit_activity
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import LinkCalibration, compute_reliability
from dygmamba.tasks.candidates import BoardCandidates, CandidateSet, SampledCandidates
from dygmamba.tasks.link import build_link_set, has_events
from dygmamba.tasks.metric_names import BOARD_CANDIDATES, DEFAULT_CANDIDATES
from dygmamba.tasks.metrics import link_metrics, rank_errors, rank_metrics
from dygmamba.tasks.query_types import compute_ap_by_type, compute_ranks_by_type
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES

SAME_SOURCE_NEGATIVES = tuple(name for name, sampler in SAMPLERS.items() if sampler.keeps_source)
MAX_FITTED_EVENTS = 20_000  # training events that a heuristic with weights is fitted to
WEIGHT_CHOSEN_ON = ("val", "transductive")  # split and setting

EvaluationKey = tuple[str, str, str]  # negatives, split, setting
Row = dict[str, Any]
ScoreFunction = Callable[
    [EvaluationSet], Tensor
]  # the logits that a model gives the pairs of an evaluation set


class NoActivity:
    """Score factor that leaves the model's score as it is."""

    def __call__(
        self, evaluation_set: EvaluationSet, score: Tensor, score_set: ScoreFunction
    ) -> tuple[Tensor, Row]:
        return score, {}

    @property
    def about(self) -> Row:
        return {}


@dataclass(frozen=True, slots=True)
class ActivityFactor:
    """Score factor that adds the weighted log rate of the source; belongs to one model, whose weights it caches."""

    stream: Stream
    rate: ActivityRate
    sources: SourceActivity
    weights: dict[str, float] = field(default_factory=dict)  # by kind of negatives

    @staticmethod
    def from_stream(stream: Stream) -> "ActivityFactor":
        """Fit the rate on the training events; at evaluation it sees every event before the query."""
        store, train = stream.store, stream.split.train
        known = SourceActivity.from_events(store, train)
        rate = fit_activity(known, store.src[train], store.time[train])
        return ActivityFactor(stream, rate, known.with_events(store.src, store.time))

    def __call__(
        self, evaluation_set: EvaluationSet, score: Tensor, score_set: ScoreFunction
    ) -> tuple[Tensor, Row]:
        """Return the factored score and the columns it adds to the result row.

        Args:
            evaluation_set: The pairs that `score` belongs to.
            score: The model's logits.
            score_set: Computes the model's logits of another set; called once per kind of negatives when the weight
                has to be chosen on the validation period and `evaluation_set` is not that period.
        """
        weight = self._choose_weight(evaluation_set, score, score_set)
        columns = {"activity_weight": weight}
        return (score.double() + weight * self._log_rate(evaluation_set) if weight else score), columns

    @property
    def about(self) -> Row:
        """The fitted rate and the chosen weights, for results.json."""
        return {"activity": asdict(self.rate) | {"weight": dict(self.weights)}}

    def _choose_weight(self, evaluation_set: EvaluationSet, score: Tensor, score_set: ScoreFunction) -> float:
        kind, store, split = evaluation_set.about["negatives"], self.stream.store, self.stream.split
        if kind in SAME_SOURCE_NEGATIVES or not has_events(store, split, *WEIGHT_CHOSEN_ON):
            return 0.0
        if kind not in self.weights:
            if (evaluation_set.about["split"], evaluation_set.about["setting"]) != WEIGHT_CHOSEN_ON:
                evaluation_set = build_link_set(store, split, *WEIGHT_CHOSEN_ON, strategy=kind)
                score = score_set(evaluation_set)
            pairs = evaluation_set.pairs
            self.weights[kind] = choose_activity_weight(
                score, self._log_rate(evaluation_set), pairs.label, pairs.group
            )
        return self.weights[kind]

    def _log_rate(self, evaluation_set: EvaluationSet) -> Tensor:
        return self.rate.log_rate(self.sources, evaluation_set.pairs.src, evaluation_set.pairs.time)


ScoreFactor = NoActivity | ActivityFactor


def build_score_factor(activity: bool, stream: Stream) -> ScoreFactor:
    return ActivityFactor.from_stream(stream) if activity else NoActivity()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Settings of a ranking of events: metrics (mrr, hits@10, ...) and candidates."""

    metrics: tuple[str, ...]
    count: int | str | None = DEFAULT_CANDIDATES  # sampled candidates; None: all destinations; or the board's
    filtered: bool = False
    seed: int | None = None  # of the candidates; default: the published seed of the evaluation set
    max_events: int | None = None  # a sample of the events, drawn with the same seed; None: all
    board: Leaderboard | None = None  # whose listed candidates are used

    def with_board(self, dataset: Dataset) -> "Ranking":
        """Load the leaderboard of the dataset if its candidates were requested."""
        if self.count != BOARD_CANDIDATES:
            return self
        return replace(self, board=load_leaderboard(dataset))

    @property
    def is_sampled(self) -> bool:
        """Whether candidates are sampled, so that another seed gives other ones."""
        return isinstance(self.count, int)

    def evaluate(
        self,
        scorer: Scorer,
        stream: Stream,
        evaluation_set: EvaluationSet,
        rule: VisibilityRule,
        seed: int = 0,
        advance: Advance = no_advance,
    ) -> Row:
        """Rank the events of an evaluation set among their candidates; its own negatives are not used."""
        name, setting = evaluation_set.about["split"], evaluation_set.about["setting"]
        candidate_seed = PUBLISHED_SEEDS[name, setting] if self.seed is None else self.seed
        candidates = self._build_candidates(stream, evaluation_set, candidate_seed)
        sample = self._sample_events(len(evaluation_set.events), candidate_seed)
        rank = rank_evaluation_set(scorer, stream, evaluation_set, candidates, rule, seed, advance, sample)
        about = {"split": name, "setting": setting, **candidates.about, **rule.about}
        types = stream.query_types[evaluation_set.events if sample is None else evaluation_set.events[sample]]
        return {
            **about,
            **rank_metrics(rank, self.metrics),
            **rank_errors(rank, self.metrics),
            "n": len(rank),
            "by_type": compute_ranks_by_type(types, rank, self.metrics),
        }

    def _build_candidates(self, stream: Stream, evaluation_set: EvaluationSet, seed: int) -> CandidateSet:
        if self.board is not None:
            split = "val" if evaluation_set.about["split"] == "val" else "test"
            return BoardCandidates.create(self.board, split, evaluation_set.events)
        assert not isinstance(self.count, str)
        earlier_than = evaluation_set.events if stream.split.protocol == "time" else None
        return SampledCandidates.create(stream.store, self.count, seed, self.filtered, earlier_than)

    def count_pairs(self, evaluation_set: EvaluationSet) -> int:
        """Return how many pairs are scored; with all destinations as candidates, a lower bound."""
        events = len(evaluation_set.events)
        events = events if self.max_events is None else min(self.max_events, events)
        return events * (1 + (self.count if isinstance(self.count, int) else 0))

    def _sample_events(self, events: int, seed: int) -> Tensor | None:
        if self.max_events is None or self.max_events >= events:
            return None
        # the seed may be negative or beyond 64 bits, which numpy refuses
        rng = np.random.default_rng([seed % 2**64, events])
        return torch.from_numpy(np.sort(rng.choice(events, self.max_events, replace=False)))


def evaluate_ranks(
    scorer: Scorer,
    stream: Stream,
    about: Row,
    keys: list[EvaluationKey],
    rule: VisibilityRule,
    ranking: Ranking,
) -> list[Row]:
    """Rank the events of each split and setting that has any, one result row each."""
    rows = []
    for name, setting in dict.fromkeys((name, setting) for _, name, setting in keys):
        if has_events(stream.store, stream.split, name, setting):
            evaluation_set = build_link_set(stream.store, stream.split, name, setting)
            ranked = ranking.evaluate(scorer, stream, evaluation_set, rule, about["seed"])
            rows.append({**about, **describe_queries(scorer), **ranked})
    return rows


def evaluate_link_scorer(
    scorer: Scorer,
    stream: Stream,
    about: Row,
    keys: list[EvaluationKey],
    rule: VisibilityRule,
    calibration: LinkCalibration | None = None,
    score_factor: ScoreFactor | None = None,
) -> list[Row]:
    """Evaluate a scorer on each (negatives, split, setting) that has events, one result row each.

    `about` has the columns that all rows share: dataset, model and seed at least.
    """

    def score_set(evaluation_set: EvaluationSet) -> Tensor:
        return score_evaluation_set(scorer, stream, evaluation_set, rule, about["seed"])

    factor = score_factor or NoActivity()
    rows = []
    for evaluation_set, logit in score_link_sets(scorer, stream, keys, rule, about["seed"]):
        score, columns = factor(evaluation_set, logit, score_set)
        columns = about | evaluation_set.about | rule.about | describe_queries(scorer) | columns
        rows.append(build_link_row(stream, evaluation_set, score, columns, calibration))
    return rows


def describe_queries(scorer: Scorer) -> Row:
    """Return `query_columns` for a model that reads the columns of the events in question; its rows are easier."""
    return {"query_columns": True} if find_query_columns(scorer.requests) else {}


def score_link_sets(
    scorer: Scorer, stream: Stream, keys: list[EvaluationKey], rule: VisibilityRule, seed: int
) -> Iterator[tuple[EvaluationSet, Tensor]]:
    """Yield each evaluation set that has events, with the logits of its pairs."""
    for strategy, name, setting in keys:
        if has_events(stream.store, stream.split, name, setting):
            evaluation_set = build_link_set(stream.store, stream.split, name, setting, strategy)
            yield evaluation_set, score_evaluation_set(scorer, stream, evaluation_set, rule, seed)


def build_link_row(
    stream: Stream,
    evaluation_set: EvaluationSet,
    score: Tensor,
    about: Row,
    calibration: LinkCalibration | None,
) -> Row:
    """Compute the metrics of a result row, with calibration errors if there is a calibration.

    A calibrated score is the probability of the event against a random pair of the row's setting, so the errors are
    None for other negatives.
    """
    row = about | compute_link_metrics(stream, evaluation_set, score)
    if calibration is None:
        return row
    if evaluation_set.about["negatives"] != "random":
        return row | {"ece": None, "ece_raw": None}
    return row | compute_calibration_errors(
        score, evaluation_set, calibration.probability(score, evaluation_set)
    )


def compute_link_metrics(stream: Stream, evaluation_set: EvaluationSet, score: Tensor) -> Row:
    """Compute AP and AUC of an evaluation set, and AP by query type."""
    metrics = asdict(link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group))
    types = stream.query_types[evaluation_set.events]
    return metrics | {"by_type": compute_ap_by_type(types, score, evaluation_set)}


def compute_calibration_errors(
    score: Tensor, evaluation_set: EvaluationSet, probability: Tensor
) -> dict[str, float]:
    """Compute the expected calibration error of the calibrated probabilities (ece) and of the sigmoid (ece_raw)."""
    columns = {"ece": probability, "ece_raw": torch.sigmoid(score.double())}
    label = evaluation_set.pairs.label
    return {name: compute_reliability(values, label).ece for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class HeuristicEvaluator:
    """Evaluates models without training (heuristics) on one dataset."""

    name: str  # of the dataset
    stream: Stream
    rule: VisibilityRule = STRICT_RULE
    folder: Path | None = None  # cache of sampled negatives
    score_factor: ScoreFactor = field(default_factory=NoActivity)

    @staticmethod
    def from_dataset(
        dataset: Dataset,
        rule: VisibilityRule = STRICT_RULE,
        folder: Path | None = None,
        activity: bool = False,
        split: SplitRule | None = None,
    ) -> "HeuristicEvaluator":
        """Split the dataset by a rule, or by its default one."""
        stream = build_link_stream(dataset, torch.device("cpu"), split)
        return HeuristicEvaluator(dataset.name, stream, rule, folder, build_score_factor(activity, stream))

    def evaluate(
        self,
        model: str,
        settings: dict[str, Any],
        key: EvaluationKey,
        seed: int | None = None,
        advance: Advance = no_advance,
    ) -> Row:
        """Return one result row; `seed` replaces the published seed of the negatives."""
        store, split = self.stream.store, self.stream.split
        strategy, name, setting = key
        evaluation_set = build_link_set(store, split, name, setting, strategy, seed, self.folder)
        score = self.score(model, evaluation_set, advance, settings)
        score, columns = self.score_factor(
            evaluation_set, score, lambda other: self.score(model, other, settings=settings)
        )
        negative_seed = PUBLISHED_SEEDS[name, setting] if seed is None else seed
        about = {"dataset": self.name, "model": model, "seed": negative_seed, **evaluation_set.about}
        metrics = compute_link_metrics(self.stream, evaluation_set, score)
        return {**about, **self.rule.about, **columns, **metrics}

    def score(
        self,
        model: str,
        evaluation_set: EvaluationSet,
        advance: Advance = no_advance,
        settings: dict[str, Any] | None = None,
    ) -> Tensor:
        """Return the score that a heuristic gives each pair of an evaluation set."""
        scorer = self._build_scorer(model, settings or {}, evaluation_set.about["negatives"])
        return score_evaluation_set(scorer, self.stream, evaluation_set, self.rule, advance=advance)

    def evaluate_ranks(
        self,
        model: str,
        settings: dict[str, Any],
        key: EvaluationKey,
        ranking: Ranking,
        advance: Advance = no_advance,
    ) -> Row:
        """Rank the events of a split and setting; the heuristic has its preset for random negatives."""
        _, name, setting = key
        scorer = self._build_scorer(model, settings, "random")
        evaluation_set = build_link_set(self.stream.store, self.stream.split, name, setting)
        row = ranking.evaluate(scorer, self.stream, evaluation_set, self.rule, advance=advance)
        return {"dataset": self.name, "model": model, "seed": row["candidate_seed"], **row}

    def _build_scorer(self, model: str, settings: dict[str, Any], strategy: str) -> Scorer:
        settings = find_preset(model, self.name, strategy) | settings
        return build_heuristic(model, settings, self.stream, self.rule, self.name)

    def has_events(self, key: EvaluationKey) -> bool:
        return has_events(self.stream.store, self.stream.split, *key[1:])


def build_heuristic(
    model: str,
    settings: dict[str, Any],
    stream: Stream,
    rule: VisibilityRule = STRICT_RULE,
    dataset: str = "DATA",
) -> Scorer:
    """Build a model that needs no training, fitted to the training events if it has weights.

    Under `batch` visibility it has its published form, which observes whole batches, where there is one. Under `strict`
    visibility it sees every strictly earlier event, as all models do.

    Args:
        model: Its name.
        settings: Its settings.
        stream: The events; the training events give the time statistics and the weights.
        rule: Visibility.
        dataset: Name of the dataset in the error message.
    """
    spec = find_model(model)
    if spec.trainable:
        raise ConfigError(
            f"model '{model}' must be trained first: `dygmamba.train({dataset!r}, {model!r})`",
            code="model-needs-training",
        )
    lagging = spec.build_lagging if rule.visible == "batch" else None
    scorer = (lagging or spec.build)(build_config(spec.config, settings), stream.facts)
    if isinstance(scorer, FittedHeuristic):
        fit_heuristic(scorer, stream)
    return scorer


def fit_heuristic(scorer: FittedHeuristic, stream: Stream) -> None:
    """Fit a heuristic to the last training events, each with one random destination of training."""
    store, train = stream.store, stream.split.train
    negatives = TRAINING_NEGATIVES["random"].create(store, stream.split, store.time.device)
    others = negatives.draw_negatives(seed=0, epoch=0)
    last = slice(max(0, len(train) - MAX_FITTED_EVENTS), None)
    pairs = negatives.build_queries(store.select(train[last]), others[last])
    scorer.fit(LabelledView(stream.training_view(pairs, scorer.requests), pairs))
