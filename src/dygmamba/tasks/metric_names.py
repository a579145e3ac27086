"""Names of metrics, settings and candidate sets; importable without torch, so that mistakes are reported at once."""

from collections.abc import Iterable, Iterator
from typing import Any

from dygmamba.core.errors import ConfigError
from dygmamba.data.catalogue.known_datasets import BENCHMARKS, normalize_name

# Labels of the settings in tables and reports: "inductive" also names a negative sampler, which would be confusing.
SETTING_LABELS = {"transductive": "all nodes", "inductive": "new nodes"}
# Types of events by what their nodes did before (`tasks/query_types.py`)
QUERY_TYPE_LABELS = {
    "repeated_pair": "repeated pair",
    "new_pair": "new pair of known nodes",
    "new_node": "pair with a new node",
}
# What negatives and candidates are drawn from (`drawn_from` in a result row): all destinations, as in DyGLib, also
# those that occur later; or the nodes of events strictly before the query
WHOLE_STREAM, EARLIER_EVENTS = "whole stream", "earlier events"
DEFAULT_CANDIDATES = 100  # candidates sampled per event by default
BOARD_CANDIDATES = "board"  # instead of a number of candidates: those listed by the dataset's leaderboard

ERROR_SUFFIX = "_se"  # of the name of a metric: its standard error
METRIC_TITLES = {
    "macro_f1": "macro-F1",
    "accuracy": "accuracy",
    "mae": "MAE",
    "rmse": "RMSE",
}
ERROR_METRICS = ("mae", "rmse")  # in the unit of the labels, lower is better; all others are shares of 1
NODE_METRICS = {  # by the kind of the target, the one that selects the best epoch first
    "binary": ("auc", "ap"),
    "classes": ("macro_f1", "accuracy"),
    "regression": ("mae", "rmse"),
}


CONSTANT_PREFIX = "constant_"  # metrics of the best constant prediction, beside those of a model of nodes
CONSTANT_TITLES = {"classes": "most frequent class", "regression": "median or mean"}  # of the training period


def list_changes(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return what was changed of the usual evaluation, in a few words each; every table of results says it."""
    return list(dict.fromkeys(text for row in rows for text in _list_row_changes(row)))


def _list_row_changes(row: dict[str, Any]) -> Iterator[str]:
    split_by, protocol = row.get("split_by"), row.get("protocol")
    if split_by:
        yield f"split by {split_by}"
    elif row.get("setting"):  # of link prediction; a row without a protocol has DyGLib's
        protocol = protocol or "benchmark"
    usual = "benchmark" if normalize_name(row.get("dataset", "")) in BENCHMARKS else "time"
    if protocol and protocol != usual:
        yield f"protocol {protocol}"
    if row.get("drawn_with_seed") is not None:
        yield f"drawn with seed {row['drawn_with_seed']}"
    yield from (f"{name}={value}" for name, value in (row.get("settings") or {}).items())
    if row.get("activity_weight"):
        yield "with the activity rate of the source"
    if row.get("query_columns"):
        yield "each query carries the columns of its event"


def get_metric_title(name: str) -> str:
    """Return the name of a metric in tables."""
    return METRIC_TITLES.get(name, name.upper())


def get_metric_scale(name: str) -> float:
    """Return the factor by which a metric is shown: 100 for per cent, 1 for errors in the unit of the labels."""
    return 1.0 if name in ERROR_METRICS else 100.0


def get_metric_unit(name: str) -> str:
    """Return what is written behind the name of a metric."""
    return "" if name in ERROR_METRICS else " (%)"


def is_rank_metric(name: str) -> bool:
    """Return whether a name in a result row is that of a ranking metric, not of its standard error."""
    return name.startswith(("mrr", "hits@")) and not name.endswith(ERROR_SUFFIX)


def parse_hits_k(name: str) -> int:
    """Return the k of a metric name `hits@k`; raise ConfigError for any other name."""
    head, _, k = name.partition("@")
    if head != "hits" or not k.isascii() or not k.isdigit() or int(k) < 1:
        raise ConfigError(
            f"`metrics` takes ap, auc, mrr and hits@k such as hits@10; got '{name}'", code="unknown-metric"
        )
    return int(k)
