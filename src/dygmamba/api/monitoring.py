"""Evaluation of a trained run on events that came after its training, with limits for an alarm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.api.evaluation import warn_if_unfinished
from dygmamba.api.validation import LOWER_LIMITS, UPPER_LIMITS, check_period, parse_limits
from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.readers import ReadOptions
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import Document
from dygmamba.report.monitoring_document import build_monitoring_document
from dygmamba.runs.monitoring import Monitoring, monitor_run
from dygmamba.runs.predictor import Predictor


@dataclass(frozen=True, slots=True)
class MonitoringResult:
    """Figures on new events, the sentences on limits that were crossed, and what a training that mends it needs."""

    monitoring: Monitoring
    crossed: list[str]
    data: str  # name of the run's dataset
    can_start_from: bool  # whether a training can continue from the run

    @property
    def document(self) -> Document:
        """Figures by period, columns that moved, and what they say."""
        return build_monitoring_document(self.monitoring)


def evaluate_events(
    run: Path,
    events: Any,
    *,
    period: str = "auto",
    fail_below: list[str] | None = None,
    fail_above: list[str] | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    progress: Progress = SILENT,
    **reading: Any,
) -> MonitoringResult:
    """Evaluate a link run on new events, by period.

    Args:
        run: The run directory.
        events: File or table of events after those of the run's dataset.
        period: "hour", "day", "week", "month", "all" or "auto".
        fail_below: Lower limits "ap=80", "auc=80" or "lead=0" (points of AP above the best baseline), in per cent
            and for all new events.
        fail_above: Upper limits of "log_loss", and in per cent of "ece" and "unknown_share".
        device: "auto", "cpu" or "cuda".
        data_dir: Where datasets are.
        progress: Observer.
        **reading: How the file is read, where it differs from the dataset's own: fields of `ReadOptions`.
    """
    check_period(period)
    lower = parse_limits("fail_below", fail_below, LOWER_LIMITS)
    upper = parse_limits("fail_above", fail_above, UPPER_LIMITS)
    folder = RunDirectory(run)
    if folder.task == "node":
        raise ConfigError(
            f"{run} classifies nodes; events are evaluated for link runs only, give one of those",
            code="not-a-link-run",
        )
    warn_if_unfinished(folder)
    predictor = Predictor.open(folder, device, data_dir, ReadOptions(**reading))
    found = monitor_run(predictor, events, period, progress)
    shares = found.total | {"lead": found.total["ap"] - found.total["rule_ap"]}
    figures = {name: shares[name] * (1 if name == "log_loss" else 100) for name in lower | upper}
    crossed = [
        f"{name} is {figures[name]:.4g}, {side} the limit of {limit:g}"
        for side, limits, sign in (("below", lower, 1), ("above", upper, -1))
        for name, limit in limits.items()
        if sign * figures[name] < sign * limit
    ]
    about = folder.config()["run"]
    return MonitoringResult(found, crossed, str(about["data"]), can_start_from=not about.get("blend_of"))
