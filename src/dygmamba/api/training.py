"""Training from Python: one run per seed, and what they say together.

Several finished runs as one, from Python.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, overload

import pyarrow as pa
import torch

from dygmamba.api.evaluation import Names, parse_names, rows_to_table
from dygmamba.api.loggers import LoggedProgress
from dygmamba.api.pipeline import (
    Epochs,
    TrainingPlan,
    Watcher,
    check_task,
    check_training_plan,
    finish_link_run,
    refit_link_run,
    resume_run,
    train_link_run,
    train_node_run,
)
from dygmamba.api.processes import process_group, run_in_processes
from dygmamba.api.run import Run
from dygmamba.api.validation import choose_model, parse_loggers
from dygmamba.core.errors import DygWarning
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.fit import Trainer
from dygmamba.runs.blending import blend_runs
from dygmamba.runs.opening import SplitSpec, choose_device, store_run_dataset
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.metric_names import SETTING_LABELS

EpochCallback = Callable[
    [dict[str, Any]], None
]  # told of every epoch: seed, epoch, loss, validation metrics, seconds
GROUP_KEYS = ("split", "setting", "negatives")
METRIC_KEYS = ("ap", "auc", "ap_pooled", "auc_pooled", "mrr", "hits@10", "ece", "ece_raw")


class Runs(Sequence[Run]):
    """The runs of one training, one per seed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> "Runs": ...
    def __getitem__(self, place: int | slice) -> "Run | Runs":
        return Runs(self._runs[place]) if isinstance(place, slice) else self._runs[place]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        said = f"<{len(self)} run{'s' * (len(self) != 1)}"
        for row in self.summary.to_pylist():
            about = " ".join(
                SETTING_LABELS.get(str(row[key]), str(row[key])) if key == "setting" else str(row[key])
                for key in GROUP_KEYS
                if key in row
            )
            figures = ((row["ap"], row["ap_std"]), (row["auc"], row["auc_std"]))
            said += f"; {about}: AP {_format_percent(*figures[0])}, AUC {_format_percent(*figures[1])}"
        return f"{said}>"

    @property
    def metrics(self) -> pa.Table:
        """One row per seed and epoch."""
        rows = [{"seed": run.config["run"]["seed"], **row} for run in self for row in run.metrics.to_pylist()]
        return pa.Table.from_pylist(rows)

    @property
    def results(self) -> pa.Table:
        """The final evaluations of all seeds, one row each."""
        return rows_to_table([row for run in self for row in run.results.to_pylist()])

    @property
    def summary(self) -> pa.Table:
        """Mean and spread (standard deviation; null of one seed) of each metric over the seeds."""
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.results.to_pylist():
            groups.setdefault(tuple(row.get(key) for key in GROUP_KEYS), []).append(row)
        rows = []
        for about, own in groups.items():
            row = {key: value for key, value in zip(GROUP_KEYS, about, strict=True) if value is not None}
            row["seeds"] = len(own)
            for key in (key for key in METRIC_KEYS if key in own[0]):
                values = [one[key] for one in own if one[key] is not None]
                row[key] = mean(values) if values else None
                row[f"{key}_std"] = stdev(values) if len(values) > 1 else None
            rows.append(row)
        return pa.Table.from_pylist(rows)


def train(
    data: Dataset | str,
    model: str | None = None,
    *,
    seeds: int | Sequence[int] = (0,),
    task: str = "link",
    device: str = "auto",
    out: Path | str = "runs",
    negatives: Names = "random",
    backbone: Path | str | None = None,
    finetune: bool = False,
    balance: bool = False,
    preset: str | None = None,
    split: SplitSpec | None = None,
    data_dir: Path | str | None = None,
    progress: EpochCallback | None = None,
    log: Names | None = None,
    processes: int = 1,
    **settings: Any,
) -> Runs:
    """Train a model, one run folder per seed under `out`, and evaluate its best weights and simple rules beside them.

    Without a model it is "dyg-mamba" where there is a GPU or a setting asks for it, otherwise "trees", which need none;
    a warning says so. `preset` is "small" for a DyG-Mamba that suits a CPU. `split` is three shares, (0.7, 0.15, 0.15),
    or the two times when validation and test begin, ("2024-01-01", "2024-06-01"). `settings` are the training loop's
    and the model's own, such as epochs, lr, batch or length; the published ones hold where a dataset has them. Data
    that no name leads to are stored beside the runs. With task="node", `backbone` is a finished link run to build on,
    whose model it then is (else one is trained first), `finetune` trains it too, and `balance` weighs both classes the
    same. `progress` is told of every epoch; `log` is "tensorboard" or "mlflow", or both, which are told too. So many
    `processes` of this machine, one per GPU or sharing its cores, train each run together: every batch is shared among
    them, and what one would compute is computed. A script that torchrun starts does the same without it.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> runs = dm.train(data, "graphmixer", seeds=range(2), epochs=1, neighbors=4, out="runs")
    >>> len(runs), runs.summary.column_names[:4]
    (2, ['split', 'setting', 'negatives', 'seeds'])
    """
    check_task(task, {"backbone": backbone is not None, "finetune": finetune, "balance": balance})
    strategies, watcher = parse_names("negatives", negatives, SAMPLERS), _make_progress(progress, log)
    folder, root = None if data_dir is None else Path(data_dir), Path(out)
    dataset = open_dataset(data, folder) if isinstance(data, str) else data
    where, why = choose_device(device), {}
    if model is None and backbone is None:  # a backbone brings its own model
        pick = choose_model(where, task, settings, preset)
        model, preset, why = pick.model, pick.size, {"model": pick.sentence}
        if pick.surprising:
            warnings.warn(DygWarning(pick.sentence), stacklevel=2)
    plan = TrainingPlan(
        settings=settings,
        device=where,
        out=root,
        model=model,
        strategies=strategies,
        backbone=None if backbone is None else Path(backbone),
        finetune=finetune,
        balance=balance,
        size=preset,
        split=split,
        why=why,
    )
    check_training_plan(plan)
    numbers = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if processes != 1:
        job = {"data": dataset.name} if not isinstance(data, str) else {"data": data}
        kept = None if isinstance(data, str) else store_run_dataset(dataset, root, folder)
        job |= {} if kept is None else {"kept": str(kept)}
        job |= {"model": model, "seeds": numbers, "task": task, "device": device, "out": str(root)}
        job |= {"negatives": strategies, "finetune": finetune, "balance": balance, "preset": preset}
        job |= {"backbone": None if backbone is None else str(backbone), "split": split, "log": log}
        job |= {"data_dir": None if folder is None else str(folder), **settings}
        paths = run_in_processes("train", processes, progress, job)
        return Runs([Run(path, device, folder) for path in paths])
    work = train_node_run if task == "node" else train_link_run
    with process_group(where) as ranks:
        if not isinstance(data, str):
            ranks.led(lambda: store_run_dataset(dataset, root, folder))
        watcher = watcher if ranks.leads else _make_progress(progress)
        paths = [work(dataset, plan, seed, watcher).run.path for seed in numbers]
    return Runs([Run(path, device, folder) for path in paths])


