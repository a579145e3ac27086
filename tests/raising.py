"""Expect an error by its code, so that messages can be reworded without changing a test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dygmamba.core.errors import DygError


@contextmanager
def raises(code: str, kind: type[DygError] = DygError) -> Iterator[pytest.ExceptionInfo]:
    """Like `pytest.raises`, and the error must have this `code` and a message of one line."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"expected code {code!r}, got {caught.value.code!r}: {caught.value}"
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    del (
        caught
    )  # the traceback holds this frame: a cycle would keep alive what the failed call held, such as locks
