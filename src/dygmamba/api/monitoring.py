"""Evaluation of a trained run on events that came after its training, with limits for an alarm."""

from dataclasses import dataclass

from dygmamba.api.requests.evaluation import MonitorRequest
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.readers import ReadOptions
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import Document
from dygmamba.report.monitoring_document import build_monitoring_document
from dygmamba.runs.monitoring import Monitoring, monitor_run
from dygmamba.runs.opening import warn_if_unfinished
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


def run_monitoring(request: MonitorRequest, progress: Progress = SILENT) -> MonitoringResult:
    """Evaluate a link run on new events, by period."""
    lower, upper = request.lower, request.upper
    folder = RunDirectory(request.run)
    warn_if_unfinished(folder)
    predictor = Predictor.open(folder, request.device, request.data_dir, ReadOptions(**request.reading))
    found = monitor_run(predictor, request.events, request.period, progress)
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
