"""Requests of evaluations: `evaluate`, also on new events, `audit` and `reproduce`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dygmamba.api.requests.base import (
    Names,
    Request,
    check_data,
    check_time_unit,
    is_run_directory,
    parse_names,
    require_file,
    require_run,
)
from dygmamba.config import check_device, check_settings
from dygmamba.core.choices import NEGATIVES, SCOPES, SPLITS, Visibility, check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import check_value
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, check_protocol
from dygmamba.tasks.metric_names import BOARD_CANDIDATES, DEFAULT_CANDIDATES, parse_hits_k

PAIRWISE_METRICS = ("ap", "auc")  # against one negative each; always computed together
PERIODS = ("auto", "hour", "day", "week", "month", "all")
# limits of an evaluation on new events, each with its range; in per cent, as they are printed, but for the log loss.
# AP and AUC of at most 1 % are refused because a share was meant.
LOWER_LIMITS = {"ap": (1.01, 100.0), "auc": (1.01, 100.0), "lead": (-100.0, 100.0)}
UPPER_LIMITS = {"log_loss": (0.0, 1e6), "ece": (0.0, 100.0), "unknown_share": (0.0, 100.0)}


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(Request):
    """Arguments of `dygmamba.evaluate` and `Run.evaluate`; `data` may be a run directory.

    Without `negatives`, those of the published protocol are used for a run, and random ones for a model without
    training. Settings, seeds, protocol and stored negatives are those of a model without training, the device is that
    of a run.
    """

    data: Any
    model: str = "edgebank"
    settings: Mapping[str, Any] = field(default_factory=dict)
    negatives: Names | None = None
    split: Names = "test"
    setting: Names = SCOPES
    visible: str | None = None
    metrics: Names | None = None
    candidates: int | str | None = None
    filtered: bool = False
    activity: bool = False
    seeds: Sequence[int] | None = None
    protocol: str = AUTO_PROTOCOL
    store_negatives: Path | None = None  # folder that keeps drawn negatives for the next time
    device: str = "auto"

    def check(self) -> Self:
        self.list_choices(NEGATIVES)
        if self.visible is not None:
            check_value("visible", self.visible, Visibility)
        self.parse_metrics()
        check_protocol(self.protocol)
        check_device(self.device)
        if not is_run_directory(self.data):
            name = self.data if isinstance(self.data, str | Path) else self.data.name
            require_untrained(self.model, str(name), self.settings)
            check_data(self.data, self.data_dir)
            return self
        if self.settings or self.store_negatives or self.seeds is not None or self.protocol != AUTO_PROTOCOL:
            raise ConfigError(
                "`overrides`, `seed`, `draws`, `protocol` and `store_negatives` are for models without training; "
                "leave them out, a run has its own settings",
                code="option-of-untrained-model",
            )
        require_run(self.data)
        return self

    def list_choices(self, usual: Names) -> list[tuple[str, str, str]]:
        """Return every combination of negatives, split and setting, in this order; `usual` are the usual negatives."""
        return [
            (strategy, name, kind)
            for strategy in parse_names("negatives", self.negatives or usual, NEGATIVES)
            for name in parse_names("split", self.split, SPLITS)
            for kind in parse_names("setting", self.setting, SCOPES)
        ]

    def parse_metrics(self) -> tuple[bool, tuple[str, ...], int | str | None]:
        """Parse what to compute.

        Returns:
            Whether AP and AUC are wanted, the names of ranking metrics, and the candidates to rank among: a number,
            "board" for those of the dataset's leaderboard, or None for all destinations.
        """
        given = ",".join(PAIRWISE_METRICS) if self.metrics is None else self.metrics
        names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
        ranks = tuple(dict.fromkeys(name for name in names if name not in PAIRWISE_METRICS))
        for name in ranks:
            if name != "mrr":
                parse_hits_k(name)
        if not ranks and (self.candidates is not None or self.filtered):
            option = "filtered" if self.candidates is None else "candidates"
            raise ConfigError(
                f"`{option}` applies only to ranking metrics (mrr, hits@k); remove it or add one to `metrics`",
                code="candidates-without-ranking",
            )
        if self.candidates == BOARD_CANDIDATES and self.filtered:
            raise ConfigError(
                "`candidates='board'` uses the leaderboard's own list; leave out `filtered`",
                code="filtered-board",
            )
        return len(ranks) < len(set(names)), ranks, parse_candidates(self.candidates)


@dataclass(frozen=True, kw_only=True)
class MonitorRequest(Request):
    """Arguments of an evaluation of a run on new events, a file or a table.

    Attributes:
        fail_below: Lower limits "ap=80", "auc=80" or "lead=0" (points of AP above the best baseline), in per cent and
            for all new events.
        fail_above: Upper limits of "log_loss", and in per cent of "ece" and "unknown_share".
        reading: How the file is read, where it differs from the dataset's own: fields of `ReadOptions`.
    """

    run: Path
    events: Any
    period: str = "auto"
    fail_below: Sequence[str] | None = None
    fail_above: Sequence[str] | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"

    def check(self) -> Self:
        check_choice("period", self.period, PERIODS)
        _ = self.lower, self.upper  # raise for malformed limits
        check_device(self.device)
        check_time_unit(self.reading.get("time_unit", "auto"))
        if require_run(self.run).task == "node":
            raise ConfigError(
                f"{self.run} classifies nodes; events are evaluated for link runs only, give one of those",
                code="not-a-link-run",
            )
        if isinstance(self.events, str | Path):
            require_file(Path(self.events), "events")
        return self

    @property
    def lower(self) -> dict[str, float]:
        """The lower limits by name."""
        return _parse_limits("fail_below", self.fail_below, LOWER_LIMITS)

    @property
    def upper(self) -> dict[str, float]:
        """The upper limits by name."""
        return _parse_limits("fail_above", self.fail_above, UPPER_LIMITS)


@dataclass(frozen=True, kw_only=True)
class AuditRequest(Request):
    """Arguments of `dygmamba.audit`; `data` may be a run directory."""

    data: Any
    model: str | None = None
    run: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = AUTO_PROTOCOL

    @property
    def brings_dataset(self) -> bool:
        """Whether a run is given in place of a dataset, and brings its own."""
        return self.run is None and is_run_directory(self.data)

    def check(self) -> Self:
        from dygmamba.models import require_model

        run = Path(self.data) if self.brings_dataset else self.run
        check_protocol(self.protocol)
        if run is not None and self.protocol != AUTO_PROTOCOL:
            raise ConfigError("a run has its own split; leave out `protocol`", code="protocol-of-run")
        if run is not None and self.model is not None:
            raise ConfigError(
                "give a model by name or a run, not both; a run brings its own model", code="model-and-run"
            )
        if self.model is None and self.settings:
            raise ConfigError(
                f"settings ({', '.join(self.settings)}) need a model; name it with `model`",
                code="settings-without-model",
            )
        if self.model is not None:
            require_model(self.model)
        if run is not None:
            require_run(run)
        if not self.brings_dataset:
            check_data(self.data, self.data_dir)
        return self


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest(Request):
    """Arguments of `dygmamba.reproduce`."""

    study: str
    datasets: Sequence[str] | None = None
    models: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    variants: Sequence[str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    out: Path = Path("studies")
    device: str = "auto"
    workers: int | None = None
    protocol: str = AUTO_PROTOCOL

    def check(self) -> Self:
        from dygmamba.models import require_model
        from dygmamba.studies import STUDY_NAMES

        check_protocol(self.protocol)
        check_choice("study", self.study, STUDY_NAMES)
        for model in self.models or ():
            require_model(model)
        for name in self.datasets or ():
            check_data(name, self.data_dir)
        check_device(self.device)
        return self


def require_untrained(model: str, data: str, settings: Mapping[str, Any]) -> None:
    """Raise an error if the model must be trained first, or has no such settings."""
    from dygmamba.models import find_model, require_model

    spec = require_model(model) or find_model(model)  # one of this package is described without importing it
    if spec.trainable:
        raise ConfigError(
            f"model '{model}' must be trained first: `dygmamba.train({data!r}, {model!r})`",
            code="model-needs-training",
        )
    check_settings(model, dict(settings), None)


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


def _parse_limits(
    parameter: str, given: Iterable[str] | None, ranges: Mapping[str, tuple[float, float]]
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
                f"`{parameter}` takes METRIC=VALUE with one of {', '.join(ranges)}; got '{text}'",
                code="malformed-limit",
            )
        low, high = ranges[name]
        if not low <= value <= high:
            unit = "" if name == "log_loss" else " per cent, such as ap=80"
            raise ConfigError(
                f"`{parameter}` takes a {name} from {low:g} to {high:g}{unit}; got '{text}'",
                code="limit-out-of-range",
            )
        if name in limits:
            raise ConfigError(
                f"`{parameter}` has {name} twice, {limits[name]:g} and {value:g}; give one limit for it",
                code="repeated-limit",
            )
        limits[name] = value
    return limits
