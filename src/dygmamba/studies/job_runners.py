"""Computation of each kind of job (`JOB_RUNNERS` by name), and measurement of the cost of a training.

A runner takes a job and its context, and returns the rows of its result together with what they cost.
"""

import gc
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from dygmamba.config import build_config
from dygmamba.core import memory_budget
from dygmamba.core.choices import PUBLISHED_NEGATIVES, SCOPES
from dygmamba.core.errors import FileError, LockedError, WriteError
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.fit import StopCondition, Trainer, never_stop
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.explain.hidden_states import measure_state_similarity
from dygmamba.history.negatives import PUBLISHED_SEEDS
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.calibration import calibrate_link_run
from dygmamba.runs.evaluation import (
    PAIR_METRICS,
    RANK_COLUMNS,
    RANK_METRICS,
    Queries,
    Ranking,
    evaluate_queries,
    evaluate_sets,
)
from dygmamba.runs.final_evaluation import MIN_RANKED_EVENTS, choose_ranking
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.node_training import evaluate_node_fit, start_direct_node_run, start_node_run
from dygmamba.runs.opening import choose_device, open_run, resume_training, store_run_dataset
from dygmamba.runs.provenance import StartOptions, describe_environment
from dygmamba.runs.run_config import read_split
from dygmamba.studies.job import CODE_VERSION, Job, ResultCache
from dygmamba.studies.noise import OverwrittenHistoryStream, insert_noise, supports_overwriting
from dygmamba.tasks.link import build_link_set

CODE_FILE = "code.txt"  # version of the code that a job's run was started with, beside the run directory
RANKED_SCOPE = "transductive"  # of which the test events are ranked too
LOCK_TIMEOUT = 120.0  # seconds to wait for a run that a worker of a killed study is still saving

# How much of an epoch is timed. On a CPU always some steps, on a GPU whole epochs unless they are long.
CPU_STEPS, MIN_STEPS = 20, 3
CPU_TIME_LIMIT = 30.0  # seconds of timed steps; at least MIN_STEPS are timed whatever they take
GPU_TIME_LIMIT = 12.0  # seconds of timed epochs; beyond it only some steps of one epoch are timed

JobResult = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobContext:
    """Context of a runner besides its job: result cache, device, data folder, and an observer of its training."""

    results: ResultCache
    device: str = "auto"
    data_dir: Path | None = None
    progress: Progress = SILENT
    stop: StopCondition = never_stop

    def open_dataset(self, job: Job) -> Dataset:
        """Open the job's dataset and check that it is still the one that was planned."""
        dataset = open_dataset(job.data, self.data_dir)
        if dataset.digest != job.digest:
            raise FileError(
                f"dataset '{job.data}' changed while the study was running; start the study again",
                code="dataset-changed",
            )
        return dataset

    def list_runs(self, key: str) -> list[Path]:
        """Return the run directories of a job, the newest last."""
        return sorted(path.parent for path in self.results.folder(key).glob("*/*/*/config.toml"))

    def find_needed_run(self, job: Job) -> Path:
        """Return the run directory of the job that this one needs."""
        runs = self.list_runs(str(job.needs))
        if not runs:
            folder = self.results.folder(str(job.needs))
            raise FileError(
                f"{folder} has a result but no run directory; delete it to train the run again",
                code="missing-run",
            )
        return runs[-1]


def run_link(job: Job, context: JobContext) -> JobResult:
    """Train a model and evaluate its best weights on the test split, for all nodes and new nodes."""
    fit = _train_to_end(job, context, lambda root: _start_link_run(job, context, root))
    about = {"dataset": job.data, "model": job.model, "seed": job.seed, **read_split(fit.run).stamp}
    ranking = choose_ranking(fit.scorer, (RANKED_SCOPE,))
    found = evaluate_sets(
        lambda negatives: fit.scorer,
        fit.stream,
        _list_evaluations(job),
        fit.config.rule,
        fit.seed,
        ranking=ranking,
    )
    rows = [about | one.about | one.row((*PAIR_METRICS, *RANK_COLUMNS)) for one in found]
    calibrate_link_run(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **summarize_training_cost(fit)}


def run_heuristic(job: Job, context: JobContext) -> JobResult:
    """Evaluate a model without training on the published negative samples."""
    dataset = context.open_dataset(job)
    split = _read_job_split(job, dataset)
    baselines = Baselines.from_dataset(dataset, VisibilityRule(job.asks["visible"]), split)
    ranking = Ranking(RANK_METRICS, max_events=MIN_RANKED_EVENTS, scopes=(RANKED_SCOPE,))
    found = evaluate_sets(
        lambda negatives: baselines.build(job.model, job.settings, negatives),
        baselines.stream,
        _list_evaluations(job),
        baselines.visibility,
        ranking=ranking,
    )
    about = {"dataset": job.data, "model": job.model}
    rows = [
        about
        | {"seed": PUBLISHED_SEEDS["test", one.about["setting"]]}
        | one.about
        | one.row((*PAIR_METRICS, *RANK_COLUMNS))
        | split.stamp
        for one in found
    ]
    return {"rows": rows, "made_with": describe_environment(torch.device("cpu"))}


