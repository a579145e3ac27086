"""Dictionaries of numbers and arrays out of pickle files, read without unpickling: nothing in a file is ever called.

A pickle is a program for a stack machine (Python's `pickletools` documents it), and one that anybody may have written.
This is that machine with the instructions of the arithmetic alone: numbers, strings, tuples, lists, dictionaries, and
what numpy writes for scalars and plain arrays. Names that a file asks for are looked up in a table of our own
functions (`pickled.py`), so that `os.system` is a word like any other. Every length is held against what is left of
the file.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.data.formats.pickled import FUNCTIONS, NAMES, Array, Dtype, Refused
from dygmamba.errors import FileError, first_line

MARK = object()
HALF, SHORT, WORD, LONG, DOUBLE = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))


class Reader:
    """The machine: bytes, a stack, a memo."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.stack, self.memo = data, 0, [], {}

    def run(self) -> Any:
        """What the file holds."""
        data, steps = self.data, STEPS
        while True:
            code = data[self.at]  # an IndexError where it ends too early
            self.at += 1
            if code == 0x2E:  # STOP
                return self.pop()
            step = steps[code]
            if step is None:
                raise Refused(f"the instruction {chr(code)!r}")
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
            raise Refused("a mark where a value belongs")
        return value

    def marked(self) -> list[Any]:
        """Everything above the last mark."""
        stack = self.stack
        for place in range(len(stack) - 1, -1, -1):
            if stack[place] is MARK:
                found = stack[place + 1 :]
                del stack[place:]
                return found
        raise Refused("a mark that is missing")

    def several(self, count: int) -> tuple[Any, ...]:
        """The last few, in their order."""
        found = tuple(self.stack[-count:])
        if len(found) != count or MARK in found:
            raise Refused("a mark where a value belongs")
        del self.stack[-count:]
        return found

    def remember(self, place: int) -> None:
        """The top, for later."""
        self.memo[place] = self.stack[-1]

    def named(self, module: Any, name: Any) -> None:
        """One of this module's own functions, if the file may have it."""
        word = f"{module} {name}"
        if word not in NAMES:
            raise Refused(f"'{word.replace(' ', '.')[:60]}'")
        self.push(NAMES[word])

    def call(self) -> None:
        """One of this module's functions, on values of the file's."""
        made, given = self.several(2)
        if made not in FUNCTIONS or not isinstance(given, tuple):
            raise Refused("a call of what is no function")
        self.push(made(*given))

    def build(self) -> None:
        """A state for an array or a kind."""
        state = self.pop()
        if not isinstance(self.stack[-1], Array | Dtype):
            raise Refused("a state for what has none")
        self.stack[-1].build(state)

    def fill(self, items: list[Any]) -> None:
        """Keys and values into the dictionary below."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise Refused("items without a dictionary")
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        """Items into the list below."""
        if not isinstance(self.stack[-1], list):
            raise Refused("items without a list")
        self.stack[-1].extend(items)


def _pushes(make: Callable[[Reader], Any]) -> Callable[[Reader], None]:
    return lambda reader: reader.push(make(reader))


def _long(reader: Reader) -> int:
    return int.from_bytes(reader.take(reader.byte()), "little", signed=True)


CODES: dict[str, Callable[[Reader], Any]] = {
    "\x80": lambda reader: reader.take(1),  # the protocol
    "\x95": lambda reader: reader.take(8),  # a frame
    "(": _pushes(lambda reader: MARK),
    "N": _pushes(lambda reader: None),
    "\x88": _pushes(lambda reader: True),
    "\x89": _pushes(lambda reader: False),
    "J": _pushes(lambda reader: reader.number(SHORT)),
    "K": _pushes(lambda reader: reader.byte()),
    "M": _pushes(lambda reader: reader.number(HALF)),
    "\x8a": _pushes(lambda reader: _long(reader)),
    "G": _pushes(lambda reader: reader.number(DOUBLE)),
    "B": _pushes(lambda reader: reader.take(reader.number(WORD))),
    "C": _pushes(lambda reader: reader.take(reader.byte())),
    "\x8e": _pushes(lambda reader: reader.take(reader.number(LONG))),
    "\x96": _pushes(lambda reader: reader.take(reader.number(LONG))),
    "X": _pushes(lambda reader: reader.take(reader.number(WORD)).decode("utf-8")),
    "\x8c": _pushes(lambda reader: reader.take(reader.byte()).decode("utf-8")),
    "\x8d": _pushes(lambda reader: reader.take(reader.number(LONG)).decode("utf-8")),
    ")": _pushes(lambda reader: ()),
    "]": _pushes(lambda reader: []),
    "}": _pushes(lambda reader: {}),
    "t": _pushes(lambda reader: tuple(reader.marked())),
    "\x85": _pushes(lambda reader: reader.several(1)),
    "\x86": _pushes(lambda reader: reader.several(2)),
    "\x87": _pushes(lambda reader: reader.several(3)),
    "\x94": lambda reader: reader.remember(len(reader.memo)),
    "q": lambda reader: reader.remember(reader.byte()),
    "r": lambda reader: reader.remember(reader.number(WORD)),
    "h": _pushes(lambda reader: reader.memo[reader.byte()]),
    "j": _pushes(lambda reader: reader.memo[reader.number(WORD)]),
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
STEPS = [CODES.get(chr(code)) for code in range(256)]


def read_numbers(path: Path) -> dict[Any, Any]:
    """The dictionary in a pickle file: keys of numbers and tuples, values of numbers, lists and arrays.

    Anything else is refused in one sentence, before any of it has done anything.
    """
    try:
        found = Reader(path.read_bytes()).run()
    except Refused as error:
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


def numbers_of(values: Any) -> np.ndarray:
    """One entry's whole numbers; floats that are whole are as good, as numpy makes them of empty parts."""
    array = values.values if isinstance(values, Array) else np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"{array.dtype}{list(array.shape)} is no list of nodes")
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError("a node is no whole number")
    return whole


def entries(path: Path) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The keys of a file of negatives, each with its nodes."""
    for key, values in read_numbers(path).items():
        try:
            if not isinstance(key, tuple) or not all(isinstance(part, int | float) for part in key):
                raise ValueError(f"the key {str(key)[:40]} is no tuple of numbers")
            yield key, numbers_of(values)
        except (ValueError, TypeError, OverflowError) as error:
            raise FileError(
                f"{path} holds other things than negatives ({first_line(error)}); copy it again"
            ) from None
