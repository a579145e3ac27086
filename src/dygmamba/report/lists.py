"""Lists of runs, models and datasets, and the settings of a model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.core.setting_descriptions import describe_allowed
from dygmamba.data.catalogue.known_datasets import CatalogueEntry
from dygmamba.report.document import Cell, Document, ReportTable, Section
from dygmamba.tasks.metric_names import format_metric, get_metric_title

if TYPE_CHECKING:  # every command imports this module at its start
    from dygmamba.runs.run_list import RunSummary


def build_run_list(runs: "Sequence[RunSummary]") -> Document:
    """List runs with a metric on validation and test, and the best by validation."""
    rows = (
        (
            str(one.path),
            get_metric_title(one.metric),
            format_metric(one.metric, one.val),
            format_metric(one.metric, one.test),
            _describe_state(one),
        )
        for one in runs
    )
    table = ReportTable.of_rows("", "", ("run", "metric", "val", "test", ""), rows)
    return Document("Runs", "", (Section("", "", (table,)),))


def _describe_state(run: "RunSummary") -> str:
    states = {"best": run.best, "not chosen": run.rejected, "not finished": not run.finished}
    return next((name for name, holds in states.items() if holds), "")


def build_model_list(rows: Sequence[dict[str, Any]], data: str) -> Document:
    """List the models: their sizes with the settings for a dataset, and what each looks at."""
    cells = (
        (
            row["name"],
            row["title"],
            "yes" if row["stateful"] else "no",
            f"{row['parameters']:,}" if row["trainable"] else "not trained",
            f"{row['tokens']:,}",
        )
        for row in rows
    )
    columns = ("model", "paper", "memory", "parameters", "events per query")
    sizes = ReportTable.of_rows(f"with the published settings on {data}", "", columns, cells)
    views = tuple((Cell(row["name"]), *_words(row["looks_at"], row["cost"])) for row in rows)
    seen = ReportTable("what each looks at", "", ("model", "looks at", "cost of a query"), views)
    return Document("Models", "", (Section("", "", (sizes, seen)),))


def build_model_document(about: dict[str, Any]) -> Document:
    """Show the settings of a model: default, allowed values, meaning."""
    tables = tuple(
        ReportTable(title, "", ("setting", "default", "allowed", "meaning"), _list_settings(settings))
        for title, settings in (
            (f"{about['title']}: settings of the model", about["settings"]),
            ("of its training", about["training"]),
            ("of the model for `--task node`", about.get("node_settings", {})),
        )
        if settings
    )
    command = "train" if about["trainable"] else "evaluate"
    lines = [
        f"{about['title']}: looks at {about['looks_at'] or 'what its package says'}",
        *([] if about["settings"] else ["it has no settings"]),
        f"change one with: dygmamba {command} DATA --model {about['name']} --set NAME=VALUE",
    ]
    return Document(about["title"], "", (Section("", "\n".join(lines), tables),))


def _list_settings(settings: dict[str, dict[str, Any]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (
            Cell(name),
            *_words(_format_value(setting["default"]), describe_allowed(setting), setting.get("meaning", "")),
        )
        for name, setting in settings.items()
    )


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _words(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text, "words") for text in texts)


def build_dataset_list(
    imported: Sequence[dict[str, Any]], public: Sequence[tuple[CatalogueEntry, Path | None]]
) -> Document:
    """List imported datasets by folder with the runs that use them, and public ones with where they are on disk."""
    folders: dict[Path, list[dict[str, Any]]] = {}
    for row in imported:
        folders.setdefault(Path(row["path"]).parent, []).append(row)
    tables = [_build_imported_table(folder, rows) for folder, rows in folders.items()]
    columns = ("name", "task", "nodes", "events", "features", "on disk")
    tables.append(ReportTable.of_rows("public datasets", "", columns, map(_list_public, public)))
    on_disk: dict[Path, list[str]] = {}
    for entry, folder in public:
        if folder is not None:
            on_disk.setdefault(folder, []).append(entry.name)
    lines = (f"on disk in {folder}: {', '.join(names)}" for folder, names in on_disk.items())
    return Document("Datasets", "", (Section("", "\n".join(lines), tuple(tables)),))


def _build_imported_table(folder: Path, rows: Iterable[dict[str, Any]]) -> ReportTable:
    cells = (
        (
            row["name"] if row["newest"] else f"{row['name']}@{row['version']}",
            row["version"] + (", newest" if row["newest"] else ""),
            f"{row['nodes']:,}",
            f"{row['events']:,}",
            _describe_users(row["runs"]),
        )
        for row in rows
    )
    columns = ("yours", "version", "nodes", "events", "used by")
    return ReportTable.of_rows(f"in {folder}:", "", columns, cells)


def _describe_users(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{runs[0]}{more}" if runs else "no run"


def _list_public(found: tuple[CatalogueEntry, Path | None]) -> tuple[str, ...]:
    entry, folder = found
    counts = entry.counts[0]
    numbers = (counts.nodes, counts.events, counts.edge_features)
    shown = ("?" if number is None else f"{number:,}" for number in numbers)
    return (entry.name, ", ".join(entry.tasks), *shown, "no" if folder is None else "yes")
