"""Arguments of queries in Python: ids, rows and tables as the readers of queries take them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.argument_types import parse_ids
from dygmamba.core.errors import ConfigError


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
    """Return ids as one column: integers if all are and fit into 64 bits, otherwise strings."""
    ids = parse_ids(name, values)
    if not ids:
        raise ConfigError(f"`{name}` is empty; give at least one id", code="no-ids")
    whole = all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in ids)
    return pa.array(ids, pa.int64()) if whole else pa.array(list(map(str, ids)), pa.large_string())


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
