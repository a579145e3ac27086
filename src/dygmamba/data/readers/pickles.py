"""TGB's pickled negatives, read without running anything that a file asks for.

A pickle is a program for a stack machine (the module `pickletools` documents it), and anybody may have written the
file. `NegativesUnpickler` is Python's own machine, `pickle._Unpickler`, reduced to numbers, strings, tuples, lists,
dictionaries, and what numpy writes for scalars and plain arrays:

- Instructions outside `OPCODES` are rejected, among them all that create instances of classes.
- Names lead to functions of this module (`ALLOWED_NAMES`), never to an import, so that `os.system` is just a word.
- Every length is bounded by the file, and dictionary keys are checked before they are hashed.

`pickle.Unpickler`, written in C, cannot be reduced this way: see docs/decisions/038-pickles.md.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from reprlib import (
    repr as short_repr,
)  # bounded in depth too: values may share parts and be exponentially long
from typing import Any

import numpy as np

from dygmamba.core.errors import FileError, first_line

NUMBER_DTYPE = re.compile(r"[<>|=]?[biuf][1248]")


class ForbiddenPickleError(Exception):
    """An instruction, name or value that a file of negatives does not need."""


class PickledDtype:
    """Stands for `numpy.dtype`; plain numbers only."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: Any = "", *_: Any) -> None:
        if not isinstance(name, str) or not NUMBER_DTYPE.fullmatch(name):
            raise ForbiddenPickleError(f"the dtype {short_repr(name)}")
        self.name, self.dtype = name, np.dtype(name)

    def set_state(self, state: Any) -> None:
        """Set the byte order, as numpy pickles it: the second item."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        if order not in ("<", ">", "|", "="):
            raise ForbiddenPickleError(f"the byte order {short_repr(order)}")
        self.name = f"{order}{self.name.lstrip('<>|=')}"
        self.dtype = np.dtype(self.name)


class PickledArray:
    """Stands for `numpy.ndarray`; its state comes after it."""

    __slots__ = ("values",)

    def __init__(self, *_: Any) -> None:
        self.values = np.zeros(0)

    def set_state(self, state: Any) -> None:
        """Set the values, as numpy pickles them: version, shape, dtype, whether in Fortran order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ForbiddenPickleError("an array without shape, dtype and bytes")
        _, shape, dtype, is_fortran, data = state
        self.values = _build_array(data, dtype, shape, "F" if is_fortran else "C")


