"""Published results: the tables of the DyG-Mamba paper, and the values of a later correction of its field.

Values are percentages as printed. Dataset and model names match regardless of spelling: `USLegis`, `us-legis` and
`US Legis.` are the same dataset.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from dygmamba.core.errors import NotFoundError
from dygmamba.data.catalogue.known_datasets import normalize_name

METRICS = ("ap", "auc")
# This table of the main text and one of the appendix print the same quantity, but with two columns swapped. The
# appendix agrees with the other tables of the paper, so this one is ignored.
EXCLUDED_TABLE = "inductive_ap_main_rnd"
PAPER, CORRECTION = "published.json", "corrected.json"
OWN_MODELS_OF_THE_CORRECTION = ("SFS", "SFS+activity")


class PublishedValue(NamedTuple):
    """A published mean and standard deviation in percent, and where they were printed."""

    mean: float
    std: float | None
    source: str


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of the paper; a value that the paper leaves out is None."""

    name: str
    metric: str | None
    setting: str | None
    negatives: str | None
    rows: tuple[dict[str, Any], ...]


def published_values(
    dataset: str, setting: str, negatives: str, metric: str = "ap"
) -> dict[str, PublishedValue]:
    """Return the published value of every model, from the paper or quoted from the model's own; may be empty."""
    evaluation = (setting, negatives, metric)
    values = {
        model: value
        for table, model, value in _list_printed_values(dataset)
        if _is_link_table(table, evaluation)
    }
    return _quoted_values(dataset, evaluation) | values


def retrained_values(
    dataset: str, setting: str, negatives: str, metric: str = "ap"
) -> dict[str, PublishedValue]:
    """Return the values of models that the correction retrained with padding masked and the query's own time hidden."""
    return {
        model: PublishedValue(mean, std, f"{load_json(CORRECTION)['source']}, retrained")
        for model, mean, std, retrained in _select_corrected(dataset, (setting, negatives, metric))
        if retrained
    }


def list_published_values(
    dataset: str, setting: str, negatives: str
) -> list[tuple[str, str, PublishedValue]]:
    """Return (model, metric, value) of every cell of any table for this evaluation, ablations and repeats included."""
    printed = [
        (model, table.metric, value)
        for table, model, value in _list_printed_values(dataset)
        if table.metric in METRICS and (table.setting, table.negatives) == (setting, negatives)
    ]
    in_paper = {(model, metric) for model, metric, _ in printed}
    quoted = [
        (model, metric, value)
        for metric in METRICS
        for model, value in _quoted_values(dataset, (setting, negatives, metric)).items()
        if (model, metric) not in in_paper
    ]
    return printed + quoted


def list_tables() -> tuple[str, ...]:
    """Return the names of the paper's tables."""
    return tuple(load_json(PAPER)["tables"])


@cache
def load_table(name: str) -> PaperTable:
    """Return a table of the paper by name."""
    if name not in list_tables():
        raise NotFoundError(
            f"unknown table '{name}' of the paper; choose from {', '.join(list_tables())}",
            code="unknown-paper-table",
        )
    raw = load_json(PAPER)["tables"][name]
    if "cells" in raw:
        rows = tuple(
            {"dataset": dataset, "model": model}
            | dict(zip(("mean", "std"), cell or (None, None), strict=True))
            for dataset, cells in raw["cells"].items()
            for model, cell in zip(raw["models"], cells, strict=True)
        )
    else:
        rows = tuple(dict(zip(raw["columns"], values, strict=True)) for values in raw["rows"])
    metric, setting, negatives = (raw.get(part) for part in ("metric", "setting", "negatives"))
    return PaperTable(name, metric, setting, negatives, rows)


def _list_printed_values(dataset: str) -> Iterator[tuple[PaperTable, str, PublishedValue]]:
    """Yield table, model and value of every cell of the paper for a dataset."""
    for table in map(load_table, list_tables()):
        for row in table.rows:
            if row.get("mean") is not None and normalize_name(row["dataset"]) == normalize_name(dataset):
                source = f"{load_json(PAPER)['source']}, {table.name}"
                yield table, row["model"], PublishedValue(row["mean"], row["std"], source)


def _is_link_table(table: PaperTable, evaluation: tuple[str, str, str]) -> bool:
    """Return whether a table compares models on this evaluation; tables of ablations do not."""
    compares_models = table.name.startswith(("transductive_", "inductive_")) and table.name != EXCLUDED_TABLE
    return compares_models and (table.setting, table.negatives, table.metric) == evaluation


def _quoted_values(dataset: str, evaluation: tuple[str, str, str]) -> dict[str, PublishedValue]:
    """Return the values that the correction prints as they were published before, and those of its own models.

    Earlier values are of models that it did not retrain, and of retrained models whose earlier value it also prints.
    Values of new nodes that neither paper has are those of the model's own paper.
    """
    file = load_json(CORRECTION)
    source = f"quoted by {file['source']}"
    not_retrained = {
        model: PublishedValue(mean, std, file["source"] if model in OWN_MODELS_OF_THE_CORRECTION else source)
        for model, mean, std, was_retrained in _select_corrected(dataset, evaluation)
        if not was_retrained
    }
    elsewhere = {
        model: PublishedValue(mean, std, printed_in)
        for name, *quoted_evaluation, model, mean, std, printed_in in file["quoted"]
        if normalize_name(name) == normalize_name(dataset) and tuple(quoted_evaluation) == evaluation
    }
    return not_retrained | elsewhere


def _select_corrected(dataset: str, evaluation: tuple[str, str, str]) -> list[tuple[str, float, float, bool]]:
    """Return (model, mean, standard deviation, whether it was retrained) of the correction's table."""
    setting, negatives, metric = evaluation
    if (setting, metric) != ("transductive", "ap"):
        return []
    file = load_json(CORRECTION)
    return [
        (model, *cell)
        for name, cells in file["cells"].get(negatives, {}).items()
        if normalize_name(name) == normalize_name(dataset)
        for model, cell in zip(file["models"], cells, strict=True)
        if cell is not None
    ]


@cache
def load_json(name: str) -> dict[str, Any]:
    """Return a file of this package, such as the tables of the paper."""
    return json.loads(files("dygmamba.report").joinpath(name).read_text("utf-8"))
