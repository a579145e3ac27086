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
DEFAULT_CANDIDATES = 100  # candidates sampled per event by default
BOARD_CANDIDATES = "board"  # instead of a number of candidates: those listed by the dataset's leaderboard
NDCG_METRIC = "ndcg@10"  # metric of node property prediction
FORECAST_NAMES = ("persistent", "moving-average")  # its baselines


def parse_hits_k(name: str) -> int:
    """Return the k of a metric name `hits@k`; raise ConfigError for any other name."""
    head, _, k = name.partition("@")
    if head != "hits" or not k.isascii() or not k.isdigit() or int(k) < 1:
        raise ConfigError(
            f"`metrics` takes ap, auc, mrr and hits@k such as hits@10; got '{name}'", code="unknown-metric"
        )
    return int(k)
