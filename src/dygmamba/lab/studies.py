"""The jobs of each study of the paper, for what a user asks for.

A stream that a study makes for itself where nobody has it.

The studies of the paper as plans: STUDIES by name, each a list of jobs for what a user asks for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dygmamba.config import build_config, find_preset, load_ablations, to_settings
from dygmamba.core.errors import ConfigError
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.data.storage.library import generate_dataset, open_dataset
from dygmamba.data.storage.locations import data_folder, data_folders, has_dataset
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.lab.job import Job
from dygmamba.lab.noise import NOISE_KINDS
from dygmamba.models import all_models, find_model
from dygmamba.runs.link_training import separate_settings
from dygmamba.runs.node_training import NodeSettings

DEFAULT_DATASETS = ("uci", "enron", "USLegis", "CanParl", "wikipedia")
OUR_MODEL, VANILLA_MODEL = "dyg-mamba", "mamba"
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
NOISE_SEED = 0
SENSITIVITY_GRIDS = {"blocks": (1, 2, 3, 4), "states": (4, 8, 16, 32), "expand": (1, 2, 4)}
FULL = "full"  # a model as it is, beside its ablations
COIN_SIZED = "coin-sized"
SIZE_SETTINGS = ("length", "patch", "epochs")  # settings that say how much there is to do


@dataclass(frozen=True, slots=True)
class StudyRequest:
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


def list_trained_models() -> list[str]:
    """Every system of the paper that is trained."""
    return [name for name, spec in all_models().items() if spec.trainable and spec.source is None]


def list_untrained_models() -> list[str]:
    """And those that are not."""
    return [name for name, spec in all_models().items() if not spec.trainable and spec.source is None]


def link_jobs(ask: StudyRequest) -> list[Job]:
    """Every model on every stream with every seed, against all negatives."""
    jobs = []
    for dataset in ask.streams(DEFAULT_DATASETS):
        for model in ask.chosen([*list_trained_models(), *list_untrained_models()]):
            if find_model(model).trainable:
                jobs += [link_job(dataset, model, seed, ask.settings) for seed in ask.seeds]
            else:
                jobs.append(
                    Job("heuristic", dataset.name, dataset.digest, model, None, {}, about={"model": model})
                )
    return jobs


def link_job(dataset: Dataset, model: str, seed: int, settings: dict[str, Any], **about: Any) -> Job:
    """A training with its presets and what replaces them, all settings written out."""
    loop, own = separate_settings(find_preset(model, dataset.name) | settings)
    config = to_settings(build_config(find_model(model).config, own))
    full = to_settings(build_config(LinkFitConfig, loop)) | config
    about = {"model": model, **about}
    size = {"events": float(len(dataset.store))} | {
        name: full[name] for name in SIZE_SETTINGS if name in full
    }
    return Job("link", dataset.name, dataset.digest, model, seed, full, about=about, size=size)


def node_jobs(ask: StudyRequest) -> list[Job]:
    """A backbone per model and seed, and the classifier on it."""
    jobs = []
    for dataset in ask.streams(("wikipedia",)):
        for model in ask.chosen(list_trained_models()):
            parts = NodeSettings.of(dataset.name, model, ask.settings)
            own = to_settings(parts.node)
            for seed in ask.seeds:
                backbone = replace(link_job(dataset, model, seed, parts.link), asks={"negatives": ["random"]})
                jobs += [backbone, _follow_up_job(backbone, "node", {}, own)]
    return jobs


def _follow_up_job(
    run: Job, work: str, asks: dict[str, Any], settings: dict[str, Any] | None = None, **about: Any
) -> Job:
    """A job on what another one trained."""
    about = {"model": run.model, **about}
    return replace(run, work=work, settings=settings or {}, asks=asks, about=about, needs=run.key)


def ablation_jobs(ask: StudyRequest) -> list[Job]:
    """Named variants of DyG-Mamba beside the model as it is."""
    known = {FULL: {}} | load_ablations()
    wanted = ask.named(list(known))
    return [
        link_job(dataset, OUR_MODEL, seed, known[name] | ask.settings, variant=name)
        for dataset in ask.streams(DEFAULT_DATASETS[:4])
        for name in wanted
        for seed in ask.seeds
    ]


def length_jobs(ask: StudyRequest) -> list[Job]:
    """Test AP against the length of the histories."""
    return [
        link_job(dataset, model, seed, {"length": length} | ask.settings, length=length)
        for dataset in ask.streams(("uci",))
        for model in ask.chosen((OUR_MODEL,))
        for length in _parse_lengths(ask.variants, LENGTHS)
        for seed in ask.seeds
    ]


def efficiency_jobs(ask: StudyRequest) -> list[Job]:
    """An epoch of every model with its published settings; then time and memory against length."""
    jobs = []
    for dataset in ask.streams(("uci",)):
        jobs += [_cost_job(dataset, model, ask.settings) for model in ask.chosen(list_trained_models())]
        for length in _parse_lengths(ask.variants, LENGTHS):
            jobs.append(_cost_job(dataset, OUR_MODEL, {"length": length}, length=length, patch="none"))
            patches = {"published": max(1, length // 32), "one": 1}
            for name, patch in patches.items():
                jobs.append(
                    _cost_job(
                        dataset, "dygformer", {"length": length, "patch": patch}, length=length, patch=name
                    )
                )
    return jobs


def _cost_job(dataset: Dataset, model: str, settings: dict[str, Any], **about: Any) -> Job:
    return replace(link_job(dataset, model, 0, settings, **about), work="cost")


def convergence_jobs(ask: StudyRequest) -> list[Job]:
    """The training loss over a hundred epochs beside vanilla Mamba's; nothing stops early."""
    fixed = {"epochs": 100, "patience": 1_000_000} | ask.settings
    return [
        replace(link_job(dataset, model, seed, fixed), asks={"negatives": ["random"]})
        for dataset in ask.streams(("CanParl",))
        for model in ask.chosen((OUR_MODEL, VANILLA_MODEL))
        for seed in ask.seeds
    ]


