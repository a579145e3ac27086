"""Validation of arguments that needs no torch: names, tasks, metrics, conflicts; and the choice of a default model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Protocol

from dygmamba.config import get_training_hints, is_preset_file, read_preset_file
from dygmamba.core.choices import Visibility
from dygmamba.core.errors import ConfigError, make_package_error
from dygmamba.core.settings import check_value
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.tasks.metric_names import (
    BOARD_CANDIDATES,
    DEFAULT_CANDIDATES,
    parse_hits_k,
)

Names = str | Sequence[str]
MAX_HOURS = 24 * 365
SECONDS_PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
TASKS = ("link", "node")
LOGGER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}  # logger: the package to install
PAIRWISE_METRICS = ("ap", "auc")  # against one negative each; always computed together
PERIODS = ("auto", "hour", "day", "week", "month", "all")
# limits of an evaluation on new events, each with its range; in per cent, as they are printed, but for the log loss.
# AP and AUC of at most 1 % are refused because a share was meant.
LOWER_LIMITS = {"ap": (1.01, 100.0), "auc": (1.01, 100.0), "lead": (-100.0, 100.0)}
UPPER_LIMITS = {"log_loss": (0.0, 1e6), "ece": (0.0, 100.0), "unknown_share": (0.0, 100.0)}
DEFAULT_NETWORK, DEFAULT_CPU_MODEL = "dyg-mamba", "trees"
DEFAULT_GPU_MODEL = "dyg-mamba-counts"  # for links


def parse_names(parameter: str, given: Names, known: Iterable[str]) -> tuple[str, ...]:
    """Return a choice of known names, given as a sequence or as a string with commas."""
    names = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    names = tuple(name for name in names if name)
    if not names or not set(names) <= set(known):
        raise ConfigError(
            f"`{parameter}` takes a comma-separated choice of {', '.join(known)}; got '{given}'",
            code=f"unknown-{parameter.replace('_', '-')}",
        )
    return names


def check_choice(parameter: str, given: str, known: Iterable[str]) -> str:
    """Return one known name; raise ConfigError for any other."""
    if given not in known:
        raise ConfigError(
            f"`{parameter}` takes one of {', '.join(known)}; got '{given}'",
            code=f"unknown-{parameter.replace('_', '-')}",
        )
    return given


def check_task(task: str, given: dict[str, bool]) -> None:
    """Raise ConfigError for an unknown task, and for options that only node classification has."""
    if task not in TASKS:
        raise ConfigError(f"`task` takes {' or '.join(TASKS)}, got '{task}'", code="unknown-task")
    wrong = [name for name, is_given in given.items() if is_given]
    if task == "link" and wrong:
        raise ConfigError(
            f"`{wrong[0]}` is an option of `task='node'`; add that or leave it out",
            code="option-of-node-task",
        )


def check_backbone_conflicts(backbone: Any, **given: Any) -> None:
    """Raise ConfigError for options that a finished backbone has decided already."""
    for name, value in given.items():
        if backbone is not None and value is not None:
            raise ConfigError(
                f"`{name}` is fixed by the backbone; leave it out, or leave out `backbone` to train one",
                code="decided-by-backbone",
            )


def parse_loggers(log: Names | None) -> tuple[str, ...]:
    """Return the names of loggers; raise ConfigError if one is unknown or its package is missing."""
    if not log:
        return ()
    names = tuple(dict.fromkeys(parse_names("log", log, LOGGER_PACKAGES)))
    for name in names:
        if find_spec(name) is None:
            raise make_package_error(f"`log='{name}'`", name, LOGGER_PACKAGES[name])
    return names


def check_run_protocol(protocol: str) -> None:
    """Raise ConfigError if a protocol is chosen for a run, which has its own split."""
    if protocol != AUTO_PROTOCOL:
        raise ConfigError("a run has its own split; leave out `protocol`", code="protocol-of-run")


def check_visible(visible: str | None) -> None:
    """Raise ConfigError unless `visible` is None, "strict" or "batch"."""
    if visible is not None:
        check_value("visible", visible, Visibility)


def parse_metrics(
    metrics: Names | None, candidates: int | str | None, filtered: bool
) -> tuple[bool, tuple[str, ...], int | str | None]:
    """Parse what to compute.

    Returns:
        Whether AP and AUC are wanted, the names of ranking metrics, and the candidates to rank among: a number, "board"
        for those of the dataset's leaderboard, or None for all destinations.
    """
    given = ",".join(PAIRWISE_METRICS) if metrics is None else metrics
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    ranks = tuple(dict.fromkeys(name for name in names if name not in PAIRWISE_METRICS))
    for name in ranks:
        if name != "mrr":
            parse_hits_k(name)
    if not ranks and (candidates is not None or filtered):
        option = "filtered" if candidates is None else "candidates"
        raise ConfigError(
            f"`{option}` applies only to ranking metrics (mrr, hits@k); remove it or add one to `metrics`",
            code="candidates-without-ranking",
        )
    if candidates == BOARD_CANDIDATES and filtered:
        raise ConfigError(
            "`candidates='board'` uses the leaderboard's own list; leave out `filtered`",
            code="filtered-board",
        )
    return len(ranks) < len(set(names)), ranks, parse_candidates(candidates)


def parse_candidates(candidates: int | str | None) -> int | str | None:
    """Return how many destinations to rank among, "board" for those of the leaderboard, or None for all."""
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
        raise ConfigError(
            f"`candidates` takes a number of at least 1, 'all' or 'board', got '{candidates}'",
            code="unknown-candidates",
        )
    return count


def check_search_limits(trials: int | None, hours: float | None) -> None:
    """Raise ConfigError unless a search has time for a trial."""
    if trials is not None and trials < 1:
        raise ConfigError(f"`trials` must be at least 1, got {trials}", code="trials-not-positive")
    if hours is not None and not 0 < hours <= MAX_HOURS:
        raise ConfigError(
            f"`hours` must be above 0 and at most {MAX_HOURS:,} (a year), got {hours:g}",
            code="hours-out-of-range",
        )


def parse_duration(given: str | float) -> float | None:
    """Return a time in seconds, given as "10m", "1.5h", "90s", "7d", "2w", or as a number of seconds; else None."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", str(given).strip().lower())
    unit = SECONDS_PER_UNIT.get(match[2] or "s") if match else None
    return float(match[1]) * unit if match and unit else None


