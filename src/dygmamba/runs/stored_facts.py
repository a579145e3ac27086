"""Dataset facts in config.toml: those of a run that started from another one, whose model was built with them."""

from math import isfinite
from pathlib import Path
from typing import Any

from dygmamba.core.errors import FileError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.data.events.event_store import EventStore
from dygmamba.models.base import DatasetFacts

MAX_NUMERIC, MAX_VALUES = 32, 64  # columns, and values of a categorical column, that a model reads at most
NUMBERS = ("gap_mean", "start", "node_gap", "period")
PAIRS = ("src_gap", "dst_gap")


def describe_facts(facts: DatasetFacts) -> dict[str, Any]:
    """Return the section of a config file, which `read_facts` parses; sizes follow from the dataset."""
    columns = facts.columns.first(MAX_NUMERIC, MAX_CODE_COLUMNS, MAX_VALUES)
    own = facts.node_columns.first(MAX_NUMERIC, MAX_CODE_COLUMNS, MAX_VALUES)
    return {
        **{name: getattr(facts, name) for name in NUMBERS},
        **{name: list(getattr(facts, name)) for name in PAIRS},
        **_describe_columns(columns),
        **({"edge_scale": list(facts.edge_scale)} if facts.edge_scale else {}),
        **({f"node_{name}": part for name, part in _describe_columns(own).items()} if own else {}),
    }


def _describe_columns(columns: ColumnFacts) -> dict[str, Any]:
    return {
        "numeric": [[one.index, one.name, one.mean, one.deviation] for one in columns.numeric],
        "types": [[one.index, one.name, list(one.codes), list(one.values)] for one in columns.types],
    }


def read_facts(section: dict[str, Any], store: EventStore, path: Path) -> DatasetFacts:
    """Return the facts of a section, with the sizes of a stream; `path` is the run, for messages."""
    try:
        return _parse_facts(section, store)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{path}/config.toml has an incomplete section [facts] ({error!r:.80}); restore it or train again",
            code="damaged-config",
        ) from error


def _parse_facts(section: dict[str, Any], store: EventStore) -> DatasetFacts:
    numbers: dict[str, Any] = {name: _number(section[name]) for name in NUMBERS}
    numbers |= {name: tuple(_number(value) for value in section[name]) for name in PAIRS}
    features, rows = store.features, store.features.node_rows
    scale = tuple(_number(value) for value in section.get("edge_scale", ()))
    if scale and (len(scale) != features.edge.shape[1] or min(scale) <= 0):
        raise ValueError("edge_scale needs a factor above 0 for each edge feature")
    columns = _parse_columns(
        section["numeric"], section["types"], features.edge.shape[1], features.categories
    )
    own = _parse_columns(
        section.get("node_numeric", []),
        section.get("node_types", []),
        0 if rows is None else len(rows.names),
        () if rows is None else rows.categories,
    )
    if min(numbers["node_gap"], numbers["period"], numbers["gap_mean"]) <= 0 or any(
        len(numbers[name]) != 2 or numbers[name][1] <= 0 for name in PAIRS
    ):
        raise ValueError("a time that must be above 0 is not")
    return DatasetFacts(
        num_nodes=store.num_nodes,
        node_dim=features.node.shape[1],
        edge_dim=features.edge.shape[1],
        **numbers,
        columns=columns,
        node_columns=own,
        edge_scale=scale,
    )


def _parse_columns(numeric: Any, types: Any, count: int, categories: tuple[Category, ...]) -> ColumnFacts:
    """Parse the columns of events or of nodes, of which a stream has `count` numeric and these categorical ones."""
    numbers = tuple(
        NumericColumn(_index(index, count), str(name), _number(mean), _number(deviation))
        for index, name, mean, deviation in numeric
    )
    words = tuple(
        TypeColumn(
            _index(index, len(categories)),
            str(name),
            tuple(_index(code, len(categories[index].values)) for code in codes),
            tuple(map(str, values)),
        )
        for index, name, codes, values in types
    )
    if any(column.deviation <= 0 for column in numbers) or any(
        len(column.codes) != len(column.values) for column in words
    ):
        raise ValueError("a column has values that none has")
    return ColumnFacts(numbers, words)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r:.40} is not a finite number")
    return float(value)


def _index(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{value!r:.40} is not a number from 0 to {count - 1}")
    return value
