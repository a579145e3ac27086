"""Baselines: models without training, evaluated on the queries that a trained model is evaluated on."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.evaluation import STRICT_RULE
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.negatives import PUBLISHED_SEEDS
from dygmamba.history.view import LabelledView
from dygmamba.models import find_model
from dygmamba.models.base import Heuristic, Scorer
from dygmamba.runs.evaluation import (
    ActivityFactor,
    EvaluationKey,
    Queries,
    Ranking,
    Scored,
    evaluate_queries,
    rank_queries,
)
from dygmamba.runs.recipes import build_link_stream
from dygmamba.tasks.link import build_event_set, build_link_set, has_events
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES

BASELINES = (
    "edgebank",
    "popularity",
    "decayed-popularity",
    "recency",
    "destination-recency",
    "source-recency",
    "pair-recency",
    "recency-regression",
)
# Those whose ranks of the true destination stand beside a model's
RANKING_BASELINES = ("popularity", "decayed-popularity", "edgebank", "pair-recency", "association")
MAX_FITTED_EVENTS = 20_000  # training events that a baseline with weights is fitted to


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines of one stream; each is built and fitted once.

    Attributes:
        dataset: Name of the dataset, which has presets.
        stream: The events.
        visibility: Which events each query sees.
    """

    dataset: str
    stream: Stream
    visibility: VisibilityRule = STRICT_RULE
    _built: dict[str, Scorer] = field(default_factory=dict)

    @staticmethod
    def on_cpu(dataset: str, stream: Stream, visibility: VisibilityRule = STRICT_RULE) -> "Baselines":
        """Return the baselines of a stream of any device: look-ups are fast enough on the CPU."""
        is_cpu = stream.device.type == "cpu"
        return Baselines(
            dataset, stream if is_cpu else replace(stream, device=torch.device("cpu")), visibility
        )

    @staticmethod
    def from_dataset(
        dataset: Dataset, visibility: VisibilityRule = STRICT_RULE, split_rule: SplitRule | None = None
    ) -> "Baselines":
        """Split a dataset by a rule, or by its default one."""
        stream = build_link_stream(dataset, torch.device("cpu"), split_rule)
        return Baselines(dataset.name, stream, visibility)

    def score(self, queries: Queries, advance: Advance = no_advance) -> dict[str, Scored]:
        """Evaluate every baseline that can tell positives from negatives in these queries.

        One that looks at the source alone cannot where negatives keep the source: its AP would be 50 by definition.
        """
        pairs = Queries(queries.pairs)
        scorers = {name: self.build(name, negatives=pairs.pairs.about["negatives"]) for name in BASELINES}
        scored = {
            name: evaluate_queries(scorer, self.stream, pairs, self.visibility, advance=advance)
            for name, scorer in scorers.items()
        }
        told_apart = {name: one for name, one in scored.items() if one.tells_pairs_apart()} or scored
        return {
            name: replace(
                one,
                queries=queries,
                rank=rank_queries(scorers[name], self.stream, queries, self.visibility, advance=advance),
            )
            for name, one in told_apart.items()
        }

    def evaluate(
        self,
        model: str,
        settings: dict[str, Any],
        key: EvaluationKey,
        seed: int | None = None,
        *,
        folder: Path | None = None,
        activity: ActivityFactor | None = None,
        advance: Advance = no_advance,
    ) -> Scored:
        """Evaluate one baseline on one set.

        Args:
            model: Its name.
            settings: Its settings, which replace those of its preset.
            key: Negatives, split and scope.
            seed: Replaces the published seed of the negatives.
            folder: Keeps drawn negatives for the next time.
            activity: Adds the rate of the source to the score.
            advance: Called with the number of pairs of each finished pass.
        """
        negatives, split, scope = key
        store = self.stream.store
        pairs = build_link_set(store, self.stream.split, split, scope, negatives, seed, folder)
        scored = evaluate_queries(
            self.build(model, settings, negatives), self.stream, Queries(pairs), self.visibility,
            activity=activity, advance=advance,
        )  # fmt: skip
        about = {"dataset": self.dataset, "model": model}
        about |= {"seed": PUBLISHED_SEEDS[split, scope] if seed is None else seed}
        return replace(scored, about=about | scored.about)

    def rank(
        self,
        model: str,
        settings: dict[str, Any],
        key: EvaluationKey,
        ranking: Ranking,
        advance: Advance = no_advance,
    ) -> Scored:
        """Rank the events of a split and scope; the baseline has its preset for random negatives."""
        pairs = build_event_set(self.stream.store, self.stream.split, *key[1:])
        scorer = self.build(model, settings)
        found = ranking.rank_events(scorer, self.stream, pairs, self.visibility, advance=advance)
        about = {"dataset": self.dataset, "model": model, "seed": found.about["candidate_seed"]}
        return replace(found, about=about | found.about)

    def has_events(self, key: EvaluationKey) -> bool:
        return has_events(self.stream.store, self.stream.split, *key[1:])

    def build(self, model: str, settings: dict[str, Any] | None = None, negatives: str = "random") -> Scorer:
        """Build a baseline with its preset for these negatives, or return the one that was built already."""
        settings = find_preset(model, self.dataset, negatives) | (settings or {})
        key = f"{model} {sorted(settings.items())}"
        if key not in self._built:
            self._built[key] = build_baseline(model, settings, self.stream, self.visibility, self.dataset)
        return self._built[key]


def build_baseline(
    model: str,
    settings: dict[str, Any],
    stream: Stream,
    visibility: VisibilityRule = STRICT_RULE,
    dataset: str = "DATA",
) -> Scorer:
    """Build a model that needs no training, fitted to the training events if it has weights.

    Under `batch` visibility it has its published form, which observes whole batches, where there is one. Under `strict`
    visibility it sees every strictly earlier event, as all models do.

    Args:
        model: Its name.
        settings: Its settings.
        stream: The events; the training events give the time statistics and the weights.
        visibility: Which events each query sees.
        dataset: Name of the dataset in the error message.
    """
    spec = find_model(model)
    if spec.trainable:
        raise ConfigError(
            f"model '{model}' must be trained first: `dygmamba.train({dataset!r}, {model!r})`",
            code="model-needs-training",
        )
    lagging = spec.build_lagging if visibility.visible == "batch" else None
    scorer = (lagging or spec.build)(build_config(spec.config, settings), stream.facts)
    if isinstance(scorer, Heuristic) and not scorer.is_fitted:
        fit_baseline(scorer, stream)
    return scorer


def fit_baseline(scorer: Heuristic, stream: Stream) -> None:
    """Fit a baseline to the last training events, each with one random destination of training."""
    store, train = stream.store, stream.split.train
    negatives = TRAINING_NEGATIVES["random"].create(store, stream.split, store.time.device)
    others = negatives.draw_negatives(seed=0, epoch=0)
    last = slice(max(0, len(train) - MAX_FITTED_EVENTS), None)
    pairs = negatives.build_queries(store.select(train[last]), others[last])
    scorer.fit(LabelledView(stream.training_view(pairs, scorer.requests), pairs))
