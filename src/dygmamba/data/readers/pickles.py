"""TGB's pickled negatives, read without running any code of a file.

A pickle is a program for a stack machine (the module `pickletools` documents it), and anybody may have written the
file. Python's `pickle.Unpickler` reads it, kept from harm in two ways:

- Names lead to the functions of `ALLOWED_NAMES`, never to an import, so that `os.system` is just a word.
- Before, a scan of the instructions rejects what no replaced name prevents: a few bytes that make the machine take
  gigabytes, tuples nested so deep that hashing them overflows the C stack, and all instructions outside `OPCODES`.
"""

import gc
import io
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from reprlib import repr as short_repr  # bounded in depth too: values may share parts
from typing import Any, no_type_check

import numpy as np

from dygmamba.core.errors import FileError, first_line
from dygmamba.core.files.untrusted import require_regular_file

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

    def __setstate__(self, state: Any) -> None:
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

    def __setstate__(self, state: Any) -> None:
        """Set the values, as numpy pickles them: version, shape, dtype, whether in Fortran order, bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ForbiddenPickleError("an array without shape, dtype and bytes")
        _, shape, dtype, _, data = state
        self.values = _build_array(data, dtype, shape)


def _build_array(data: Any, dtype: Any, shape: Any) -> np.ndarray:
    """Build an array of one axis, or of none for a scalar."""
    is_plain = isinstance(dtype, PickledDtype) and isinstance(data, bytes | bytearray)
    if not is_plain or not isinstance(shape, tuple):
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


def _reject_call(*_: Any) -> Any:
    raise ForbiddenPickleError("a call of numpy.ndarray")


class AllowedFunction:
    """A function that a file may call, and not change: a state would set attributes of a plain function."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __setstate__(self, state: Any) -> None:
        raise ForbiddenPickleError("a state for a function")


ALLOWED_NAMES = {
    "numpy.dtype": AllowedFunction(PickledDtype),
    "numpy.ndarray": AllowedFunction(_reject_call),  # an argument of _reconstruct, never called
    "_codecs.encode": AllowedFunction(_encode_latin1),
    "__builtin__.bytes": AllowedFunction(lambda: b""),
} | {
    f"numpy.{core}.{name}": AllowedFunction(function)
    for core in ("core", "_core")
    for name, function in (
        ("multiarray._reconstruct", PickledArray),
        ("multiarray.scalar", _build_scalar),
        ("numeric._frombuffer", _build_from_buffer),
    )
}


class NegativesUnpickler(pickle.Unpickler):
    """Unpickler that knows only `ALLOWED_NAMES`."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full_name = f"{module}.{name}"
        if full_name not in ALLOWED_NAMES:
            raise ForbiddenPickleError(f"{full_name[:60]!r}")
        return ALLOWED_NAMES[full_name]


# protocols 2 to 5; none of these creates an instance of a class
OPCODES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 BINUNICODE SHORT_BINUNICODE BINUNICODE8
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
""".split()  # noqa: SIM905 (as a list it takes forty lines)
FORBIDDEN, LINES = -100, -50  # in place of the number of bytes of an argument
NOTHING, VALUE, LIST, DICT, TUPLE = range(5)  # what an instruction puts on the stack
MAX_DEPTH = 2  # of tuples: the state of an array holds its shape
MAX_MARKS = 16
HARMLESS, TRUNCATED = -1, -2
CODES = {name: getattr(pickle, name)[0] for name in OPCODES}
STOP, MARK, MEMOIZE, LONG1 = (CODES[name] for name in ("STOP", "MARK", "MEMOIZE", "LONG1"))
PUTS = (CODES["BINPUT"], CODES["LONG_BINPUT"])
GETS = (CODES["BINGET"], CODES["LONG_BINGET"])


def _describe_instructions() -> np.ndarray:
    """Return a row per instruction: bytes of its argument, values it takes, whether down to the mark, what it puts."""
    table = np.full((256, 4), FORBIDDEN, np.int64)
    sizes = {
        pickletools.UP_TO_NEWLINE: LINES,
        pickletools.TAKEN_FROM_ARGUMENT1: -1,
        pickletools.TAKEN_FROM_ARGUMENT4: -4,
        pickletools.TAKEN_FROM_ARGUMENT4U: -4,
        pickletools.TAKEN_FROM_ARGUMENT8U: -8,
    }
    kinds = {"list": LIST, "dict": DICT, "tuple": TUPLE}
    for op in pickletools.opcodes:
        if ord(op.code) in CODES.values():
            size = op.arg.n if op.arg is not None else 0
            before = [item.name for item in op.stack_before]
            put = kinds.get(op.stack_after[-1].name, VALUE) if op.stack_after else NOTHING
            taken = before.index("mark") if "mark" in before else len(before)
            table[ord(op.code)] = sizes.get(size, size), taken, "mark" in before, put
    return table