def parse_period(name: str, given: str | float) -> float:
    """Return the length of a part of a stream in seconds, or in the unit of its times if they are plain numbers."""
    seconds = parse_duration(given)
    if seconds is None or not 0 < seconds < inf:
        raise ConfigError(
            f"`{name}` takes a time such as 7d, 2w or 12h, or a number in the unit of the stream; got '{given}'",
            code=f"invalid-{name}",
        )
    return seconds


def parse_budget(given: str | float) -> float:
    """Return a time budget in seconds, as `parse_duration` takes it."""
    seconds = parse_duration(given) or 0.0
    if not 0 < seconds <= MAX_HOURS * 3600:
        raise ConfigError(
            f"`budget` takes a time such as 10m, 1h or 90s, at most a year; got '{given}'",
            code="invalid-budget",
        )
    return seconds


def check_budget(task: str, processes: int, *, is_given: bool) -> None:
    """Raise ConfigError where a training cannot have a time budget."""
    if is_given and task != "link":
        raise ConfigError(
            "`budget` is for link prediction; leave it out, or leave out `task='node'`",
            code="budget-of-node-task",
        )
    if is_given and processes != 1:
        raise ConfigError(
            f"`budget` is for one process; leave it out, or leave out `processes={processes}`",
            code="budget-of-processes",
        )


def check_start(start: Path | None, *, task: str, model: str | None, preset: str | None) -> None:
    """Raise ConfigError where a training cannot start from another run, or asks for a model that is not its."""
    if start is None:
        return
    if task != "link":
        raise ConfigError(
            "`start_from` is for link prediction; leave it out, or leave out `task='node'`",
            code="start-of-node-task",
        )
    if preset is not None:
        raise ConfigError(
            f"a run that starts from another one has its settings; leave out `preset={preset!r}`, or `start_from`",
            code="start-and-preset",
        )
    own = RunDirectory(start).config().get("run", {}).get("model")
    if model is not None and model != own:
        raise ConfigError(
            f"{start} is a run of '{own}', and its weights are of no use to `model={model!r}`; leave out `model`",
            code="start-other-model",
        )


def check_one_seed(model: str | None, seeds: Sequence[int]) -> None:
    """Raise ConfigError if several seeds would have to choose a model."""
    if model is None and len(seeds) != 1:
        raise ConfigError(
            f"`budget` chooses a model with one seed, got {len(seeds)}; leave out `seeds`, or name the `model`, and "
            "the seeds share the time",
            code="budget-of-seeds",
        )


