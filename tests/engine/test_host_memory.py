"""Memory of a CPU step: kept where the C library can, refused politely elsewhere."""

import platform
import subprocess
import sys

import pytest

from dygmamba.engine import host_memory

FAULTS = """
import resource, torch
from dygmamba.engine.host_memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
torch.ones(20_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_kept_memory_is_not_mapped_again():
    """Ten tensors of 80 MB one after another touch fresh pages each time, and fewer where memory is kept."""
    plain, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS.format(keep=keep)]))
        for keep in (False, True)
    )
    assert kept < 0.7 * plain


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_platforms_are_left_alone(system, monkeypatch):
    """Without glibc nothing is asked for and nothing breaks."""
    monkeypatch.setattr(sys, "platform", system)
    assert host_memory.keep_freed_memory() is False
