"""Choose the implementation of an op: the first kernel for the inputs' device that supports them, else the reference.

An op is a folder. `reference` defines it; the modules beside it are kernels, each for some device types and, if it has
a function `serves`, for some inputs only. A module is imported when it is first needed.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any

ANY = "any"  # all device types that are not listed
OPS: dict[str, "Dispatch"] = {}  # by folder name
HAS_TRITON = find_spec("triton") is not None  # torch brings it on Linux only

Serves = Callable[..., bool]


class SlowReferenceWarning(RuntimeWarning):
    """The reference runs because there is no kernel: correct, but slow and memory-hungry."""


class _Switch:
    """Number of open `use_reference` blocks; not a context variable, which torch.compile cannot read."""

    depth = 0
    lock = Lock()


class Dispatch(dict[str, ModuleType]):
    """The kernels of an op: device type -> module names, the preferred one first.

    `OP[device]` is the module to use now, for an op whose kernels support every input. With `slow`, a device type
    without kernels is warned of once.
    """

    def __init__(self, package: str, kernels: Mapping[str, tuple[str, ...]], slow: bool = False) -> None:
        super().__init__()
        self.package, self.kernels, self.slow = package, kernels, slow
        self.name = package.rpartition(".")[2]
        self._loaded: dict[str, tuple[ModuleType, Serves | None]] = {}
        OPS[self.name] = self

    def __missing__(self, device: str) -> ModuleType:
        self[device] = module = self.choose(device)
        return module

    def choose(self, device: str, *inputs: Any) -> ModuleType:
        """Return the module to use now: a kernel, or the reference if none fits or `use_reference` is on."""
        if not _Switch.depth:
            module = self.kernel(device, *inputs)
            if module is not None:
                return module
            self._miss(device)
        return self.module("reference")

    def kernel(self, device: str, *inputs: Any) -> ModuleType | None:
        """Return the first kernel that supports the inputs, even inside `use_reference`.

        A backward pass must use the kernel of its forward pass, wherever it runs.
        """
        for name in self._names(device):
            module, serves = self._loaded.get(name) or self._load(name)
            if serves is None or serves(*inputs):
                return module
        return None

    def module(self, name: str) -> ModuleType:
        """Return a module of the folder, importing it at the first call."""
        return (self._loaded.get(name) or self._load(name))[0]

    def _load(self, name: str) -> tuple[ModuleType, Serves | None]:
        module = _import(f"{self.package}.{name}")
        self._loaded[name] = module, getattr(module, "serves", None)
        return self._loaded[name]

    def _names(self, device: str) -> tuple[str, ...]:
        names = self.kernels.get(device) or self.kernels.get(ANY, ())
        return names if HAS_TRITON else tuple(name for name in names if not name.startswith("triton"))

    def _miss(self, device: str) -> None:
        if self.slow:
            _warn_slow(self.name, device)


@contextmanager
def use_reference() -> Iterator[None]:
    """Context manager: every op on every device runs its reference, in all threads of the process.

    A backward pass uses the implementation of its forward pass, inside or outside. A captured CUDA graph keeps the
    implementation it was captured with. Blocks may be nested and may overlap between threads.
    """
    _switch(1)
    try:
        yield
    finally:
        _switch(-1)


def _switch(by: int) -> None:
    with _Switch.lock:
        _Switch.depth += by
        for op in OPS.values():
            op.clear()


def _import(name: str) -> ModuleType:
    return import_module(name)


# torch.compile cannot trace an import; what torch.compiler.assume_constant_result does, without importing the compiler
_import.__dict__["_dynamo_marked_constant"] = True


@cache  # once per op and type of device
def _warn_slow(name: str, device: str) -> None:
    text = f"there is no fused {name} for {device}; the reference implementation runs instead and is slow"
    warnings.warn(text, SlowReferenceWarning, stacklevel=6)  # the caller of the op
