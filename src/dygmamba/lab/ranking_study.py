"""Pairwise and ranking loss side by side: AP, MRR and Hits@10 among 100 candidates, by query type.

    python -m dygmamba.lab.ranking_study --data DIR --streams uci,enron --models trees --seeds 0,1,2 --jobs 2

A run is trained for every stream, model, loss and seed with the benchmark protocol (nodes held out). Its best weights
are evaluated on validation and test. `--events` trains on the first events of longer streams. The command adds its
records to ranking.json in `--out`, so that parts of the study can be run one after another. `make results` copies the
tables to docs/research/ranking.md. The loss of a stream and model is chosen by its validation MRR.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from dygmamba.core.errors import DygError
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.fit import Trainer
from dygmamba.lab.result_tables import STREAMS
from dygmamba.lab.study_command import (
    format_study_command,
    make_study_parser,
    merge_records,
    take_first_events,
)
from dygmamba.models.base import Scorer
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.runs.evaluation import Ranking, Row, evaluate_link_scorer, evaluate_ranks
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import choose_device
from dygmamba.runs.provenance import StartOptions, describe_environment
from dygmamba.tasks.link import SPLITS
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS
from dygmamba.tasks.query_types import merge_by_type

FILE = "ranking"
COMMAND = "python -m dygmamba.lab.ranking_study"
LOSSES: dict[str, dict[str, Any]] = {
    "pairwise": {},
    "ranking": {"loss": "ranking"},
    "ranking, popular-odds": {"loss": "ranking", "train_negatives": "popular-odds"},
}
RANKS = ("mrr", "hits@10")
KEPT = (
    *("split", "setting", "negatives", "visible", "batch", "ap", "auc", "ap_pooled", "n"),
    *(*RANKS, "ranked", "candidates", "by_type"),
)


def evaluate_fit(fit: Trainer, data: str, max_events: int | None) -> list[Row]:
    """Return AP, MRR and Hits@10 of the best weights for all nodes, a row per split."""
    assert isinstance(fit.scorer, Scorer)
    keys = [("random", split, "transductive") for split in SPLITS]
    about = {"dataset": data, "seed": fit.seed}
    given = (fit.scorer, fit.stream, about, keys, fit.config.rule)
    ranks = evaluate_ranks(*given, Ranking(RANKS, max_events=max_events))
    rows = []
    for row, rank in zip(evaluate_link_scorer(*given), ranks, strict=True):
        merged = rank | row | {"ranked": rank["n"], "by_type": merge_by_type(row["by_type"], rank["by_type"])}
        rows.append({name: merged[name] for name in KEPT if name in merged})
    return rows


def measure_job(stream: str, model: str, loss: str, seed: int, options: Namespace) -> ResultRecord:
    """Train and evaluate one run."""
    torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    dataset = take_first_events(open_dataset(stream, options.data), options.events)
    settings = LOSSES[loss] | ({} if options.epochs is None else {"epochs": options.epochs})
    start = StartOptions(split=get_default_split(dataset, "benchmark"))
    fit = start_link_run(dataset, model, seed, settings, device, options.runs, start)
    fit()
    rows, config = evaluate_fit(fit, stream, options.ranked), fit.run.config()
    cost = {"epochs": fit.state.epoch, "seconds": sum(entry["seconds"] for entry in fit.state.entries)}
    return ResultRecord(
        FILE,
        stream,
        model,
        seed,
        {"loss": loss, "events": len(dataset)},
        rows,
        config["train"] | config["model"],
        cost,
        device=str(describe_environment(device)["device"]),
    )


def add_records(folder: Path, command: str, records: Iterable[ResultRecord]) -> None:
    """Add records to ranking.json in a folder; one of the same stream, model, loss and seed is replaced."""

    def key(record: ResultRecord) -> tuple[str, str, int, int]:
        return record.data, record.model, list(LOSSES).index(record.about["loss"]), record.seed or 0

    merge_records(folder / f"{FILE}.json", command, records, key)


def build_table(folder: Path) -> str:
    """Build the table of both losses: test AP, MRR and Hits@10 in percent; the chosen loss has the best validation."""
    lines = [
        "| stream | events | model | loss | seeds | validation MRR | test MRR | test Hits@10 | test AP |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    for group in _group_records(folder):
        best = max(group, key=lambda loss: mean(_values(group[loss], "val", "mrr")))
        for loss, records in group.items():
            first, name = records[0], f"**{loss}**" if loss == best else loss
            cells = [
                _format(_values(records, split, metric))
                for split, metric in (("val", "mrr"), ("test", "mrr"), ("test", "hits@10"), ("test", "ap"))
            ]
            about = f"| {_title(first)} | {first.about['events']:,} | `{first.model}` | {name} | {len(records)} | "
            lines.append(about + " | ".join(cells) + " |")
    return "\n".join(lines)


def build_type_table(folder: Path) -> str:
    """Build the table by query type: share of the test events, AP and MRR in percent, means over the seeds."""
    head = [f"{label}: {what}" for label in QUERY_TYPE_LABELS.values() for what in ("events", "AP", "MRR")]
    lines = [
        "| stream | model | loss | " + " | ".join(head) + " |",
        "|---|---|---" + "|---:" * len(head) + "|",
    ]
    for group in _group_records(folder):
        for loss, records in group.items():
            cells = []
            for name in QUERY_TYPE_LABELS:
                parts = [_test_row(record)["by_type"][name] for record in records]
                cells.append(f"{parts[0]['n']:,}")
                cells += [
                    _format([part[key] for part in parts if part[key] is not None]) for key in ("ap", "mrr")
                ]
            lines.append(
                f"| {_title(records[0])} | `{records[0].model}` | {loss} | " + " | ".join(cells) + " |"
            )
    return "\n".join(lines)


def _group_records(folder: Path) -> list[dict[str, list[ResultRecord]]]:
    """Return the records by loss, one group per stream and model."""
    groups: dict[tuple[str, str], dict[str, list[ResultRecord]]] = {}
    for record in StudyResults.read(folder / f"{FILE}.json").records:
        group = groups.setdefault((record.data, record.model), {})
        group.setdefault(record.about["loss"], []).append(record)
    return list(groups.values())


def _title(record: ResultRecord) -> str:
    return STREAMS.get(record.data, record.data)


def _test_row(record: ResultRecord) -> Row:
    return next(row for row in record.rows if row["split"] == "test")


def _values(records: list[ResultRecord], split: str, metric: str) -> list[float]:
    return [row[metric] for record in records for row in record.rows if row["split"] == split]


def _format(values: list[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def _parse_options(arguments: list[str]) -> Namespace:
    parser = make_study_parser(COMMAND, "Compare the pairwise loss with the ranking loss.", FILE, ["trees"])
    parser.add_argument("--events", type=int, help="Use the first events of a stream that has more.")
    parser.add_argument("--ranked", type=int, help="Rank this many events of each split instead of all.")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the study and store each record as soon as it is measured; return 1 if a job failed, after all others."""
    options = _parse_options(arguments)
    jobs = list(product(options.streams, options.models, LOSSES, options.seeds))
    command = format_study_command(COMMAND, options)
    for name in ("events", "ranked", "epochs"):
        value = getattr(options, name)
        command += "" if value is None else f" --{name} {value}"
    failed = 0
    # a process per job: the tables of a finished one would stay in memory
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {
            pool.submit(measure_job, stream, model, loss, int(seed), options): (stream, model, loss, seed)
            for stream, model, loss, seed in jobs
        }
        for future in as_completed(futures):
            about = "{} {} {} seed {}".format(*futures[future])
            try:
                record = future.result()
            except DygError as error:
                sys.stderr.write(f"{about}: {error}\n")
                failed = 1
                continue
            add_records(options.out, command, [record])
            test = _test_row(record)
            figures = ", ".join(f"{name} {100 * test[name]:.2f}" for name in ("ap", *RANKS))
            sys.stdout.write(f"{about}: test {figures} ({record.cost['seconds']:.0f} s)\n")
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
