"""Dataset facts in config.toml: those of a run that started from another one, whose model was built with them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.settings import load
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
    features, rows = store.features, store.features.node_rows
    sizes = {
        "num_nodes": store.num_nodes,
        "node_dim": features.node.shape[1],
        "edge_dim": features.edge.shape[1],
    }
    try:
        columns = {
            "columns": _name_entries(section["numeric"], section["types"]),
            "node_columns": _name_entries(section.get("node_numeric", []), section.get("node_types", [])),
            "edge_scale": section.get("edge_scale", []),
        }
        facts = load(DatasetFacts, sizes | {name: section[name] for name in (*NUMBERS, *PAIRS)} | columns)
        own = (0, ()) if rows is None else (len(rows.names), rows.categories)
        if not (
            _has_valid_times(facts)
            and len(facts.edge_scale) in (0, facts.edge_dim)
            and min(facts.edge_scale, default=1) > 0
            and _is_of_stream(facts.columns, facts.edge_dim, features.categories)
            and _is_of_stream(facts.node_columns, *own)
        ):
            raise ValueError("a number is none of this stream")
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise FileError(
            f"{path}/config.toml has an incomplete section [facts] ({error!r:.80}); restore it or train again",
            code="damaged-config",
        ) from error
    return facts


def _name_entries(numeric: Any, types: Any) -> dict[str, Any]:
    """Return the columns of events or of nodes with the names of their fields, which are not stored."""
    return {
        part: [dict(zip([field.name for field in fields(kind)], row, strict=True)) for row in rows]
        for part, kind, rows in (("numeric", NumericColumn, numeric), ("types", TypeColumn, types))
    }


def _has_valid_times(facts: DatasetFacts) -> bool:
    pairs = (facts.src_gap, facts.dst_gap)
    return all(len(pair) == 2 and pair[1] > 0 for pair in pairs) and (
        min(facts.node_gap, facts.period, facts.gap_mean) > 0
    )


def _is_of_stream(columns: ColumnFacts, count: int, categories: tuple[Category, ...]) -> bool:
    """Return whether a stream with `count` numeric and these categorical columns has these ones."""
    return all(0 <= one.index < count and one.deviation > 0 for one in columns.numeric) and all(
        0 <= one.index < len(categories)
        and len(one.codes) == len(one.values)
        and all(0 <= code < len(categories[one.index].values) for code in one.codes)
        for one in columns.types
    )
