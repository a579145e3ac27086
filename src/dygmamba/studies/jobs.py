"""The jobs of each study of the paper, for what a user asks for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dygmamba.config import ablations, build_config, preset, to_settings
from dygmamba.data.library import open_dataset
from dygmamba.data.store import Dataset
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.errors import ConfigError
from dygmamba.models import all_models, find_model
from dygmamba.runs.link import split_settings
from dygmamba.runs.node import NodeSettings
from dygmamba.studies.job import Job
from dygmamba.studies.noise import KINDS

STREAMS = ("uci", "enron", "USLegis", "CanParl", "wikipedia")
OURS, BEFORE = "dyg-mamba", "mamba"
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
NOISE_SEED = 0
GRIDS = {"blocks": (1, 2, 3, 4), "states": (4, 8, 16, 32), "expand": (1, 2, 4)}
FULL = "full"  # a model as it is, beside its ablations
COIN = "coin-sized"
SIZES = ("length", "patch", "epochs")  # settings that say how much there is to do


@dataclass(frozen=True, slots=True)
class Ask:
    """What a user wants of a study; what is None is the study's own choice."""

    datasets: Sequence[str] | None = None
    models: Sequence[str] | None = None
    seeds: Sequence[int] = (0,)
    variants: Sequence[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data_dir: Path | None = None

    def streams(self, own: Sequence[str]) -> list[Dataset]:
        """The datasets, opened."""
        return [open_dataset(name, self.data_dir) for name in self.datasets or own]

    def chosen(self, own: Sequence[str]) -> Sequence[str]:
        """The models; a name that is none is refused now."""
        for name in self.models or own:
            find_model(name)
        return self.models or own

    def named(self, own: Sequence[str]) -> Sequence[str]:
        """The variants, of those that the study has; a name that is none is refused now."""
        for name in self.variants or ():
            if name not in own:
                raise ConfigError(f"unknown variant '{name}'; choose from {', '.join(own)}")
        return self.variants or own


def trained() -> list[str]:
    """Every system of the paper that is trained."""
    return [name for name, spec in all_models().items() if spec.trainable and spec.source is None]


def untrained() -> list[str]:
    """And those that are not."""
    return [name for name, spec in all_models().items() if not spec.trainable and spec.source is None]


def link_jobs(ask: Ask) -> list[Job]:
    """Every model on every stream with every seed, against all negatives."""
    jobs = []
    for dataset in ask.streams(STREAMS):
        for model in ask.chosen([*trained(), *untrained()]):
            if find_model(model).trainable:
                jobs += [link_job(dataset, model, seed, ask.settings) for seed in ask.seeds]
            else:
                jobs.append(
                    Job("heuristic", dataset.name, dataset.digest, model, None, {}, about={"model": model})
                )
    return jobs


def link_job(dataset: Dataset, model: str, seed: int, settings: dict[str, Any], **about: Any) -> Job:
    """A training with its presets and what replaces them, all settings written out."""
    loop, own = split_settings(preset(model, dataset.name) | settings)
    config = to_settings(build_config(find_model(model).config, own))
    full = to_settings(build_config(LinkFitConfig, loop)) | config
    about = {"model": model, **about}
    size = {"events": float(len(dataset.store))} | {name: full[name] for name in SIZES if name in full}
    return Job("link", dataset.name, dataset.digest, model, seed, full, about=about, size=size)


def node_jobs(ask: Ask) -> list[Job]:
    """A backbone per model and seed, and the classifier on it."""
    jobs = []
    for dataset in ask.streams(("wikipedia",)):
        for model in ask.chosen(trained()):
            parts = NodeSettings.of(dataset.name, model, ask.settings)
            own = to_settings(parts.node)
            for seed in ask.seeds:
                backbone = replace(link_job(dataset, model, seed, parts.link), asks={"negatives": ["random"]})
                jobs += [backbone, _after(backbone, "node", {}, own)]
    return jobs


def _after(
    run: Job, work: str, asks: dict[str, Any], settings: dict[str, Any] | None = None, **about: Any
) -> Job:
    """A job on what another one trained."""
    about = {"model": run.model, **about}
    return replace(run, work=work, settings=settings or {}, asks=asks, about=about, needs=run.key)


def ablation_jobs(ask: Ask) -> list[Job]:
    """Named variants of DyG-Mamba beside the model as it is."""
    known = {FULL: {}} | ablations()
    wanted = ask.named(list(known))
    return [
        link_job(dataset, OURS, seed, known[name] | ask.settings, variant=name)
        for dataset in ask.streams(STREAMS[:4])
        for name in wanted
        for seed in ask.seeds
    ]


def length_jobs(ask: Ask) -> list[Job]:
    """Test AP against the length of the histories."""
    return [
        link_job(dataset, model, seed, {"length": length} | ask.settings, length=length)
        for dataset in ask.streams(("uci",))
        for model in ask.chosen((OURS,))
        for length in _numbers(ask.variants, LENGTHS)
        for seed in ask.seeds
    ]


def efficiency_jobs(ask: Ask) -> list[Job]:
    """An epoch of every model with its published settings; then time and memory against length."""
    jobs = []
    for dataset in ask.streams(("uci",)):
        jobs += [_timed(dataset, model, ask.settings) for model in ask.chosen(trained())]
        for length in _numbers(ask.variants, LENGTHS):
            jobs.append(_timed(dataset, OURS, {"length": length}, length=length, patch="none"))
            patches = {"published": max(1, length // 32), "one": 1}
            for name, patch in patches.items():
                jobs.append(
                    _timed(
                        dataset, "dygformer", {"length": length, "patch": patch}, length=length, patch=name
                    )
                )
    return jobs


def _timed(dataset: Dataset, model: str, settings: dict[str, Any], **about: Any) -> Job:
    return replace(link_job(dataset, model, 0, settings, **about), work="cost")


def convergence_jobs(ask: Ask) -> list[Job]:
    """The training loss over a hundred epochs beside vanilla Mamba's; nothing stops early."""
    fixed = {"epochs": 100, "patience": 1_000_000} | ask.settings
    return [
        replace(link_job(dataset, model, seed, fixed), asks={"negatives": ["random"]})
        for dataset in ask.streams(("CanParl",))
        for model in ask.chosen((OURS, BEFORE))
        for seed in ask.seeds
    ]


def robustness_jobs(ask: Ask) -> list[Job]:
    """Clean training, noisy histories; both definitions of noise."""
    kinds = ask.named(KINDS)
    jobs = []
    for dataset in ask.streams(("uci",)):
        for model in ask.chosen(trained()):
            for seed in ask.seeds:
                clean = link_job(dataset, model, seed, ask.settings)
                jobs.append(clean)
                for kind in kinds:
                    asks = {"kind": kind, "rates": list(RATES), "seed": NOISE_SEED}
                    jobs.append(_after(clean, "robustness", asks, noise=kind))
    return jobs


def sensitivity_jobs(ask: Ask) -> list[Job]:
    """One size at a time around the default."""
    wanted = ask.named(list(GRIDS))
    return [
        link_job(dataset, OURS, seed, {name: value} | ask.settings, setting=name, value=value)
        for dataset in ask.streams(("uci",))
        for name in wanted
        for value in GRIDS[name]
        for seed in ask.seeds
    ]


def case_jobs(ask: Ask) -> list[Job]:
    """Hidden states of both sequences of one pair."""
    jobs = []
    for dataset in ask.streams(("wikipedia",)):
        for model in ask.chosen((OURS, "dygformer")):
            for seed in ask.seeds:
                run = link_job(dataset, model, seed, ask.settings)
                jobs += [run, _after(run, "similarity", {"tokens": 32})]
    return jobs


def large_jobs(ask: Ask) -> list[Job]:
    """An epoch on a stream as large as tgbl-coin."""
    return [
        replace(_timed(dataset, model, ask.settings), asks={"epochs": 1})
        for dataset in ask.streams((COIN,))
        for model in ask.chosen((OURS,))
    ]


def _numbers(variants: Sequence[str] | None, own: Sequence[int]) -> Sequence[int]:
    """Lengths that a user named, or the study's own."""
    if variants is None:
        return own
    if not all(name.isdecimal() and 0 < int(name) <= 65_536 for name in variants):
        raise ConfigError(f"`variants` of this study are lengths such as 32,64; got '{','.join(variants)}'")
    return [int(name) for name in variants]
