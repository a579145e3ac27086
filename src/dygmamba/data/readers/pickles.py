"""What the names in a pickle of numbers lead to: functions of our own that make plain numbers and arrays of bytes.

Dictionaries of numbers and arrays out of pickle files, read without unpickling: nothing in a file is ever called.

A pickle is a program for a stack machine (Python's `pickletools` documents it), and one that anybody may have written.
This is that machine with the instructions of the arithmetic alone: numbers, strings, tuples, lists, dictionaries, and
what numpy writes for scalars and plain arrays. Names that a file asks for are looked up in a table of our own
functions (`pickled.py`), so that `os.system` is a word like any other. Every length is held against what is left of
the file.
"""

import re
import struct
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.errors import FileError, first_line

NUMBER_DTYPE = re.compile(r"[<>|=]?[biuf][1248]")  # numpy's words for plain numbers


class ForbiddenPickleError(Exception):
    """An instruction or a name that has no place in a file of numbers."""


class PickledDtype:
    """A kind of number on its way to a numpy one."""

    __slots__ = ("numpy", "size", "word")

    def __init__(self, word: Any = "", *_: Any) -> None:
        if not isinstance(word, str) or not NUMBER_DTYPE.fullmatch(word):
            raise ForbiddenPickleError(f"numbers of the kind {str(word)[:40]!r}")
        self._settle(word)

    def _settle(self, word: str) -> None:
        self.word, self.numpy = word, np.dtype(word)
        self.size = self.numpy.itemsize

    def build(self, state: Any) -> None:
        """What numpy adds: the order of the bytes."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        if order not in ("<", ">", "|", "="):
            raise ForbiddenPickleError(f"bytes in the order {str(order)[:40]!r}")
        self._settle(f"{order}{self.word.lstrip('<>|=')}")


class PickledArray:
    """An array on its way: its numbers come after it."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray | None = None) -> None:
        self.values = np.zeros(0) if values is None else values

    def build(self, state: Any) -> None:
        """What numpy adds: version, shape, kind, order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ForbiddenPickleError("an array without shape, kind and bytes")
        _, shape, kind, by_column, data = state
        self.values = _build_array(data, kind, shape, "F" if by_column else "C")


def _build_array(data: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(kind, PickledDtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise ForbiddenPickleError("an array that is none of plain numbers")
    if not all(type(one) is int and one >= 0 for one in shape) or order not in ("C", "F"):
        raise ForbiddenPickleError(f"an array of the shape {str(shape)[:40]}")
    if prod(shape) * kind.size != len(data):
        raise ForbiddenPickleError(f"an array of the shape {str(shape)[:40]} in {len(data):,} bytes")
    flat = np.frombuffer(data, kind.numpy)
    return flat if len(shape) == 1 else flat.reshape(shape, order=order)


def _build_scalar(kind: Any, data: Any) -> int | float:
    if isinstance(kind, PickledDtype) and kind.word == "<i8" and isinstance(data, bytes) and len(data) == 8:
        return int.from_bytes(data, "little", signed=True)  # what nearly all of them are
    return _build_array(data, kind, ()).item()


def _build_from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    return PickledArray(_build_array(data, kind, shape, order))


def _reconstruct(*_: Any) -> PickledArray:
    return PickledArray()


def _encode_latin1(text: Any, how: Any = "latin1") -> bytes:
    """How Python 2's protocols write bytes."""
    if not isinstance(text, str) or how != "latin1":
        raise ForbiddenPickleError("text in an encoding")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """How they write none."""
    return b""


def _reject_call(*_: Any) -> Any:
    raise ForbiddenPickleError("a call of numpy.ndarray")


ALLOWED_NAMES: dict[str, Callable[..., Any]] = {
    "numpy dtype": PickledDtype,
    "numpy ndarray": _reject_call,  # is named as an argument, never called
    "_codecs encode": _encode_latin1,
    "__builtin__ bytes": _empty_bytes,
} | {
    f"numpy.{core}.{module} {name}": made
    for core in ("core", "_core")
    for module, name, made in (
        ("multiarray", "_reconstruct", _reconstruct),
        ("multiarray", "scalar", _build_scalar),
        ("numeric", "_frombuffer", _build_from_buffer),
    )
}