def resume(
    folder: Path | str,
    *,
    device: str = "auto",
    negatives: Names = "random",
    data_dir: Path | str | None = None,
    progress: EpochCallback | None = None,
    log: Names | None = None,
    processes: int = 1,
    **settings: Any,
) -> Run:
    """Go on with a run that was stopped, exactly as it would have gone on, and evaluate it; a finished one stays.

    `epochs=50` makes it, finished or not, the run that would have been started with 50; `patience` can grow too. Any
    other setting is refused. `processes` may be others than it began with; then its last bits are others.

    >>> import dygmamba as dm
    >>> small = {"length": 4, "width": 4, "blocks": 1}
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "dyg-mamba", epochs=1, **small)
    >>> dm.resume(run.path).results == run.results
    True
    >>> dm.resume(run.path, epochs=2).metrics.num_rows
    2
    """
    path, data = Path(folder), None if data_dir is None else Path(data_dir)
    strategies = parse_names("negatives", negatives, SAMPLERS)
    watcher = _make_progress(progress, log)
    if processes != 1:
        job = {"folder": str(path), "device": device, "negatives": strategies, "log": log, **settings}
        job |= {"data_dir": None if data is None else str(data)}
        run_in_processes("resume", processes, progress, job)
        return Run(path, device, data)
    with process_group(where := choose_device(device)) as ranks:
        resume_run(
            path, where, strategies, watcher if ranks.leads else _make_progress(progress), data, settings
        )
    return Run(path, device, data)


def refit(
    folder: Path | str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    progress: EpochCallback | None = None,
) -> Run:
    """A run for use: a finished run's settings trained on every event, the test's too, for as long as was best.

    It lies beside the one it is made of, and has no test: how good its settings are is in the results of that one.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1)
    >>> everything = dm.refit(run.path)
    >>> everything.finished, everything.results.num_rows, everything.rank([3], k=2).num_rows
    (True, 0, 2)
    """
    path, data = Path(folder), None if data_dir is None else Path(data_dir)
    with process_group(where := choose_device(device)):
        made = refit_link_run(path, where, _make_progress(progress), data)
    return Run(made.run.path, device, data)


def _format_percent(value: float | None, spread: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f}" + ("" if spread is None else f"±{100 * spread:.2f}")


def _make_progress(progress: EpochCallback | None, log: Names | None = None) -> Watcher:
    logs, watcher = parse_loggers(log), Watcher() if progress is None else Epochs(progress)
    return LoggedProgress(watcher, logs) if logs else watcher


def blend(
    runs: Sequence[Path | str],
    *,
    device: str = "auto",
    out: Path | str = "runs",
    negatives: Names = "random",
    data_dir: Path | str | None = None,
) -> Run:
    """Finished link runs of one stream as one: the sum of their logits that is best on validation, then evaluated.

    Nothing is trained. The new run holds all it needs and is used like any other. Two to four runs, of different models
    or of different seeds.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> parts = [dm.train(data, name, epochs=1)[0] for name in ("trees", "tgn")]
    >>> both = dm.blend([part.path for part in parts])
    >>> both.config["run"]["model"], sum(both.config["model"]["weights"])
    ('blend', 1.0)
    """
    strategies = parse_names("negatives", negatives, SAMPLERS)
    where, folder = choose_device(device), None if data_dir is None else Path(data_dir)
    made = watched_blend([Path(run) for run in runs], where, Path(out), strategies, Watcher(), folder)
    return Run(made.run.path, device, folder)


def watched_blend(
    runs: list[Path],
    device: torch.device,
    out: Path,
    strategies: tuple[str, ...],
    watcher: Watcher,
    data_dir: Path | None,
) -> Trainer:
    """The same, somebody following."""
    fit, dataset = blend_runs(runs, device, out, data_dir, watcher.stage)
    watcher.say(f"run: {fit.run.path}")
    watcher.say(fit.run.config()["chosen"]["weights"])
    return finish_link_run(fit, dataset, strategies, watcher)
