"""How annotated shapes are checked while tests run (see `addopts` in pyproject.toml).

jaxtyping's own decorator binds the arguments of every call and checks them twice, for better messages; that took up
to half of the time of a test. Here beartype checks arguments and result once. Only shapes that name an attribute
(`"{self.size}"`) need bound arguments, and the package has none.
"""

from functools import wraps
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator
from jaxtyping._storage import pop_shape_memo, push_shape_memo

# an int is a float, as in PEP 484; a TypeError is what Python raises for a wrong argument
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))
jaxtyped = _decorator.jaxtyped


def check_once(fn: Any = _decorator._sentinel, *, typechecker: Any) -> Any:
    """A function with checks; `jaxtyped` calls this again for the functions of a class or descriptor."""
    if not isinstance(fn, FunctionType):
        return jaxtyped(fn, typechecker=typechecker)
    own = fn.__annotations__
    # a name that only type checkers import is no hint, as in `jaxtyped`
    fn.__annotations__ = {
        name: _decorator._destring_annotation(hint, fn.__globals__) for name, hint in own.items()
    }
    checked = typechecker(fn)
    fn.__annotations__ = own

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call


jaxtyping.jaxtyped = _decorator.jaxtyped = check_once
