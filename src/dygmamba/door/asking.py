"""What is asked of the door, checked before anything heavy is imported: names, tasks, metrics, contradictions."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from dygmamba.errors import ConfigError
from dygmamba.tasks.asked import BOARD, FORECASTS, NDCG, SOME, hits_at

Names = str | Sequence[str]
TASKS = ("link", "node")
LOGS = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}  # logger: what to install
PAIRWISE = ("ap", "auc")  # against one negative each; always together, per batch and pooled


def chosen_names(parameter: str, given: Names, known: Iterable[str]) -> tuple[str, ...]:
    """A choice of known names: one, several in a sequence, or several in a string, separated by commas."""
    names = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    names = tuple(name for name in names if name)
    if not names or not set(names) <= set(known):
        raise ConfigError(
            f"`{parameter}` takes a comma-separated choice of {', '.join(known)}; got '{given}'"
        )
    return names


def check_task(task: str, given: dict[str, bool]) -> None:
    """Refuse a task that is none, and choices that a link run would have to ignore."""
    if task not in TASKS:
        raise ConfigError(f"`task` takes {' or '.join(TASKS)}, got '{task}'")
    wrong = [name for name, used in given.items() if used]
    if task == "link" and wrong:
        raise ConfigError(f"`{wrong[0]}` is an option of `task='node'`; add that or leave it out")


def check_backbone_decides(backbone: Any, **given: Any) -> None:
    """Refuse what a finished backbone has decided already."""
    for name, value in given.items():
        if backbone is not None and value is not None:
            raise ConfigError(
                f"`{name}` is the backbone's own; leave it out, or leave out `backbone` to train one"
            )


def asked_logs(log: Names | None) -> tuple[str, ...]:
    """The loggers that are asked for, each with its package; one that is missing is told before anything is trained."""
    if not log:
        return ()
    names = tuple(dict.fromkeys(chosen_names("log", log, LOGS)))
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"`log='{name}'` needs the package {name}, which is not installed; pip install {LOGS[name]}"
            )
    return names


def check_visible(visible: str | None) -> None:
    """Refuse a rule that is none."""
    if visible not in (None, "strict", "batch"):
        raise ConfigError(f"`visible` takes strict or batch, got '{visible}'")


def asked_metrics(
    metrics: Names | None, candidates: int | str | None, filtered: bool
) -> tuple[bool, tuple[str, ...], int | str | None]:
    """Whether AP and AUC are asked for, which metrics of ranks, and among how many candidates; None: all.

    "board" are those that a dataset's scoreboard lists.
    """
    given = ",".join(PAIRWISE) if metrics is None else metrics
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    ranks = tuple(dict.fromkeys(name for name in names if name not in PAIRWISE))
    for name in ranks:
        if name != "mrr":
            hits_at(name)
    if not ranks and (candidates is not None or filtered):
        raise ConfigError("`candidates` are of ranks; ask for them with `metrics`, such as mrr,hits@10")
    if candidates == BOARD and filtered:
        raise ConfigError("a scoreboard's `candidates` are listed; leave out `filtered`")
    return len(ranks) < len(set(names)), ranks, _count(candidates)


def asks_properties(metrics: Names | None, **given: Any) -> bool:
    """Whether node properties are asked for; with them goes nothing that is of links."""
    names = [part.strip() for part in metrics.split(",")] if isinstance(metrics, str) else list(metrics or ())
    if NDCG not in names:
        return False
    wrong = [name for name, value in given.items() if value]
    if len(set(names)) > 1 or wrong:
        what = f"`{wrong[0]}`" if wrong else "the other metrics"
        raise ConfigError(f"{NDCG} is of node properties; leave out {what}")
    return True


def check_forecast(model: str) -> None:
    """Refuse what foresees no node properties."""
    if model not in FORECASTS:
        raise ConfigError(f"{NDCG} takes `model` {' or '.join(FORECASTS)}, got '{model}'; choose one of them")


def _count(candidates: int | str | None) -> int | str | None:
    if candidates is None:
        return SOME
    if candidates == BOARD:
        return BOARD
    if candidates == "all":
        return None
    try:
        count = int(candidates)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(f"`candidates` takes a number of at least 1, 'all' or 'board', got '{candidates}'")
    return count
