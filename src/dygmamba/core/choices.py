"""Names that settings and options accept, readable without torch.

Every other list of these names, in options, help texts and tables, is derived from these. The registries that implement
the names are elsewhere; `tests/models/test_configs.py` compares them with these lists.
"""

from collections.abc import Iterable
from typing import Literal

from dygmamba.core.errors import ConfigError

Strategy = Literal["recent", "uniform", "time_aware"]  # of neighbor sampling
Visibility = Literal["strict", "batch"]  # which earlier events a memory may know
LossName = Literal["pairwise", "ranking"]
TargetKind = Literal["binary", "classes", "regression"]  # of node labels
# Training negatives, those of stored runs too: the last two corrected the loss for the odds of sampling.
StoredNegativesName = Literal["random", "historical", "mixed", "mixed-odds", "popular-odds"]
LawName = Literal["exponential", "power", "stretched", "never"]  # of forgetting, in generated streams
BestMetric = Literal["ap", "mrr"]  # of the validation, which chooses the best epoch

PUBLISHED_NEGATIVES = ("random", "historical", "inductive")  # of the published protocol and its studies
NEGATIVES = PUBLISHED_NEGATIVES  # all samplers; options accept and tables show them
VARIANTS = ("frozen", "warm", "refit")  # of a model in a backtest
SPLITS = ("val", "test")
SCOPES = ("transductive", "inductive")
FORMATS = (
    *("auto", "csv", "jsonl", "parquet", "arrow", "sqlite", "duckdb"),
    *("jodie", "dyglib", "npz", "tgb", "tgb-seq"),
)
# ticks per second; auto: detected from their size, plain: numbers that do not count from 1970
TIME_UNITS = {"auto": 0, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000, "plain": 0}


def check_choice(parameter: str, given: str, known: Iterable[str]) -> str:
    """Return one known name; raise ConfigError for any other."""
    *names, last = known
    if given not in (*names, last):
        raise ConfigError(
            f"`{parameter}` takes {', '.join(names)} or {last}, got '{given}'",
            code=f"unknown-{parameter.replace('_', '-')}",
        )
    return given
