"""Shared fixtures: real streams where they are at hand, patience for compiled kernels."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import shapes  # noqa: F401 - before the package, whose functions it checks

# tests run in one process per core; threads beyond that only wait for each other
torch.set_num_threads(1)
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# the first example of a test may compile a kernel, so single examples have no deadline
settings.register_profile(
    "project", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("project")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real event streams; tests that need it skip where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DYGMAMBA_DATA", beside))
    if not (folder / "uci.npz").exists():
        pytest.skip("no real streams: set DYGMAMBA_DATA to a folder that holds uci.npz and the others")
    return folder