def _build_array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(dtype, PickledDtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise ForbiddenPickleError("an array of something other than plain numbers")
    if not all(type(size) is int and size >= 0 for size in shape) or order not in ("C", "F"):
        raise ForbiddenPickleError(f"an array of shape {short_repr(shape)}")
    if prod(shape) * dtype.dtype.itemsize != len(data):
        raise ForbiddenPickleError(f"an array of shape {short_repr(shape)} in {len(data):,} bytes")
    flat = np.frombuffer(data, dtype.dtype)
    return flat if len(shape) == 1 else flat.reshape(shape, order=order)


def _build_scalar(dtype: Any, data: Any) -> int | float:
    # nearly all scalars are 64-bit integers
    if isinstance(dtype, PickledDtype) and dtype.name == "<i8" and isinstance(data, bytes) and len(data) == 8:
        return int.from_bytes(data, "little", signed=True)
    return _build_array(data, dtype, ()).item()


def _build_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    array = PickledArray()
    array.values = _build_array(data, dtype, shape, order)
    return array


def _encode_latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """Build bytes as protocol 2 pickles them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ForbiddenPickleError("text in an encoding")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    return b""


def _reject_call(*_: Any) -> Any:
    raise ForbiddenPickleError("a call of numpy.ndarray")


ALLOWED_NAMES: dict[str, Callable[..., Any]] = {
    "numpy.dtype": PickledDtype,
    "numpy.ndarray": _reject_call,  # an argument of _reconstruct, never called
    "_codecs.encode": _encode_latin1,
    "__builtin__.bytes": _empty_bytes,
} | {
    f"numpy.{core}.{name}": function
    for core in ("core", "_core")
    for name, function in (
        ("multiarray._reconstruct", PickledArray),
        ("multiarray.scalar", _build_scalar),
        ("numeric._frombuffer", _build_from_buffer),
    )
}
OPCODES = b"".join(
    (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
        *(
            pickle.BINBYTES,
            pickle.SHORT_BINBYTES,
            pickle.BINBYTES8,
            pickle.BYTEARRAY8,
            pickle.READONLY_BUFFER,
        ),
        *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
        *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
        *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
        *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
        *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
    )
)


class _Dispatch(dict):
    def __missing__(self, code: int) -> Any:
        raise ForbiddenPickleError(f"the instruction {chr(code)!r}")


class NegativesUnpickler(pickle._Unpickler):
    """Unpickler of dictionaries of numbers; give it a file in memory, whose reads cannot allocate beyond it."""

    dispatch = _Dispatch((code, pickle._Unpickler.dispatch[code]) for code in OPCODES)
    # the inherited method allocates whatever length the file names
    dispatch[pickle.BYTEARRAY8[0]] = pickle._Unpickler.load_binbytes8

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full_name = f"{module}.{name}"
        if full_name not in ALLOWED_NAMES:
            raise ForbiddenPickleError(f"{full_name[:60]!r}")
        return ALLOWED_NAMES[full_name]

    def load_build(self) -> None:
        # the inherited method sets any attribute of any object, functions of this module included
        state = self.stack.pop()
        if not isinstance(self.stack[-1], PickledArray | PickledDtype):
            raise ForbiddenPickleError("a state for an object that has none")
        self.stack[-1].set_state(state)

    dispatch[pickle.BUILD[0]] = load_build

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    dispatch[pickle.SETITEMS[0]] = load_setitems

    def _set_items(self, items: list[Any]) -> None:
        keys = items[::2]
        for key in keys:
            # hashing a tuple of a million nested tuples would overflow the C stack
            if type(key) is not tuple or not all(isinstance(part, int | float) for part in key):
                raise ForbiddenPickleError(f"the key {short_repr(key)}, not a tuple of numbers")
        if not isinstance(self.stack[-1], dict):
            raise ForbiddenPickleError("items without a dictionary")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))


DAMAGED_PICKLE_ERRORS = (
    *(pickle.UnpicklingError, struct.error, EOFError, OSError),
    *(LookupError, ValueError, TypeError, AttributeError, OverflowError),
)


def read_pickle(path: Path) -> dict[tuple[int | float, ...], Any]:
    """Read the dictionary in a pickle file; its values may be numbers, text, lists, tuples and `PickledArray`."""
    try:
        content = NegativesUnpickler(io.BytesIO(path.read_bytes())).load()
    except ForbiddenPickleError as error:
        raise FileError(
            f"{path} asks for {error}, which a file of negatives does not need; do not use it",
            code="forbidden-pickle",
        ) from None
    except DAMAGED_PICKLE_ERRORS as error:
        raise FileError(
            f"{path} is not a complete file of negatives ({first_line(error)}); copy it again",
            code="file-damaged",
        ) from None
    if not isinstance(content, dict):
        raise FileError(
            f"{path} does not hold a dictionary of negatives; give TGB's ..._ns.pkl", code="not-negatives"
        )
    return content


def parse_nodes(values: Any) -> np.ndarray:
    """Convert the value of one key to node numbers; whole floats count, as numpy makes them of empty lists."""
    if isinstance(values, PickledArray):
        array = values.values
    elif isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values):
        array = np.asarray(values)  # flat: nested lists that share parts could be exponentially large
    else:
        raise ValueError(f"{short_repr(values)} is not a list of nodes")
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"{array.dtype}{list(array.shape)} is not a list of nodes")
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError("a node is not a whole number")
    return whole


def iter_negatives(path: Path) -> Iterator[tuple[tuple[int | float, ...], np.ndarray]]:
    """Iterate over the keys of a file of negatives, each with its nodes."""
    for key, values in read_pickle(path).items():
        try:
            yield key, parse_nodes(values)
        except (ValueError, TypeError, OverflowError) as error:
            raise FileError(
                f"{path} holds other things than negatives ({first_line(error)}); copy it again",
                code="not-negatives",
            ) from None
