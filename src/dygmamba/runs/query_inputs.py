"""Arguments of queries in Python: ids, rows and tables as the readers of queries take them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.argument_types import ArgumentTypeError, short_repr
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.id_values import parse_id


def require_positive(k: int) -> None:
    if k < 1:
        raise ConfigError(f"`k` must be at least 1, got {k}", code="k-not-positive")


def as_sources(name: str, nodes: Any) -> Any:
    """Return a file or table as it is, one id or several as a column of sources."""
    if isinstance(nodes, Path | Mapping) or hasattr(nodes, "columns"):
        return nodes
    if isinstance(nodes, Sequence) and nodes and isinstance(nodes[0], tuple | list):
        return list(nodes)
    return {"src": as_id_column(name, nodes)}


def as_id_column(name: str, values: Any) -> pa.Array:
    """Return one id or several as a column of text; raise ArgumentTypeError for what is no id."""
    values = [values] if isinstance(values, str | int) else values
    if not isinstance(values, Iterable) or isinstance(values, bytes):
        raise ArgumentTypeError(f"`{name}` takes ids; got {short_repr(values)} ({type(values).__name__})")
    ids = []
    for value in values:
        try:
            ids.append(parse_id(value, any_id=True))
        except ValueError as error:
            raise ArgumentTypeError(
                f"`{name}` takes ids, strings or integers; got {short_repr(value)} ({type(value).__name__})"
            ) from error
    return pa.array(ids, pa.large_string())


def as_pairs(pairs: Any) -> Any:
    """Return a list of dicts as a dict of columns, with ids as text where they are not all alike; others stay."""
    if not isinstance(pairs, Sequence) or not pairs or not all(isinstance(row, Mapping) for row in pairs):
        return pairs
    names = dict.fromkeys(name for row in pairs for name in row)
    columns = {name: [row.get(name) for row in pairs] for name in names}
    return {
        name: [None if value is None else str(value) for value in values]
        if {type(value) for value in values} == {int, str}
        else values
        for name, values in columns.items()
    }