def robustness_jobs(ask: StudyRequest) -> list[Job]:
    """Clean training, noisy histories; both definitions of noise."""
    kinds = ask.named(NOISE_KINDS)
    jobs = []
    for dataset in ask.streams(("uci",)):
        for model in ask.chosen(list_trained_models()):
            for seed in ask.seeds:
                clean = link_job(dataset, model, seed, ask.settings)
                jobs.append(clean)
                for kind in kinds:
                    asks = {"kind": kind, "rates": list(NOISE_RATES), "seed": NOISE_SEED}
                    jobs.append(_follow_up_job(clean, "robustness", asks, noise=kind))
    return jobs


def sensitivity_jobs(ask: StudyRequest) -> list[Job]:
    """One size at a time around the default."""
    wanted = ask.named(list(SENSITIVITY_GRIDS))
    return [
        link_job(dataset, OUR_MODEL, seed, {name: value} | ask.settings, setting=name, value=value)
        for dataset in ask.streams(("uci",))
        for name in wanted
        for value in SENSITIVITY_GRIDS[name]
        for seed in ask.seeds
    ]


def case_jobs(ask: StudyRequest) -> list[Job]:
    """Hidden states of both sequences of one pair."""
    jobs = []
    for dataset in ask.streams(("wikipedia",)):
        for model in ask.chosen((OUR_MODEL, "dygformer")):
            for seed in ask.seeds:
                run = link_job(dataset, model, seed, ask.settings)
                jobs += [run, _follow_up_job(run, "similarity", {"tokens": 32})]
    return jobs


def large_jobs(ask: StudyRequest) -> list[Job]:
    """An epoch on a stream as large as tgbl-coin."""
    return [
        replace(_cost_job(dataset, model, ask.settings), asks={"epochs": 1})
        for dataset in ask.streams((COIN_SIZED,))
        for model in ask.chosen((OUR_MODEL,))
    ]


def _parse_lengths(variants: Sequence[str] | None, own: Sequence[int]) -> Sequence[int]:
    """Lengths that a user named, or the study's own."""
    if variants is None:
        return own
    if not all(name.isdecimal() and 0 < int(name) <= 65_536 for name in variants):
        raise ConfigError(f"`variants` of this study are lengths such as 32,64; got '{','.join(variants)}'")
    return [int(name) for name in variants]


@dataclass(frozen=True, slots=True)
class GeneratedDataset:
    """A generated stream by its name and its size."""

    name: str
    config: GeneratorConfig

    def there(self, data_dir: Path | None) -> bool:
        """Whether a dataset has this name already."""
        return has_dataset(data_folders(data_dir), self.name)

    def make(self, data_dir: Path | None) -> Path:
        """Generate and keep it, on the disk where it is large."""
        folder = data_folder(data_dir)
        return save_dataset(generate_dataset(self.name, self.config, folder), folder)

    def __str__(self) -> str:
        return f"{self.name}, {self.config.events:,} events among {self.config.nodes:,} nodes"


@dataclass(frozen=True, slots=True)
class Study:
    """A question of the paper: its jobs, whether it has variants, whether each job must have the machine for itself.

    `made` is the stream that it makes where nobody has it.
    """

    title: str
    jobs: Callable[[StudyRequest], list[Job]]
    variants: bool = False
    alone: bool = False
    made: GeneratedDataset | None = None


STUDIES: dict[str, Study] = {
    "link": Study("Link prediction: Tables 2, 3 and the appendix", link_jobs),
    "node": Study("Node classification", node_jobs),
    "ablation": Study(
        "Ablations: time information, step functions, co-occurrence, skip", ablation_jobs, True
    ),
    "length": Study("AP against the length of histories", length_jobs, True),
    "efficiency": Study("Epoch time, parameters and memory", efficiency_jobs, True, alone=True),
    "convergence": Study("Training loss beside vanilla Mamba", convergence_jobs),
    "robustness": Study("Noise in what a model sees", robustness_jobs, True),
    "sensitivity": Study("Blocks, states, expansion", sensitivity_jobs, True),
    "case-study": Study("Similarity of hidden states", case_jobs),
    "large": Study(
        "A stream as large as tgbl-coin",
        large_jobs,
        alone=True,
        made=GeneratedDataset(
            COIN_SIZED, GeneratorConfig(nodes=638_000, events=22_800_000, communities=2_000)
        ),
    ),
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study '{name}'; choose from {', '.join(STUDIES)}")
    return STUDIES[name]


def plan(name: str, ask: StudyRequest) -> list[Job]:
    """The jobs of a study, each key once."""
    study = find_study(name)
    if ask.variants and not study.variants:
        raise ConfigError(
            f"the study '{name}' has no variants, got '{','.join(ask.variants)}'; leave them out"
        )
    return list({job.key + str(job.about): job for job in study.jobs(ask)}.values())
