"""The studies of the paper as plans: STUDIES by name, each a list of jobs for what a user asks for."""

from collections.abc import Callable
from dataclasses import dataclass

from dygmamba.data.generate import GeneratorConfig
from dygmamba.errors import ConfigError
from dygmamba.studies.job import Job
from dygmamba.studies.jobs import (
    COIN,
    Ask,
    ablation_jobs,
    case_jobs,
    convergence_jobs,
    efficiency_jobs,
    large_jobs,
    length_jobs,
    link_jobs,
    node_jobs,
    robustness_jobs,
    sensitivity_jobs,
)
from dygmamba.studies.made import Made


@dataclass(frozen=True, slots=True)
class Study:
    """A question of the paper: its jobs, whether it has variants, whether each job must have the machine for itself.

    `made` is the stream that it makes where nobody has it.
    """

    title: str
    jobs: Callable[[Ask], list[Job]]
    variants: bool = False
    alone: bool = False
    made: Made | None = None


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
        made=Made(COIN, GeneratorConfig(nodes=638_000, events=22_800_000, communities=2_000)),
    ),
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study '{name}'; choose from {', '.join(STUDIES)}")
    return STUDIES[name]


def plan(name: str, ask: Ask) -> list[Job]:
    """The jobs of a study, each key once."""
    study = find_study(name)
    if ask.variants and not study.variants:
        raise ConfigError(
            f"the study '{name}' has no variants, got '{','.join(ask.variants)}'; leave them out"
        )
    return list({job.key + str(job.about): job for job in study.jobs(ask)}.values())
