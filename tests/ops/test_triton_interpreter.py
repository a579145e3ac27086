"""Triton kernels where there is no GPU: the files that test them run again, in processes where Triton interprets."""

from pathlib import Path

import pytest

from interpreted import GPU, INTERPRETED, interpret

pytest.importorskip("triton")

FILES = sorted(
    str(path) for path in Path(__file__).parent.glob("test_*.py") if "@kernels_run" in path.read_text("utf-8")
)


@pytest.mark.slow
@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run in this process")
@pytest.mark.parametrize("part", [0, 1])
def test_the_kernels_hold_under_the_interpreter(part: int) -> None:
    """Every test of these files passes where Triton interprets instead of compiling; in two parts, for two cores."""
    interpret(*FILES[part::2])
