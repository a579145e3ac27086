"""A list of runs with their results, and which of them is the best on its data; needs no torch."""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.run_names import CONFIG_NAME, LATEST, RUNS_FOLDER, SELECTION_NAME, STAMP_LENGTH, find_runs
from dygmamba.tasks.metric_names import NODE_METRICS, find_metric


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run: its data, model, seed and main results."""

    path: Path
    data: str
    model: str
    seed: int
    task: str
    started: str  # date and time in the name of its directory; empty if it was renamed
    finished: bool
    rejected: bool  # tried within a budget, and another candidate was chosen and evaluated
    metric: str  # "ap" of links; of nodes "auc" (two states), "macro_f1" (classes) or "mae" (numbers)
    val: float | None
    test: float | None
    comparable: str  # runs with the same metric on the same split of the same events have the same text
    best: bool = False  # has the best validation metric of comparable runs

    def is_better_than(self, other: "RunSummary | None") -> bool:
        """Return whether its validation metric is better; any is better than none."""
        if self.val is None or other is None or other.val is None:
            return self.val is not None
        return self.val < other.val if find_metric(self.metric).lower_is_better else self.val > other.val

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self) | {"path": str(self.path)}
        del facts["comparable"]
        return facts


def list_runs(name: str | Path = LATEST, runs: Path = RUNS_FOLDER) -> list[RunSummary]:
    """List the runs of a dataset or folder, or all below `runs`, the newest first; unreadable ones are left out."""
    found = [summary for path in find_runs(name, runs) if (summary := _summarize(path)) is not None]
    best: dict[str, RunSummary] = {}
    for one in found:
        if one.is_better_than(best.get(one.comparable)):
            best[one.comparable] = one
    return [replace(one, best=best.get(one.comparable) is one) for one in found]


def _summarize(path: Path) -> RunSummary | None:
    folder = RunDirectory(path)
    try:
        about, rows = folder.config().get("run", {}), folder.results()
        task = folder.task
        metric = "ap" if task == "link" else NODE_METRICS[about.get("target", "binary")][0]
        scores = {row.get("split"): row.get(metric) for row in reversed(rows) if _is_main(row)}
        return RunSummary(
            path,
            str(about["data"]),
            str(about["model"]),
            int(about["seed"]),
            task,
            _parse_stamp(path.name),
            folder.finished,
            not folder.finished and _is_rejected(path),
            metric,
            scores.get("val"),
            scores.get("test"),
            # a run that knows the columns of the event in question has an easier task
            f"{about['data']} {about.get('split', '')} {task} {metric} {any(row.get('query_columns') for row in rows)}",
        )
    except (DygError, KeyError, TypeError, ValueError):
        return None


def _is_rejected(path: Path) -> bool:
    """Return whether the record of a choice names another run."""
    try:
        chosen = json.loads((path / SELECTION_NAME).read_bytes())["run"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(chosen, str) and Path(chosen).parts != path.resolve().parts[-3:]


def _is_main(row: dict[str, Any]) -> bool:
    """Return whether a row is of all nodes against random negatives, or of node classification."""
    return row.get("setting", "transductive") == "transductive" and row.get("negatives", "random") == "random"


def _parse_stamp(name: str) -> str:
    try:
        return datetime.strptime(name[:STAMP_LENGTH], "%Y%m%d-%H%M%S").strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""


def find_comparable_runs(name: str | Path) -> list[Path]:
    """Return a run directory as it is; of a dataset or folder, all tested runs on the same split as the newest one."""
    if (Path(name) / CONFIG_NAME).is_file():
        return [Path(name)]
    tested = [one for one in list_runs(name) if one.test is not None]
    return [one.path for one in tested if one.comparable == tested[0].comparable] or [Path(name)]
