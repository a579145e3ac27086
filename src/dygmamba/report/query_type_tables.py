"""Results by query type (`tasks/query_types.py`): a section of a run's report, and a table of studies and comparisons.

Result rows of earlier versions have no types; they are left out.
"""

from collections.abc import Callable
from typing import Any

from dygmamba.report.document import Cell, ReportTable, Section
from dygmamba.report.result_records import ResultRecord, SeedValues
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS, format_metric, get_metric_title

METRICS = {name: get_metric_title(name) for name in ("ap", "mrr")}
EXPLANATION = (
    "The test events by what happened before: the two nodes had an event with each other, both had events but none "
    "with each other, or one of them had none at all. AP compares the events of a type with their own random pairs, "
    "all at once; MRR ranks a sample of them among random destinations. All values are percentages."
)


def build_query_type_section(results: list[dict[str, Any]], own: str) -> Section | None:
    """Show events, AP and MRR of the test by query type, for all nodes; None if the results have no types."""
    rows = [row for row in results if "by_type" in row and _is_shown(row)]
    mine = next((row["by_type"] for row in rows if row["model"] == own), None)
    if mine is None:
        return None
    columns = ("query type", "events", "AP", "AP of the best baseline", "MRR", "ranked events")
    rules = {row["model"]: row["by_type"] for row in rows if row["model"] != own}
    lines = []
    for name, label in QUERY_TYPE_LABELS.items():
        values = mine[name]
        others = [
            (by_type[name]["ap"], rule) for rule, by_type in rules.items() if by_type[name]["ap"] is not None
        ]
        ap, rule = max(others, default=(None, ""))
        lines.append(
            (
                Cell(label),
                Cell(f"{values['n']:,}"),
                Cell(format_metric("ap", values.get("ap"))),
                Cell(f"{format_metric('ap', ap)} {rule}".strip(), "soft"),
                Cell(format_metric("mrr", values.get("mrr"))),
                Cell(f"{values.get('ranked') or 0:,}"),
            )
        )
    return Section("Results by query type", EXPLANATION, (ReportTable("", "", columns, tuple(lines)),))


def build_query_type_table(
    records: list[ResultRecord], label: Callable[[ResultRecord], str]
) -> ReportTable | None:
    """Build a table of test AP and MRR by query type over seeds; None if no record has types.

    Args:
        records: Records of one dataset.
        label: Returns the row of a record; records of the same row differ in their seed.
    """
    found: dict[str, dict[int | None, dict[str, Any]]] = {}
    for record in records:
        for row in record.rows:
            if "by_type" in row and _is_shown(row):
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
    return ReportTable(title, EXPLANATION, tuple(columns), tuple(rows)).drop_empty_columns()


def _is_shown(row: dict[str, Any]) -> bool:
    shown = {"split": "test", "setting": "transductive", "negatives": "random"}
    return shown.items() <= row.items()
