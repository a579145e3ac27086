"""What is asked of the door, checked before anything heavy is imported: names, tasks, metrics, contradictions.

Which model is trained where none was named: one that ends in minutes on the machine at hand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from dygmamba.config import get_training_hints, is_preset_file, read_preset_file
from dygmamba.core.errors import ConfigError
from dygmamba.tasks.metric_names import (
    BOARD_CANDIDATES,
    DEFAULT_CANDIDATES,
    FORECAST_NAMES,
    NDCG_METRIC,
    parse_hits_k,
)

Names = str | Sequence[str]
MAX_HOURS = 24 * 365
TASKS = ("link", "node")
LOGGER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}  # logger: what to install
PAIRWISE_METRICS = ("ap", "auc")  # against one negative each; always together, per batch and pooled


def parse_names(parameter: str, given: Names, known: Iterable[str]) -> tuple[str, ...]:
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


def check_backbone_conflicts(backbone: Any, **given: Any) -> None:
    """Refuse what a finished backbone has decided already."""
    for name, value in given.items():
        if backbone is not None and value is not None:
            raise ConfigError(
                f"`{name}` is the backbone's own; leave it out, or leave out `backbone` to train one"
            )


def parse_loggers(log: Names | None) -> tuple[str, ...]:
    """The loggers that are asked for, each with its package; one that is missing is told before anything is trained."""
    if not log:
        return ()
    names = tuple(dict.fromkeys(parse_names("log", log, LOGGER_PACKAGES)))
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"`log='{name}'` needs the package {name}, which is not installed; pip install {LOGGER_PACKAGES[name]}"
            )
    return names


def check_visible(visible: str | None) -> None:
    """Refuse a rule that is none."""
    if visible not in (None, "strict", "batch"):
        raise ConfigError(f"`visible` takes strict or batch, got '{visible}'")


def parse_metrics(
    metrics: Names | None, candidates: int | str | None, filtered: bool
) -> tuple[bool, tuple[str, ...], int | str | None]:
    """Whether AP and AUC are asked for, which metrics of ranks, and among how many candidates; None: all.

    "board" are those that a dataset's scoreboard lists.
    """
    given = ",".join(PAIRWISE_METRICS) if metrics is None else metrics
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    ranks = tuple(dict.fromkeys(name for name in names if name not in PAIRWISE_METRICS))
    for name in ranks:
        if name != "mrr":
            parse_hits_k(name)
    if not ranks and (candidates is not None or filtered):
        raise ConfigError("`candidates` are of ranks; ask for them with `metrics`, such as mrr,hits@10")
    if candidates == BOARD_CANDIDATES and filtered:
        raise ConfigError("a scoreboard's `candidates` are listed; leave out `filtered`")
    return len(ranks) < len(set(names)), ranks, _parse_candidates(candidates)


def is_property_evaluation(metrics: Names | None, **given: Any) -> bool:
    """Whether node properties are asked for; with them goes nothing that is of links."""
    names = [part.strip() for part in metrics.split(",")] if isinstance(metrics, str) else list(metrics or ())
    if NDCG_METRIC not in names:
        return False
    wrong = [name for name, value in given.items() if value]
    if len(set(names)) > 1 or wrong:
        what = f"`{wrong[0]}`" if wrong else "the other metrics"
        raise ConfigError(f"{NDCG_METRIC} is of node properties; leave out {what}")
    return True


def check_forecast(model: str) -> None:
    """Refuse what foresees no node properties."""
    if model not in FORECAST_NAMES:
        raise ConfigError(
            f"{NDCG_METRIC} takes `model` {' or '.join(FORECAST_NAMES)}, got '{model}'; choose one of them"
        )


def _parse_candidates(candidates: int | str | None) -> int | str | None:
    if candidates is None:
        return DEFAULT_CANDIDATES
    if candidates == BOARD_CANDIDATES:
        return BOARD_CANDIDATES
    if candidates == "all":
        return None
    try:
        count = int(candidates)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(f"`candidates` takes a number of at least 1, 'all' or 'board', got '{candidates}'")
    return count


DEFAULT_NETWORK, DEFAULT_CPU_MODEL = "dyg-mamba", "trees"


class DeviceLike(Protocol):
    """What is asked of a device here: cpu, or what else it is."""

    @property
    def type(self) -> str:
        """Its kind."""
        ...


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, its size where that is not the published one, and why, in a sentence."""

    model: str
    size: str | None
    sentence: str
    surprising: bool = False  # whether someone who knows the paper would expect another


def choose_model(device: DeviceLike, task: str, settings: dict[str, Any], size: str | None) -> ModelChoice:
    """DyG-Mamba on a GPU, or where only that can do what is asked; else boosted trees, which need no GPU."""
    if size is not None and is_preset_file(size):
        own = read_preset_file(Path(size)).model
        return ModelChoice(own, size, f"model {own}, which the preset {size} is of")
    if device.type != "cpu":
        return ModelChoice(
            DEFAULT_NETWORK,
            size,
            f"model {DEFAULT_NETWORK}, as there is a GPU; `model='{DEFAULT_CPU_MODEL}'` needs none and ends sooner",
        )
    if task == "node":
        small = size or "small"
        why = "the one for CPUs; `preset='paper'` is the published size" if size is None else "as asked"
        said = f"no GPU in use: model {DEFAULT_NETWORK}, as {DEFAULT_CPU_MODEL} make no vectors of nodes, with preset {small}, {why}"
        return ModelChoice(DEFAULT_NETWORK, small, said, surprising=size is None)
    if size is not None:
        return ModelChoice(
            DEFAULT_NETWORK,
            size,
            f"model {DEFAULT_NETWORK}, which the preset {size} is of; `model='{DEFAULT_CPU_MODEL}'` ends sooner",
        )
    own = _find_network_setting(settings)
    if own is not None:
        said = f"model {DEFAULT_NETWORK}, as {own} is a setting of it; without a GPU `model='{DEFAULT_CPU_MODEL}'` ends sooner"
        return ModelChoice(DEFAULT_NETWORK, size, said)
    said = (
        f"no GPU in use: model {DEFAULT_CPU_MODEL}, boosted trees that end in minutes on a CPU; the paper's network is "
        f"`model='{DEFAULT_NETWORK}'`, hours on a CPU, or `preset='small'` of it"
    )
    return ModelChoice(DEFAULT_CPU_MODEL, None, said, surprising=True)


def _find_network_setting(settings: dict[str, Any]) -> str | None:
    """The first setting that is the network's and not the trees', also where it is misspelt."""
    from dygmamba.models import MODELS

    loop = set(get_training_hints("node"))
    network, quick = (
        loop | set(MODELS[name].settings) for name in (DEFAULT_NETWORK, DEFAULT_CPU_MODEL)
    )
    for name in settings:
        if name not in quick and (
            name in network or _find_closest_name(name, network | quick) in network - quick
        ):
            return name
    return None


def _find_closest_name(name: str, known: set[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)


def check_search_limits(trials: int | None, hours: float | None) -> None:
    """Raise ConfigError unless a search has time for a trial."""
    if trials is not None and trials < 1:
        raise ConfigError(f"`trials` must be at least 1, got {trials}", code="trials-not-positive")
    if hours is not None and not 0 < hours <= MAX_HOURS:
        raise ConfigError(
            f"`hours` must be above 0 and at most a year ({MAX_HOURS}), got {hours:g}",
            code="hours-out-of-range",
        )
