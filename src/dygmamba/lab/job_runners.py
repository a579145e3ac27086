"""What a run took: time, memory, parameters.

What a job does: WORKS by name. Each takes a job and a place to work in, and returns rows and what they cost.
"""

import dataclasses
import gc
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from dygmamba.config import build_config
from dygmamba.core.errors import DygError, FileError, LockedError
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Reporter, Trainer
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.explain.hidden_states import measure_state_similarity
from dygmamba.lab.job import Job, Results
from dygmamba.lab.noise import OverwrittenHistoryStream, insert_noise, supports_overwriting
from dygmamba.models.base import MemorySaver, Scorer
from dygmamba.runs.calibration import calibrate_link_run
from dygmamba.runs.link_training import (
    HeuristicEvaluator,
    evaluate_link_scorer,
    resume_link_run,
    start_link_run,
)
from dygmamba.runs.node_training import evaluate_node_fit, resume_node_run, start_node_run
from dygmamba.runs.opening import choose_device, open_run, store_run_dataset
from dygmamba.runs.provenance import describe_environment
from dygmamba.tasks.link import SETTINGS, build_link_set
from dygmamba.tasks.metrics import link_metrics

CPU_STEPS, MIN_STEPS = (
    20,
    3,
)  # timed where an epoch's cost is measured on a CPU, and fewer where they take long
CPU_TIME_LIMIT = 30.0  # seconds of steps there
GPU_TIME_LIMIT = 12.0  # seconds of epochs on a GPU, beyond which some steps of one are timed


def summarize_training_cost(fit: Trainer) -> dict[str, Any]:
    """What training took, from the run's own record."""
    entries = fit.progress.entries
    return {
        "epochs": [round(entry["loss"], 6) for entry in entries],
        "validation": [round(entry["val_ap"], 6) for entry in entries],
        "best_epoch": fit.progress.best_epoch + 1,
        "epoch_seconds": round(median(entry["train_seconds"] for entry in entries), 4),
        "seconds": round(sum(entry["seconds"] for entry in entries), 2),
        "parameters": _count_parameters(fit),
        "peak_mb": _measure_peak_mb(fit.stream),
        "config": {name: fit.run.config()[name] for name in ("train", "model")},
        "made_with": fit.run.config()["made_with"],
    }


def time_epoch(fit: Trainer, epochs: int) -> dict[str, Any]:
    """The last of so many epochs on a GPU; on a CPU, or where epochs are long, some steps, scaled to the epoch."""
    reset_peak_memory(fit.stream.device)
    if fit.stream.device.type == "cuda":
        seconds, steps = _time_epoch_on_gpu(fit, epochs)
    else:
        last = fit.steps_per_epoch
        chosen = range(last - min(CPU_STEPS, last), last)  # the last ones, whose nodes have a past
        each = _time_steps(fit, chosen, CPU_TIME_LIMIT)
        seconds, steps = median(each[1:] or each) * last, len(each)
    return {
        "epoch_seconds": round(seconds, 4),
        "stepstimed": steps,
        "steps": fit.steps_per_epoch,
        "parameters": _count_parameters(fit),
        "peak_mb": _measure_peak_mb(fit.stream),
    }


