"""Link prediction by name: a dataset, a model and a seed become a fit in a run folder, and its results become rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.config import build_config, find_preset, to_settings
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.splits import PUBLISHED_SPLIT, Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.distributed import current_group
from dygmamba.engine.evaluation import STRICT_RULE, score_evaluation_set
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, RoundLearner, Scorer
from dygmamba.runs.evaluation import Choice, NoActivity, Ranking, ScoreFactor, build_score_factor
from dygmamba.runs.opening import (
    build_link_stream,
    build_scorer,
    build_seeded_scorer,
    describe_dataset,
    open_link_dataset,
    read_split,
)
from dygmamba.runs.provenance import (
    StartOptions,
    check_environment,
    collect_settings,
    create_run,
    describe_environment,
    explain_choices,
    merge_settings,
)
from dygmamba.sampling.negatives import PUBLISHED_SEEDS
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.calibration import Calibration, compute_reliability
from dygmamba.tasks.link import LinkTask, build_link_set, has_events
from dygmamba.tasks.metrics import link_metrics

TRAINING_COPIES = (
    5  # of the weights while they are trained: their gradient, Adam's two moments, the best so far
)
BYTES_PER_ENTRY = 16  # bytes: a neighbour, its event and its time
MIN_ENTRIES = 4  # entries that a pair itself takes as much as


def separate_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the training loop, and of the model."""
    own = {field.name for field in dataclasses.fields(LinkFitConfig)}
    loop = {key: value for key, value in settings.items() if key in own}
    return loop, {key: value for key, value in settings.items() if key not in own}


def start_link_run(
    dataset: Dataset,
    model: str,
    seed: int,
    settings: dict[str, Any],
    device: torch.device,
    root: Path,
    beginning: StartOptions | None = None,
) -> Trainer:
    """A new run folder with its configuration written, ready to train."""
    spec, begun = find_model(model), beginning or StartOptions()
    if not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: `dygmamba.evaluate('{dataset.name}', '{model}')`"
        )
    found = collect_settings(model, dataset.name, begun, settings)
    loop, own = separate_settings(merge_settings(found))
    config, how = build_config(spec.config, own), build_config(LinkFitConfig, loop)
    stream = build_link_stream(dataset, device, begun.by)
    _require_events(stream.split, begun.by)
    scorer = build_seeded_scorer(spec, config, seed, stream, TRAINING_COPIES)
    _check_loss(model, scorer, how)
    check_distributable(scorer, stream.ranks, how.batch)
    _require_memory(scorer, how, len(stream.split.train))
    chosen = begun.why | explain_choices(dataset, stream, scorer, how, config, found)
    about = stream.ranks.led(lambda: describe_dataset(dataset, root))
    run = create_run(
        lambda: RunDirectory.create(root, dataset.name, model, seed, "" if begun.of is None else "-all"),
        {
            "run": {
                **about,
                "split": stream.split.digest,
                "model": model,
                "seed": seed,
            }
            | begun.by.section
            | ({} if begun.of is None else {"refit_of": str(begun.of)})
            | ({} if spec.source is None else {"source": spec.source}),
            "train": to_settings(how),
            "model": to_settings(config),
            "chosen": chosen,
            "made_with": describe_environment(device),
        },
    )
    return build_link_fit(run, stream, scorer)


def _require_events(split: Split, by: SplitRule) -> None:
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    if not all(sizes[: 3 if by.numbers else 1]):
        mend = "use a longer stream" if by == PUBLISHED_SPLIT else "cut it elsewhere"
        raise EventError(
            "training, validation and test get {}, {} and {} events; each needs some, {}".format(*sizes, mend)
        )


def resume_link_run(path: Path, device: torch.device, data_dir: Path | None = None) -> Trainer:
    """A run folder as it stands, to go on from."""
    run = RunDirectory(path, current_group().leads)
    run.config()
    current_group().led(run.lock)
    check_environment(run, device)
    stream = build_link_stream(open_link_dataset(run, data_dir), device, read_split(run))
    fit = build_link_fit(run, stream, build_scorer(run, stream))
    fit.resume()
    return fit


def _check_loss(model: str, scorer: Scorer, how: LinkFitConfig) -> None:
    """Refuse a loss over candidates where it would have to be ignored."""
    if how.loss == "pairwise":
        return
    if isinstance(scorer, RoundLearner):
        raise ConfigError(f"model '{model}' learns from a table of single pairs; leave out `loss`")
    if how.train_negatives != "random":
        raise ConfigError(
            f"`loss='{how.loss}'` asks about destinations of the same source; leave out `train_negatives`"
        )


def _require_memory(scorer: Scorer, how: LinkFitConfig, events: int) -> None:
    """Refuse a step whose look-ups alone would fill the memory: of a source, a destination and the other ones."""
    batch, length = min(how.batch, events), NeighborRequest.longest(scorer.requests)
    looked_up = f"a batch of {batch:,} events with {length:,} entries looked up for each node"
    others = how.train_candidates if how.loss == "ranking" else 1
    require_memory((2 + others) * batch * max(length, MIN_ENTRIES) * BYTES_PER_ENTRY, looked_up)


def build_link_fit(run: RunDirectory, stream: Stream, scorer: nn.Module) -> Trainer:
    """A fit as a run's configuration says, at its beginning."""
    sections = run.config()
    config, seed = build_config(LinkFitConfig, sections["train"]), int(sections["run"]["seed"])
    task = LinkTask.of(stream.store, stream.split, stream.device, config.train_negatives, config.judge)
    return Trainer(task, scorer.to(stream.device), stream, config, run, seed)