class DeviceLike(Protocol):
    """A device as far as the choice of a model needs it; a `torch.device` is one."""

    @property
    def type(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that was chosen for the user, its preset if not the published one, and the reason."""

    model: str
    size: str | None
    sentence: str
    surprising: bool = False  # whether a reader of the paper would expect another one


def choose_model(
    device: DeviceLike, task: str, settings: dict[str, Any], size: str | None, finetune: bool = False
) -> ModelChoice:
    """Choose a model for a user who named none.

    For links with a GPU, DyG-Mamba with decayed counts. The paper's network for its preset, for labels of nodes with a
    GPU, and without one if only it has a setting or a backbone to finetune. Otherwise boosted trees, which finish in
    minutes on a CPU.
    """
    network, trees = DEFAULT_NETWORK, f"`model='{DEFAULT_CPU_MODEL}'`"
    if size is not None and is_preset_file(size):
        model = read_preset_file(Path(size)).model
        return ModelChoice(model, size, f"model {model}, because the preset {size} is for it")
    budget = "`budget='10m'` tries several models" if task == "link" else ""
    if device.type != "cpu":
        model = DEFAULT_GPU_MODEL if task == "link" and size is None else network
        parts = [f"model {model}, because there is a GPU; {trees} needs none and finishes sooner"]
        parts += [f"the paper's network is `model='{network}'`"] if model != network else []
        return ModelChoice(model, size, "; ".join([*parts, *filter(None, [budget])]), model != network)
    setting = _find_network_setting(settings, task) or ("finetune" if finetune else None)
    if task == "node" and (size is not None or setting is not None):
        small = size or "small"
        why = "the one for CPUs (`preset='paper'` is the published size)" if size is None else "as given"
        cause = f"it has the setting {setting}" if size is None else f"the preset {size} is for it"
        reason = (
            f"no GPU in use: model {network}, because {cause}; preset {small}, {why}; {trees} finishes sooner"
        )
        return ModelChoice(network, small, reason, surprising=size is None)
    if size is not None:
        reason = f"model {network}, because the preset {size} is for it; {trees} finishes sooner"
        return ModelChoice(network, size, reason)
    if setting is not None:
        reason = (
            f"model {network}, because it has the setting {setting}; without a GPU {trees} finishes sooner"
        )
        return ModelChoice(network, size, reason)
    parts = (
        f"no GPU in use: model {DEFAULT_CPU_MODEL}, boosted trees that finish in minutes on a CPU",
        budget,
        f"the paper's network is `model='{network}'`, hours on a CPU, or with `preset='small'` less",
    )
    reason = "; ".join(filter(None, parts))
    return ModelChoice(DEFAULT_CPU_MODEL, None, reason, surprising=True)


def _find_network_setting(settings: dict[str, Any], task: str) -> str | None:
    """Return the first setting that the network has and the trees have not, even if it is misspelt."""
    from dygmamba.models import MODELS

    loop, spec = set(get_training_hints("node")), MODELS[DEFAULT_CPU_MODEL]
    network, quick = loop | set(MODELS[DEFAULT_NETWORK].settings), loop | set(spec.settings)
    if task == "node" and spec.for_nodes is not None:
        quick = loop | set(spec.for_nodes.settings)
    for name in settings:
        if name not in quick and (
            name in network or _find_closest_name(name, network | quick) in network - quick
        ):
            return name
    return None


def _find_closest_name(name: str, known: set[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)


def check_period(period: str) -> None:
    """Raise ConfigError unless new events can be grouped by this period."""
    if period not in PERIODS:
        raise ConfigError(f"`period` takes {', '.join(PERIODS)}; got '{period}'", code="unknown-period")


def parse_limits(
    option: str, given: Iterable[str] | None, ranges: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Parse limits such as "ap=80"; raise ConfigError for a value out of its range or a metric that is given twice."""
    limits = {}
    for text in given or ():
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if name not in ranges or value != value:
            raise ConfigError(
                f"`{option}` takes METRIC=VALUE with one of {', '.join(ranges)}; got '{text}'",
                code="malformed-limit",
            )
        low, high = ranges[name]
        if not low <= value <= high:
            unit = "" if name == "log_loss" else " per cent, such as ap=80"
            raise ConfigError(
                f"`{option}` takes a {name} from {low:g} to {high:g}{unit}; got '{text}'",
                code="limit-out-of-range",
            )
        if name in limits:
            raise ConfigError(
                f"`{option}` has {name} twice, {limits[name]:g} and {value:g}; give one limit for it",
                code="repeated-limit",
            )
        limits[name] = value
    return limits
