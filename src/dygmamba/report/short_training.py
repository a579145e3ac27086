"""Labels of runs that are not as published: settings that the user of a study changed, and short trainings.

A value after one epoch is not what a paper reports after a hundred, so every table, chart and page that shows it says
so: "1 epoch, published 100". A run is short if it was allowed fewer epochs, or less patience, than the preset of its
model. Timings of an epoch do not depend on the number of epochs and have no label for it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from dygmamba.config import build_config, find_preset, to_settings
from dygmamba.data.storage.dataset import VERSION_SEPARATOR
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.models import MODELS, find_model
from dygmamba.report.document import Cell, ReportTable
from dygmamba.report.result_records import RecordLabel, ResultRecord, group_records
from dygmamba.runs.link_training import separate_settings

# Do not influence a result, vary with the seed, or stand in its rows (the batch of evaluation).
NEUTRAL_SETTINGS = ("save_every", "graphs", "walk_seed", "evaluation_batch")
COLUMN = "training"
LIMITS = ("epochs", "patience")  # settings that end a training
ENDLESS_WORK = ("cost",)  # kinds of work that train no model to its end


@cache
def get_shipped_settings(model: str, data: str) -> dict[str, Any]:
    """Return the settings with which the package trains a model on a dataset if none are given."""
    loop, own = separate_settings(find_preset(model, data))
    return to_settings(build_config(LinkFitConfig, loop)) | to_settings(
        build_config(find_model(model).config, own)
    )


def find_changed_settings(record: ResultRecord) -> dict[str, list[Any]]:
    """Return the settings of a link run that are not the shipped ones, each with its value and the shipped one."""
    if record.model not in MODELS or not MODELS[record.model].trainable:
        return {}
    shipped = get_shipped_settings(record.model, record.data.partition(VERSION_SEPARATOR)[0])
    return {
        name: [value, shipped[name]]
        for name, value in record.settings.items()
        if name not in NEUTRAL_SETTINGS and value != shipped.get(name, value)
    }


def describe_training(record: ResultRecord) -> str:
    """Return what a run has changed, or else which limits are below its preset: "1 epoch, published 100"; else ""."""
    data = record.data.partition(VERSION_SEPARATOR)[0]
    # node classifiers have no presets of their own; those of a model are for link prediction
    preset = {} if record.work == "node" else find_preset(record.model, data)
    changed = record.changed
    if not changed:
        limits = {name: preset.get(name, getattr(FitConfig(), name)) for name in LIMITS}
        allowed = {name: record.settings.get(name) for name in LIMITS}
        changed = {
            name: [value, limits[name]]
            for name, value in allowed.items()
            if isinstance(value, int) and value < limits[name]
        }
    texts = []
    for name, (value, usual) in changed.items():
        if record.work in ENDLESS_WORK and name in LIMITS:
            continue
        text = f"{value} epoch{'s' * (value != 1)}" if name == "epochs" else f"{name} {format_setting(value)}"
        origin = "preset" if name in preset else "published" if record.model in MODELS else "default"
        # a preset may depend on the negatives
        texts.append(f"{text} (set)" if usual is None else f"{text}, {origin} {format_setting(usual)}")
    return "; ".join(texts)


def format_setting(value: Any) -> str:
    """Format the value of a setting; a list as its items with plus signs."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def describe_trainings(records: Iterable[ResultRecord]) -> str:
    """Return the distinct descriptions among the records; "" if all are as published."""
    return " / ".join(dict.fromkeys(text for record in records if (text := describe_training(record))))


def name_label(records: Iterable[ResultRecord]) -> str:
    """Return the title of the descriptions in captions."""
    return "changed settings" if any(record.changed for record in records) else "short training"


def describe_by_dataset(records: Iterable[ResultRecord]) -> str:
    """Describe the changes of one row over several datasets; datasets are named where they differ."""
    datasets: dict[str, list[str]] = {}
    for data, group in group_records(records, lambda record: record.data).items():
        datasets.setdefault(describe_trainings(group), []).append(data)
    if len(datasets) == 1:
        return next(iter(datasets))
    return " / ".join(f"{', '.join(names)}: {text}" for text, names in datasets.items() if text)


def add_training_column(
    table: ReportTable,
    records: Iterable[ResultRecord],
    label: RecordLabel,
    describe: Callable[[Iterable[ResultRecord]], str] = describe_trainings,
) -> ReportTable:
    """Return the table with a last column that labels what is not as published; as it is if all is.

    Args:
        table: Its first column has the labels.
        records: Records of the table.
        label: Returns the row of a record.
        describe: Describes the records of a row.
    """
    texts = {name: describe(group) for name, group in group_records(records, label).items()}
    rows = tuple((*row, Cell(texts.get(row[0].text, ""), "words")) for row in table.rows)
    if not any(row[-1].text for row in rows):
        return table
    return replace(table, columns=(*table.columns, COLUMN), rows=rows)
