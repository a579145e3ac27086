"""Results by query type (`tasks/query_types.py`) of several models: a table of studies and comparisons.

Result rows of earlier versions have no types; they are left out.
"""

from typing import Any

from dygmamba.report.document import Cell, ReportTable
from dygmamba.report.result_records import RecordLabel, ResultRecord, SeedValues
from dygmamba.report.results import TYPE_EXPLANATION
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS, get_metric_title

SHOWN = {"split": "test", "setting": "transductive", "negatives": "random"}
METRICS = {name: get_metric_title(name) for name in ("ap", "mrr")}


def build_query_type_table(records: list[ResultRecord], label: RecordLabel) -> ReportTable | None:
    """Build a table of test AP and MRR by query type over seeds; None if no record has types.

    Args:
        records: Records of one dataset.
        label: Returns the row of a record; records of the same row differ in their seed.
    """
    found: dict[str, dict[int | None, dict[str, Any]]] = {}
    for record in records:
        for row in record.rows:
            if "by_type" in row and SHOWN.items() <= row.items():
                found.setdefault(label(record), {})[record.seed] = row["by_type"]
    if not found:
        return None
    counts = next(iter(next(iter(found.values())).values()))
    columns = ["model"]
    for name, title in QUERY_TYPE_LABELS.items():
        columns += [f"{title} ({counts[name]['n']:,} events): {metric}" for metric in METRICS.values()]
    rows = []
    for name, by_seed in found.items():
        cells = [Cell(name)]
        for query_type in QUERY_TYPE_LABELS:
            for metric in METRICS:
                values = {seed: own[query_type].get(metric) for seed, own in by_seed.items()}
                known = {seed: value for seed, value in values.items() if value is not None}
                cells.append(Cell(str(SeedValues(known)) if known else ""))
        rows.append(tuple(cells))
    title = f"{records[0].data}, all nodes, random negatives, by query type"
    return ReportTable(title, TYPE_EXPLANATION, tuple(columns), tuple(rows)).drop_empty_columns()
