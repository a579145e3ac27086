"""Link prediction by name: a dataset, a model and a seed become a fit in a run folder, and its results become rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.config import build_config, preset, to_settings
from dygmamba.data.boards import usual_split
from dygmamba.data.splits import PUBLISHED, Split, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.engine.clock import Rule
from dygmamba.engine.examine import STRICT, examine
from dygmamba.engine.executor import require_shareable
from dygmamba.engine.fit import Fit
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError, EventError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, RoundLearner, Scorer
from dygmamba.room import require_room
from dygmamba.runs.choosing import Beginning, layers, merged, reasons
from dygmamba.runs.factoring import Alone, Factoring, factoring
from dygmamba.runs.making import begin, go_on_alike, made_with
from dygmamba.runs.opening import build_scorer, data_of, link_data, link_stream, seeded_scorer, split_of
from dygmamba.runs.ranking import Choice, Ranking
from dygmamba.sampling.negatives import SEEDS
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.base import Exam
from dygmamba.tasks.calibration import Calibration, reliability
from dygmamba.tasks.link import LinkTask, has_events, link_exam
from dygmamba.tasks.metrics import link_metrics

COPIES = 5  # of the weights while they are trained: their gradient, Adam's two moments, the best so far
ENTRY = 16  # bytes: a neighbour, its event and its time
LEAST = 4  # entries that a pair itself takes as much as


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
    beginning: Beginning | None = None,
) -> Fit:
    """A new run folder with its configuration written, ready to train."""
    spec, begun = find_model(model), beginning or Beginning()
    if not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: `dygmamba.evaluate('{dataset.name}', '{model}')`"
        )
    found = layers(model, dataset.name, begun, settings)
    loop, own = split_settings(merged(found))
    config, how = build_config(spec.config, own), build_config(LinkFitConfig, loop)
    stream = link_stream(dataset, device, begun.by)
    _require_events(stream.split, begun.by)
    scorer = seeded_scorer(spec, config, seed, stream, COPIES)
    _check_loss(model, scorer, how)
    require_shareable(scorer, stream.ranks, how.batch)
    _require_room(scorer, how, len(stream.split.train))
    chosen = begun.why | reasons(dataset, stream, scorer, how, config, found)
    about = stream.ranks.led(lambda: data_of(dataset, root))
    run = begin(
        lambda: RunFolder.create(root, dataset.name, model, seed, "" if begun.of is None else "-all"),
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
            "made_with": made_with(device),
        },
    )
    return fit_of(run, stream, scorer)


def _require_events(split: Split, by: SplitBy) -> None:
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    if not all(sizes[: 3 if by.numbers else 1]):
        mend = "use a longer stream" if by == PUBLISHED else "cut it elsewhere"
        raise EventError(
            "training, validation and test get {}, {} and {} events; each needs some, {}".format(*sizes, mend)
        )


def resume_link_run(path: Path, device: torch.device, data_dir: Path | None = None) -> Fit:
    """A run folder as it stands, to go on from."""
    run = RunFolder(path, here().leads)
    run.config()
    here().led(run.lock)
    go_on_alike(run, device)
    stream = link_stream(link_data(run, data_dir), device, split_of(run))
    fit = fit_of(run, stream, build_scorer(run, stream))
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


def _require_room(scorer: Scorer, how: LinkFitConfig, events: int) -> None:
    """Refuse a step whose look-ups alone would fill the memory: of a source, a destination and the other ones."""
    batch, length = min(how.batch, events), NeighborRequest.longest(scorer.requests)
    looked_up = f"a batch of {batch:,} events with {length:,} entries looked up for each node"
    others = how.train_candidates if how.loss == "ranking" else 1
    require_room((2 + others) * batch * max(length, LEAST) * ENTRY, looked_up)


def fit_of(run: RunFolder, stream: Stream, scorer: nn.Module) -> Fit:
    """A fit as a run's configuration says, at its beginning."""
    sections = run.config()
    config, seed = build_config(LinkFitConfig, sections["train"]), int(sections["run"]["seed"])
    task = LinkTask.of(stream.store, stream.split, stream.device, config.train_negatives, config.judge)
    return Fit(task, scorer.to(stream.device), stream, config, run, seed)


