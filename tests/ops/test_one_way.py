"""Every compiled kernel is compiled, kept and trusted in one place."""

import re
from pathlib import Path

import dygmamba

SOURCE = Path(dygmamba.__file__).parent


def test_nothing_is_compiled_but_by_one_module():
    """Its own cache is a pickle in a folder that others may write; ours is private and checked (decision 024)."""
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\b(njit|numba\.jit|vectorize|prange)\b|cache=True", path.read_text("utf-8"))
    }
    assert users == {"ops/numba_kernels.py"}
