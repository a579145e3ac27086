"""Checks of what the files of a run may hold: a valid checksum says who wrote a file last, not that it makes sense."""

from math import inf
from typing import Annotated, Any

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Bounds, check_value, get_setting_hints
from dygmamba.engine.run_section import RunSection
from dygmamba.tasks.metric_names import CONSTANT_PREFIX, METRICS, QUERY_TYPE_LABELS

MAX_ITEMS, MAX_DEPTH = 1_000_000, 4  # of lists
# entries of the rows of results.json and metrics.jsonl
TEXTS = (
    "dataset", "model", "run", "protocol", "train_negatives", "split", "setting", "negatives", "visible", "sentence",
    "target",
)  # fmt: skip
COUNTS = ("batch", "n", "epoch", "positives", "classes")
SHARES = [
    f"{prefix}{name}"
    for name, metric in METRICS.items()
    if metric.is_share
    for prefix in ("", "val_", CONSTANT_PREFIX)
]
# NaN is the AUC of a period without positives
ROW_HINTS: dict[str, Any] = {
    **dict.fromkeys(TEXTS, str),
    **dict.fromkeys(COUNTS, Annotated[int, Bounds(0, 2**63 - 1)]),
    **dict.fromkeys(SHARES, Annotated[float, Bounds(0, 1, nan=True)]),
}
OTHER_NUMBER = Annotated[float, Bounds(-inf, inf, nan=True)]


def find_config_fault(sections: dict[str, Any]) -> str | None:
    """Return what is wrong with the sections of a configuration, in words; None if every value can be used."""
    for name, settings in sections.items():
        if not isinstance(settings, dict):
            return "it has settings outside of sections"
        for key, value in settings.items():
            if not _is_plain(value):
                return f"[{name}] {key!r:.60} is not a plain value"
    hints, about = get_setting_hints(RunSection), sections.get("run", {})
    try:
        for key in about.keys() & hints.keys():
            check_value(f"[run] {key}", about[key], hints[key])
    except ConfigError as error:
        return str(error)
    return None


def _is_plain(value: Any, depth: int = 0, is_json: bool = False) -> bool:
    """Return whether a value is plain, or a list of such values; in JSON None and objects of them are too."""
    items = (
        value if isinstance(value, list) else value.values() if is_json and isinstance(value, dict) else None
    )
    if items is None:
        return isinstance(value, bool | int | float | str) or (is_json and value is None)
    is_small = depth < MAX_DEPTH and len(items) <= MAX_ITEMS
    return is_small and all(_is_plain(item, depth + 1, is_json) for item in items)


def is_plain_object(value: Any) -> bool:
    """Return whether a value of JSON is an object of plain values, None, and lists and objects of them."""
    return isinstance(value, dict) and _is_plain(value, is_json=True)


def is_result_row(row: Any) -> bool:
    """Return whether a value can be a row of results or of metrics: known entries have their types.

    Rows are flat, except for the metrics of each query type.
    """
    return isinstance(row, dict) and all(_is_result_value(name, value) for name, value in row.items())


def _is_result_value(name: str, value: Any) -> bool:
    if name == "by_type":
        return (
            isinstance(value, dict)
            and set(value) == set(QUERY_TYPE_LABELS)
            and all(map(is_result_row, value.values()))
        )
    if value is None:
        return name in SHARES or name not in ROW_HINTS
    if name not in ROW_HINTS and isinstance(value, str | bool):
        return True
    try:
        check_value(name, value, ROW_HINTS.get(name, OTHER_NUMBER))
    except ConfigError:
        return False
    return True
