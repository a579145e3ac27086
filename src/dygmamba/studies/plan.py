"""The studies of the paper as plans: STUDIES by name, each a list of jobs for what a user asks for."""

from collections.abc import Callable
from dataclasses import dataclass

from dygmamba.errors import ConfigError
from dygmamba.studies.job import Job
from dygmamba.studies.jobs import (
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


@dataclass(frozen=True, slots=True)
class Study:
    """A question of the paper: its jobs, and whether each must have the machine for itself."""

    title: str
    jobs: Callable[[Ask], list[Job]]
    alone: bool = False


STUDIES: dict[str, Study] = {
    "link": Study("Link prediction: Tables 2, 3 and the appendix", link_jobs),
    "node": Study("Node classification", node_jobs),
    "ablation": Study("Ablations: time information, step functions, co-occurrence, skip", ablation_jobs),
    "length": Study("AP against the length of histories", length_jobs),
    "efficiency": Study("Epoch time, parameters and memory", efficiency_jobs, alone=True),
    "convergence": Study("Training loss beside vanilla Mamba", convergence_jobs),
    "robustness": Study("Noise in what a model sees", robustness_jobs),
    "sensitivity": Study("Blocks, states, expansion", sensitivity_jobs),
    "case-study": Study("Similarity of hidden states", case_jobs),
    "large": Study("A stream as large as tgbl-coin", large_jobs, alone=True),
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study '{name}'; choose from {', '.join(STUDIES)}")
    return STUDIES[name]


def plan(name: str, ask: Ask) -> list[Job]:
    """The jobs of a study, each key once."""
    return list({job.key + str(job.about): job for job in find_study(name).jobs(ask)}.values())
