"""Finished runs as stored records, and the tables of `beyond.md` that are built from them.

    python -m dygmamba.lab.stored_runs docs/research/results RUN...

adds the results of run directories (validation and test, all their negatives) to runs.json in that folder. A run of the
same dataset, model, seed, training negatives and score replaces the one before. `make results` rebuilds the tables.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dygmamba.engine.run_directory import RunDirectory
from dygmamba.lab.result_tables import STREAMS, format_rows
from dygmamba.report.result_records import ResultRecord, StudyResults

FILE = "runs"
COMMAND = "dygmamba train, dygmamba blend"
KEPT_COLUMNS = ("split", "setting", "negatives", "visible", "batch", "ap", "auc", "activity_weight", "n")
TRAININGS = ("random", "mixed", "mixed-odds")
NEGATIVES = ("random", "historical", "inductive")


def add_runs(folder: Path, runs: Iterable[Path]) -> None:
    """Add the results of run directories to the stored records."""
    path = folder / f"{FILE}.json"
    stored = StudyResults.read(path).records if path.exists() else ()
    merged = {_identify(record): record for record in (*stored, *map(read_run, runs))}
    StudyResults(FILE, COMMAND, tuple(merged[key] for key in sorted(merged))).write(path)


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


def _identify(record: ResultRecord) -> tuple[str, ...]:
    labels = (f"{name}={value}" for name, value in sorted(record.about.items()))
    return (record.data, record.model, str(record.seed), *labels)


def build_activity_table(folder: Path) -> str:
    """Build the table of trees with the activity of the source: validation / test AP and the chosen weight."""
    rows = []
    for data, training in ((data, training) for data in STREAMS for training in TRAININGS):
        found = _select(folder, data, model="trees", train_negatives=training, activity=True)
        if found is not None:
            cells = [_format_validation_and_test(found, negatives) for negatives in NEGATIVES]
            rows.append([STREAMS[data], f"`{training}`", *cells])
    return format_rows(["stream", "trained with", *NEGATIVES], rows)


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
