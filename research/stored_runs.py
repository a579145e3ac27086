"""Finished runs and studies as stored records, and the tables of `findings.md` built from them.

    python -m research.stored_runs docs/research/results RUN... STUDY/results.json...

adds the results of run directories (validation and test, all their negatives) to runs.json in that folder, those of
node tasks to nodes.json, and the results that `dygmamba reproduce STUDY` wrote to STUDY.json, those of `node` to
nodes.json. A result of the same dataset, model, seed and labels (of a run: training negatives and score, or target and
settings) replaces the one before. `make results` rebuilds the tables.
"""

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import all_models
from dygmamba.report.comparison import collect_values
from dygmamba.report.published import load_table
from dygmamba.report.result_records import ResultRecord, StudyResults, group_records
from research.result_tables import STREAMS, format_rows

FILE, NODE_FILE, NODE_STUDY = "runs", "nodes", "node"
COMMAND = "dygmamba train, dygmamba blend"
PATH_OPTIONS = ("--out", "--data-dir")  # folders of the machine that runs a command
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
TRAININGS = ("random", "mixed")


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


def add_study(folder: Path, path: Path) -> None:
    """Add the records of a study to the stored ones; its command follows theirs, with the datasets it is for."""
    study = StudyResults.read(path)
    file = folder / f"{NODE_FILE if study.study == NODE_STUDY else study.study}.json"
    own, command = map(_label_node_record, study.records), drop_path_options(study.command)
    if not file.exists():
        replace(study, study=file.stem, command=command, records=tuple(own)).write(file)
        return
    stored = StudyResults.read(file)
    merged = {(record.work, *_identify(record)): record for record in (*stored.records, *own)}
    if command not in stored.command:
        datasets = ", ".join(dict.fromkeys(record.data for record in study.records))
        command = f"{stored.command} ({datasets}: {command})"
    else:
        command = stored.command
    ceilings = stored.ceilings | study.ceilings
    replace(stored, command=command, records=tuple(merged.values()), ceilings=ceilings).write(file)


def drop_path_options(command: str) -> str:
    """Return a command without the options that name folders."""
    kept, words = [], iter(shlex.split(command))
    for word in words:
        if word in PATH_OPTIONS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in PATH_OPTIONS)):
            kept.append(word)
    return shlex.join(kept)


def _label_node_record(record: ResultRecord) -> ResultRecord:
    """Return a node record of a study with the labels and columns of one that was read from its run."""
    if record.work != "node":
        return record
    # the setting may be "auto"; a row names the target that was found, unless it is binary
    labels: dict[str, Any] = {"target": next((row.get("target") for row in record.rows), None) or "binary"}
    labels |= {name: bool(record.settings.get(name, False)) for name in ("balance", "labels")}
    rows = [{name: row[name] for name in NODE_COLUMNS if name in row} for row in record.rows]
    return replace(record, about=labels, rows=rows)


def _identify(record: ResultRecord) -> tuple[str, ...]:
    labels = (f"{name}={value}" for name, value in sorted((record.about | record.changed).items()))
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
    """Build the table of binary node labels: AUC and AP over seeds, next to the published AUC of the same model.

    A model with a published AUC on a stream of the table and without a record of ours has dashes.
    """
    path = folder / f"{NODE_FILE}.json"
    records = StudyResults.read(path).records if path.exists() else ()
    binary = [record for record in records if record.work == "node" and record.about["target"] == "binary"]
    rows = []
    for data, of_stream in group_records(binary, lambda record: record.data).items():
        title, published = STREAMS.get(data, data), _read_published_auc(data)
        for name, group in group_records(of_stream, _describe_node_record).items():
            values = [
                str(collect_values(group, _describe_node_record, {"split": split}, metric)[name])
                for split, metric in (("val", "auc"), ("test", "auc"), ("test", "ap"))
            ]
            positives = next(row["positives"] for row in group[0].rows if row["split"] == "test")
            auc = published.get(normalize_name(group[0].model), "none")
            rows.append([title, name, *values, f"{positives:,}", auc, str(len(group))])
        present = {normalize_name(record.model) for record in of_stream}
        rows += [
            [title, f"`{model}`", "-", "-", "-", "-", published[normalize_name(model)], "-"]
            for model in all_models()
            if normalize_name(model) in published and normalize_name(model) not in present
        ]
    head = ["stream", "model", "validation AUC", "test AUC", "test AP", "test positives", "published AUC"]
    return format_rows([*head, "seeds"], rows, records)


def _describe_node_record(record: ResultRecord) -> str:
    options = [name for name in ("balance", "labels") if record.about[name]]
    return f"`{record.model}`" + (f" with {' and '.join(options)}" if options else "")


def _read_published_auc(data: str) -> dict[str, str]:
    """Return the published AUC of every model on a dataset, by normalized name; may be empty."""
    return {
        normalize_name(row["model"]): f"{row['mean']:.2f} ± {row['std']:.2f}"
        for row in load_table("node_classification_auc").rows
        if normalize_name(row["dataset"]) == normalize_name(data) and row["mean"] is not None
    }


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
    results, *given = map(Path, sys.argv[1:])
    add_runs(results, [path for path in given if path.is_dir()])
    for path in given:
        if not path.is_dir():
            add_study(results, path)
