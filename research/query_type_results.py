"""Test AP of the shipped models by query type: where trees and networks differ.

An event between two nodes that met before, between known nodes that never met, or with a node without an earlier event.
"""

from pathlib import Path
from statistics import mean
from typing import Any

from dygmamba.report.result_records import ResultRecord
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS
from research.result_tables import STREAMS, find_records, format_rows, has_present_draw

MODELS = ("trees", "walk-trees", "dyg-mamba-counts", "dyg-mamba")


def build_query_type_table(folder: Path) -> str:
    """Build the table: per stream and query type the number of test events and the AP of each model, over seeds."""
    rows = []
    for data, title in STREAMS.items():
        records = {
            model: [
                record
                for record in find_records(folder, data, model, ("defaults",))
                if _get_types(record) and has_present_draw([record])
            ]
            for model in MODELS
        }
        for kind, label in QUERY_TYPE_LABELS.items():
            values = {
                model: [found[kind] for found in map(_get_types, own) if kind in found]
                for model, own in records.items()
            }
            counts = [value["n"] for found in values.values() for value in found]
            if counts:
                cells = [_format_mean([value["ap"] for value in found]) for found in values.values()]
                rows.append([title, label, f"{counts[0]:,}", *cells])
    return format_rows(["stream", "query", "test events", *(f"`{model}`" for model in MODELS)], rows)


def _get_types(record: ResultRecord) -> dict[str, Any]:
    """Return the figures by query type of all nodes with random negatives; empty in older records."""
    wanted = {"split": "test", "setting": "transductive", "negatives": "random"}
    row = next((row for row in record.rows if wanted.items() <= row.items()), {})
    return {kind: value for kind, value in row.get("by_type", {}).items() if value.get("ap") is not None}


def _format_mean(values: list[float]) -> str:
    return f"{100 * mean(values):.2f} ({len(values)})" if values else "-"
