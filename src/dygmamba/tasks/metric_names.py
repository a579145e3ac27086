"""How questions are asked for, and what they are called; known without torch, so that a slip is told at once."""

from dygmamba.core.errors import ConfigError

# what a setting is called where people read it: `inductive` also names negatives, and one word must not be two things
SETTING_LABELS = {"transductive": "all nodes", "inductive": "new nodes"}
DEFAULT_CANDIDATES = 100  # candidates that are drawn unless said otherwise
BOARD_CANDIDATES = "board"  # in place of a number of candidates: those that a dataset's scoreboard lists
NDCG_METRIC = "ndcg@10"  # of node properties
FORECAST_NAMES = ("persistent", "moving-average")  # what foresees them


def parse_hits_k(name: str) -> int:
    """The k of `hits@k`."""
    head, _, k = name.partition("@")
    if head != "hits" or not k.isascii() or not k.isdigit() or int(k) < 1:
        raise ConfigError(f"`metrics` takes ap, auc, mrr and hits@k such as hits@10; got '{name}'")
    return int(k)
