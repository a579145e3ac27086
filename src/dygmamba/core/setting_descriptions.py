"""Describe the settings of a config dataclass: default, type, bounds and meaning, as plain values."""

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin

from dygmamba.core.settings import get_setting_hints, split_bounds


def describe_settings(config: type) -> dict[str, dict[str, Any]]:
    """Return the settings of a config by name: default, type, bounds, and the meaning from the field's comment."""
    meanings = _read_meanings(config)
    return {
        field.name: {"default": _get_default(field), **describe_type(get_setting_hints(config)[field.name])}
        | ({"meaning": meanings[field.name]} if field.name in meanings else {})
        for field in fields(config)
    }


def describe_type(hint: Any) -> dict[str, Any]:
    """Return the type of a setting as plain values: `choices`, `list`, or `type` with `low` and `high`."""
    kind, bounds = split_bounds(hint)
    if get_origin(kind) is Literal:
        return {"choices": list(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"list": get_args(kind)[0].__name__}
    if bounds is None:
        return {"type": kind.__name__}
    open_ends = {end: True for end in ("above", "below") if getattr(bounds, end)}
    return {"type": kind.__name__, "low": bounds.low, "high": bounds.high} | open_ends


def describe_allowed(description: dict[str, Any]) -> str:
    """Return what a described setting may be, in a few words."""
    if "choices" in description:
        return ", ".join(map(str, description["choices"]))
    if "list" in description:
        return "a list of names"
    if "low" not in description:
        return {"bool": "true or false", "str": "a word"}.get(description["type"], "a number")
    low, high = (
        f"{end:,}" if isinstance(end, int) else f"{end:g}"
        for end in (description["low"], description["high"])
    )
    return f"{'above ' if 'above' in description else ''}{low} to {'below ' if 'below' in description else ''}{high}"


def _get_default(field: Any) -> Any:
    value = field.default_factory() if field.default is MISSING else field.default
    return list(value) if isinstance(value, tuple) else value


def _read_meanings(config: type) -> dict[str, str]:
    """Return the comments behind the fields of a dataclass and its parents; nothing for a class without source."""
    meanings: dict[str, str] = {}
    for parent in reversed(config.__mro__):
        if "__dataclass_fields__" not in vars(parent):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(parent))
        except (OSError, TypeError):
            continue
        for node in ast.parse(source).body[0].body:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(node, ast.AnnAssign):
                lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
                found = [comment for line in lines if (comment := line.partition("  # ")[2])]
                meanings |= {ast.unparse(node.target): " ".join(found)} if found else {}
    return meanings
