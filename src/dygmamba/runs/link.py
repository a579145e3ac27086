"""Link prediction by name: a dataset, a model and a seed become a fit in a run folder, and its results become rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dygmamba.config import build_config, preset, to_settings
from dygmamba.data.splits import PUBLISHED, Split, SplitBy
from dygmamba.data.store import Dataset
from dygmamba.engine.clock import Rule
from dygmamba.engine.examine import STRICT, examine, place
from dygmamba.engine.executor import require_shareable
from dygmamba.engine.fit import Fit
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError, EventError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.room import require_room
from dygmamba.runs.choosing import Beginning, layers, merged, reasons
from dygmamba.runs.making import begin, go_on_alike, made_with
from dygmamba.runs.opening import build_scorer, data_of, link_data, link_stream, seeded_scorer, split_of
from dygmamba.sampling.negatives import SEEDS
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.asked import SOME
from dygmamba.tasks.base import Exam
from dygmamba.tasks.calibration import Calibration, reliability
from dygmamba.tasks.candidates import Candidates
from dygmamba.tasks.link import LinkTask, has_events, link_exam
from dygmamba.tasks.metrics import link_metrics, rank_metrics

Choice = tuple[str, str, str]  # negatives, split, setting
COPIES = 5  # of the weights while they are trained: their gradient, Adam's two moments, the best so far
ENTRY = 16  # bytes: a neighbour, its event and its time


@dataclasses.dataclass(frozen=True, slots=True)
class Ranking:
    """Which ranks are asked for: metrics such as mrr and hits@10, and among how many candidates, None for all."""

    metrics: tuple[str, ...]
    count: int | None = SOME
    filtered: bool = False
    seed: int | None = None  # of the candidates, by default the published one of the exam's negatives
    most: int | None = (
        None  # events that are ranked, drawn with the same seed where there are more; None for all
    )

    def row(
        self,
        scorer: Scorer,
        stream: Stream,
        exam: Exam,
        rule: Rule,
        seed: int = 0,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """What a result row says of an exam's ranks; the exam's negatives are not asked about."""
        name, setting = exam.about["split"], exam.about["setting"]
        drawn = SEEDS[name, setting] if self.seed is None else self.seed
        among = Candidates.of(stream.store, self.count, drawn, self.filtered)
        rank = place(scorer, stream, exam, among, rule, seed, advance, self._chosen(len(exam.events), drawn))
        found = rank_metrics(rank, self.metrics)
        about = {"split": name, "setting": setting, **among.about, **rule.about}
        return {**about, **found, "n": len(rank)}

    def questions(self, exam: Exam) -> int:
        """Pairs that are scored where the candidates are counted; of all, at least so many."""
        events = len(exam.events) if self.most is None else min(self.most, len(exam.events))
        return events * (1 + (self.count or 0))

    def _chosen(self, events: int, seed: int) -> Tensor | None:
        if self.most is None or self.most >= events:
            return None
        drawn = np.random.default_rng([seed % 2**64, events]).choice(events, self.most, replace=False)
        return torch.from_numpy(np.sort(drawn))


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
    return _fit(run, stream, scorer)


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
    fit = _fit(run, stream, build_scorer(run, stream))
    fit.resume()
    return fit


def _require_room(scorer: Scorer, how: LinkFitConfig, events: int) -> None:
    """Refuse a step whose look-ups alone would fill the memory: of a source, a destination and another one."""
    batch, length = min(how.batch, events), NeighborRequest.longest(scorer.requests)
    looked_up = f"a batch of {batch:,} events with {length:,} entries looked up for each node"
    require_room(3 * batch * length * ENTRY, looked_up)


def _fit(run: RunFolder, stream: Stream, scorer: nn.Module) -> Fit:
    sections = run.config()
    config, seed = build_config(LinkFitConfig, sections["train"]), int(sections["run"]["seed"])
    task = LinkTask.of(stream.store, stream.split, stream.device, config.train_negatives)
    return Fit(task, scorer.to(stream.device), stream, config, run, seed)


def rank_rows(
    scorer: Scorer, stream: Stream, about: dict[str, Any], chosen: list[Choice], rule: Rule, ranking: Ranking
) -> list[dict[str, Any]]:
    """One result row per split and setting that has events: where each event ranks among its candidates."""
    rows = []
    for name, setting in dict.fromkeys((name, setting) for _, name, setting in chosen):
        if has_events(stream.store, stream.split, name, setting):
            exam = link_exam(stream.store, stream.split, name, setting)
            rows.append({**about, **ranking.row(scorer, stream, exam, rule, about["seed"])})
    return rows


def link_rows(
    scorer: Scorer,
    stream: Stream,
    about: dict[str, Any],
    chosen: list[Choice],
    rule: Rule,
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """One result row per (negatives, split, setting) that has events; `about` names dataset, model and seed."""
    return [
        link_row(exam, score, about | exam.about | rule.about, calibration)
        for exam, score in link_scores(scorer, stream, chosen, rule, about["seed"])
    ]


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

    @staticmethod
    def of(dataset: Dataset, rule: Rule = STRICT, folder: Path | None = None) -> "Heuristics":
        """On the dataset's own split."""
        return Heuristics(dataset.name, link_stream(dataset, torch.device("cpu")), rule, folder)

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
        drawn_with = SEEDS[name, setting] if seed is None else seed
        about = {"dataset": self.name, "model": model, "seed": drawn_with, **exam.about}
        found = dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
        return {**about, **self.rule.about, **found}

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
