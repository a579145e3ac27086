"""Shared fixtures: real streams where they are at hand, patience for compiled kernels."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import shapes  # noqa: F401 - before the package, whose functions it checks
from interpreted import INTERPRETED

# tests run in one process per core; threads beyond that only wait for each other
torch.set_num_threads(1)
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# the first example of a test may compile a kernel, so single examples have no deadline
settings.register_profile(
    "project",
    deadline=None,
    max_examples=300 if os.environ.get("DYGMAMBA_TORTURE") else 25,  # `make torture` takes its time
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("project")

# interpreted kernels are tested without the rest of the package
pytest_plugins = [] if INTERPRETED else ["trained"]

RANKED = "dygmamba.runs.final_evaluation.count_affordable_events"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real event streams; tests that need it skip where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DYGMAMBA_DATA", beside))
    if not (folder / "uci.npz").exists():
        pytest.skip("no real streams: set DYGMAMBA_DATA to a folder that holds uci.npz and the others")
    return folder


@pytest.fixture(scope="session", autouse=True)
def rank_few_events() -> Iterator[Callable | None]:
    """Let trainings rank five events per setting instead of 1,000, which takes a third of a small training.

    Yields what counts the events otherwise, for `rank_all_events`.
    """
    if INTERPRETED:  # kernels only, without the rest of the package
        yield None
        return
    from dygmamba.runs.final_evaluation import count_affordable_events

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RANKED, lambda scorer, destinations=None: 5)
        yield count_affordable_events


@pytest.fixture(scope="module")
def rank_all_events(rank_few_events: Callable) -> Iterator[None]:
    """Let trainings rank what a user's would, in modules whose figures depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RANKED, rank_few_events)
        yield
