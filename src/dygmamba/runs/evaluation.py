"""Evaluation of link predictors: queries, the scores that a model gives them, and the metrics of these scores.

Every evaluation of the package is a loop over `evaluate_queries`: final evaluation, monitoring, backtest, budget, own
scores, audit and studies. A score can have two factors: which destination a source chooses (any model) and how active
the source is:

    score = logit of the model + weight * log rate of the source

The rate is fitted on the training events. The weight is chosen on the validation period, one per kind of negatives.
Random negatives keep the source of the event, so the rate cannot tell them apart and the weight is 0 by definition;
historical and inductive negatives replace the source. The test period chooses nothing.

Legend: p pairs, k events, g ranked events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dygmamba.core.choices import SCOPES
from dygmamba.core.progress import SILENT, Advance, Progress, no_advance
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import Leaderboard, load_leaderboard
from dygmamba.engine.evaluation import STRICT_RULE, rank_evaluation_set, score_evaluation_set
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.columns import find_query_columns
from dygmamba.history.negatives import PUBLISHED_SEEDS, SAMPLERS
from dygmamba.history.source_activity import SourceActivity
from dygmamba.models.base import Scorer
from dygmamba.tasks.activity import ActivityRate, choose_activity_weight, fit_activity
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import LinkCalibration, Reliability, compute_reliability
from dygmamba.tasks.candidates import BoardCandidates, CandidateSet, SampledCandidates
from dygmamba.tasks.link import build_link_set, has_events
from dygmamba.tasks.metric_names import (
    BOARD_CANDIDATES,
    DEFAULT_CANDIDATES,
    ERROR_SUFFIX,
    is_rank_metric,
    list_metrics,
)
from dygmamba.tasks.metrics import (
    THRESHOLD_METRICS,
    average_precision,
    get_error_name,
    link_metrics,
    pair_metric,
    rank_metrics,
)
from dygmamba.tasks.query_types import QUERY_TYPES
from dygmamba.tasks.statistics import Difference, compute_by_block, log_loss_by_event, standard_error

SAME_SOURCE_NEGATIVES = tuple(name for name, sampler in SAMPLERS.items() if sampler.keeps_source)
WEIGHT_CHOSEN_ON = ("val", "transductive")  # split and scope
BY_TYPE = "by_type"
PAIR_METRICS = (*list_metrics("pairs"), "n", BY_TYPE)  # of every result row of pairs
CALIBRATION_METRICS = list_metrics("probabilities")
CALIBRATED_METRICS = (*CALIBRATION_METRICS, "log_loss", "log_loss_se")  # of probabilities
RANK_METRICS = list_metrics("ranks")
RANK_COLUMNS = (*RANK_METRICS, *map(get_error_name, RANK_METRICS), "candidates", "candidate_seed", "ranked")

EvaluationKey = tuple[str, str, str]  # negatives, split, scope (all or new nodes)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Queries:
    """Pairs to score, and the candidates among which their events are ranked.

    Attributes:
        pairs: Events and negatives.
        candidates: Candidates of each event; None if nothing is ranked.
        ranked: Indices of the ranked events; None for all.
    """

    pairs: EvaluationSet
    candidates: CandidateSet | None = None
    ranked: Int64[Tensor, "g"] | None = None

    def count_ranked_pairs(self) -> int:
        """Return how many pairs are scored to rank events, at most."""
        events = self.pairs.events if self.ranked is None else self.ranked
        return 0 if self.candidates is None else (1 + self.candidates.width) * len(events)

    def count_pairs(self) -> int:
        """Return how many pairs are scored at most, those of candidates included."""
        return len(self.pairs.pairs) + self.count_ranked_pairs()


@dataclass(frozen=True)
class Scored:
    """Scores of queries, and every metric of them; not slotted, because `cached_property` needs a `__dict__`.

    Attributes:
        queries: What was scored.
        score: Score of each pair, higher is likelier.
        probability: Calibrated probability of each pair against a random one; None without a calibration, and for
            other negatives.
        rank: Rank of each ranked event, 1 the best.
        about: Fields of a result row that say how it was scored.
        stream: The events, for metrics by query type.
    """

    queries: Queries
    score: Float[Tensor, "p"]
    probability: Float64[Tensor, "p"] | None = None
    rank: Float64[Tensor, "g"] | None = None
    about: Row = field(default_factory=dict)
    stream: Stream | None = None

    def row(self, metrics: Sequence[str]) -> Row:
        """Return metrics by name, with standard errors as `ap_se`; None for one that these queries cannot have.

        AP and AUC vary over blocks of events, the log loss and ranks over events. `by_type` has the AP and the ranking
        metrics in `metrics` by query type.
        """
        return {
            name: self._split_by_type(metrics) if name == BY_TYPE else self._compute(name) for name in metrics
        }

    def difference(self, other: "Scored") -> Difference:
        """Return the AP minus that of other scores of the same pairs, with its standard error over blocks."""
        error = standard_error(np.subtract(self.block_ap, other.block_ap))
        return Difference(self.link["ap"] - other.link["ap"], error)

    def difference_of_ranks(self, other: "Scored") -> Difference:
        """Return the MRR minus that of other ranks of the same events, with its standard error over events."""
        assert self.rank is not None
        assert other.rank is not None
        difference = (1 / self.rank - 1 / other.rank).numpy()
        return Difference(float(difference.mean()), standard_error(difference))

    def select(self, events: Bool[Tensor, "k"]) -> "Scored":
        """Return the scores and ranks of some of the events."""
        pairs, place = self.queries.pairs, events.cumsum(0) - 1
        ranked = torch.arange(len(events)) if self.queries.ranked is None else self.queries.ranked
        kept, is_ranked = events[pairs.event_index], events[ranked]
        selected = replace(
            pairs,
            events=pairs.events[events],
            pairs=pairs.pairs.select(kept.nonzero()[:, 0]),
            event_index=place[pairs.event_index[kept]],
        )
        return replace(
            self,
            queries=Queries(selected, self.queries.candidates, place[ranked[is_ranked]]),
            score=self.score[kept],
            probability=None if self.probability is None else self.probability[kept],
            rank=None if self.rank is None else self.rank[is_ranked],
        )

    @cached_property
    def link(self) -> dict[str, Any]:
        """AP and AUC as the mean over published batches and over all pairs at once."""
        pairs = self.queries.pairs.pairs
        return link_metrics(self.score, pairs.label, pairs.group)

    @cached_property
    def block_ap(self) -> list[float]:
        """AP of each block of events."""
        return self._compute_by_block("ap")

    def _compute_by_block(self, metric: str) -> list[float]:
        return compute_by_block(partial(pair_metric, metric), self.score, self.queries.pairs)

    def tells_pairs_apart(self) -> bool:
        """Return whether any positive and its negative have different scores."""
        pairs = self.queries.pairs.pairs
        by_event = torch.zeros(2, int(pairs.group.max()) + 1, dtype=self.score.dtype)
        by_event[pairs.label.long(), pairs.group] = self.score
        return not torch.equal(by_event[0], by_event[1])

    @cached_property
    def diagrams(self) -> tuple[Reliability, Reliability]:
        """Reliability diagrams of the sigmoid of the scores and of the probabilities."""
        assert self.probability is not None
        label = self.queries.pairs.pairs.label
        before, after = self.score.double().sigmoid(), self.probability
        return compute_reliability(before, label), compute_reliability(after, label)

    def _compute(self, name: str) -> Any:
        if name in CALIBRATED_METRICS and self.probability is None:
            return None
        if name in self.link:
            return self.link[name]
        if name.endswith(ERROR_SUFFIX) and (metric := name.removesuffix(ERROR_SUFFIX)) in THRESHOLD_METRICS:
            return standard_error(self._compute_by_block(metric))
        match name:
            case "blocks":
                return self.block_ap
            case "ece" | "ece_raw":
                return self.diagrams[name == "ece"].ece
            case "log_loss":
                return float(np.mean(self._losses))
            case "log_loss_se":
                return standard_error(self._losses)
            case _:
                return self._compute_from_ranks(name)

    def _compute_from_ranks(self, name: str) -> Any:
        if self.rank is None or self.queries.candidates is None:
            return None
        if name == "ranked":
            return len(self.rank)
        if name in self.queries.candidates.about:
            return self.queries.candidates.about[name]
        return rank_metrics(self.rank, (name,))[name]

    @cached_property
    def _losses(self) -> np.ndarray:
        assert self.probability is not None
        return log_loss_by_event(self.probability, self.queries.pairs).numpy()

    def _split_by_type(self, metrics: Sequence[str]) -> Row:
        assert self.stream is not None
        types = self.stream.query_types[self.queries.pairs.events]
        return {name: self.select(types == k)._summarize(metrics) for k, name in enumerate(QUERY_TYPES)}

    def _summarize(self, metrics: Sequence[str]) -> Row:
        """Return the number of events and their AP over all pairs at once, and the same of ranked events."""
        found, events = {}, len(self.queries.pairs.events)
        if "ap" in metrics:
            label = self.queries.pairs.pairs.label
            found |= {"n": events, "ap": average_precision(self.score, label) if events else None}
        names = [name for name in metrics if is_rank_metric(name)]
        if self.rank is not None and names:
            ranks = rank_metrics(self.rank, names) if len(self.rank) else dict.fromkeys(names)
            found |= {"ranked": len(self.rank), **ranks}
        return found


def evaluate_queries(
    scorer: Scorer,
    stream: Stream,
    queries: Queries,
    visibility: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    calibration: LinkCalibration | None = None,
    *,
    activity: "ActivityFactor | None" = None,
    logit: Float[Tensor, "p"] | None = None,
    advance: Advance = no_advance,
) -> Scored:
    """Score pairs, and rank events if the queries have candidates.

    Args:
        scorer: The model.
        stream: The events.
        queries: What to score.
        visibility: Which events each query sees.
        seed: Seed of the neighbor draws.
        calibration: Gives the probabilities of random negatives.
        activity: Adds the rate of the source to the score.
        logit: The logits of the pairs, where they are known already.
        advance: Called with the number of pairs of each finished pass.
    """

    def score_pairs(pairs: EvaluationSet, advance: Advance = no_advance) -> Tensor:
        return score_evaluation_set(scorer, stream, pairs, visibility, seed, advance)

    pairs, weight = queries.pairs, {}
    if logit is None:
        score = score_pairs(pairs, advance)
    else:
        score = logit
        advance(len(pairs.pairs))
    if activity is not None:
        score, weight = activity(pairs, score, score_pairs)
    is_random = pairs.about.get("negatives") == "random"
    return Scored(
        queries,
        score,
        None if calibration is None or not is_random else calibration.probability(score, pairs),
        rank_queries(scorer, stream, queries, visibility, seed, advance),
        pairs.about | visibility.about | describe_queries(scorer) | weight,
        stream,
    )


def rank_queries(
    scorer: Scorer,
    stream: Stream,
    queries: Queries,
    visibility: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    advance: Advance = no_advance,
) -> Float64[Tensor, "g"] | None:
    """Return the rank of each ranked event among its candidates; None for queries without candidates."""
    if queries.candidates is None:
        return None
    return rank_evaluation_set(
        scorer, stream, queries.pairs, queries.candidates, visibility, seed, advance, queries.ranked
    )


def describe_queries(scorer: Scorer) -> Row:
    """Return `query_columns` for a model that reads the columns of the events in question; its rows are easier."""
    return {"query_columns": True} if find_query_columns(scorer.requests) else {}


def evaluate_sets(
    get_scorer: Callable[[str], Scorer],
    stream: Stream,
    keys: Iterable[EvaluationKey],
    visibility: VisibilityRule,
    seed: int = 0,
    calibration: LinkCalibration | None = None,
    *,
    activity: "ActivityFactor | None" = None,
    ranking: "Ranking | None" = None,
    known: Mapping[EvaluationKey, tuple[EvaluationSet, Tensor]] | None = None,
    progress: Progress = SILENT,
) -> Iterator[Scored]:
    """Evaluate a model on each set that has events, one stage of progress each.

    `get_scorer` returns the model for a kind of negatives, because baselines have presets for each. `ranking` ranks the
    events of the test, once for all kinds of negatives. `known` has sets that were scored already, with their logits.
    """
    ranked: dict[str, tuple[Queries, Tensor | None]] = {}
    # with a single destination there is no candidate to rank against
    ranking = None if ranking is None or len(stream.store.dst.unique()) < 2 else ranking
    for key in keys:
        negatives, split, scope = key
        if not has_events(stream.store, stream.split, split, scope):
            continue
        pairs, logit = (known or {}).get(key, (None, None))
        queries = Queries(pairs or build_link_set(stream.store, stream.split, split, scope, negatives))
        with progress.stage(f"{split} {scope} {negatives}", len(queries.pairs.pairs)) as stage:
            scored = evaluate_queries(
                get_scorer(negatives), stream, queries, visibility, seed, calibration,
                activity=activity, logit=logit, advance=stage.advance,
            )  # fmt: skip
        if ranking is not None and split == "test" and scope in ranking.scopes:
            if scope not in ranked:
                queries = ranking.add_candidates(queries, stream)
                with progress.stage(f"ranks, {split} {scope}", queries.count_ranked_pairs()) as stage:
                    scorer = get_scorer("random")
                    rank = rank_queries(scorer, stream, queries, visibility, seed, stage.advance)
                ranked[scope] = queries, rank
            queries, rank = ranked[scope]
            scored = replace(scored, queries=replace(queries, pairs=scored.queries.pairs), rank=rank)
        yield scored


def evaluate_link_scorer(
    scorer: Scorer,
    stream: Stream,
    about: Row,
    keys: Iterable[EvaluationKey],
    visibility: VisibilityRule,
    calibration: LinkCalibration | None = None,
    activity: "ActivityFactor | None" = None,
) -> list[Row]:
    """Evaluate a scorer on each set that has events, one result row each.

    `about` has the columns that all rows share: dataset, model and seed at least. A calibrated score is the probability
    of the event against a random pair, so calibration errors are None for other negatives.
    """
    calibrated = () if calibration is None else CALIBRATION_METRICS
    found = evaluate_sets(
        lambda _: scorer, stream, keys, visibility, about["seed"], calibration, activity=activity
    )
    return [about | one.about | one.row((*PAIR_METRICS, *calibrated)) for one in found]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Settings of a ranking of events: metrics (mrr, hits@10, ...) and candidates."""

    metrics: tuple[str, ...]
    count: int | str | None = DEFAULT_CANDIDATES  # sampled candidates; None: all destinations; or the board's
    filtered: bool = False
    seed: int | None = None  # of the candidates; default: the published seed of the evaluation set
    max_events: int | None = None  # a sample of the events, drawn with the same seed; None: all
    board: Leaderboard | None = None  # whose listed candidates are used
    scopes: tuple[str, ...] = SCOPES

    def with_board(self, dataset: Dataset) -> "Ranking":
        """Load the leaderboard of the dataset if its candidates were requested."""
        if self.count != BOARD_CANDIDATES:
            return self
        return replace(self, board=load_leaderboard(dataset))

    @property
    def is_sampled(self) -> bool:
        """Whether candidates are sampled, so that another seed gives other ones."""
        return isinstance(self.count, int)

    def add_candidates(self, queries: Queries, stream: Stream) -> Queries:
        """Return the queries with candidates for their events, or for a sample of them."""
        pairs = queries.pairs
        split, scope, events = pairs.about["split"], pairs.about["setting"], pairs.events
        seed = PUBLISHED_SEEDS[split, scope] if self.seed is None else self.seed
        if self.board is not None:
            candidates = BoardCandidates.create(self.board, "val" if split == "val" else "test", events)
        else:
            assert not isinstance(self.count, str)
            earlier_than = events if stream.split.protocol == "time" else None
            candidates = SampledCandidates.create(stream.store, self.count, seed, self.filtered, earlier_than)
        return replace(queries, candidates=candidates, ranked=self._sample_events(len(events), seed))

    def rank_events(
        self,
        scorer: Scorer,
        stream: Stream,
        pairs: EvaluationSet,
        visibility: VisibilityRule,
        seed: int = 0,
        advance: Advance = no_advance,
    ) -> Scored:
        """Rank the events of an evaluation set; its own negatives are not used."""
        queries = self.add_candidates(Queries(pairs), stream)
        rank = rank_queries(scorer, stream, queries, visibility, seed, advance)
        assert queries.candidates is not None
        about = {name: pairs.about[name] for name in ("split", "setting")} | queries.candidates.about
        about = describe_queries(scorer) | about | visibility.about
        return Scored(queries, torch.zeros(len(pairs.pairs)), rank=rank, about=about, stream=stream)

    def build_row(self, scored: Scored) -> Row:
        """Return the result row of ranked events."""
        names = (*self.metrics, *map(get_error_name, self.metrics), "ranked", BY_TYPE)
        row = {("n" if name == "ranked" else name): value for name, value in scored.row(names).items()}
        return scored.about | row

    def _sample_events(self, events: int, seed: int) -> Tensor | None:
        if self.max_events is None or self.max_events >= events:
            return None
        # the seed may be negative or beyond 64 bits, which numpy refuses
        rng = np.random.default_rng([seed % 2**64, events])
        return torch.from_numpy(np.sort(rng.choice(events, self.max_events, replace=False)))


