"""What changes the whole process: memory kept where the C library can, and everything else as it says."""

import gc
import os
import platform
import subprocess
import sys

import pytest
import torch

from dygmamba.cli.progress import show_progress
from dygmamba.core import process_settings

FAULTS = """
import resource
import numpy as np
from dygmamba.core.process_settings import keep_freed_memory
def count_faults():
    np.ones(5_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(5_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(count_faults())
assert keep_freed_memory()
print(count_faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_kept_memory_is_not_mapped_again():
    """Ten arrays of 40 MB one after another touch fresh pages each time, and fewer where memory is kept."""
    plain, kept = map(int, subprocess.check_output([sys.executable, "-c", FAULTS]).split())
    assert kept < 0.7 * plain


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_platforms_are_left_alone(system, monkeypatch):
    """Without glibc nothing is asked for and nothing breaks."""
    monkeypatch.setattr(sys, "platform", system)
    assert process_settings.keep_freed_memory() is False


@pytest.mark.parametrize(("chosen", "expected"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch, chosen, expected):
    """The environment's own value holds."""
    monkeypatch.setenv("OMP_WAIT_POLICY", chosen or "")
    if chosen is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    process_settings.use_passive_wait_policy()
    assert os.environ["OMP_WAIT_POLICY"] == expected


def test_the_precision_of_products_is_put_back():
    """Also after an error."""
    before = torch.get_float32_matmul_precision()

    def failing() -> None:
        with process_settings.use_matmul_precision("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert torch.get_float32_matmul_precision() == before


def test_only_a_command_that_trains_nothing_collects_garbage_rarely():
    """A training may hold large tensors in cycles of references."""
    usual = gc.get_threshold()
    try:
        process_settings.collect_garbage_rarely()
        with show_progress():
            assert gc.get_threshold()[0] > usual[0]
        with show_progress(save_on_interrupt=True):
            assert gc.get_threshold() == usual
    finally:
        process_settings.collect_garbage_as_usual()


@pytest.mark.slow
def test_importing_it_is_light():
    """It comes before torch: what torch reads when it is imported can still be set."""
    code = "import sys, dygmamba.core.process_settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
