"""Who computes an op: the first kernel of the inputs' device that serves them, else the definition.

An op is a folder. `reference` is its definition; the modules beside it are kernels, each for some types of device and,
where it has a function `serves`, for some inputs only. A module is imported when it is first needed.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

ANY = "any"  # stands for the types of device which are not named
OPS: dict[str, "Dispatch"] = {}  # by the name of the folder

Serves = Callable[..., bool]


class SlowReferenceWarning(RuntimeWarning):
    """A definition runs in a kernel's place: right, but slow and hungry for memory."""


class _Switch:
    """How many `use_reference` blocks are open; not a context variable, which torch.compile cannot read."""

    depth = 0
    lock = Lock()


class Dispatch(dict[str, ModuleType]):
    """An op's kernels: type of device -> names of modules, the preferred one first.

    With `slow`, a warning says once per type of device that there is none.
    """

    def __init__(self, package: str, kernels: Mapping[str, tuple[str, ...]], slow: bool = False) -> None:
        super().__init__()
        self.package, self.kernels, self.slow = package, kernels, slow
        self.name = package.rpartition(".")[2]
        self._loaded: dict[str, tuple[ModuleType, Serves | None]] = {}
        OPS[self.name] = self

    def __missing__(self, device: str) -> ModuleType:
        """`OP[device]` is who computes now, for an op whose kernels serve every input; looked up once."""
        self[device] = found = self.choose(device)
        return found

    def choose(self, device: str, *inputs: Any) -> ModuleType:
        """The module that computes now: a kernel, or the reference where none serves or all are switched off."""
        if not _Switch.depth:
            found = self.kernel(device, *inputs)
            if found is not None:
                return found
            self._miss(device)
        return self.module("reference")

    def fused(self, device: str) -> bool:
        """Whether kernels compute now; for an op one of whose kernels serves whatever an earlier one does not."""
        if _Switch.depth:
            return False
        if not self._names(device):
            self._miss(device)
            return False
        return True

    def kernel(self, device: str, *inputs: Any) -> ModuleType | None:
        """The first kernel that serves, switched off or not: a backward pass asks for what its forward was given."""
        for name in self._names(device):
            module, serves = self._loaded.get(name) or self._load(name)
            if serves is None or serves(*inputs):
                return module
        return None

    def module(self, name: str) -> ModuleType:
        """A module of the folder, imported at the first call."""
        return (self._loaded.get(name) or self._load(name))[0]

    def _load(self, name: str) -> tuple[ModuleType, Serves | None]:
        module = _import(f"{self.package}.{name}")
        self._loaded[name] = module, getattr(module, "serves", None)
        return self._loaded[name]

    def _names(self, device: str) -> tuple[str, ...]:
        return self.kernels.get(device) or self.kernels.get(ANY, ())

    def _miss(self, device: str) -> None:
        if self.slow:
            _warn_slow(self.name, device)


@contextmanager
def use_reference() -> Iterator[None]:
    """Inside, every op on every device is computed by its definition, in all threads of the process.

    What was computed before is differentiated as it was computed, and so is what is computed inside, afterwards. A
    captured graph keeps what was in use when it was captured. Blocks may nest, and overlap between threads.
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
    text = f"no fused {name} for {device}: the reference runs instead; expect it to be slow"
    warnings.warn(text, SlowReferenceWarning, stacklevel=6)  # where the op was called