@dataclass(frozen=True, slots=True)
class ActivityFactor:
    """Adds the weighted log rate of the source to the score; belongs to one model, whose weights it caches."""

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
        self, evaluation_set: EvaluationSet, score: Tensor, score_pairs: Callable[[EvaluationSet], Tensor]
    ) -> tuple[Tensor, Row]:
        """Return the factored score and the columns it adds to the result row.

        Args:
            evaluation_set: The pairs that `score` belongs to.
            score: The model's logits.
            score_pairs: Computes the model's logits of another set; called once per kind of negatives when the weight
                has to be chosen on the validation period and `evaluation_set` is not that period.
        """
        weight = self._choose_weight(evaluation_set, score, score_pairs)
        columns = {"activity_weight": weight}
        return (score.double() + weight * self._log_rate(evaluation_set) if weight else score), columns

    @property
    def about(self) -> Row:
        """The fitted rate and the chosen weights, for results.json."""
        return {"activity": asdict(self.rate) | {"weight": dict(self.weights)}}

    def _choose_weight(
        self, evaluation_set: EvaluationSet, score: Tensor, score_pairs: Callable[[EvaluationSet], Tensor]
    ) -> float:
        kind, store, split = evaluation_set.about["negatives"], self.stream.store, self.stream.split
        if kind in SAME_SOURCE_NEGATIVES or not has_events(store, split, *WEIGHT_CHOSEN_ON):
            return 0.0
        if kind not in self.weights:
            if (evaluation_set.about["split"], evaluation_set.about["setting"]) != WEIGHT_CHOSEN_ON:
                evaluation_set = build_link_set(store, split, *WEIGHT_CHOSEN_ON, strategy=kind)
                score = score_pairs(evaluation_set)
            pairs = evaluation_set.pairs
            self.weights[kind] = choose_activity_weight(
                score, self._log_rate(evaluation_set), pairs.label, pairs.group
            )
        return self.weights[kind]

    def _log_rate(self, evaluation_set: EvaluationSet) -> Tensor:
        return self.rate.log_rate(self.sources, evaluation_set.pairs.src, evaluation_set.pairs.time)
