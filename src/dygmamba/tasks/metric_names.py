"""Names of metrics, settings and candidate sets; importable without torch, so that mistakes are reported at once."""

from dygmamba.core.errors import ConfigError

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


def get_metric_title(name: str) -> str:
    """Return the name of a metric in tables."""
    return METRIC_TITLES.get(name, name.upper())


def get_metric_scale(name: str) -> float:
    """Return the factor by which a metric is shown: 100 for per cent, 1 for errors in the unit of the labels."""
    return 1.0 if name in ERROR_METRICS else 100.0


def get_metric_unit(name: str) -> str:
    """Return what is written behind the name of a metric."""
    return "" if name in ERROR_METRICS else " (%)"


def parse_hits_k(name: str) -> int:
    """Return the k of a metric name `hits@k`; raise ConfigError for any other name."""
    head, _, k = name.partition("@")
    if head != "hits" or not k.isascii() or not k.isdigit() or int(k) < 1:
        raise ConfigError(
            f"`metrics` takes ap, auc, mrr and hits@k such as hits@10; got '{name}'", code="unknown-metric"
        )
    return int(k)
