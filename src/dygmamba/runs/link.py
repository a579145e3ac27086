"""Link prediction by name: a dataset, a model and a seed become a fit in a run folder, and its results become rows."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, preset, to_settings
from dygmamba.data.store import Dataset
from dygmamba.engine.clock import Rule
from dygmamba.engine.examine import STRICT, examine
from dygmamba.engine.fit import Fit
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError, EventError
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.runs.opening import build_scorer, link_data, link_stream, made_with
from dygmamba.sampling.negatives import SEEDS
from dygmamba.tasks.link import LinkTask, has_events, link_exam
from dygmamba.tasks.metrics import link_metrics

Choice = tuple[str, str, str]  # negatives, split, setting


def split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the training loop, and of the model."""
    own = {field.name for field in dataclasses.fields(LinkFitConfig)}
    loop = {key: value for key, value in settings.items() if key in own}
    return loop, {key: value for key, value in settings.items() if key not in own}


def start_link_run(
    dataset: Dataset, model: str, seed: int, settings: dict[str, Any], device: torch.device, root: Path
) -> Fit:
    """A new run folder with its configuration written, ready to train."""
    spec = find_model(model)
    if not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use: `dygmamba.evaluate('{dataset.name}', '{model}')`"
        )
    loop, own = split_settings(preset(model, dataset.name) | settings)
    config, how = build_config(spec.config, own), build_config(LinkFitConfig, loop)
    stream = link_stream(dataset, device)
    sizes = [len(part) for part in (stream.split.train, stream.split.val, stream.split.test)]
    if not all(sizes):
        raise EventError(
            "training, validation and test get {}, {} and {} events; each needs some, use a longer stream".format(
                *sizes
            )
        )
    run = RunFolder.create(root, dataset.name, model, seed)
    run.write_config(
        {
            "run": {
                "data": dataset.name,
                "digest": dataset.digest,
                "split": stream.split.digest,
                "model": model,
                "seed": seed,
            }
            | ({} if spec.source is None else {"source": spec.source}),
            "train": to_settings(how),
            "model": to_settings(config),
            "made_with": made_with(device),
        }
    )
    return _fit(run, stream)


def resume_link_run(path: Path, device: torch.device, data_dir: Path | None = None) -> Fit:
    """A run folder as it stands, to go on from."""
    run = RunFolder(path)
    run.config()
    run.lock()
    fit = _fit(run, link_stream(link_data(run, data_dir), device))
    fit.resume()
    return fit


def _fit(run: RunFolder, stream: Stream) -> Fit:
    sections = run.config()
    scorer = build_scorer(run, stream).to(stream.device)
    config, seed = build_config(LinkFitConfig, sections["train"]), int(sections["run"]["seed"])
    task = LinkTask.of(stream.store, stream.split, stream.device, config.train_negatives)
    return Fit(task, scorer, stream, config, run, seed)


def link_rows(
    scorer: Scorer, stream: Stream, about: dict[str, Any], chosen: list[Choice], rule: Rule
) -> list[dict[str, Any]]:
    """One result row per (negatives, split, setting) that has events; `about` names dataset, model and seed."""
    rows = []
    for strategy, name, setting in chosen:
        if has_events(stream.store, stream.split, name, setting):
            exam = link_exam(stream.store, stream.split, name, setting, strategy)
            score = examine(scorer, stream, exam, rule, about["seed"])
            found = dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
            rows.append({**about, **exam.about, **rule.about, **found})
    return rows


@dataclasses.dataclass(frozen=True, slots=True)
class Heuristics:
    """Models without training on one dataset; each row of the result puts one exam to one of them."""

    dataset: Dataset
    stream: Stream
    rule: Rule = STRICT
    folder: Path | None = None  # where drawn negatives are kept

    @staticmethod
    def of(dataset: Dataset, rule: Rule = STRICT, folder: Path | None = None) -> "Heuristics":
        """On the dataset's own split."""
        return Heuristics(dataset, link_stream(dataset, torch.device("cpu")), rule, folder)

    def row(
        self,
        model: str,
        settings: dict[str, Any],
        chosen: Choice,
        seed: int | None = None,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """One result; `seed` draws other negatives than the published ones."""
        spec, store, split = find_model(model), self.stream.store, self.stream.split
        if spec.trainable:
            raise ConfigError(
                f"model '{model}' must be trained first: `dygmamba.train('{self.dataset.name}', '{model}')`"
            )
        strategy, name, setting = chosen
        config = build_config(spec.config, preset(model, self.dataset.name, strategy) | settings)
        scorer = spec.build(config, DatasetFacts.of(store, split.train))
        exam = link_exam(store, split, name, setting, strategy, seed, self.folder)
        score = examine(scorer, self.stream, exam, self.rule, advance=advance)
        drawn_with = SEEDS[name, setting] if seed is None else seed
        about = {"dataset": self.dataset.name, "model": model, "seed": drawn_with, **exam.about}
        found = dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
        return {**about, **self.rule.about, **found}

    def has(self, chosen: Choice) -> bool:
        """Whether there is anything to evaluate."""
        return has_events(self.stream.store, self.stream.split, *chosen[1:])
