"""Settings that know their bounds: a config's declaration says what each value may be, and no other is built."""

import sys
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dygmamba.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Bounds:
    """The interval of a number: `out: Annotated[int, Bounds(1, 100)]`; `above` and `below` leave an end out."""

    low: float
    high: float
    above: bool = False  # `low` itself is refused
    below: bool = False  # `high` itself is refused

    def describe_violation(self, value: float) -> str | None:
        """What the value is not, in words; None where it lies inside."""
        if value < self.low or (self.above and value == self.low):
            return f"{'above' if self.above else 'at least'} {_format_number(self.low)}"
        if value > self.high or (self.below and value == self.high):
            return f"{'below' if self.below else 'at most'} {_format_number(self.high)}"
        return None


def _format_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


# What most numbers of a model are. An upper end is where a larger value is a slip of the keyboard: one such row of
# entries, one matrix that wide or one stack that deep would already fill the memory of the machine.
MAX_LENGTH = 1_000_000
Length = Annotated[int, Bounds(1, MAX_LENGTH)]  # entries looked up for one node
Width = Annotated[int, Bounds(1, 100_000)]  # columns of an encoding
Count = Annotated[int, Bounds(1, 100)]  # layers, heads, taps
Rate = Annotated[float, Bounds(0, 1, below=True)]  # dropout, which must leave something
Share = Annotated[float, Bounds(0, 1)]


class Settings:
    """The base of config dataclasses: a value of the wrong type or out of its bounds is an error, however it came.

    A config with rules between its settings calls `Settings.__post_init__(self)` first in its own.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in get_setting_hints(type(self)).items():
            check_value(name, getattr(self, name), hint)


@cache
def get_setting_hints(kind: type) -> dict[str, Any]:
    """The settings of a config dataclass by name, each as it is declared."""
    return get_type_hints(kind, include_extras=True)


def split_bounds(hint: Any) -> tuple[Any, Bounds | None]:
    """A declaration's type and, where it has them, its bounds."""
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, bounds = get_args(hint)
    return kind, bounds


def check_value(name: str, value: Any, hint: Any) -> Any:
    """The value as what it is declared to be (a whole number is a number, a list a tuple), or a ConfigError."""
    kind, bounds = split_bounds(hint)
    if not _matches_type(value, kind):
        raise ConfigError(f"{name} must be {_describe_type(kind)}, got {_show_value(value)}")
    if bounds is not None and (broken := bounds.describe_violation(value)):
        raise ConfigError(f"{name} must be {broken}, got {_show_value(value)}")
    if kind is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _show_value(value: Any) -> str:
    """The value in a sentence; Python does not write out whole numbers of thousands of digits."""
    try:
        return repr(value)[:200]
    except ValueError:
        return "a number of too many digits"


def _matches_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(
            _matches_type(item, get_args(kind)[0]) for item in value
        )
    if isinstance(value, bool):
        return kind is bool
    if kind is float:  # no NaN, no infinity, no whole number beyond them
        return isinstance(value, float | int) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"a list, each item {_describe_type(get_args(kind)[0])}"
    return {float: "a finite number", int: "a whole number", str: "a word", bool: "true or false"}[kind]