ALLOWED_FUNCTIONS = frozenset(ALLOWED_NAMES.values())


MARK = object()
HALF, SHORT, WORD, LONG, DOUBLE = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))


class PickleReader:
    """The machine: bytes, a stack, a memo."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.stack, self.memo = data, 0, [], {}

    def run(self) -> Any:
        """What the file holds."""
        data, steps = self.data, OPCODE_TABLE
        while True:
            code = data[self.at]  # an IndexError where it ends too early
            self.at += 1
            if code == 0x2E:  # STOP
                return self.pop()
            step = steps[code]
            if step is None:
                raise ForbiddenPickleError(f"the instruction {chr(code)!r}")
            step(self)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        found = self.data[self.at : self.at + count]
        if count < 0 or len(found) != count:
            raise EOFError("it ends too early")
        self.at += count
        return found

    def byte(self) -> int:
        """The next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def number(self, form: struct.Struct) -> Any:
        """The next number, as struct has it."""
        return form.unpack(self.take(form.size))[0]

    def line(self) -> str:
        """The text up to the end of the line."""
        end = self.data.find(b"\n", self.at, self.at + 4096)
        if end < 0:
            raise EOFError("a line without an end")
        text = self.data[self.at : end].decode("utf-8")
        self.at = end + 1
        return text

    def push(self, value: Any) -> None:
        """On top of the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """From the top, never a mark."""
        value = self.stack.pop()
        if value is MARK:
            raise ForbiddenPickleError("a mark where a value belongs")
        return value

    def marked(self) -> list[Any]:
        """Everything above the last mark."""
        stack = self.stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is MARK:
                found = stack[place + 1 :]
                del stack[place:]
                return found
        raise ForbiddenPickleError("a mark that is missing")

    def several(self, count: int) -> tuple[Any, ...]:
        """The last few, in their order."""
        found = tuple(self.stack[-count:])
        if len(found) != count or MARK in found:
            raise ForbiddenPickleError("a mark where a value belongs")
        del self.stack[-count:]
        return found

    def remember(self, place: int) -> None:
        """The top, for later."""
        self.memo[place] = self.stack[-1]

    def named(self, module: Any, name: Any) -> None:
        """One of this module's own functions, if the file may have it."""
        word = f"{module} {name}"
        if word not in ALLOWED_NAMES:
            raise ForbiddenPickleError(f"'{word.replace(' ', '.')[:60]}'")
        self.push(ALLOWED_NAMES[word])

    def call(self) -> None:
        """One of this module's functions, on values of the file's."""
        made, given = self.several(2)
        if made not in ALLOWED_FUNCTIONS or not isinstance(given, tuple):
            raise ForbiddenPickleError("a call of what is no function")
        self.push(made(*given))

    def build(self) -> None:
        """A state for an array or a kind."""
        state = self.pop()
        if not isinstance(self.stack[-1], PickledArray | PickledDtype):
            raise ForbiddenPickleError("a state for what has none")
        self.stack[-1].build(state)

    def fill(self, items: list[Any]) -> None:
        """Keys and values into the dictionary below."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ForbiddenPickleError("items without a dictionary")
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        """Items into the list below."""
        if not isinstance(self.stack[-1], list):
            raise ForbiddenPickleError("items without a list")
        self.stack[-1].extend(items)


def _push_result(make: Callable[[PickleReader], Any]) -> Callable[[PickleReader], None]:
    return lambda reader: reader.push(make(reader))


def _read_long(reader: PickleReader) -> int:
    return int.from_bytes(reader.take(reader.byte()), "little", signed=True)


OPCODES: dict[str, Callable[[PickleReader], Any]] = {
    "\x80": lambda reader: reader.take(1),  # the protocol
    "\x95": lambda reader: reader.take(8),  # a frame
    "(": _push_result(lambda reader: MARK),
    "N": _push_result(lambda reader: None),
    "\x88": _push_result(lambda reader: True),
    "\x89": _push_result(lambda reader: False),
    "J": _push_result(lambda reader: reader.number(SHORT)),
    "K": _push_result(lambda reader: reader.byte()),
    "M": _push_result(lambda reader: reader.number(HALF)),
    "\x8a": _push_result(lambda reader: _read_long(reader)),
    "G": _push_result(lambda reader: reader.number(DOUBLE)),
    "B": _push_result(lambda reader: reader.take(reader.number(WORD))),
    "C": _push_result(lambda reader: reader.take(reader.byte())),
    "\x8e": _push_result(lambda reader: reader.take(reader.number(LONG))),
    "\x96": _push_result(lambda reader: reader.take(reader.number(LONG))),
    "X": _push_result(lambda reader: reader.take(reader.number(WORD)).decode("utf-8")),
    "\x8c": _push_result(lambda reader: reader.take(reader.byte()).decode("utf-8")),
    "\x8d": _push_result(lambda reader: reader.take(reader.number(LONG)).decode("utf-8")),
    ")": _push_result(lambda reader: ()),
    "]": _push_result(lambda reader: []),
    "}": _push_result(lambda reader: {}),
    "t": _push_result(lambda reader: tuple(reader.marked())),
    "\x85": _push_result(lambda reader: reader.several(1)),
    "\x86": _push_result(lambda reader: reader.several(2)),
    "\x87": _push_result(lambda reader: reader.several(3)),
    "\x94": lambda reader: reader.remember(len(reader.memo)),
    "q": lambda reader: reader.remember(reader.byte()),
    "r": lambda reader: reader.remember(reader.number(WORD)),
    "h": _push_result(lambda reader: reader.memo[reader.byte()]),
    "j": _push_result(lambda reader: reader.memo[reader.number(WORD)]),
    "c": lambda reader: reader.named(reader.line(), reader.line()),
    "\x93": lambda reader: reader.named(*reader.several(2)),
    "R": lambda reader: reader.call(),
    "b": lambda reader: reader.build(),
    "s": lambda reader: reader.fill(list(reader.several(2))),
    "u": lambda reader: reader.fill(reader.marked()),
    "a": lambda reader: reader.extend([reader.pop()]),
    "e": lambda reader: reader.extend(reader.marked()),
    "\x97": lambda reader: None,  # bytes that came beside the file: there are none
}
OPCODE_TABLE = [OPCODES.get(chr(code)) for code in range(256)]


def read_pickle(path: Path) -> dict[Any, Any]:
    """The dictionary in a pickle file: keys of numbers and tuples, values of numbers, lists and arrays.

    Anything else is refused in one sentence, before any of it has done anything.
    """
    try:
        found = PickleReader(path.read_bytes()).run()
    except ForbiddenPickleError as error:
        raise FileError(
            f"{path} asks for {error}, which a file of negatives has no need of; do not use it"
        ) from None
    except (LookupError, EOFError, ValueError, TypeError, OverflowError, struct.error, OSError) as error:
        raise FileError(
            f"{path} is not a whole file of negatives ({first_line(error)}); copy it again"
        ) from None
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no dictionary of negatives; give TGB's ..._ns.pkl")
    return found


def parse_nodes(values: Any) -> np.ndarray:
    """One entry's whole numbers; floats that are whole are as good, as numpy makes them of empty parts."""
    array = values.values if isinstance(values, PickledArray) else np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"{array.dtype}{list(array.shape)} is no list of nodes")
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError("a node is no whole number")
    return whole


def iter_negatives(path: Path) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The keys of a file of negatives, each with its nodes."""
    for key, values in read_pickle(path).items():
        try:
            if not isinstance(key, tuple) or not all(isinstance(part, int | float) for part in key):
                raise ValueError(f"the key {str(key)[:40]} is no tuple of numbers")
            yield key, parse_nodes(values)
        except (ValueError, TypeError, OverflowError) as error:
            raise FileError(
                f"{path} holds other things than negatives ({first_line(error)}); copy it again"
            ) from None
