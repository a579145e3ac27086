"""Settings with bounds: a dataclass declares what each value may be, and accepts nothing else.

`load` builds such a dataclass from the plain values of a stored file, nested ones included.
"""

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dygmamba.core.errors import ConfigError

T = TypeVar("T")
WRONG_TYPE = "setting-of-wrong-type"
TYPE_NAMES: dict[Any, str] = {
    float: "a finite number",
    int: "a whole number",
    str: "a word",
    bool: "true or false",
    dict: "an object",
    Any: "a value",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed range of a number, as in `Annotated[int, Bounds(1, 100)]`; `above` and `below` exclude its ends."""

    low: float
    high: float
    above: bool = False  # `low` itself is refused
    below: bool = False  # `high` itself is refused
    nan: bool = False  # NaN is allowed, as the AUC of a period without positives

    def describe_violation(self, value: float) -> str | None:
        """Return the bound that a value violates, in words; None if it lies inside."""
        if value < self.low or (self.above and value == self.low):
            return f"{'above' if self.above else 'at least'} {_format_number(self.low)}"
        if value > self.high or (self.below and value == self.high):
            return f"{'below' if self.below else 'at most'} {_format_number(self.high)}"
        return None


def _format_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


# Types of most settings. The upper bounds catch typing errors: one row that long, one matrix that wide or one stack
# that deep would already fill the memory of the machine.
MAX_LENGTH = 1_000_000
Length = Annotated[int, Bounds(1, MAX_LENGTH)]  # events looked up for one node
Width = Annotated[int, Bounds(1, 100_000)]  # columns of an encoding
Count = Annotated[int, Bounds(1, 100)]  # layers, heads, taps
Rate = Annotated[float, Bounds(0, 1, below=True)]  # dropout, below 1
Share = Annotated[float, Bounds(0, 1)]


class Settings:
    """Base of config dataclasses that checks the type and the bounds of every value.

    A config with rules between its settings calls `Settings.__post_init__(self)` first in its own.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in get_setting_hints(type(self)).items():
            check_value(name, getattr(self, name), hint)


@cache
def get_setting_hints(kind: type) -> dict[str, Any]:
    """Return the declared types of a config dataclass by setting."""
    return get_type_hints(kind, include_extras=True)


def split_bounds(hint: Any) -> tuple[Any, Bounds | None]:
    """Return the type of a declaration, and its bounds or None."""
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, bounds = get_args(hint)
    return kind, bounds


def load(kind: type[T], values: Any) -> T:
    """Build a dataclass from plain values; raise ConfigError if one is missing, unknown or not of its declared type."""
    hints = get_setting_hints(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{kind.__name__} must be an object, got {_show_value(values)}", code=WRONG_TYPE)
    for name in values:
        if name not in hints:
            raise ConfigError(f"{kind.__name__} has no entry {name!r:.60}", code="unknown-setting")
    for field in fields(kind):  # pyright: ignore[reportArgumentType]
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{kind.__name__} needs an entry {field.name!r}", code="missing-setting")
    return kind(**{name: check_value(name, value, hints[name]) for name, value in values.items()})


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value converted to its declared type (int to float, list to tuple), or raise ConfigError.

    A dataclass is built of an object (`load`); of a union of None and a type, the type is checked.
    """
    kind, bounds = split_bounds(hint)
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
        return None if value is None else check_value(name, value, kind)
    if is_dataclass(kind):
        return load(kind, value)  # pyright: ignore[reportArgumentType]
    if get_origin(kind) in (list, tuple) and get_args(kind)[0] not in TYPE_NAMES:
        items = check_value(name, value, list[Any])
        return get_origin(kind)(check_value(name, item, get_args(kind)[0]) for item in items)
    if bounds is not None and bounds.nan and value != value:
        return value
    if not _matches_type(value, kind):
        raise ConfigError(f"{name} must be {_describe_type(kind)}, got {_show_value(value)}", code=WRONG_TYPE)
    if bounds is not None and (violated := bounds.describe_violation(value)):
        raise ConfigError(
            f"{name} must be {violated}, got {_show_value(value)}", code="setting-out-of-bounds"
        )
    if kind is float:
        return float(value)
    return tuple(value) if isinstance(value, list) and get_origin(kind) is tuple else value


def _show_value(value: Any) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # Python does not write out integers of thousands of digits
        return "a number of too many digits"


def _matches_type(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(
            _matches_type(item, get_args(kind)[0]) for item in value
        )
    if isinstance(value, bool):
        return kind in (bool, Any)
    if kind is float:  # no NaN, no infinity, no whole number beyond them
        return isinstance(value, float | int) and abs(value) <= sys.float_info.max
    return kind is Any or isinstance(value, origin or kind)


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return f"a list, each item {_describe_type(get_args(kind)[0])}"
    return TYPE_NAMES.get(get_origin(kind) or kind, "a value")
