"""Run folders beside one another: their results over seeds, their curves, what they forget."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, FileError
from dygmamba.explain.forgetting import load_forgetting
from dygmamba.report.figures import Lines
from dygmamba.report.sheets import Cell, Grid, Section, Sheet
from dygmamba.runs.opening import split_of
from dygmamba.studies.records import LOCAL, Book, Record
from dygmamba.studies.tables import figures, grouped, link_grids, stamp

UNTOLD = ("save_every", "graphs")  # settings that change no result


def compare_runs(paths: Sequence[Path]) -> Sheet:
    """Everything the runs have in common to show; runs that differ by seed alone are one line."""
    folders = [RunFolder(path) for path in paths]
    if not folders:
        raise ConfigError("give at least one run folder to compare")
    records = labelled([record_of(folder) for folder in folders])
    parts = [
        part for data, own in grouped(records, lambda one: one.data).items() for part in _sections(data, own)
    ]
    curve = _forgetting(folders, records)
    parts += (
        [Section("Forgetting", "The share of the state that a gap leaves.", (), (curve,))]
        if curve.series
        else []
    )
    return Sheet(f"{len(folders)} runs", stamp(records), tuple(parts))


def record_of(folder: RunFolder) -> Record:
    """What a finished run found."""
    sections, rows = folder.config(), folder.results()
    if not rows:
        raise FileError(
            f"{folder.path} has no results yet; finish it with `dygmamba.resume('{folder.path}')`"
        )
    about, epochs = sections["run"], folder.metrics()
    return Record(
        folder.task,
        about["data"],
        about["model"],
        int(about["seed"]),
        {"model": about["model"], "validation": [epoch["val_ap"] for epoch in epochs]},
        [{key: value for key, value in row.items() if key not in LOCAL} for row in rows],
        sections.get("train", {}) | sections.get("model", {}) | split_of(folder).stamp,
        {"epochs": len(epochs)},
        [epoch["loss"] for epoch in epochs],
        sections.get("made_with", {}).get("device", ""),
    )


def labelled(records: list[Record]) -> list[Record]:
    """The same with a label: the model, and where runs of one model differ, the settings in which they do."""
    for model, own in grouped(records, lambda one: one.model).items():
        names = {name for one in own for name in one.settings} - set(UNTOLD)
        told = [name for name in sorted(names) if len({str(one.settings.get(name)) for one in own}) > 1]
        for one in own:
            differs = ", ".join(f"{name}={_plain(one.settings.get(name))}" for name in told)
            one.about["label"] = f"{model} ({differs})" if differs else model
    return records


def _sections(data: str, records: list[Record]) -> list[Section]:
    by_task = grouped(records, lambda one: one.work)
    parts = []
    if link := by_task.get("link"):
        grids = tuple(link_grids(Book("link", "", ()), link, _label, True))
        parts.append(Section(data, "", grids, _curves(data, link)))
    if node := by_task.get("node"):
        found = {metric: figures(node, _label, {"split": "test"}, metric) for metric in ("auc", "ap")}
        rows = tuple(
            (
                Cell(label),
                Cell(str(found["auc"][label])),
                Cell(str(found["ap"][label])),
                Cell(str(len(one.by_seed))),
            )
            for label, one in found["auc"].items()
        )
        grid = Grid("Node classification, test", stamp(node), ("model", "AUC", "AP", "seeds"), rows)
        parts.append(Section(f"{data}, node classification", "", (grid,), _curves(data, node)))
    return parts


def _curves(data: str, records: list[Record]) -> tuple[Lines, ...]:
    loss = {_one(record): [(float(n + 1), y) for n, y in enumerate(record.losses)] for record in records}
    quality = {
        _one(record): [(float(n + 1), 100 * y) for n, y in enumerate(record.about["validation"])]
        for record in records
    }
    return (
        Lines(f"{data}: training loss", "epoch", "loss", loss, "count"),
        Lines(f"{data}: validation AP", "epoch", "AP (%)", quality, "count"),
    )


def _forgetting(folders: list[RunFolder], records: list[Record]) -> Lines:
    series = {}
    for folder, record in zip(folders, records, strict=True):
        found = load_forgetting(folder)
        if found is not None and found.retention:
            series[_one(record)] = list(zip(found.span, found.retention["0.5"], strict=True))
    return Lines("Median channel", "gap between two events", "share of the state kept", series, x_kind="log")


def _label(record: Record) -> str:
    return record.about["label"]


def _one(record: Record) -> str:
    return f"{record.about['label']}, seed {record.seed}"


def _plain(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)
