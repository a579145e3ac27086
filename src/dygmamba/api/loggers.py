"""Where else a training is written down: TensorBoard or MLflow, each fed by the run's own events.

A logger is made when a run begins to train, told of every epoch and of the final results, and closed. None changes the
run; the run folder holds all of it anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dygmamba.api.pipeline import Watcher
from dygmamba.core.errors import ConfigError, first_line
from dygmamba.engine.fit import Reporter, Trainer
from dygmamba.engine.run_directory import RunDirectory, to_toml
from dygmamba.engine.scoring import Advance

MLFLOW_TAG = "dygmamba.run"  # what an MLflow run is found again by


class Logger(Protocol):
    """What is told of a run."""

    def epoch(self, entry: dict[str, Any]) -> None:
        """An epoch is done: its number, loss, validation metrics, seconds."""
        ...

    def results(self, rows: list[dict[str, Any]]) -> None:
        """The final evaluation."""
        ...

    def close(self, whole: bool) -> None:
        """No more of this; `whole`: the run came to its end."""
        ...


class TensorBoard:
    """Event files in the run folder, which TensorBoard shows of all runs under a folder."""

    def __init__(self, run: RunDirectory) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.path))
        self._writer.add_text("config", f"```toml\n{to_toml(run.config())}```", 0)

    def epoch(self, entry: dict[str, Any]) -> None:
        """A point on every curve."""
        for key, value in get_numbers(entry).items():
            self._writer.add_scalar(key, value, entry["epoch"])
        self._writer.flush()

    def results(self, rows: list[dict[str, Any]]) -> None:
        """A point each, under the exam's name."""
        for row in rows:
            for key, value in get_final_metrics(row).items():
                self._writer.add_scalar(key, value, 0)

    def close(self, whole: bool) -> None:
        """Flush and close."""
        self._writer.close()


class MLflow:
    """A run of the experiment that has the dataset's name, where MLFLOW_TRACKING_URI says, else as MLflow itself does.

    A training that goes on goes on in the same MLflow run, found by its tag.
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
        """A step of every metric."""
        for key, value in get_numbers(entry).items():
            self._client.log_metric(self._run, key, value, step=entry["epoch"])

    def results(self, rows: list[dict[str, Any]]) -> None:
        """A metric each, under the exam's name."""
        for row in rows:
            for key, value in get_final_metrics(row).items():
                self._client.log_metric(self._run, key.replace("@", "_at_"), value)

    def close(self, whole: bool) -> None:
        """Mark it as finished, or as stopped."""
        self._client.set_terminated(self._run, "FINISHED" if whole else "KILLED")


LOGGERS: dict[str, Callable[[RunDirectory], Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def get_numbers(entry: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch but its own."""
    return {
        key: float(value)
        for key, value in entry.items()
        if key != "epoch" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def get_final_metrics(row: dict[str, Any]) -> dict[str, float]:
    """The measures of a result row, called by split, nodes and negatives."""
    about = "/".join(str(row[key]) for key in ("split", "setting", "negatives") if row.get(key) is not None)
    measures = ("ap", "auc", "ap_pooled", "auc_pooled", "mrr", "hits@10", "ece")
    return {f"{about}/{key}": float(row[key]) for key in measures if row.get(key) is not None}


class LoggedProgress(Watcher):
    """Another watcher, with loggers beside it."""

    def __init__(self, inner: Watcher, names: Sequence[str]) -> None:
        self._inner, self._names = inner, tuple(names)
        self._open: dict[Path, dict[str, Logger]] = {}

    @contextmanager
    def fitting(self, fit: Trainer, name: str, metric: str) -> Iterator[Reporter]:
        """Told of epochs, each logger after the watcher."""
        self._open[fit.run.path] = {kind: _start_logger(kind, fit.run) for kind in self._names}
        with self._inner.fitting(fit, name, metric) as report:

            def on_epoch(entry: dict[str, Any]) -> None:
                report.epoch(entry)
                self._tell(fit.run.path, lambda log: log.epoch(entry))

            try:
                yield replace(report, epoch=on_epoch)
            except BaseException:
                self._close(fit.run.path, whole=False)
                raise

    def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """The watcher's affair."""
        return self._inner.stage(name, total)

    def say(self, sentence: str) -> None:
        """The watcher's affair."""
        self._inner.say(sentence)

    def finished(self, run: RunDirectory) -> None:
        """The results, and the end."""
        self._inner.finished(run)
        self._tell(run.path, lambda log: log.results(run.results()))
        self._close(run.path, whole=True)

    def _close(self, path: Path, whole: bool) -> None:
        self._tell(path, lambda log: log.close(whole))
        self._open.pop(path, None)

    def _tell(self, path: Path, what: Callable[[Logger], None]) -> None:
        """Tell every logger; one that fails is told of no more, and the run goes on."""
        for kind, log in list(self._open.get(path, {}).items()):
            try:
                what(log)
            except Exception as error:  # another package's, of a server or a disk that is none of this run's
                del self._open[path][kind]
                why = f"{type(error).__name__}: {first_line(error)}"
                self.say(f"{kind} is told no more of {path} ({why}); the run folder holds all of it")


def _start_logger(kind: str, run: RunDirectory) -> Logger:
    try:
        return LOGGERS[kind](run)
    except Exception as error:  # a server that does not answer, a package that another one needs
        raise ConfigError(
            f"`log='{kind}'` cannot begin ({type(error).__name__}: {first_line(error)}); mend that, or leave it out"
        ) from error