def evaluate_link_scorer(
    scorer: Scorer,
    stream: Stream,
    about: dict[str, Any],
    chosen: list[Choice],
    rule: VisibilityRule,
    calibration: Calibration | None = None,
    factored: ScoreFactor | None = None,
) -> list[dict[str, Any]]:
    """One result row per (negatives, split, setting) that has events; `about` names dataset, model and seed."""

    def ask(evaluation_set: EvaluationSet) -> Tensor:
        return score_evaluation_set(scorer, stream, evaluation_set, rule, about["seed"])

    rows = []
    for evaluation_set, said in score_exams(scorer, stream, chosen, rule, about["seed"]):
        score, weighed = (factored or NoActivity())(evaluation_set, said, ask)
        rows.append(
            build_link_row(
                evaluation_set, score, about | evaluation_set.about | rule.about | weighed, calibration
            )
        )
    return rows


def score_exams(
    scorer: Scorer, stream: Stream, chosen: list[Choice], rule: VisibilityRule, seed: int
) -> Iterator[tuple[EvaluationSet, Tensor]]:
    """Each exam that has events, and the logits of its pairs."""
    for strategy, name, setting in chosen:
        if has_events(stream.store, stream.split, name, setting):
            evaluation_set = build_link_set(stream.store, stream.split, name, setting, strategy)
            yield evaluation_set, score_evaluation_set(scorer, stream, evaluation_set, rule, seed)


def build_link_row(
    evaluation_set: EvaluationSet, score: Tensor, about: dict[str, Any], calibration: Calibration | None
) -> dict[str, Any]:
    """A result row; of a run whose scores are probabilities also how far off they are, and how far the logits were.

    They are probabilities against a random pair: of other negatives nothing is said.
    """
    row = about | dataclasses.asdict(
        link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group)
    )
    if calibration is None:
        return row
    if evaluation_set.about["negatives"] != "random":
        return row | {"ece": None, "ece_raw": None}
    return row | compute_calibration_errors(score, evaluation_set, calibration)


def compute_calibration_errors(
    score: Tensor, evaluation_set: EvaluationSet, calibration: Calibration
) -> dict[str, float]:
    """The expected calibration error of an exam's scores, and of its logits as they are."""
    said = {"ece": calibration.probability(score), "ece_raw": torch.sigmoid(score.double())}
    return {
        name: compute_reliability(values, evaluation_set.pairs.label).ece for name, values in said.items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class HeuristicEvaluator:
    """Models without training on one dataset; each row of the result puts one exam to one of them."""

    name: str
    stream: Stream
    rule: VisibilityRule = STRICT_RULE
    folder: Path | None = None  # where drawn negatives are kept
    factored: ScoreFactor = dataclasses.field(
        default_factory=NoActivity
    )  # of one model where it weighs anything

    @staticmethod
    def of(
        dataset: Dataset,
        rule: VisibilityRule = STRICT_RULE,
        folder: Path | None = None,
        activity: bool = False,
    ) -> "HeuristicEvaluator":
        """On the dataset's own split."""
        stream = build_link_stream(dataset, torch.device("cpu"), get_default_split(dataset))
        return HeuristicEvaluator(dataset.name, stream, rule, folder, build_score_factor(activity, stream))

    def row(
        self,
        model: str,
        settings: dict[str, Any],
        chosen: Choice,
        seed: int | None = None,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """One result; `seed` draws other negatives than the published ones."""
        store, split = self.stream.store, self.stream.split
        strategy, name, setting = chosen
        evaluation_set = build_link_set(store, split, name, setting, strategy, seed, self.folder)
        score = self.scores(model, evaluation_set, advance, settings)
        score, weighed = self.factored(
            evaluation_set, score, lambda other: self.scores(model, other, settings=settings)
        )
        drawn_with = PUBLISHED_SEEDS[name, setting] if seed is None else seed
        about = {"dataset": self.name, "model": model, "seed": drawn_with, **evaluation_set.about}
        found = dataclasses.asdict(
            link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group)
        )
        return {**about, **self.rule.about, **weighed, **found}

    def scores(
        self,
        model: str,
        evaluation_set: EvaluationSet,
        advance: Advance = unwatched,
        settings: dict[str, Any] | None = None,
    ) -> Tensor:
        """What a model says of each pair of an exam."""
        scorer = self._built(model, settings or {}, evaluation_set.about["negatives"])
        return score_evaluation_set(scorer, self.stream, evaluation_set, self.rule, advance=advance)

    def rank_row(
        self,
        model: str,
        settings: dict[str, Any],
        chosen: Choice,
        ranking: Ranking,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """Where the events of a split and setting rank; with the settings for random negatives."""
        _, name, setting = chosen
        scorer = self._built(model, settings, "random")
        evaluation_set = build_link_set(self.stream.store, self.stream.split, name, setting)
        found = ranking.row(scorer, self.stream, evaluation_set, self.rule, advance=advance)
        return {"dataset": self.name, "model": model, "seed": found["candidate_seed"], **found}

    def _built(self, model: str, settings: dict[str, Any], strategy: str) -> Scorer:
        spec, name = find_model(model), self.name
        if spec.trainable:
            raise ConfigError(f"model '{model}' must be trained first: `dygmamba.train('{name}', '{model}')`")
        config = build_config(spec.config, find_preset(model, name, strategy) | settings)
        return spec.build(config, DatasetFacts.of(self.stream.store, self.stream.split.train))

    def has(self, chosen: Choice) -> bool:
        """Whether there is anything to evaluate."""
        return has_events(self.stream.store, self.stream.split, *chosen[1:])
