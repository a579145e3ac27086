"""What a job does: WORKS by name. Each takes a job and a place to work in, and returns rows and what they cost."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config
from dygmamba.data.library import open_dataset
from dygmamba.data.store import Dataset
from dygmamba.engine.examine import examine
from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import DygError, FileError, LockedError
from dygmamba.explain.similarity import state_similarity
from dygmamba.models.base import Scorer
from dygmamba.models.carrier import Carrier
from dygmamba.runs.calibrating import calibrate_link_run
from dygmamba.runs.link import Heuristics, link_rows, resume_link_run, start_link_run
from dygmamba.runs.making import made_with
from dygmamba.runs.node import node_rows, resume_node_run, start_node_run
from dygmamba.runs.opening import choose_device, keep_dataset, open_run
from dygmamba.studies.costs import forget_peak, spent, timed
from dygmamba.studies.job import Job, Results
from dygmamba.studies.noise import Overwritten, insert, overwritable
from dygmamba.tasks.link import SETTINGS, link_exam
from dygmamba.tasks.metrics import link_metrics

NEGATIVES = ("random", "historical", "inductive")
PATIENCE = 120.0  # seconds that a run may be held by a worker whose study was killed

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
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


def link(job: Job, place: Place) -> Found:
    """Train, evaluate the best weights on the test period in both settings against every kind of negatives."""
    fit = _fit(job, place, lambda root: _new_link(job, place, root), resume_link_run)
    chosen = [
        (kind, "test", setting) for kind in job.asks.get("negatives", NEGATIVES) for setting in SETTINGS
    ]
    about = {"dataset": job.data, "model": job.model, "seed": job.seed}
    assert isinstance(fit.scorer, Scorer)
    rows = link_rows(fit.scorer, fit.stream, about, chosen, fit.config.rule)
    calibrate_link_run(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **spent(fit)}


def heuristic(job: Job, place: Place) -> Found:
    """A model without training, on the published draws of the negatives."""
    asked = Heuristics.of(place.dataset(job))
    chosen = [
        (kind, "test", setting) for kind in job.asks.get("negatives", NEGATIVES) for setting in SETTINGS
    ]
    rows = [asked.row(job.model, job.settings, one) for one in chosen if asked.has(one)]
    return {"rows": rows, "made_with": made_with(torch.device("cpu"))}


def node(job: Job, place: Place) -> Found:
    """A classifier on the frozen backbone that another job trained."""
    (backbone,) = place.runs(str(job.needs))[-1:]

    def start(root: Path) -> Fit:
        config = build_config(NodeFitConfig, job.settings)
        return start_node_run(
            place.dataset(job), backbone, config, int(job.seed or 0), choose_device(place.device), root
        )

    fit = _fit(job, place, start, resume_node_run)
    rows = node_rows(fit)
    fit.run.write_results(rows)
    return {"rows": rows, **spent(fit)}


def robustness(job: Job, place: Place) -> Found:
    """Test AP of a run that was trained on clean data, as noise comes into what it sees."""
    (path,) = place.runs(str(job.needs))[-1:]
    run = open_run(path, choose_device(place.device), place.data_dir)
    scorer = run.scorer
    if isinstance(scorer, Carrier):
        scorer.let_go()  # noise is everywhere, so a memory is told of everything again
    about = {"dataset": job.data, "model": job.model, "seed": job.seed, "noise_kind": job.asks["kind"]}
    clean = link_exam(run.stream.store, run.stream.split, "test")
    if job.asks["kind"] == "release" and not overwritable(run.scorer.requests):
        return {"rows": [], "note": "the released noise is defined for one hop of recent events"}
    rows = []
    for rate in job.asks["rates"]:
        stream, exam = run.stream, clean
        if rate and job.asks["kind"] == "insert":
            noisy = insert(run.stream, rate, seed=job.asks["seed"])
            stream, exam = noisy.stream, noisy.exam(clean)
        elif rate:
            stream = Overwritten(stream.store, stream.split, stream.device, rate=rate, seed=job.asks["seed"])
        score = examine(run.scorer, stream, exam, run.rule, run.seed)
        found = dataclasses.asdict(link_metrics(score, exam.pairs.label, exam.pairs.group))
        rows.append({**about, **exam.about, **run.rule.about, "noise": rate, **found})
    return {"rows": rows, "made_with": made_with(run.stream.device)}


def cost(job: Job, place: Place) -> Found:
    """Seconds of a training epoch, peak memory and parameters; nothing is evaluated or kept."""
    root = place.results.folder(job.key) / "timed"
    shutil.rmtree(root, ignore_errors=True)
    about = {"dataset": job.data, "model": job.model, **job.about}
    try:
        fit = _new_link(job, place, root)
        row = about | timed(fit, job.asks.get("epochs", 2))
    except (torch.OutOfMemoryError, MemoryError):
        row = about | {"epoch_seconds": None, "peak_mb": None, "note": "out of memory"}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"rows": [row], "made_with": made_with(choose_device(place.device))}


def similarity(job: Job, place: Place) -> Found:
    """Cosine similarity of the hidden states of both sequences of one pair, the pair with the fullest histories."""
    (path,) = place.runs(str(job.needs))[-1:]
    run = open_run(path, choose_device(place.device), place.data_dir)
    return {
        "rows": [
            {
                "dataset": job.data,
                "model": job.model,
                "seed": job.seed,
                **state_similarity(run, job.asks["tokens"]),
            }
        ],
        "made_with": made_with(run.stream.device),
    }


WORKS: dict[str, Callable[[Job, Place], Found]] = {
    "link": link,
    "heuristic": heuristic,
    "node": node,
    "robustness": robustness,
    "cost": cost,
    "similarity": similarity,
}


def _new_link(job: Job, place: Place, root: Path) -> Fit:
    dataset = place.dataset(job)
    keep_dataset(dataset, root, place.data_dir)
    return start_link_run(
        dataset, job.model, int(job.seed or 0), job.settings, choose_device(place.device), root
    )


def _fit(
    job: Job,
    place: Place,
    start: Callable[[Path], Fit],
    go_on: Callable[[Path, torch.device, Path | None], Fit],
) -> Fit:
    """The job's run to its end: the one that was stopped goes on, what cannot go on is begun anew."""
    fit = None
    for path in place.runs(job.key)[-1:]:
        if RunFolder(path).started:
            fit = _going_on(lambda path=path: go_on(path, choose_device(place.device), place.data_dir))
    if fit is None:
        for path in place.runs(job.key):
            shutil.rmtree(path)
        fit = start(place.results.folder(job.key))
    forget_peak(fit.stream.device)
    fit(place.report)
    return fit


def _going_on(go_on: Callable[[], Fit]) -> Fit | None:
    """A run that was stopped; None where it cannot go on. A worker that lost its study may still be saving it."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            return go_on()
        except LockedError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.5)
        except DygError:
            return None