def _time_epoch_on_gpu(fit: Trainer, epochs: int) -> tuple[float, int]:
    """Seconds of an epoch and the steps they were measured in: all of the last epoch, or as many as time allows.

    A few steps, asked twice because the first time compiles and captures, say how long an epoch is.
    """
    last = fit.steps_per_epoch
    probe = range(last // 6, last, max(1, last // 3))
    _time_steps(fit, probe)
    each = _time_steps(fit, probe)
    whole = mean(each) * last
    if whole * epochs > GPU_TIME_LIMIT:
        chosen = range(0, last, max(1, round(whole / GPU_TIME_LIMIT)))
        each = _time_steps(fit, chosen) if mean(each) * len(chosen) > sum(each) else each
        return mean(each) * last, len(each)
    seconds = 0.0
    for _ in range(epochs):
        began = time.perf_counter()
        fit.train_epoch(Reporter())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        fit.progress.step = 0
    return seconds, last


def _time_steps(fit: Trainer, numbers: Iterable[int], limit: float = inf) -> list[float]:
    """Seconds of each of these steps; of a few only, where all but the first, which may compile, take too long."""
    epoch, seconds = fit.epoch(0), []
    fit.scorer.train()
    for number in numbers:
        began = time.perf_counter()
        fit.executor.step(fit.batch(epoch, number)).item()
        seconds.append(time.perf_counter() - began)
        if len(seconds) >= MIN_STEPS and sum(seconds[1:]) > limit:
            break
    return seconds


def reset_peak_memory(device: torch.device) -> None:
    """From here on the most counts; what an earlier job of this process held and nobody needs is let go first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # Linux alone can begin anew
        Path("/proc/self/clear_refs").write_text("5")


def _count_parameters(fit: Trainer) -> int:
    return sum(parameter.numel() for parameter in fit.scorer.parameters())


def _measure_peak_mb(stream: Stream) -> float:
    """On a GPU what torch held at most since the fit began; on a CPU what the process did, or had before elsewhere."""
    if stream.device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    import resource

    own = Path("/proc/self/status")  # on Linux ru_maxrss begins with the parent's
    if own.exists():
        (peak,) = [line.split()[1] for line in own.read_text().splitlines() if line.startswith("VmHWM")]
        return round(int(peak) / 2**10, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)


NEGATIVES = ("random", "historical", "inductive")
LOCK_TIMEOUT = 120.0  # seconds that a run may be held by a worker whose study was killed

JobResult = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobContext:
    """Where a job works: the results it may look at and adds to, the device, and who follows it."""

    results: Results
    device: str = "auto"
    data_dir: Path | None = None
    report: Reporter = dataclasses.field(default_factory=Reporter)

    def dataset(self, job: Job) -> Dataset:
        """The job's data; another one of that name is refused."""
        dataset = open_dataset(job.data, self.data_dir)
        if dataset.digest != job.digest:
            raise FileError(f"dataset '{job.data}' changed while the study ran; begin the study again")
        return dataset

    def runs(self, key: str) -> list[Path]:
        """The run folders of a job, the newest last."""
        found = self.results.folder(key).glob("*/*/*/config.toml")
        return sorted(path.parent for path in found)


def link(job: Job, place: JobContext) -> JobResult:
    """Train, evaluate the best weights on the test period in both settings against every kind of negatives."""
    fit = _train_to_end(job, place, lambda root: _start_link_run(job, place, root), resume_link_run)
    chosen = [
        (kind, "test", setting) for kind in job.asks.get("negatives", NEGATIVES) for setting in SETTINGS
    ]
    about = {"dataset": job.data, "model": job.model, "seed": job.seed}
    assert isinstance(fit.scorer, Scorer)
    rows = evaluate_link_scorer(fit.scorer, fit.stream, about, chosen, fit.config.rule)
    calibrate_link_run(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **summarize_training_cost(fit)}


def heuristic(job: Job, place: JobContext) -> JobResult:
    """A model without training, on the published draws of the negatives."""
    asked = HeuristicEvaluator.of(place.dataset(job))
    chosen = [
        (kind, "test", setting) for kind in job.asks.get("negatives", NEGATIVES) for setting in SETTINGS
    ]
    rows = [asked.row(job.model, job.settings, one) for one in chosen if asked.has(one)]
    return {"rows": rows, "made_with": describe_environment(torch.device("cpu"))}


def node(job: Job, place: JobContext) -> JobResult:
    """A classifier on the frozen backbone that another job trained."""
    (backbone,) = place.runs(str(job.needs))[-1:]

    def start(root: Path) -> Trainer:
        config = build_config(NodeFitConfig, job.settings)
        return start_node_run(
            place.dataset(job), backbone, config, int(job.seed or 0), choose_device(place.device), root
        )

    fit = _train_to_end(job, place, start, resume_node_run)
    rows = evaluate_node_fit(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **summarize_training_cost(fit)}


def robustness(job: Job, place: JobContext) -> JobResult:
    """Test AP of a run that was trained on clean data, as noise comes into what it sees."""
    (path,) = place.runs(str(job.needs))[-1:]
    run = open_run(path, choose_device(place.device), place.data_dir)
    scorer = run.scorer
    if isinstance(scorer, MemorySaver):
        scorer.let_go()  # noise is everywhere, so a memory is told of everything again
    about = {"dataset": job.data, "model": job.model, "seed": job.seed, "noise_kind": job.asks["kind"]}
    clean = build_link_set(run.stream.store, run.stream.split, "test")
    if job.asks["kind"] == "release" and not supports_overwriting(run.scorer.requests):
        return {"rows": [], "note": "the released noise is defined for one hop of recent events"}
    rows = []
    for rate in job.asks["rates"]:
        stream, evaluation_set = run.stream, clean
        if rate and job.asks["kind"] == "insert":
            noisy = insert_noise(run.stream, rate, seed=job.asks["seed"])
            stream, evaluation_set = noisy.stream, noisy.evaluation_set(clean)
        elif rate:
            stream = OverwrittenHistoryStream(
                stream.store, stream.split, stream.device, rate=rate, seed=job.asks["seed"]
            )
        score = score_evaluation_set(run.scorer, stream, evaluation_set, run.rule, run.seed)
        found = dataclasses.asdict(
            link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group)
        )
        rows.append({**about, **evaluation_set.about, **run.rule.about, "noise": rate, **found})
    return {"rows": rows, "made_with": describe_environment(run.stream.device)}


