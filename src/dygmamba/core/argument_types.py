"""Check the arguments of public functions against their annotations, so that a wrong type is one sentence.

Only what can be checked cheaply is: classes, numbers, unions, and the items of short lists. Annotations that a module
imports for type checkers alone accept everything; their functions check such arguments themselves.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from itertools import islice
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from dygmamba.core.errors import ConfigError

MAX_ITEMS = 1000  # items of a list that are looked at
DESCRIPTIONS = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    Path: "a path",
    type: "a class",
    Callable: "a function",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a dict",
    tuple: "a tuple",
}
P = ParamSpec("P")
R = TypeVar("R")


class ArgumentTypeError(ConfigError, TypeError):
    """An argument of the wrong type."""

    code = "wrong-argument-type"


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: arguments that do not fit their annotations raise ArgumentTypeError."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            kind = signature.parameters[name].kind
            if kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                _check_argument(function, name, value)
        return function(*args, **kwargs)

    return checked


def _check_argument(function: Callable[..., Any], name: str, value: Any) -> None:
    annotation = _resolve_annotations(function).get(name, Any)
    if not fits(value, annotation):
        raise ArgumentTypeError(
            f"`{name}` of {function.__name__}() takes {describe(annotation)}; got {short_repr(value)} "
            f"({type(value).__name__})"
        )
    if isinstance(value, str | Path) and "\0" in str(value):
        raise ArgumentTypeError(f"`{name}` of {function.__name__}() has a null character; remove it")


@cache
def _resolve_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations that exist at run time, by parameter."""
    resolved = {}
    for name, annotation in inspect.get_annotations(function).items():
        try:
            text = isinstance(annotation, str)
            resolved[name] = eval(annotation, function.__globals__) if text else annotation
        except (NameError, TypeError):  # imported for type checkers only
            continue
    return resolved


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value has a type; numpy's integers are integers, integers are numbers, no boolean is."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(annotation))
    if annotation in (Any, object) or isinstance(annotation, TypeVar | str):
        return True
    if annotation is None:
        return value is None
    if annotation is bool:
        return _is_boolean(value)
    if annotation in (int, float):
        return _is_number(value, annotation)
    kind = origin or annotation
    if kind is Callable:
        return callable(value)
    if not isinstance(kind, type):  # Literal and other forms of no public function
        return True
    return isinstance(value, kind) and _items_fit(value, annotation)


def _is_boolean(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # Python's, and numpy's since and before 2.0


def _is_number(value: Any, kind: type) -> bool:
    if _is_boolean(value):
        return False
    if isinstance(value, int) or (hasattr(value, "__index__") and not hasattr(value, "__len__")):
        return True
    # numpy's and torch's numbers are arrays without axes
    is_scalar = hasattr(value, "dtype") and hasattr(value, "__float__") and getattr(value, "ndim", 1) == 0
    return kind is float and (isinstance(value, float) or is_scalar)


def _items_fit(value: Any, annotation: Any) -> bool:
    """Check the items of lists and tuples; iterators are left alone, because looking would use them up."""
    options = get_args(annotation)
    if not options or isinstance(value, str | Mapping | Iterator) or not isinstance(value, Iterable):
        # a string is a sequence of strings, which is never what was meant where a list is
        return not (isinstance(value, str | bytes) and get_origin(annotation) in (Sequence, tuple))
    if isinstance(value, tuple) and get_origin(annotation) is tuple and Ellipsis not in options:
        return len(value) == len(options) and all(map(fits, value, options))
    return all(fits(item, options[0]) for item in islice(value, MAX_ITEMS))


def describe(annotation: Any) -> str:
    """Describe a type in words."""
    if get_origin(annotation) in (Union, types.UnionType):
        options = [describe(option) for option in get_args(annotation)]
        return " or ".join(dict.fromkeys(options))
    kind, options = get_origin(annotation) or annotation, get_args(annotation)
    words = DESCRIPTIONS.get(kind, f"a {getattr(kind, '__name__', kind)}")
    if kind in (Iterable, Sequence, tuple) and options:
        items = describe(options[0]).removeprefix("a ").removeprefix("an ")
        words += f" of {items.replace(' or a ', ' or ').replace(' or an ', ' or ')}s"
    return words
