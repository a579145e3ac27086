"""What the names in a pickle of numbers lead to: functions of our own that make plain numbers and arrays of bytes."""

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

KIND = re.compile(r"[<>|=]?[biuf][1248]")  # numpy's words for plain numbers


class Refused(Exception):
    """An instruction or a name that has no place in a file of numbers."""


class Dtype:
    """A kind of number on its way to a numpy one."""

    __slots__ = ("numpy", "size", "word")

    def __init__(self, word: Any = "", *_: Any) -> None:
        if not isinstance(word, str) or not KIND.fullmatch(word):
            raise Refused(f"numbers of the kind {str(word)[:40]!r}")
        self._settle(word)

    def _settle(self, word: str) -> None:
        self.word, self.numpy = word, np.dtype(word)
        self.size = self.numpy.itemsize

    def build(self, state: Any) -> None:
        """What numpy adds: the order of the bytes."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        if order not in ("<", ">", "|", "="):
            raise Refused(f"bytes in the order {str(order)[:40]!r}")
        self._settle(f"{order}{self.word.lstrip('<>|=')}")


class Array:
    """An array on its way: its numbers come after it."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray | None = None) -> None:
        self.values = np.zeros(0) if values is None else values

    def build(self, state: Any) -> None:
        """What numpy adds: version, shape, kind, order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refused("an array without shape, kind and bytes")
        _, shape, kind, by_column, data = state
        self.values = _array(data, kind, shape, "F" if by_column else "C")


def _array(data: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(kind, Dtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise Refused("an array that is none of plain numbers")
    if not all(type(one) is int and one >= 0 for one in shape) or order not in ("C", "F"):
        raise Refused(f"an array of the shape {str(shape)[:40]}")
    if prod(shape) * kind.size != len(data):
        raise Refused(f"an array of the shape {str(shape)[:40]} in {len(data):,} bytes")
    flat = np.frombuffer(data, kind.numpy)
    return flat if len(shape) == 1 else flat.reshape(shape, order=order)


def _scalar(kind: Any, data: Any) -> int | float:
    if isinstance(kind, Dtype) and kind.word == "<i8" and isinstance(data, bytes) and len(data) == 8:
        return int.from_bytes(data, "little", signed=True)  # what nearly all of them are
    return _array(data, kind, ()).item()


def _frombuffer(data: Any, kind: Any, shape: Any, order: Any) -> Array:
    return Array(_array(data, kind, shape, order))


def _reconstruct(*_: Any) -> Array:
    return Array()


def _encode(text: Any, how: Any = "latin1") -> bytes:
    """How Python 2's protocols write bytes."""
    if not isinstance(text, str) or how != "latin1":
        raise Refused("text in an encoding")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """How they write none."""
    return b""


def _nothing(*_: Any) -> Any:
    raise Refused("a call of numpy.ndarray")


NAMES: dict[str, Callable[..., Any]] = {
    "numpy dtype": Dtype,
    "numpy ndarray": _nothing,  # is named as an argument, never called
    "_codecs encode": _encode,
    "__builtin__ bytes": _no_bytes,
} | {
    f"numpy.{core}.{module} {name}": made
    for core in ("core", "_core")
    for module, name, made in (
        ("multiarray", "_reconstruct", _reconstruct),
        ("multiarray", "scalar", _scalar),
        ("numeric", "_frombuffer", _frombuffer),
    )
}


FUNCTIONS = frozenset(NAMES.values())
