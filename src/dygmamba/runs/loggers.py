"""Loggers in addition to the run directory: TensorBoard and MLflow.

A logger is opened when a run starts to train, gets every epoch and the final results, and is closed. None of them
changes the run, whose directory holds everything anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dygmamba.core.errors import ConfigError, first_line
from dygmamba.core.progress import ForwardingProgress, Progress
from dygmamba.engine.run_directory import RunDirectory, to_toml
from dygmamba.tasks.metric_names import METRICS

MLFLOW_TAG = "dygmamba.run"  # finds the MLflow run of a resumed training


class TensorBoard:
    """Event files in the run directory, which TensorBoard shows for all runs under a folder."""

    def __init__(self, run: RunDirectory) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.path))
        self._writer.add_text("config", f"```toml\n{to_toml(run.config())}```", 0)

    def epoch(self, entry: dict[str, Any]) -> None:
        for key, value in get_numbers(entry).items():
            self._writer.add_scalar(key, value, entry["epoch"])
        self._writer.flush()

    def results(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for key, value in get_final_metrics(row).items():
                self._writer.add_scalar(key, value, 0)

    def close(self, finished: bool) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment named like the dataset, at MLFLOW_TRACKING_URI or MLflow's default.

    A resumed training continues the same MLflow run, which is found by its tag.
    """

    def __init__(self, run: RunDirectory) -> None:
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        self._client: Any = MlflowClient()
        sections = run.config()
        about, path = sections["run"], str(run.path.absolute())
        found = self._client.get_experiment_by_name(about["data"])
        experiment = found.experiment_id if found else self._client.create_experiment(about["data"])
        before = self._client.search_runs(
            [experiment], f"tags.`{MLFLOW_TAG}` = '{run.fingerprint}'", max_results=1
        )
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        name = f"{about['model']} {run.path.name}"
        tags = {MLFLOW_TAG: run.fingerprint, "dygmamba.path": path}
        self._run = self._client.create_run(experiment, run_name=name, tags=tags).info.run_id
        for section in ("run", "train", "model"):
            for key, value in sections.get(section, {}).items():
                self._client.log_param(self._run, f"{section}.{key}", str(value)[:500])

    def epoch(self, entry: dict[str, Any]) -> None:
        for key, value in get_numbers(entry).items():
            self._client.log_metric(self._run, key, value, step=entry["epoch"])

    def results(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for key, value in get_final_metrics(row).items():
                self._client.log_metric(self._run, key.replace("@", "_at_"), value)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


Logger = TensorBoard | MLflow
LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def get_numbers(entry: dict[str, Any]) -> dict[str, float]:
    """Return the numeric values of an epoch entry, without its number."""
    return {
        key: float(value)
        for key, value in entry.items()
        if key != "epoch" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def get_final_metrics(row: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a result row, keyed split/setting/negatives/metric."""
    about = "/".join(str(row[key]) for key in ("split", "setting", "negatives") if row.get(key) is not None)
    return {f"{about}/{key}": float(row[key]) for key in METRICS if row.get(key) is not None}


class RunLoggers(ForwardingProgress):
    """Progress of one run that also reports to loggers. A logger that fails is dropped; the run goes on."""

    def __init__(self, run: RunDirectory, loggers: dict[str, Logger], inner: Progress) -> None:
        super().__init__(inner)
        self._run, self._loggers = run, loggers

    def epoch(self, entry: dict[str, Any]) -> None:
        self._inner.epoch(entry)
        self._call(lambda logger: logger.epoch(entry))

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """Log the final results and close the loggers as finished."""
        self._call(lambda logger: logger.results(rows))
        self.close(finished=True)

    def close(self, finished: bool) -> None:
        """Close the loggers that are still open."""
        self._call(lambda logger: logger.close(finished))
        self._loggers.clear()

    def _call(self, action: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                action(logger)
            except Exception as error:  # of another package, about a server or a disk this run does not need
                del self._loggers[name]
                self.message(
                    f"{name} failed and gets no more of {self._run.path} "
                    f"({type(error).__name__}: {first_line(error)}); the run directory holds everything"
                )


@contextmanager
def open_loggers(run: RunDirectory, names: Sequence[str], progress: Progress) -> Iterator[RunLoggers]:
    """Open the named loggers for a run; they are closed as stopped unless `finish` was called."""
    loggers = RunLoggers(run, {name: _start_logger(name, run) for name in names}, progress)
    try:
        yield loggers
    finally:
        loggers.close(finished=False)


def _start_logger(name: str, run: RunDirectory) -> Logger:
    try:
        return LOGGERS[name](run)
    except Exception as error:  # a server that does not answer, a package that another one needs
        raise ConfigError(
            f"`log='{name}'` cannot start ({type(error).__name__}: {first_line(error)}); fix that, or leave it out",
            code="logger-failed",
        ) from error
