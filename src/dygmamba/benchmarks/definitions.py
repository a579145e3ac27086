"""The definitions in place of the kernels: what a step costs, and computes, without any fused operation."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dygmamba.ops import conv, scan
from dygmamba.ops.cooccurrence import cpu as cooccurrence_cpu
from dygmamba.ops.cooccurrence import reference as cooccurrence
from dygmamba.ops.recent import cpu as recent_cpu
from dygmamba.ops.recent import reference as recent


@contextmanager
def definitions() -> Iterator[None]:
    """Scan, convolution, co-occurrence and look-up by their reference modules, on every device.

    An operation that finds no kernel for its device falls back on its definition, so the tables of kernels are
    emptied; where the choice is not a table, the kernel's module gets the definition.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", scan.SlowScanWarning)
        stack.enter_context(_replaced(scan, "FUSED", {}))
        stack.enter_context(_replaced(conv, "FUSED", {}))
        stack.enter_context(_replaced(cooccurrence_cpu, "cooccurrence", cooccurrence.cooccurrence))
        stack.enter_context(_replaced(recent_cpu, "last_k_before", recent.last_k_before))
        yield


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
