"""Finished runs as stored records, and the tables of `beyond.md` that are built from them.

    python -m dygmamba.lab.stored_runs docs/research/results RUN...

adds the results of run directories (validation and test, all their negatives) to runs.json in that folder, those of
node tasks to nodes.json. A run of the same dataset, model, seed, training negatives and score (of a node task: target
and settings) replaces the one before. `make results` rebuilds the tables.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.lab.result_tables import STREAMS, format_rows
from dygmamba.report.comparison import collect_values, group_records
from dygmamba.report.published import load_table
from dygmamba.report.result_records import ResultRecord, StudyResults

FILE, NODE_FILE = "runs", "nodes"
COMMAND = "dygmamba train, dygmamba blend"
KEPT_COLUMNS = ("split", "setting", "negatives", "visible", "batch", "ap", "auc", "activity_weight", "n")
NODE_COLUMNS = (
    *(
        "split",
        "visible",
        "batch",
        "auc",
        "ap",
        "positives",
        "macro_f1",
        "accuracy",
        "classes",
        "mae",
        "rmse",
    ),
    "n",
)
TRAININGS = ("random", "mixed", "mixed-odds")


def add_runs(folder: Path, runs: Iterable[Path]) -> None:
    """Add the results of run directories to the stored records of their task."""
    found = [(RunDirectory(path).task, path) for path in runs]
    for task, file, read in (("link", FILE, read_run), ("node", NODE_FILE, read_node_run)):
        own = [read(path) for kind, path in found if kind == task]
        path = folder / f"{file}.json"
        if own:
            stored = StudyResults.read(path).records if path.exists() else ()
            merged = {_identify(record): record for record in (*stored, *own)}
            StudyResults(file, COMMAND, tuple(merged[key] for key in sorted(merged))).write(path)


def read_run(path: Path) -> ResultRecord:
    """Return the record of a finished run."""
    run = RunDirectory(path)
    config = run.config()
    about, training = config["run"], config["train"]
    rows = [{name: row[name] for name in KEPT_COLUMNS if name in row} for row in run.results()]
    labels = {"train_negatives": training["train_negatives"], "activity": bool(training["activity"])}
    if about["model"] == "blend":
        labels["parts"] = "+".join(config["model"]["parts"])
    settings, device = training | config["model"], str(config["made_with"]["device"])
    return ResultRecord(
        "run", about["data"], about["model"], int(about["seed"]), labels, rows, settings, device=device
    )


def read_node_run(path: Path) -> ResultRecord:
    """Return the record of a finished run of a node task."""
    run = RunDirectory(path)
    config = run.config()
    about = config["run"]
    rows = [{name: row[name] for name in NODE_COLUMNS if name in row} for row in run.results()]
    labels = {
        "target": about.get("target", "binary"),
        "balance": bool(about["balance"]),
        "labels": bool(config["model"].get("labels", False)),
    }
    settings, device = config["train"] | config["model"], str(config["made_with"]["device"])
    return ResultRecord(
        "node", about["data"], about["model"], int(about["seed"]), labels, rows, settings, device=device
    )


def _identify(record: ResultRecord) -> tuple[str, ...]:
    labels = (f"{name}={value}" for name, value in sorted(record.about.items()))
    return (record.data, record.model, str(record.seed), *labels)


def build_activity_table(folder: Path) -> str:
    """Build the table of trees with the activity of the source: validation / test AP and the chosen weight."""
    rows = []
    for data, training in ((data, training) for data in STREAMS for training in TRAININGS):
        found = _select(folder, data, model="trees", train_negatives=training, activity=True)
        if found is not None:
            cells = [_format_validation_and_test(found, negatives) for negatives in PUBLISHED_NEGATIVES]
            rows.append([STREAMS[data], f"`{training}`", *cells])
    return format_rows(["stream", "trained with", *PUBLISHED_NEGATIVES], rows)


def build_blend_table(folder: Path) -> str:
    """Build the table of blends and of their parts alone: validation / test AP, and test AP of new nodes."""
    rows = []
    for data, title in STREAMS.items():
        for model in ("trees", "walk-trees", "blend"):
            found = _select(folder, data, model=model, train_negatives="random", activity=False)
            if found is not None:
                new = _find(found, "test", "inductive", "random")
                name = found.about.get("parts", model)
                cell = "-" if new is None else f"{100 * new['ap']:.2f}"
                rows.append([title, f"`{name}`", _format_validation_and_test(found, "random"), cell])
    return format_rows(["stream", "model", "validation / test", "new nodes, test"], rows)


def build_node_table(folder: Path) -> str:
    """Build the table of binary node labels: AUC and AP over seeds, next to the best published AUC."""
    path = folder / f"{NODE_FILE}.json"
    records = StudyResults.read(path).records if path.exists() else ()
    groups = group_records(
        [record for record in records if record.about["target"] == "binary"], _describe_node_record
    )
    rows = []
    for name, group in groups.items():
        values = [
            str(collect_values(group, _describe_node_record, {"split": split}, metric)[name])
            for split, metric in (("val", "auc"), ("test", "auc"), ("test", "ap"))
        ]
        positives = next(row["positives"] for row in group[0].rows if row["split"] == "test")
        cells = [
            STREAMS.get(group[0].data, group[0].data),
            name.partition(", ")[2],
            *values,
            f"{positives:,}",
        ]
        rows.append([*cells, _find_best_published_auc(group[0].data), str(len(group))])
    head = [
        "stream",
        "model",
        "validation AUC",
        "test AUC",
        "test AP",
        "test positives",
        "best published AUC",
    ]
    return format_rows([*head, "seeds"], rows)


def _describe_node_record(record: ResultRecord) -> str:
    options = [name for name in ("balance", "labels") if record.about[name]]
    return f"{record.data}, `{record.model}`" + (f" with {' and '.join(options)}" if options else "")


def _find_best_published_auc(data: str) -> str:
    rows = [
        row
        for row in load_table("node_classification_auc").rows
        if normalize_name(row["dataset"]) == normalize_name(data) and row["mean"] is not None
    ]
    if not rows:
        return "none"
    best = max(rows, key=lambda row: row["mean"])
    return f"{best['mean']:.2f} ± {best['std']:.2f} {best['model']}"


def _select(folder: Path, data: str, model: str, **labels: Any) -> ResultRecord | None:
    path = folder / f"{FILE}.json"
    for record in StudyResults.read(path).records if path.exists() else ():
        if (record.data, record.model) == (data, model) and labels.items() <= record.about.items():
            return record
    return None


def _find(record: ResultRecord, split: str, setting: str, negatives: str) -> dict[str, Any] | None:
    wanted = {"split": split, "setting": setting, "negatives": negatives}
    return next((row for row in record.rows if wanted.items() <= row.items()), None)


def _format_validation_and_test(record: ResultRecord, negatives: str) -> str:
    rows = [_find(record, split, "transductive", negatives) for split in ("val", "test")]
    text = " / ".join("-" if row is None else f"{100 * row['ap']:.2f}" for row in rows)
    weight = None if rows[1] is None else rows[1].get("activity_weight")
    return f"{text} ({weight:.2f})" if weight and negatives != "random" else text


if __name__ == "__main__":
    add_runs(Path(sys.argv[1]), map(Path, sys.argv[2:]))
