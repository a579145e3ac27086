"""Backtest: at evenly spaced origins, compare a model that was trained once with ones that keep learning.

- frozen: trained at the first origin; later events are its history, but it does not learn from them.
- warm: started at each origin from its own weights of the origin before (`runs/warm_start.py`).
- refit: trained anew at each origin.

All three are the same run at the first origin. The file backtest.json has the rows of the finished periods, and the
runs that a stopped backtest continues from; it is written after every period.
"""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from dygmamba._version import __version__
from dygmamba.core.choices import VARIANTS
from dygmamba.core.errors import ConfigError, FileError, Interrupted
from dygmamba.core.files.locking import acquire_lock
from dygmamba.core.files.untrusted import locate_inside
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.core.progress import SILENT, LabelledProgress, Progress
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.fit import Trainer
from dygmamba.engine.stream import Stream
from dygmamba.runs.backtest_periods import (
    Period,
    TrainingSpan,
    build_period_queries,
    list_periods,
    shift_queries,
    slice_dataset,
)
from dygmamba.runs.backtest_results import FROZEN, REFIT, TABLE_FILE, WARM, Backtest, check_rows
from dygmamba.runs.baselines import BASELINES, Baselines
from dygmamba.runs.calibration import fit_link_calibration
from dygmamba.runs.evaluation import Queries, Row, evaluate_queries
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import resume_training
from dygmamba.runs.provenance import StartOptions
from dygmamba.runs.warm_start import WarmStart, open_warm_start
from dygmamba.tasks.calibration import LinkCalibration

RESULT_FILE = "backtest.json"
PERIOD_METRICS = ("ap", "ap_se", "auc", "auc_se", "blocks", "log_loss", "log_loss_se", "mrr", "mrr_se")