@no_type_check
def scan_instructions(data, table):  # noqa: C901 (one loop, in the subset that Numba compiles)
    """Return the position of the first instruction that is not allowed, else HARMLESS or TRUNCATED.

    It follows how deep tuples are nested, on the stack and in the memo. Lists and dictionaries must not be in tuples,
    and neither they nor tuples in lists.
    Where a file is wrong in another way the unpickler stops with an error, so that what follows does not matter.
    """
    stack = np.zeros(data.size + 1, np.uint8)  # depth of the values
    memo = np.zeros(data.size + 2, np.uint8)
    marks = np.zeros(MAX_MARKS, np.int64)
    top = marked = stored = at = 0
    while at < data.size:
        start, code = at, data[at]
        size, taken, to_mark, put = table[code]
        at += 1
        if size == FORBIDDEN:
            return start
        number = 0  # an argument: a length or a place in the memo
        if size == LINES:
            for _ in range(2):
                while at < data.size and data[at] != 10:
                    at += 1
                at += 1
        elif abs(size) > data.size - at:
            return TRUNCATED
        else:
            for k in range(abs(size)):
                number |= np.int64(data[at + k]) << (8 * k)
            at += abs(size)
            if size < 0 and (number < 0 or number > data.size - at):
                return TRUNCATED
            at += number if size < 0 else 0
        if code == STOP:
            return HARMLESS
        if code == LONG1 and number > 8:
            return start
        if code == MARK:
            if marked == MAX_MARKS:
                return start
            marks[marked] = top
            marked += 1
        elif code in PUTS or code == MEMOIZE:
            place = stored if code == MEMOIZE else number
            if top == 0 or place > stored + 1:  # the unpickler takes memory for all places up to the highest
                return start
            memo[place] = stack[top - 1]
            stored += 1
        else:
            if to_mark:
                if marked == 0:
                    return start
                marked -= 1
            base = (marks[marked] if to_mark else top) - taken
            if base < 0 or base > top or (code in GETS and number >= memo.size):
                return start
            depth = 0
            if put in (LIST, TUPLE):
                for k in range(base + (put == LIST), top):
                    depth = max(depth, stack[k])
                if depth > (0 if put == LIST else MAX_DEPTH - 1):
                    return start
            top = base
            if put != NOTHING:
                depth = depth + 1 if put == TUPLE else MAX_DEPTH if put in (LIST, DICT) else 0
                stack[top] = memo[number] if code in GETS else depth
                top += 1
    return TRUNCATED


@cache
def _compile_scan() -> Callable[..., int]:
    from dygmamba.ops.numba_kernels import kernel

    return kernel()(scan_instructions)


DAMAGED_PICKLE_ERRORS = (
    *(pickle.UnpicklingError, EOFError, OSError, MemoryError),
    *(LookupError, ValueError, TypeError, OverflowError),
)


def read_pickle(path: Path) -> dict[tuple[int | float, ...], Any]:
    """Read the dictionary in a pickle file; its values may be numbers, text, lists, tuples and `PickledArray`."""
    try:
        require_regular_file(path)
        content = _unpickle(path.read_bytes())
    except (ForbiddenPickleError, AttributeError) as error:
        reason = "a state or items for an object without" if isinstance(error, AttributeError) else error
        raise FileError(
            f"{path} contains {reason}, which no file of negatives needs; it may be harmful, so do not use it",
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


def _unpickle(data: bytes) -> Any:
    end = _compile_scan()(np.frombuffer(data, np.uint8), _describe_instructions())
    if end == TRUNCATED:
        raise EOFError
    if end != HARMLESS:
        raise ForbiddenPickleError(f"the instruction {chr(data[end])!r} at byte {end:,}")
    with _pause_garbage_collection():
        content = NegativesUnpickler(io.BytesIO(data)).load()
    for key in content if isinstance(content, dict) else ():
        if type(key) is not tuple or not all(map(_is_key_part, key)):
            raise ForbiddenPickleError(f"the key {short_repr(key)}, not a tuple of whole numbers")
    return content


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Context manager: no searching for cycles, which takes two thirds of the time while millions of objects appear."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_key_part(part: Any) -> bool:
    return (isinstance(part, int) or (isinstance(part, float) and part.is_integer())) and abs(part) <= MAX_KEY


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
    if array.dtype == np.int64:
        return array
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