def _list_evaluations(job: Job) -> list[tuple[str, str, str]]:
    """Return (negatives, split, setting) of every evaluation on the test split."""
    return [
        (kind, "test", setting)
        for kind in job.asks.get("negatives", PUBLISHED_NEGATIVES)
        for setting in SCOPES
    ]


def run_node(job: Job, context: JobContext) -> JobResult:
    """Train a node classifier on the frozen encoder of another job's run, or a model that needs no encoder."""
    backbone = None if job.needs is None else context.find_needed_run(job)

    def start(root: Path) -> Trainer:
        dataset, device, seed = context.open_dataset(job), choose_device(context.device), int(job.seed or 0)
        if backbone is None:
            rule = _read_job_split(job, dataset)
            return start_direct_node_run(dataset, job.model, job.settings, seed, device, root, rule)
        return start_node_run(
            dataset, backbone, build_config(NodeFitConfig, job.settings), seed, device, root
        )

    fit = _train_to_end(job, context, start)
    rows = evaluate_node_fit(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **summarize_training_cost(fit)}


def run_robustness(job: Job, context: JobContext) -> JobResult:
    """Evaluate a run that was trained on clean data at every noise rate."""
    run = open_run(context.find_needed_run(job), choose_device(context.device), context.data_dir)
    scorer = run.scorer
    # The memory that training left behind has seen no noise. Dropping it replays the noisy stream from the start, at
    # rate 0 too, so that all rates are comparable.
    scorer.delete_saved_memory()
    kind = job.asks["kind"]
    about = {"dataset": job.data, "model": job.model, "seed": job.seed, "noise_kind": kind}
    clean = build_link_set(run.stream.store, run.stream.split, "test")
    if kind == "release" and not supports_overwriting(run.scorer.requests):
        return {"rows": [], "note": "the released noise is defined for one hop of recent events"}
    rows = []
    for rate in job.asks["rates"]:
        stream, evaluation_set = run.stream, clean
        if rate and kind == "insert":
            noisy = insert_noise(run.stream, rate, seed=job.asks["seed"])
            stream, evaluation_set = noisy.stream, noisy.evaluation_set(clean)
        elif rate:
            stream = OverwrittenHistoryStream(
                stream.store, stream.split, stream.device, rate=rate, seed=job.asks["seed"]
            )
        scored = evaluate_queries(run.scorer, stream, Queries(evaluation_set), run.rule, run.seed)
        rows.append(about | scored.about | {"noise": rate} | scored.link)
    return {"rows": rows, "made_with": describe_environment(run.stream.device)}


def run_cost(job: Job, context: JobContext) -> JobResult:
    """Measure the time of a training epoch, the peak memory and the parameter count; evaluate and keep nothing."""
    root = context.results.folder(job.key) / "timed"
    shutil.rmtree(root, ignore_errors=True)
    about = {"dataset": job.data, "model": job.model, **job.about}
    try:
        fit = _start_link_run(job, context, root)
        row = about | time_epoch(fit, job.asks.get("epochs", 2))
    except (torch.OutOfMemoryError, MemoryError):
        row = about | {"epoch_seconds": None, "peak_mb": None, "note": "out of memory"}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"rows": [row], "made_with": describe_environment(choose_device(context.device))}


def run_similarity(job: Job, context: JobContext) -> JobResult:
    """Compute the cosine similarity of the hidden states of both sequences of the pair with the longest histories."""
    run = open_run(context.find_needed_run(job), choose_device(context.device), context.data_dir)
    row = {
        "dataset": job.data,
        "model": job.model,
        "seed": job.seed,
        **measure_state_similarity(run, job.asks["tokens"]),
    }
    return {"rows": [row], "made_with": describe_environment(run.stream.device)}


JOB_RUNNERS: dict[str, Callable[[Job, JobContext], JobResult]] = {
    "link": run_link,
    "heuristic": run_heuristic,
    "node": run_node,
    "robustness": run_robustness,
    "cost": run_cost,
    "similarity": run_similarity,
}


def _start_link_run(job: Job, context: JobContext, root: Path) -> Trainer:
    dataset = context.open_dataset(job)
    store_run_dataset(dataset, root, context.data_dir)
    options = StartOptions(_read_job_split(job, dataset))
    return start_link_run(
        dataset, job.model, int(job.seed or 0), job.settings, choose_device(context.device), root, options
    )


def _read_job_split(job: Job, dataset: Dataset) -> SplitRule:
    """Return the split that a job was planned with: a leaderboard's, or the published shares with a protocol."""
    if "split_by" in job.asks:
        return get_default_split(dataset)
    return get_default_split(dataset, job.asks.get("protocol", PUBLISHED_SPLIT.protocol))


