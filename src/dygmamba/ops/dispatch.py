"""Choose the implementation of an op: the first kernel for the inputs' device that supports them, else the reference.

The reference defines the op in plain torch. A kernel computes the same values and gradients faster, on some types of
device and, if it has an attribute `serves`, for some inputs only. It is imported when it is first needed.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

HAS_TRITON = find_spec("triton") is not None  # torch brings it on Linux only

P = ParamSpec("P")
R = TypeVar("R")
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


class SlowReferenceWarning(RuntimeWarning):
    """The reference runs because there is no kernel: correct, but slow and memory-hungry."""


class _Switch:
    """Number of open `use_reference` blocks; not a context variable, which torch.compile cannot read."""

    depth = 0
    lock = Lock()


class Dispatch(Generic[P, R]):
    """An op: its reference and its kernels by device type, the preferred one first; those of `any` last on each.

    Reference and kernels are functions of the same arguments, or modules with the same functions. A kernel is named
    relative to the reference's package: "cpu" is a module, "triton:gated_sum" a function of one. A function of tensors
    that is decorated with `dispatched` is called like any other; the device is that of its first argument. With `slow`,
    a device type without kernels is warned of once.
    """

    def __init__(
        self, reference: Callable[P, R] | ModuleType, slow: bool = False, **kernels: tuple[str, ...]
    ) -> None:
        self.reference: Any = reference
        self.slow, self.kernels = slow, kernels
        home = reference if isinstance(reference, ModuleType) else sys.modules[reference.__module__]
        self.package = str(home.__package__)
        self._loaded: dict[str, Any] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.pick(args[0].device.type, *args)(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def pick(self, device: str, *inputs: Any) -> Any:
        """Return the implementation to use now: a kernel, or the reference if none fits or `use_reference` is on."""
        if _Switch.depth:
            return self.reference
        kernel = self.pick_kernel(device, *inputs)
        if kernel is None and self.slow:
            _warn_slow(self.package.rpartition(".")[2], device)
        return self.reference if kernel is None else kernel

    def pick_kernel(self, device: str, *inputs: Any) -> Any | None:
        """Return the first kernel that supports the inputs, even inside `use_reference`.

        A backward pass must use the kernel of its forward pass, wherever it runs.
        """
        for name in (*self.kernels.get(device, ()), *self.kernels.get("any", ())):
            if HAS_TRITON or not name.startswith("triton"):
                kernel = self._loaded.get(name) or self._loaded.setdefault(name, _load(self.package, name))
                if not hasattr(kernel, "serves") or kernel.serves(*inputs):
                    return kernel
        return None


def dispatched(**kernels: tuple[str, ...]) -> Callable[[Callable[P, R]], Dispatch[P, R]]:
    """Decorator: the function is the reference of an op, which these kernels replace where they can."""

    def wrap(reference: Callable[P, R]) -> Dispatch[P, R]:
        op = Dispatch(reference, slow=False, **kernels)
        update_wrapper(op, reference)
        return op

    return wrap


def serving(serves: Callable[..., bool]) -> Callable[[Kernel], Kernel]:
    """Decorator: the function is a kernel for the inputs (positional arguments) that `serves` accepts."""

    def mark(kernel: Kernel) -> Kernel:
        kernel.__dict__["serves"] = serves
        return kernel

    return mark


@contextmanager
def use_reference() -> Iterator[None]:
    """Context manager: every op on every device runs its reference, in all threads of the process.

    A backward pass uses the implementation of its forward pass, inside or outside. A captured CUDA graph keeps the
    implementation it was captured with. Blocks may be nested and may overlap between threads.
    """
    with _Switch.lock:
        _Switch.depth += 1
    try:
        yield
    finally:
        with _Switch.lock:
            _Switch.depth -= 1


def _load(package: str, name: str) -> Any:
    name, _, function = name.partition(":")
    module = import_module(f"{package}.{name}")
    return getattr(module, function) if function else module


@cache  # once per op and type of device
def _warn_slow(name: str, device: str) -> None:
    text = f"there is no fused {name} for {device}; the reference implementation runs instead and is slow"
    warnings.warn(text, SlowReferenceWarning, stacklevel=5)  # the caller of the op
