"""What has been published: the paper's tables, and the figures of a later correction of its field.

Percentages as printed. A dataset is found whatever its spelling: `USLegis`, `us-legis` and `US Legis.` are one.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from dygmamba.core.errors import NotFoundError

ALIASES = {"contacts": "contact", "canadianparliament": "canparl", "socialevolution": "socialevo"}
METRICS = ("ap", "auc")
# two tables of the paper hold this quantity with two columns exchanged; the appendix agrees with its other tables
EXCLUDED_TABLE = "inductive_ap_main_rnd"


class PublishedValue(NamedTuple):
    """A published figure: its mean and deviation in percent, and where it stands."""

    mean: float
    std: float | None
    source: str


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of the paper; rows name their dataset and model where it has them, a missing figure is None."""

    name: str
    title: str
    metric: str | None
    setting: str | None
    negatives: str | None
    notes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]


def key(name: str) -> str:
    """A dataset's name without case and punctuation."""
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    return ALIASES.get(plain, plain)


def published_values(
    dataset: str, setting: str, negatives: str, metric: str = "ap"
) -> dict[str, PublishedValue]:
    """Every model's figure as its authors or the paper published it; empty where there is none."""
    asked = (setting, negatives, metric)
    cells = {
        row["model"]: PublishedValue(row["mean"], row["std"], f"{_load_paper()['source']}, {found.name}")
        for found in map(table, list_tables())
        if _is_link_table(found, asked)
        for row in found.rows
        if key(row["dataset"]) == key(dataset) and row["mean"] is not None
    }
    return _quoted_values(dataset, asked) | cells


def corrected_values(
    dataset: str, setting: str, negatives: str, metric: str = "ap"
) -> dict[str, PublishedValue]:
    """The figures after two leaks were closed (padding, events of the query's own time); empty where there is none."""
    file, found = _load_correction(), {}
    for model, mean, std, retrained in _select_corrected(dataset, (setting, negatives, metric)):
        how = "retrained" if retrained else "as published"
        found[model] = PublishedValue(mean, std, f"{file['source']}, {how}")
    return found


def list_published_values(
    dataset: str, setting: str, negatives: str
) -> list[tuple[str, str, PublishedValue]]:
    """Every cell about this question in any table, ablations and repetitions among them: model, metric, figure."""
    cells = [
        (
            row["model"],
            found.metric,
            PublishedValue(row["mean"], row["std"], f"{_load_paper()['source']}, {found.name}"),
        )
        for found in map(table, list_tables())
        if found.metric in METRICS and (found.setting, found.negatives) == (setting, negatives)
        for row in found.rows
        if key(row["dataset"]) == key(dataset) and row["mean"] is not None
    ]
    told = {(model, metric) for model, metric, _ in cells}
    quoted = [
        (model, metric, cell)
        for metric in METRICS
        for model, cell in _quoted_values(dataset, (setting, negatives, metric)).items()
        if (model, metric) not in told
    ]
    return cells + quoted


def list_tables() -> tuple[str, ...]:
    """The names of the paper's tables."""
    return tuple(_load_paper()["tables"])


@cache
def table(name: str) -> PaperTable:
    """A table of the paper by name."""
    if name not in list_tables():
        raise NotFoundError(f"no table '{name}' in the paper; choose from {', '.join(list_tables())}")
    raw = _load_paper()["tables"][name]
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
    return PaperTable(name, raw["title"], metric, setting, negatives, tuple(raw.get("notes", ())), rows)


def _is_link_table(found: PaperTable, asked: tuple[str, str, str]) -> bool:
    """Whether it is one of the tables of link prediction, and not of ablations, that hold this quantity."""
    wanted = found.name.startswith(("transductive_", "inductive_")) and found.name != EXCLUDED_TABLE
    return wanted and (found.setting, found.negatives, found.metric) == asked


def _quoted_values(dataset: str, asked: tuple[str, str, str]) -> dict[str, PublishedValue]:
    """Earlier figures that the correction quotes: of models which it did not retrain, or retrained and names both."""
    file = _load_correction()
    source = f"quoted by {file['source']}"
    kept = {
        model: PublishedValue(mean, std, source)
        for model, mean, std, retrained in _select_corrected(dataset, asked)
        if not retrained
    }
    named = {
        model: PublishedValue(mean, std, source)
        for name, *where, model, mean, std in file["quoted"]
        if key(name) == key(dataset) and tuple(where) == asked
    }
    return kept | named


def _select_corrected(dataset: str, asked: tuple[str, str, str]) -> list[tuple[str, float, float, bool]]:
    setting, negatives, metric = asked
    if (setting, metric) != ("transductive", "ap"):
        return []
    file = _load_correction()
    return [
        (model, *cell)
        for name, cells in file["cells"].get(negatives, {}).items()
        if key(name) == key(dataset)
        for model, cell in zip(file["models"], cells, strict=True)
        if cell is not None
    ]


@cache
def _load_paper() -> dict[str, Any]:
    return _read_json("published.json")


@cache
def _load_correction() -> dict[str, Any]:
    return _read_json("corrected.json")


def _read_json(name: str) -> dict[str, Any]:
    return json.loads(files("dygmamba.lab").joinpath(name).read_text("utf-8"))