@dataclass(frozen=True, slots=True)
class BacktestPlan:
    """A backtest as it is done: the arguments of `dygmamba.backtest`, parsed, with what was chosen for the user."""

    dataset: Dataset
    model: str
    device: torch.device
    start: float  # the first origin
    every: float
    window: float | None = None
    variants: tuple[str, ...] = VARIANTS
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Identity of the backtest: a request with the same values continues it."""
        names = ("model", "start", "every", "window", "variants", "seed", "settings", "preset")
        values = {"data": self.dataset.name, "digest": self.dataset.digest}
        values |= {name: getattr(self, name) for name in names} | {"dygmamba": __version__}
        return json.loads(json.dumps(values))


@dataclass(slots=True)
class Journal:
    """The finished periods, and the runs of the period that comes next."""

    folder: Path
    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)  # paths below the folder, by variant and period

    @staticmethod
    def open(folder: Path, about: dict[str, Any]) -> "Journal":
        """Read the journal of a folder, or begin one.

        Raises:
            ConfigError: It is of a backtest with other arguments.
            FileError: It is damaged, or names a run outside of the folder.
        """
        path = folder / RESULT_FILE
        if not path.exists():
            return Journal(folder, about)
        try:
            content = json.loads(path.read_bytes().decode("utf-8"))
            journal = Journal(folder, dict(content["about"]), list(content["rows"]), dict(content["runs"]))
            for run in journal.runs.values():
                locate_inside(folder, run, path)
            check_rows(journal.rows, journal.about["variants"])
            journal.about["settings"] = dict(journal.about["settings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _make_damaged_error(path, type(error).__name__) from error
        for name in (name for name in about if journal.about.get(name) != about[name]):
            raise ConfigError(
                f"{folder} holds a backtest with other arguments ({name} is {journal.about.get(name)!r:.60}, got "
                f"{about[name]!r:.60}); give another `out`, or delete it",
                code="other-backtest",
            )
        return journal

    def is_done(self, period: Period) -> bool:
        return any(row["period"] == period.number for row in self.rows)

    def add_rows(self, rows: list[Row], runs: dict[str, str]) -> None:
        """Add a finished period, keep the runs that the next one needs, and delete the others."""
        self.rows += rows
        obsolete, self.runs = set(self.runs.values()) - set(runs.values()), runs
        self.save()
        inside = self.folder.resolve()
        for path in obsolete:
            # no symbolic link leads out of the folder
            if (self.folder / path).resolve().is_relative_to(inside):
                shutil.rmtree(self.folder / path, ignore_errors=True)

    def save(self) -> None:
        content = {"about": self.about, "rows": self.rows, "runs": self.runs}
        write_text(self.folder / RESULT_FILE, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class TrainedVariant:
    """A run that was trained at an origin, with its calibration and the first row of its dataset."""

    fit: Trainer
    calibration: LinkCalibration
    span: TrainingSpan
    about: Row  # columns of its rows

    def evaluate(self, store: EventStore, period: Period, queries: Queries, progress: Progress) -> Row:
        """Evaluate it on a period, with all events before each query as its history."""
        first, fit = self.span.first, self.fit
        split = fit.stream.split
        later = torch.arange(len(split.train) + len(split.val), period.first - first)
        earlier = tuple(part for part in (split.train, split.val, later) if len(part))
        events = torch.arange(period.first - first, period.last - first)
        stream = Stream(store[first : period.last], replace(split, test=events), fit.stream.device)
        scored = evaluate_queries(
            fit.scorer, stream, shift_queries(queries, first, earlier), fit.config.rule, fit.seed,
            self.calibration, advance=progress.advance,
        )  # fmt: skip
        return self.about | scored.row(PERIOD_METRICS)


class Backtester:
    """Trains and evaluates the variants of a request, period after period."""

    def __init__(self, request: BacktestPlan, journal: Journal, progress: Progress = SILENT) -> None:
        self.request, self.journal, self.progress = request, journal, progress
        self.store = request.dataset.store
        self.periods = list_periods(self.store, request.start, request.every)
        TrainingSpan.before(self.store, self.periods[0], request.window)  # raises before anything is written
        self._trained: dict[str, TrainedVariant] = {}  # by variant and period

    def run(self) -> None:
        """Evaluate the periods that are not done yet."""
        done = sum(map(self.journal.is_done, self.periods))
        with self.progress.stage("backtest", len(self.periods), done=done) as stage:
            for period in self.periods[done:]:
                rows, runs = self._run_period(period, stage)
                self.journal.add_rows(rows, runs)
                stage.advance(1)
                stage.message(self._describe(period, rows))
        shutil.rmtree(self.journal.folder / "runs", ignore_errors=True)

    def _run_period(self, period: Period, progress: Progress) -> tuple[list[Row], dict[str, str]]:
        """Return the rows of a period and the runs that the next one needs."""
        queries = build_period_queries(self.store, period)
        rows, runs, kept = [], {}, {}
        label = f"period {period.number + 1} of {len(self.periods)}"
        for variant in self.request.variants:
            name, number = _get_run_name(variant, period.number)
            trained = self._trained.get(name) or self._train(name, number, progress, label)
            self._trained[name] = kept[name] = trained
            runs[name] = trained.fit.run.path.relative_to(self.journal.folder).as_posix()
            with progress.stage(f"{label}, {variant}", queries.count_pairs()) as stage:
                row = trained.evaluate(self.store, period, queries, stage)
            rows.append(self._describe_row(period, variant) | row)
        with progress.stage(f"{label}, baselines", len(BASELINES) * queries.count_pairs()) as stage:
            rows += self._evaluate_baselines(period, queries, stage)
        self._trained = kept
        return rows, {name: path for name, path in runs.items() if not name.startswith(REFIT)}

    def _train(self, name: str, number: int, progress: Progress, label: str) -> TrainedVariant:
        """Train the run of a variant at the origin of a period, or finish the one that was stopped."""
        request, journal, begin = self.request, self.journal, monotonic()
        span, dataset = self._cut(number)
        if name in journal.runs and (journal.folder / journal.runs[name]).is_dir():
            fit = resume_training(journal.folder / journal.runs[name], request.device, dataset=dataset)
        else:
            options = StartOptions(span.rule, request.preset, start=self._find_start(name, number))
            given = (dataset, request.model, request.seed, request.settings, request.device)
            fit = start_link_run(*given, journal.folder / "runs", options)
            journal.runs[name] = fit.run.path.relative_to(journal.folder).as_posix()
            journal.save()
        variant = name.partition(" ")[0]
        try:
            fit(LabelledProgress(progress, run=variant), name=f"{label}, training {variant}")
        except Interrupted as error:
            raise Interrupted(f"stopped; the same call continues in {journal.folder}") from error
        calibration, _ = fit_link_calibration(fit, progress)
        about = {
            "trained_at": span.origin,
            "trained_events": len(fit.stream.split.train),
            "epochs": fit.state.best_epoch + 1,
            "seconds": round(monotonic() - begin, 2),
        }
        return TrainedVariant(fit, calibration, span, about)

    def _cut(self, number: int) -> tuple[TrainingSpan, Dataset]:
        """Return the span of the events before a period, and the events from its first one to the end of the period."""
        period = self.periods[number]
        span = TrainingSpan.before(self.store, period, self.request.window)
        return span, slice_dataset(self.request.dataset, span.first, period.last)

    def _find_start(self, name: str, number: int) -> WarmStart | None:
        """Return the run that a warm start continues: that of the period before."""
        if not name.startswith(WARM):
            return None
        before, origin = _get_run_name(WARM, number - 1)
        if before not in self.journal.runs:
            raise _make_damaged_error(self.journal.folder / RESULT_FILE, f"the run '{before}' is missing")
        return open_warm_start(self.journal.folder / self.journal.runs[before], dataset=self._cut(origin)[1])

    def _evaluate_baselines(self, period: Period, queries: Queries, progress: Progress) -> list[Row]:
        """Evaluate the baselines, fitted to the events before the period, with all of them as history."""
        span = TrainingSpan.before(self.store, period, None)
        dataset = slice_dataset(self.request.dataset, 0, period.last)
        stream = Stream(dataset.store, span.rule.split(dataset.store), torch.device("cpu"))
        own = shift_queries(queries, 0, (stream.split.train, stream.split.val))
        return [
            self._describe_row(period, name, is_rule=True) | scored.row(PERIOD_METRICS)
            for name, scored in Baselines(dataset.name, stream).score(own, progress.advance).items()
        ]

    def _describe_row(self, period: Period, model: str, is_rule: bool = False) -> Row:
        span = {"begin": period.begin, "end": period.end, "events": len(period)}
        return {"period": period.number, **span, "model": model, "is_rule": is_rule}

    def _describe(self, period: Period, rows: list[Row]) -> str:
        figures = [f"{row['model']} {100 * row['ap']:.2f}" for row in rows if not row["is_rule"]]
        best = max((row for row in rows if row["is_rule"]), key=lambda row: row["ap"], default=None)
        figures += [] if best is None else [f"best baseline {100 * best['ap']:.2f} ({best['model']})"]
        return f"period {period.number + 1} of {len(self.periods)}, {len(period):,} events, AP: {', '.join(figures)}"


def _make_damaged_error(path: Path, reason: str) -> FileError:
    return FileError(
        f"{path} cannot be read ({reason}); delete it to start the backtest again", code="damaged-backtest"
    )


def _get_run_name(variant: str, period: int) -> tuple[str, int]:
    """Return the name of the run that a variant uses in a period, and the period at whose origin it is trained."""
    if variant == FROZEN or period == 0:
        return f"{FROZEN} 0", 0
    return f"{variant} {period}", period


def run_backtest(request: BacktestPlan, folder: Path, progress: Progress = SILENT) -> Backtest:
    """Run a backtest in a folder, or continue the one that was stopped there; a finished one is read."""
    make_folder(folder)
    lock = acquire_lock(folder / ".lock")
    try:
        journal = Journal.open(folder, request.about)
        Backtester(request, journal, progress).run()
    finally:
        lock.release()
    names = (request.dataset.name, request.model)
    result = Backtest(*names, folder, request.variants, journal.rows, request.dataset.is_dated)
    write_text(folder / TABLE_FILE, result.to_csv())
    return result
