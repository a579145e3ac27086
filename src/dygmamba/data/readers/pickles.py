"""TGB's pickled negatives, read without running any code of a file.

A pickle is a program for a stack machine (the module `pickletools` documents it), and anybody may have written the
file. `NegativesUnpickler` is Python's own machine, `pickle._Unpickler`, reduced to numbers, strings, tuples, lists,
dictionaries, and what numpy writes for scalars and plain arrays:

- Instructions outside `OPCODES` are rejected, among them all that create instances of classes.
- Names lead to functions of this module (`ALLOWED_NAMES`), never to an import, so that `os.system` is just a word.
- Every length is bounded by the file, and dictionary keys are checked before they are hashed.
- Lists hold numbers only, and tuples nest as deep as the state of an array does: once.

`pickle.Unpickler`, written in C, cannot be reduced this way: see decision 038 in docs/research/decisions.md.
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
from dygmamba.core.files.untrusted import require_regular_file

MAX_AXES = 32  # of numpy; only a shape is a tuple in a tuple
MAX_KEY = 1 << 63  # larger numbers share their hashes with small ones, which makes dictionaries slow
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
        _, shape, dtype, _, data = state
        self.values = _build_array(data, dtype, shape)


def _build_array(data: Any, dtype: Any, shape: Any) -> np.ndarray:
    """Build an array of one axis, or of none for a scalar."""
    if not isinstance(dtype, PickledDtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise ForbiddenPickleError("an array of something other than plain numbers")
    if len(shape) > 1 or any(type(size) is not int or size < 0 for size in shape):
        raise ForbiddenPickleError(f"an array of shape {short_repr(shape)}")
    if prod(shape) * dtype.dtype.itemsize != len(data):
        raise ForbiddenPickleError(f"an array of shape {short_repr(shape)} in {len(data):,} bytes")
    return np.frombuffer(data, dtype.dtype).reshape(shape)


def _build_scalar(dtype: Any, data: Any) -> int | float:
    # nearly all scalars are 64-bit integers
    if isinstance(dtype, PickledDtype) and dtype.name == "<i8" and isinstance(data, bytes) and len(data) == 8:
        return int.from_bytes(data, "little", signed=True)
    return _build_array(data, dtype, ()).item()


def _build_from_buffer(data: Any, dtype: Any, shape: Any, _order: Any) -> PickledArray:
    array = PickledArray()
    array.values = _build_array(data, dtype, shape)
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
# protocols 2 to 5; none of these creates an instance of a class
OPCODES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 READONLY_BUFFER BINUNICODE SHORT_BINUNICODE BINUNICODE8
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
""".split()  # noqa: SIM905 (as a list it takes forty lines)


class _Dispatch(dict):
    def __missing__(self, code: int) -> Any:
        raise ForbiddenPickleError(f"the instruction {chr(code)!r}")


class NegativesUnpickler(pickle._Unpickler):
    """Unpickler of dictionaries of numbers; give it a file in memory, whose reads cannot allocate beyond it."""

    # inherited, but unknown to type checkers
    stack: list[Any]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    dispatch = _Dispatch(
        (code, pickle._Unpickler.dispatch[code]) for code in (getattr(pickle, name)[0] for name in OPCODES)
    )
    # the method for bytearrays allocates whatever length the file names; the one for bytes reads first
    dispatch[pickle.BYTEARRAY8[0]] = dispatch[pickle.BINBYTES8[0]]

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full_name = f"{module}.{name}"
        if full_name not in ALLOWED_NAMES:
            raise ForbiddenPickleError(f"{full_name[:60]!r}")
        return ALLOWED_NAMES[full_name]

    def load_frame(self) -> None:
        self.read(8)  # the length of the frame; reading through frames only costs time

    dispatch[pickle.FRAME[0]] = load_frame

    def load_build(self) -> None:
        # the inherited method sets any attribute of any object, functions of this module included
        state = self.stack.pop()
        if not isinstance(self.stack[-1], PickledArray | PickledDtype):
            raise ForbiddenPickleError("a state for an object that has none")
        self.stack[-1].set_state(state)

    dispatch[pickle.BUILD[0]] = load_build

    def load_tuple(self) -> None:
        self._push_tuple(self.pop_mark())

    dispatch[pickle.TUPLE[0]] = load_tuple

    def load_tuple1(self) -> None:
        self._push_tuple([self.stack.pop()])

    dispatch[pickle.TUPLE1[0]] = load_tuple1

    def load_tuple2(self) -> None:
        self._push_tuple([self.stack.pop() for _ in range(2)][::-1])

    dispatch[pickle.TUPLE2[0]] = load_tuple2

    def load_tuple3(self) -> None:
        self._push_tuple([self.stack.pop() for _ in range(3)][::-1])

    dispatch[pickle.TUPLE3[0]] = load_tuple3

    def _push_tuple(self, parts: list[Any]) -> None:
        for part in parts:
            if isinstance(part, list | dict) or (isinstance(part, tuple) and not _is_shape(part)):
                raise ForbiddenPickleError(f"a tuple of {short_repr(part)}")
        self.stack.append(tuple(parts))

    def load_append(self) -> None:
        self._extend([self.stack.pop()])

    dispatch[pickle.APPEND[0]] = load_append

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    dispatch[pickle.APPENDS[0]] = load_appends

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list) or not all(isinstance(item, int | float) for item in items):
            raise ForbiddenPickleError("a list of something other than numbers")
        self.stack[-1].extend(items)

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
            if type(key) is not tuple or not all(map(_is_key_part, key)):
                raise ForbiddenPickleError(f"the key {short_repr(key)}, not a tuple of whole numbers")
        if not isinstance(self.stack[-1], dict):
            raise ForbiddenPickleError("items without a dictionary")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))


def _is_shape(values: tuple[Any, ...]) -> bool:
    return len(values) <= MAX_AXES and all(isinstance(value, int) for value in values)


def _is_key_part(part: Any) -> bool:
    return (isinstance(part, int) or (isinstance(part, float) and part.is_integer())) and abs(part) <= MAX_KEY


DAMAGED_PICKLE_ERRORS = (
    *(pickle.UnpicklingError, struct.error, EOFError, OSError),
    *(LookupError, ValueError, TypeError, AttributeError, OverflowError),
)


def read_pickle(path: Path) -> dict[tuple[int | float, ...], Any]:
    """Read the dictionary in a pickle file; its values may be numbers, text, lists, tuples and `PickledArray`."""
    try:
        require_regular_file(path)
        content = NegativesUnpickler(io.BytesIO(path.read_bytes())).load()
    except ForbiddenPickleError as error:
        raise FileError(
            f"{path} contains {error}, which no file of negatives needs; it may be harmful, so do not use it",
            code="forbidden-pickle",
        ) from None
    except DAMAGED_PICKLE_ERRORS as error:
        reason = "it ends too early" if isinstance(error, EOFError) else first_line(error)
        raise FileError(
            f"{path} is not a complete file of negatives ({reason}); download or copy it again",
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
    with np.errstate(invalid="ignore"):  # NaN and infinity become some integer, which the comparison finds
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
                f"{path} holds other things than negatives ({first_line(error)}); download or copy it again",
                code="not-negatives",
            ) from None