def _train_to_end(job: Job, context: JobContext, start: Callable[[Path], Trainer]) -> Trainer:
    """Resume the job's interrupted run, or start a new one if there is none that can be resumed; train to the end.

    A run of another code version cannot: one result would come of two versions. The keys of most jobs tell the versions
    apart; those of the paper's plan do not.
    """
    fit, code_file = None, context.results.folder(job.key) / CODE_FILE
    device = choose_device(context.device)  # a lost GPU must not delete a run
    is_current = code_file.exists() and code_file.read_text("utf-8") == CODE_VERSION
    for path in context.list_runs(job.key)[-1:]:
        if is_current and RunDirectory(path).started:
            fit = _resume_or_none(lambda path=path: resume_training(path, device, context.data_dir))
    if fit is None:
        for path in context.list_runs(job.key):
            shutil.rmtree(path)
        make_folder(code_file.parent)
        write_text(code_file, CODE_VERSION)
        fit = start(code_file.parent)
    reset_peak_memory(fit.stream.device)
    fit(context.progress, stop=context.stop)
    return fit


def _resume_or_none(resume: Callable[[], Trainer]) -> Trainer | None:
    """Resume a run, waiting while another process still writes it; None if its files are damaged.

    Any other error, such as a missing device or a full disk, is raised: the run can be resumed once that is mended.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return resume()
        except LockedError:  # a worker whose study was killed saves its run before it exits
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        except WriteError:
            raise
        except FileError:
            return None


def summarize_training_cost(fit: Trainer) -> dict[str, Any]:
    """Return losses, time, memory and parameter count of a finished training."""
    entries = fit.state.entries
    return {
        "epochs": [round(entry["loss"], 6) for entry in entries],
        "validation": [round(entry["val_ap"], 6) for entry in entries],
        "best_epoch": fit.state.best_epoch + 1,
        "epoch_seconds": round(median(entry["train_seconds"] for entry in entries), 4),
        "seconds": round(sum(entry["seconds"] for entry in entries), 2),
        "parameters": _count_parameters(fit),
        "peak_mb": _measure_peak_mb(fit.stream),
        "config": {name: fit.run.config()[name] for name in ("train", "model")},
        "made_with": fit.run.config()["made_with"],
    }


def time_epoch(fit: Trainer, epochs: int) -> dict[str, Any]:
    """Measure time and memory of a training epoch.

    On a GPU the last of `epochs` epochs is timed; on a CPU, or if epochs are long, some steps, scaled to the epoch.
    """
    reset_peak_memory(fit.stream.device)
    if fit.stream.device.type == "cuda":
        seconds, steps = _time_epoch_on_gpu(fit, epochs)
    else:
        total = fit.steps_per_epoch
        # the last steps, because nodes have their full histories there
        chosen = range(total - min(CPU_STEPS, total), total)
        times = _time_steps(fit, chosen, CPU_TIME_LIMIT)
        # the first step may compile
        seconds, steps = median(times[1:] or times) * total, len(times)
    return {
        "epoch_seconds": round(seconds, 4),
        "stepstimed": steps,
        "steps": fit.steps_per_epoch,
        "parameters": _count_parameters(fit),
        "peak_mb": _measure_peak_mb(fit.stream),
    }


def _time_epoch_on_gpu(fit: Trainer, epochs: int) -> tuple[float, int]:
    """Return the seconds of an epoch and the number of steps that were timed."""
    total = fit.steps_per_epoch
    probe = range(total // 6, total, max(1, total // 3))
    _time_steps(fit, probe)  # the first pass compiles kernels and captures graphs
    times = _time_steps(fit, probe)
    expected = mean(times) * total
    if expected * epochs > GPU_TIME_LIMIT:
        chosen = range(0, total, max(1, round(expected / GPU_TIME_LIMIT)))
        times = _time_steps(fit, chosen) if mean(times) * len(chosen) > sum(times) else times
        return mean(times) * total, len(times)
    seconds = 0.0
    for _ in range(epochs):
        started = time.perf_counter()
        fit.train_epoch()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        fit.state.step = 0
    return seconds, total


def _time_steps(fit: Trainer, numbers: Iterable[int], limit: float = inf) -> list[float]:
    """Return the seconds of each step; stop early once the steps after the first took more than `limit`."""
    epoch, seconds = fit.epoch(0), []
    fit.scorer.train()
    for number in numbers:
        started = time.perf_counter()
        fit.executor.step(fit.batch(epoch, number)).item()
        seconds.append(time.perf_counter() - started)
        if len(seconds) >= MIN_STEPS and sum(seconds[1:]) > limit:
            break
    return seconds


def reset_peak_memory(device: torch.device) -> None:
    """Restart the measurement of peak memory, after freeing what an earlier job of this process left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    memory_budget.reset_peak_memory()


def _count_parameters(fit: Trainer) -> int:
    return sum(parameter.numel() for parameter in fit.scorer.parameters())


def _measure_peak_mb(stream: Stream) -> float:
    """Return the peak memory since `reset_peak_memory`: torch's on a GPU, the process's on a CPU."""
    if stream.device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return round(memory_budget.get_peak_memory() / 2**20, 1)
