"""Settings with bounds: a config dataclass declares what each value may be, and accepts nothing else."""

import sys
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dygmamba.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed range of a number, as in `Annotated[int, Bounds(1, 100)]`; `above` and `below` exclude its ends."""

    low: float
    high: float
    above: bool = False  # `low` itself is refused
    below: bool = False  # `high` itself is refused

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


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value converted to its declared type (int to float, list to tuple), or raise ConfigError."""
    kind, bounds = split_bounds(hint)
    if not _matches_type(value, kind):
        raise ConfigError(
            f"{name} must be {_describe_type(kind)}, got {_show_value(value)}", code="setting-of-wrong-type"
        )
    if bounds is not None and (violated := bounds.describe_violation(value)):
        raise ConfigError(
            f"{name} must be {violated}, got {_show_value(value)}", code="setting-out-of-bounds"
        )
    if kind is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _show_value(value: Any) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # Python does not write out integers of thousands of digits
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