def cost(job: Job, place: JobContext) -> JobResult:
    """Seconds of a training epoch, peak memory and parameters; nothing is evaluated or kept."""
    root = place.results.folder(job.key) / "timed"
    shutil.rmtree(root, ignore_errors=True)
    about = {"dataset": job.data, "model": job.model, **job.about}
    try:
        fit = _start_link_run(job, place, root)
        row = about | time_epoch(fit, job.asks.get("epochs", 2))
    except (torch.OutOfMemoryError, MemoryError):
        row = about | {"epoch_seconds": None, "peak_mb": None, "note": "out of memory"}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"rows": [row], "made_with": describe_environment(choose_device(place.device))}


def similarity(job: Job, place: JobContext) -> JobResult:
    """Cosine similarity of the hidden states of both sequences of one pair, the pair with the fullest histories."""
    (path,) = place.runs(str(job.needs))[-1:]
    run = open_run(path, choose_device(place.device), place.data_dir)
    return {
        "rows": [
            {
                "dataset": job.data,
                "model": job.model,
                "seed": job.seed,
                **measure_state_similarity(run, job.asks["tokens"]),
            }
        ],
        "made_with": describe_environment(run.stream.device),
    }


JOB_RUNNERS: dict[str, Callable[[Job, JobContext], JobResult]] = {
    "link": link,
    "heuristic": heuristic,
    "node": node,
    "robustness": robustness,
    "cost": cost,
    "similarity": similarity,
}


def _start_link_run(job: Job, place: JobContext, root: Path) -> Trainer:
    dataset = place.dataset(job)
    store_run_dataset(dataset, root, place.data_dir)
    return start_link_run(
        dataset, job.model, int(job.seed or 0), job.settings, choose_device(place.device), root
    )


def _train_to_end(
    job: Job,
    place: JobContext,
    start: Callable[[Path], Trainer],
    go_on: Callable[[Path, torch.device, Path | None], Trainer],
) -> Trainer:
    """The job's run to its end: the one that was stopped goes on, what cannot go on is begun anew."""
    fit = None
    for path in place.runs(job.key)[-1:]:
        if RunDirectory(path).started:
            fit = _resume_or_none(lambda path=path: go_on(path, choose_device(place.device), place.data_dir))
    if fit is None:
        for path in place.runs(job.key):
            shutil.rmtree(path)
        fit = start(place.results.folder(job.key))
    reset_peak_memory(fit.stream.device)
    fit(place.report)
    return fit


def _resume_or_none(go_on: Callable[[], Trainer]) -> Trainer | None:
    """A run that was stopped; None where it cannot go on. A worker that lost its study may still be saving it."""
    patience = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return go_on()
        except LockedError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.5)
        except DygError:
            return None
