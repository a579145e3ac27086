"""Calibration errors of trained runs: raw logits, the single curve of development versions, and the current fit.

    python -m dygmamba.lab.calibration_study --data DIR --streams uci,enron --models trees,dyg-mamba --seeds 0 --jobs 4

A run is trained for every stream, model and seed with the benchmark protocol (nodes held out), unless `--runs` has a
finished one in the folder STREAM-MODEL-SEED. Its logits of the validation period are fitted, and the expected
calibration error (ECE) of the test period is measured. The command adds its records to calibration.json in `--out`, so
that parts of the study can be run one after another, and `--jobs` runs several at the same time. `make results` copies
the tables to docs/research/calibration.md.

`--first 0.7` compares ways to fit without any test period: a run of the first 70 % of the events has a validation and a
test period of its own, all before the validation period of the whole stream. `--logits DIR` stores the logits of every
run and reads them again instead of training, so that another way to fit can be measured in seconds.

Legend: p pairs.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from itertools import product
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.files.writing import make_folder
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.lab.result_tables import STREAMS
from dygmamba.lab.study_command import (
    format_study_command,
    make_study_parser,
    merge_records,
    take_first_events,
)
from dygmamba.models.base import Scorer
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.runs.calibration import build_calibration_set, count_training_negatives
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import choose_device, open_run
from dygmamba.runs.provenance import StartOptions, describe_environment
from dygmamba.tasks.calibration import (
    Calibration,
    NewNodes,
    compute_reliability,
    fit_calibration,
    fit_knots,
    fit_line,
)
from dygmamba.tasks.link import SETTINGS, build_link_set, has_events

FILE = "calibration"
COMMAND = "python -m dygmamba.lab.calibration_study"
# no calibration, the single curve of development versions, the current fit, and the same fit to the test period
METHODS = ("raw", "single", "fitted", "hindsight")
# pairs with a new end among the pairs of all nodes: new nodes as they occur in predictions
POPULATIONS = (*SETTINGS, "new_ends")
POPULATION_TITLES = ("all nodes", "new nodes", "pairs with a new end")
SUMMARY_TITLES = ("raw", "single curve", "now", "hindsight")
ERROR_BOUNDS = {"transductive": 3, "inductive": 5, "new_ends": 5}  # ECE in percent that a fit should reach
BLOCKS = 8
MIN_BLOCK_PAIRS = 100


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """The pairs of an evaluation set with their logits; `order` is the index of their event."""

    logit: Float64[Tensor, "p"]
    label: Float64[Tensor, "p"]
    order: Int64[Tensor, "p"]
    new_ends: Bool[Tensor, "p 2"]


ScoredSets = dict[tuple[str, str], ScoredPairs]  # by split and setting


def measure_errors(sets: ScoredSets, negatives: int) -> list[dict[str, object]]:
    """Fit every method and return the ECEs of the test sets, a row per population.

    All are fitted to the validation sets, except "hindsight", which is fitted to the test sets themselves.
    `negatives` is the number of negatives per event that the model was trained with.
    """
    single = fit_single_curve(sets["val", "transductive"])
    fitted = {
        key: fit_calibration(pairs.logit, pairs.label, pairs.new_ends, negatives)
        for key, pairs in sets.items()
    }
    rows = []
    for population in POPULATIONS:
        setting = population if population in SETTINGS else "transductive"
        pairs = sets.get(("test", setting))
        if pairs is None:
            continue
        # without new-node events in validation nothing is fitted: log(negatives) is added to the logits
        own = fitted.get(("val", setting), Calibration.from_training(negatives))
        chosen = torch.ones(len(pairs.label), dtype=torch.bool)
        if population == "new_ends":
            chosen = pairs.new_ends.any(dim=1)
        if not bool(chosen.any()):
            continue
        probability = {
            "raw": torch.sigmoid(pairs.logit),
            "single": single.probability(pairs.logit),
            "fitted": own.probability(pairs.logit, pairs.new_ends),
            "hindsight": fitted["test", setting].probability(pairs.logit, pairs.new_ends),
        }
        errors = {
            name: compute_reliability(values[chosen], pairs.label[chosen]).ece
            for name, values in probability.items()
        }
        rows.append(
            {
                "population": population,
                "setting": setting,
                "pairs": int(chosen.sum()),
                "is_unfitted": not own.is_fitted,
                **errors,
            }
        )
    return rows


def fit_single_curve(pairs: ScoredPairs) -> Calibration:
    """Fit the single curve of development versions: for all nodes, on the last blocks that predict the next one."""
    block = pairs.order * BLOCKS // (int(pairs.order.max()) + 1)
    last = _choose_last_blocks(pairs.logit, pairs.label, block)
    used = block >= BLOCKS - last
    z, y = pairs.logit[used], pairs.label[used]
    line = fit_line(z, y)
    return Calibration(*line, float(y.mean()), int(used.sum()), last / BLOCKS, fit_knots(z, y, line))


def _choose_last_blocks(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"]) -> int:
    for number in range(BLOCKS):
        own = y[block == number]
        if min(float(own.sum()), float((1 - own).sum())) < MIN_BLOCK_PAIRS:
            return BLOCKS
    whole = _next_block_losses(z, y, block, BLOCKS)
    gains = {length: whole - _next_block_losses(z, y, block, length) for length in (4, 2, 1)}
    significant = {
        length: float(gain.mean())
        for length, gain in gains.items()
        if float(gain.mean()) > 2 * float(gain.std()) / sqrt(len(gain))
    }
    return max(significant, key=lambda length: significant[length], default=BLOCKS)


def _next_block_losses(
    z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"], length: int
) -> Float64[Tensor, "_"]:
    """Return the log loss of each pair after the first block under a line fitted to the `length` blocks before it."""
    losses = []
    for number in range(1, BLOCKS):
        past, own = (block < number) & (block >= number - length), block == number
        slope, bias = fit_line(z[past], y[past])
        losses.append(binary_cross_entropy_with_logits(slope * z[own] + bias, y[own], reduction="none"))
    return torch.cat(losses)


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The scored pairs of a run, the number of negatives per event it was trained with, its settings and device."""

    sets: ScoredSets
    negatives: int
    config: dict[str, Any]
    device: str

    def save(self, path: Path) -> None:
        """Write the run to an npz file, with its settings as JSON."""
        columns = {
            f"{split}/{setting}/{field.name}": getattr(pairs, field.name).numpy()
            for (split, setting), pairs in self.sets.items()
            for field in fields(ScoredPairs)
        }
        about = {"negatives": self.negatives, "config": self.config, "device": self.device}
        make_folder(path.parent)
        np.savez_compressed(path, about=json.dumps(about), **columns)

    @staticmethod
    def load(path: Path) -> "ScoredRun":
        """Read a run that `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            keys = dict.fromkeys(tuple(name.split("/")[:2]) for name in stored.files if "/" in name)
            sets = {
                (split, setting): ScoredPairs(
                    *(
                        torch.from_numpy(stored[f"{split}/{setting}/{field.name}"])
                        for field in fields(ScoredPairs)
                    )
                )
                for split, setting in keys
            }
            return ScoredRun(sets, **json.loads(str(stored["about"])))


def score_stream(scorer: Scorer, stream: Stream, rule: VisibilityRule, seed: int) -> ScoredSets:
    """Score the validation pairs that a calibration is fitted to, and the test pairs, of both settings."""
    store, split = stream.store, stream.split
    new_nodes = NewNodes.from_events(store, split.train)
    sets: ScoredSets = {}
    for name, setting in product(("val", "test"), SETTINGS):
        if has_events(store, split, name, setting):
            evaluation_set = (
                build_calibration_set(store, split, setting)
                if name == "val"
                else build_link_set(store, split, name, setting)
            )
            pairs = evaluation_set.pairs
            score = score_evaluation_set(scorer, stream, evaluation_set, rule, seed)
            sets[name, setting] = ScoredPairs(
                score.cpu().double(),
                pairs.label.double(),
                evaluation_set.event_index,
                new_nodes.find(pairs.src, pairs.dst, pairs.time),
            )
    return sets


def score_run(stream: str, model: str, seed: int, options: Namespace) -> ScoredRun:
    """Score a run with its best weights; train it unless a finished run of the whole stream exists."""
    device = choose_device(options.device)
    name = str(describe_environment(device)["device"])
    folder = options.runs / f"{stream}-{model}-{seed}"
    if options.first == 1 and (runs := _list_finished_runs(folder)):
        run = open_run(RunDirectory(runs[-1]), device, options.data)
        sets = score_stream(run.scorer, run.stream, run.rule, run.seed)
        return ScoredRun(sets, count_training_negatives(run.scorer), run.folder.config(), name)
    whole = open_dataset(stream, options.data)
    dataset = take_first_events(whole, round(options.first * len(whole)))
    settings = {} if options.epochs is None else {"epochs": options.epochs}
    start = StartOptions(split=get_default_split(dataset, "benchmark"))
    fit = start_link_run(dataset, model, seed, settings, device, folder, start)
    fit()
    assert isinstance(fit.scorer, Scorer)
    sets = score_stream(fit.scorer, fit.stream, fit.config.rule, seed)
    return ScoredRun(sets, count_training_negatives(fit.scorer), fit.run.config(), name)


def measure_job(stream: str, model: str, seed: int, options: Namespace) -> ResultRecord:
    """Train and score one run, unless its logits are stored, and measure its calibration errors."""
    torch.set_num_threads(options.threads)
    name = f"{stream}-{model}-{seed}" + ("" if options.first == 1 else f"-first-{options.first:g}")
    path = None if options.logits is None else options.logits / f"{name}.npz"
    if path is not None and path.exists():
        run = ScoredRun.load(path)
    else:
        run = score_run(stream, model, seed, options)
        if path is not None:
            run.save(path)
    training = run.config["train"]
    about = {"visible": training["visible"], "batch": training["batch"], "negatives": "random"}
    rows = [row | about for row in measure_errors(run.sets, run.negatives)]
    labels = {} if options.first == 1 else {"first": options.first}
    settings = training | run.config["model"]
    return ResultRecord("calibration", stream, model, seed, labels, rows, settings, device=run.device)


def _list_finished_runs(folder: Path) -> list[Path]:
    paths = sorted(path.parent for path in folder.glob("*/*/*/config.toml"))
    return [path for path in paths if RunDirectory(path).finished]


def add_records(folder: Path, command: str, records: Iterable[ResultRecord]) -> None:
    """Add records to calibration.json in a folder; one of the same stream, model, seed and share is replaced."""

    def key(record: ResultRecord) -> tuple[Any, ...]:
        return record.data, record.model, record.seed, record.about.get("first", 1.0)

    merge_records(folder / f"{FILE}.json", command, records, key)


def build_table(folder: Path) -> str:
    """Build the table of ECEs in percent: means over the seeds, a line per stream and model."""
    stored = StudyResults.read(folder / f"{FILE}.json").records
    records = [record for record in stored if "first" not in record.about]
    head = [f"{title}: {method}" for title in POPULATION_TITLES for method in SUMMARY_TITLES]
    lines = ["| stream | model | " + " | ".join(head) + " |", "|---" * 2 + "|---:" * len(head) + "|"]
    columns: list[list[float]] = [[] for _ in head]
    for stream, model in dict.fromkeys((record.data, record.model) for record in records):
        runs = [record.rows for record in records if (record.data, record.model) == (stream, model)]
        cells = []
        for column, (population, method) in zip(columns, product(POPULATIONS, METHODS), strict=True):
            # older records have no fit to the test period
            values = [
                row[method]
                for rows in runs
                for row in rows
                if row["population"] == population and method in row
            ]
            column += [mean(values)] if values else []
            cells.append(f"{100 * mean(values):.1f}" if values else "-")
        lines.append(f"| {STREAMS.get(stream, stream)} | {model} | " + " | ".join(cells) + " |")
    means = [f"{100 * mean(column):.1f}" if column else "-" for column in columns]
    return "\n".join([*lines, "| **mean** | | " + " | ".join(means) + " |"])


def build_summary_table(folder: Path) -> str:
    """Build the table of means: runs of the first events, by their share, and of whole streams."""
    records = StudyResults.read(folder / f"{FILE}.json").records
    head = ["events", "nodes", "cases", "figure", *SUMMARY_TITLES]
    lines = ["| " + " | ".join(head) + " |", "|---" * 2 + "|---:|---" + "|---:" * len(SUMMARY_TITLES) + "|"]
    for share in sorted({record.about.get("first", 1.0) for record in records}):
        own = [record for record in records if record.about.get("first", 1.0) == share]
        for population, title in zip(POPULATIONS, POPULATION_TITLES, strict=True):
            rows = [row for record in own for row in record.rows if row["population"] == population]
            bound = ERROR_BOUNDS[population]
            cells = {
                "mean ECE": [f"{100 * mean(row[method] for row in rows):.1f}" for method in METHODS],
                f"cases with ECE ≤ {bound}": [
                    str(sum(100 * row[method] <= bound for row in rows)) for method in METHODS
                ],
                "cases above raw by 0.5": [
                    str(sum(100 * (row[method] - row["raw"]) > 0.5 for row in rows)) for method in METHODS
                ],
            }
            for number, (what, values) in enumerate(cells.items()):
                first = (f"first {share:.0%}" if share < 1 else "all", title, str(len(rows)))
                lines.append(
                    "| " + " | ".join([*(first if not number else ("", "", "")), what, *values]) + " |"
                )
    return "\n".join(lines)


def _parse_options(arguments: list[str]) -> Namespace:
    parser = make_study_parser(COMMAND, "Measure calibration errors of trained runs.", FILE, None)
    parser.add_argument(
        "--first", type=float, default=1.0, help="Use this share of a stream's events, the first."
    )
    parser.add_argument(
        "--logits", type=Path, help="Store logits in this folder, and read them if they are there."
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run the study and store each record as soon as it is measured."""
    options = _parse_options(arguments)
    jobs = list(product(options.streams, options.models, options.seeds))
    command = format_study_command(COMMAND, options)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(measure_job, stream, model, int(seed), options) for stream, model, seed in jobs
        ]
        for future in as_completed(futures):
            record = future.result()
            add_records(options.out, command, [record])
            sys.stdout.write(f"{record.data} {record.model} seed {record.seed}: {record.rows}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
