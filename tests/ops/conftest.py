"""Fixtures of the tests of kernels."""

from collections.abc import Iterator

import pytest

from interpreted import poison


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory is NaN, and nobody writes beside it."""
    with poison():
        yield