def link_rows(
    scorer: Scorer,
    stream: Stream,
    about: dict[str, Any],
    chosen: list[Choice],
    rule: Rule,
    calibration: Calibration | None = None,
    factored: Factoring | None = None,
) -> list[dict[str, Any]]:
    """One result row per (negatives, split, setting) that has events; `about` names dataset, model and seed."""

    def ask(exam: Exam) -> Tensor:
        return examine(scorer, stream, exam, rule, about["seed"])

    rows = []
    for exam, said in link_scores(scorer, stream, chosen, rule, about["seed"]):
        score, weighed = (factored or Alone())(exam, said, ask)
        rows.append(link_row(exam, score, about | exam.about | rule.about | weighed, calibration))
    return rows


def link_scores(
    scorer: Scorer, stream: Stream, chosen: list[Choice], rule: Rule, seed: int
) -> Iterator[tuple[Exam, Tensor]]:
    """Each exam that has events, and the logits of its pairs."""
    for strategy, name, setting in chosen:
        if has_events(stream.store, stream.split, name, setting):
            exam = link_exam(stream.store, stream.split, name, setting, strategy)
            yield exam, examine(scorer, stream, exam, rule, seed)


def link_row(
    exam: Exam, score: Tensor, about: dict[str, Any], calibration: Calibration | None
) -> dict[str, Any]:
    """A result row; of a run whose scores are probabilities also how far off they are, and how far the logits were.

    They are probabilities against a random pair: of other negatives nothing is said.
    """
    row = about | dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
    if calibration is None:
        return row
    if exam.about["negatives"] != "random":
        return row | {"ece": None, "ece_raw": None}
    return row | calibration_errors(score, exam, calibration)


def calibration_errors(score: Tensor, exam: Exam, calibration: Calibration) -> dict[str, float]:
    """The expected calibration error of an exam's scores, and of its logits as they are."""
    said = {"ece": calibration.probability(score), "ece_raw": torch.sigmoid(score.double())}
    return {name: reliability(values, exam.pairs.label).ece for name, values in said.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Heuristics:
    """Models without training on one dataset; each row of the result puts one exam to one of them."""

    name: str
    stream: Stream
    rule: Rule = STRICT
    folder: Path | None = None  # where drawn negatives are kept
    factored: Factoring = dataclasses.field(default_factory=Alone)  # of one model where it weighs anything

    @staticmethod
    def of(
        dataset: Dataset, rule: Rule = STRICT, folder: Path | None = None, activity: bool = False
    ) -> "Heuristics":
        """On the dataset's own split."""
        stream = link_stream(dataset, torch.device("cpu"), usual_split(dataset))
        return Heuristics(dataset.name, stream, rule, folder, factoring(activity, stream))

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
        exam = link_exam(store, split, name, setting, strategy, seed, self.folder)
        score = self.scores(model, exam, advance, settings)
        score, weighed = self.factored(
            exam, score, lambda other: self.scores(model, other, settings=settings)
        )
        drawn_with = SEEDS[name, setting] if seed is None else seed
        about = {"dataset": self.name, "model": model, "seed": drawn_with, **exam.about}
        found = dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
        return {**about, **self.rule.about, **weighed, **found}

    def scores(
        self, model: str, exam: Exam, advance: Advance = unwatched, settings: dict[str, Any] | None = None
    ) -> Tensor:
        """What a model says of each pair of an exam."""
        scorer = self._built(model, settings or {}, exam.about["negatives"])
        return examine(scorer, self.stream, exam, self.rule, advance=advance)

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
        exam = link_exam(self.stream.store, self.stream.split, name, setting)
        found = ranking.row(scorer, self.stream, exam, self.rule, advance=advance)
        return {"dataset": self.name, "model": model, "seed": found["candidate_seed"], **found}

    def _built(self, model: str, settings: dict[str, Any], strategy: str) -> Scorer:
        spec, name = find_model(model), self.name
        if spec.trainable:
            raise ConfigError(f"model '{model}' must be trained first: `dygmamba.train('{name}', '{model}')`")
        config = build_config(spec.config, preset(model, name, strategy) | settings)
        return spec.build(config, DatasetFacts.of(self.stream.store, self.stream.split.train))

    def has(self, chosen: Choice) -> bool:
        """Whether there is anything to evaluate."""
        return has_events(self.stream.store, self.stream.split, *chosen[1:])
