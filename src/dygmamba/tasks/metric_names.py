"""The metrics and how they are shown, and names of settings and candidate sets.

It is importable without torch, so that mistakes are reported at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

from dygmamba.core.errors import ConfigError
from dygmamba.data.catalogue.known_datasets import BENCHMARKS, normalize_name

# Labels of the settings in tables and reports: "inductive" also names a negative sampler, which would be confusing.
SCOPE_LABELS = {"transductive": "all nodes", "inductive": "new nodes"}
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
MetricGroup = Literal["pairs", "ranks", "probabilities", "losses", "nodes"]
ShownIn = Literal["line", "summary", "table"]


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is shown; `tasks/metrics.py` computes it.

    Attributes:
        title: Its name in tables.
        group: What it is computed from: scores of pairs, ranks among candidates, calibrated probabilities (also
            their losses), or predictions of labels.
        shown: The shortest text that has it: a line about an epoch or a run, a summary (in a notebook, a card), or only
            tables. A longer text has what a shorter one has.
        is_share: Whether it is a share of 1, shown in per cent; others are shown in their own unit.
        lower_is_better: Whether it is an error.
        hub_name: Its name in the metadata of the Hugging Face Hub; empty if it is not written there.
    """

    title: str
    group: MetricGroup
    shown: ShownIn = "table"
    is_share: bool = True
    lower_is_better: bool = False
    hub_name: str = ""


# All metrics, in the order of columns: the rows of a result, its tables and pages, summaries, cards and loggers.
METRICS = {
    "ap": Metric("AP", "pairs", "line", hub_name="average_precision"),
    "auc": Metric("AUC", "pairs", "line", hub_name="roc_auc"),
    "ap_pooled": Metric("AP pooled", "pairs"),
    "auc_pooled": Metric("AUC pooled", "pairs"),
    "mrr": Metric("MRR", "ranks", "summary", hub_name="mrr"),
    "hits@10": Metric("Hits@10", "ranks", "summary", hub_name="hits@10"),
    "ece": Metric("ECE", "probabilities", "summary", lower_is_better=True),
    "ece_raw": Metric("ECE of logits", "probabilities", lower_is_better=True),
    "log_loss": Metric("log loss", "losses", is_share=False, lower_is_better=True),
    "macro_f1": Metric("macro-F1", "nodes", "line"),
    "accuracy": Metric("accuracy", "nodes", "line"),
    "mae": Metric("MAE", "nodes", "line", is_share=False, lower_is_better=True),
    "rmse": Metric("RMSE", "nodes", "summary", is_share=False, lower_is_better=True),
}
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


def find_metric(name: str) -> Metric:
    """Return how a metric is shown; `hits@k` has a k of the user's."""
    return METRICS.get(name) or Metric(name.capitalize().replace("_", " "), "ranks")


def list_metrics(*groups: MetricGroup, shown: ShownIn = "table") -> tuple[str, ...]:
    """Return the names of the metrics of these groups, of all without any, that a text of this length shows."""
    longer = {"line": ("line",), "summary": ("line", "summary"), "table": ("line", "summary", "table")}[shown]
    return tuple(
        name for name, one in METRICS.items() if (not groups or one.group in groups) and one.shown in longer
    )


def get_metric_title(name: str) -> str:
    """Return the name of a metric in tables."""
    return find_metric(name).title


def get_metric_scale(name: str) -> float:
    """Return the factor by which a metric is shown: 100 for per cent."""
    return 100.0 if find_metric(name).is_share else 1.0


def get_metric_unit(name: str) -> str:
    """Return what is written behind the name of a metric."""
    return " (%)" if find_metric(name).is_share else ""


def format_metric(name: str, value: float | None, spread: float | None = None) -> str:
    """Format a metric: a share in per cent, another one in its unit; ± a standard deviation or error if it is known."""
    if value is None:
        return "-"
    if not find_metric(name).is_share:
        return f"{value:.4g}" + ("" if spread is None else f" ± {spread:.2g}")
    return f"{100 * value:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def format_seeds(name: str, values: Sequence[float], error: float | None = None) -> str:
    """Format a metric of several seeds as mean ± standard deviation, a single value with its standard error."""
    if not values:
        return format_metric(name, None)
    return format_metric(name, mean(values), stdev(values) if len(values) > 1 else error)


def is_rank_metric(name: str) -> bool:
    """Return whether a name in a result row is that of a ranking metric, not of its standard error."""
    return (name.startswith("hits@") and not name.endswith(ERROR_SUFFIX)) or name in list_metrics("ranks")


def parse_hits_k(name: str) -> int:
    """Return the k of a metric name `hits@k`; raise ConfigError for any other name."""
    head, _, k = name.partition("@")
    if head != "hits" or not k.isascii() or not k.isdigit() or int(k) < 1:
        raise ConfigError(
            f"`metrics` takes ap, auc, mrr and hits@k such as hits@10; got '{name}'", code="unknown-metric"
        )
    return int(k)
