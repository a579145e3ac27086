"""Labels of short trainings: runs that were allowed fewer epochs, or less patience, than the preset of their model.

A value after one epoch is not what a paper reports after a hundred, so every table, chart and page that shows it says
so: "1 epoch, published 100". Timings of an epoch do not depend on the number of epochs and have no label.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from dygmamba.config import find_preset
from dygmamba.data.storage.dataset import VERSION_SEPARATOR
from dygmamba.engine.fit_config import FitConfig
from dygmamba.models import MODELS
from dygmamba.report.document import Cell, ReportTable
from dygmamba.report.result_records import ResultRecord

COLUMN = "training"
LIMITS = ("epochs", "patience")  # settings that end a training
ENDLESS_WORK = ("cost",)  # kinds of work that train no model to its end


def describe_short_training(record: ResultRecord) -> str:
    """Return which limits of a training are below those of its preset, such as "1 epoch, published 100"; else ""."""
    if record.work in ENDLESS_WORK:
        return ""
    data = record.data.partition(VERSION_SEPARATOR)[0]
    # node classifiers have no presets of their own; those of a model are for link prediction
    preset = {} if record.work == "node" else find_preset(record.model, data)
    texts = []
    for name in LIMITS:
        allowed = record.settings.get(name)
        usual = preset.get(name, getattr(FitConfig(), name))
        if isinstance(allowed, int) and allowed < usual:
            number = f"{allowed} epoch{'s' * (allowed != 1)}" if name == "epochs" else f"{name} {allowed}"
            origin = "preset" if name in preset else "published" if record.model in MODELS else "default"
            texts.append(f"{number}, {origin} {usual}")
    return "; ".join(texts)


def describe_short_trainings(records: Iterable[ResultRecord]) -> str:
    """Return the distinct descriptions of short trainings among the records; "" if there are none."""
    return " / ".join(dict.fromkeys(text for record in records if (text := describe_short_training(record))))


def describe_by_dataset(records: Iterable[ResultRecord]) -> str:
    """Describe the short trainings of one row over several datasets; datasets are named where they differ."""
    by_dataset: dict[str, list[ResultRecord]] = {}
    for record in records:
        by_dataset.setdefault(record.data, []).append(record)
    datasets: dict[str, list[str]] = {}
    for data, group in by_dataset.items():
        datasets.setdefault(describe_short_trainings(group), []).append(data)
    if len(datasets) == 1:
        return next(iter(datasets))
    return " / ".join(f"{', '.join(names)}: {text}" for text, names in datasets.items() if text)


def add_training_column(
    table: ReportTable,
    records: Iterable[ResultRecord],
    label: Callable[[ResultRecord], str],
    describe: Callable[[Iterable[ResultRecord]], str] = describe_short_trainings,
) -> ReportTable:
    """Return the table with a last column that labels short trainings; unchanged if there are none.

    Args:
        table: Its first column has the labels.
        records: Records of the table.
        label: Returns the row of a record.
        describe: Describes the records of a row.
    """
    groups: dict[str, list[ResultRecord]] = {}
    for record in records:
        groups.setdefault(str(label(record)), []).append(record)
    texts = {name: describe(group) for name, group in groups.items()}
    rows = tuple((*row, Cell(texts.get(row[0].text, ""), "words")) for row in table.rows)
    if not any(row[-1].text for row in rows):
        return table
    return replace(table, columns=(*table.columns, COLUMN), rows=rows)


def describe_by_model(records: Iterable[ResultRecord]) -> str:
    """Return a Markdown sentence that names the short trainings by model and dataset; "" if there are none."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for record in records:
        if text := describe_short_training(record):
            found.setdefault(text, {}).setdefault(record.model, {})[record.data] = None
    parts = []
    for text, models in found.items():
        where = (f"`{model}` on {', '.join(datasets)}" for model, datasets in models.items())
        parts.append(f"{text} ({', '.join(where)})")
    return f"Short training: {' / '.join(parts)}." if parts else ""
