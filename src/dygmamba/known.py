"""What can be known of models and settings without importing them: known.json, so that a slip is told at once.

`python -m dygmamba.lab.known_settings` (`make known`) writes it from the config dataclasses, and a test holds it to them.
Here a declaration becomes plain values and the other way round.
"""

import ast
import difflib
import inspect
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Iterable
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args, get_origin

from dygmamba.core.errors import NotFoundError
from dygmamba.core.settings import Bounds, get_setting_hints, split_bounds

FILE = "known.json"
GROUP = "dygmamba.models"  # of entry points; each one's object is a ModelSpec
KINDS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}


@cache
def known() -> dict[str, Any]:
    """Models, training loops, the generator and names that options take."""
    return json.loads(files("dygmamba").joinpath(FILE).read_text("utf-8"))


def named_models() -> list[str]:
    """Every model that a name leads to, without importing any: the package's, registered ones, and installed ones."""
    loaded = sys.modules.get("dygmamba.models")
    registered = [] if loaded is None else list(loaded.OUTSIDE)
    offered = [point.name for point in entry_points(group=GROUP)]
    return list(dict.fromkeys([*known()["models"], *registered, *offered]))


def require_model(name: str) -> dict[str, Any] | None:
    """What is known of a model; None of one from outside, which its own package knows."""
    names = named_models()
    if name not in names:
        raise unknown_model(name, names)
    return known()["models"].get(name)


def unknown_model(name: str, names: Iterable[str], came: str = "") -> NotFoundError:
    """The sentence for a name that is no model's."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    return NotFoundError(
        f"unknown model '{name}'{came}; {meant}choose from {', '.join(names)}, or `dygmamba.register` it"
    )


def described(kind: type) -> dict[str, dict[str, Any]]:
    """A config's settings by name: default, type, bounds and what the comment beside each says."""
    means = _meanings(kind)
    return {
        part.name: {"default": _default(part), **to_plain(get_setting_hints(kind)[part.name])}
        | ({"meaning": means[part.name]} if part.name in means else {})
        for part in fields(kind)
    }


def to_plain(hint: Any) -> dict[str, Any]:
    """A declaration as plain values."""
    kind, bounds = split_bounds(hint)
    ends = {}
    if bounds is not None:
        ends = {"low": bounds.low, "high": bounds.high} | {
            end: True for end in ("above", "below") if getattr(bounds, end)
        }
    if get_origin(kind) is Literal:
        return {"choices": list(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"list": get_args(kind)[0].__name__}
    return {"type": kind.__name__, **ends}


def to_hint(plain: dict[str, Any]) -> Any:
    """The declaration again."""
    if "choices" in plain:
        return Literal[tuple(plain["choices"])]
    if "list" in plain:
        return tuple[KINDS[plain["list"]], ...]
    kind = KINDS[plain["type"]]
    if "low" not in plain:
        return kind
    ends = {key: plain[key] for key in ("low", "high", "above", "below") if key in plain}
    return Annotated[kind, Bounds(**ends)]


def hints_of(described: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The declarations of settings that `described` described."""
    return {name: to_hint(plain) for name, plain in described.items()}


def allowed(plain: dict[str, Any]) -> str:
    """What a setting may be, in a few words."""
    if "choices" in plain:
        return ", ".join(map(str, plain["choices"]))
    if "list" in plain:
        return "a list of names"
    if "low" not in plain:
        return {"bool": "true or false", "str": "a word"}.get(plain["type"], "a number")
    low, high = (
        f"{plain[end]:,}" if isinstance(plain[end], int) else f"{plain[end]:g}" for end in ("low", "high")
    )
    return f"{'above ' if 'above' in plain else ''}{low} to {'below ' if 'below' in plain else ''}{high}"


def _default(part: Any) -> Any:
    value = part.default_factory() if part.default is MISSING else part.default
    return list(value) if isinstance(value, tuple) else value


def _meanings(kind: type) -> dict[str, str]:
    """The comments beside the fields of a dataclass and of its parents; none where there is no source."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one)) if "__dataclass_fields__" in vars(one) else ""
        except (OSError, TypeError):
            continue
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for line in ast.walk(ast.parse(source)):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                own = [
                    comments[at]
                    for at in range(line.lineno, (line.end_lineno or line.lineno) + 1)
                    if at in comments
                ]
                found |= {line.target.id: " ".join(own)} if own else {}
    return found
