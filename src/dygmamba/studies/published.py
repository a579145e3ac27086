"""What has been published: the paper's tables, and the figures of a later correction of its field.

Percentages as printed. A dataset is found whatever its spelling: `USLegis`, `us-legis` and `US Legis.` are one.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from dygmamba.errors import NotFoundError

ALIASES = {"contacts": "contact", "canadianparliament": "canparl", "socialevolution": "socialevo"}
METRICS = ("ap", "auc")
# two tables of the paper hold this quantity with two columns exchanged; the appendix agrees with its other tables
PASSED_OVER = "inductive_ap_main_rnd"


class Cell(NamedTuple):
    """A published figure: its mean and deviation in percent, and where it stands."""

    mean: float
    std: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Table:
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


def published(dataset: str, setting: str, negatives: str, metric: str = "ap") -> dict[str, Cell]:
    """Every model's figure as its authors or the paper published it; empty where there is none."""
    asked = (setting, negatives, metric)
    cells = {
        row["model"]: Cell(row["mean"], row["std"], f"{_paper()['source']}, {found.name}")
        for found in map(table, tables())
        if _is_of(found, asked)
        for row in found.rows
        if key(row["dataset"]) == key(dataset) and row["mean"] is not None
    }
    return _quoted(dataset, asked) | cells


def corrected(dataset: str, setting: str, negatives: str, metric: str = "ap") -> dict[str, Cell]:
    """The figures after two leaks were closed (padding, events of the query's own time); empty where there is none."""
    file, found = _correction(), {}
    for model, mean, std, retrained in _corrections(dataset, (setting, negatives, metric)):
        how = "retrained" if retrained else "as published"
        found[model] = Cell(mean, std, f"{file['source']}, {how}")
    return found


def printed(dataset: str, setting: str, negatives: str) -> list[tuple[str, str, Cell]]:
    """Every cell about this question in any table, ablations and repetitions among them: model, metric, figure."""
    cells = [
        (row["model"], found.metric, Cell(row["mean"], row["std"], f"{_paper()['source']}, {found.name}"))
        for found in map(table, tables())
        if found.metric in METRICS and (found.setting, found.negatives) == (setting, negatives)
        for row in found.rows
        if key(row["dataset"]) == key(dataset) and row["mean"] is not None
    ]
    told = {(model, metric) for model, metric, _ in cells}
    quoted = [
        (model, metric, cell)
        for metric in METRICS
        for model, cell in _quoted(dataset, (setting, negatives, metric)).items()
        if (model, metric) not in told
    ]
    return cells + quoted


def tables() -> tuple[str, ...]:
    """The names of the paper's tables."""
    return tuple(_paper()["tables"])


@cache
def table(name: str) -> Table:
    """A table of the paper by name."""
    if name not in tables():
        raise NotFoundError(f"no table '{name}' in the paper; choose from {', '.join(tables())}")
    raw = _paper()["tables"][name]
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
    return Table(name, raw["title"], metric, setting, negatives, tuple(raw.get("notes", ())), rows)


def _is_of(found: Table, asked: tuple[str, str, str]) -> bool:
    """Whether it is one of the tables of link prediction, and not of ablations, that hold this quantity."""
    wanted = found.name.startswith(("transductive_", "inductive_")) and found.name != PASSED_OVER
    return wanted and (found.setting, found.negatives, found.metric) == asked


def _quoted(dataset: str, asked: tuple[str, str, str]) -> dict[str, Cell]:
    """Earlier figures that the correction quotes: of models which it did not retrain, or retrained and names both."""
    file = _correction()
    source = f"quoted by {file['source']}"
    kept = {
        model: Cell(mean, std, source)
        for model, mean, std, retrained in _corrections(dataset, asked)
        if not retrained
    }
    named = {
        model: Cell(mean, std, source)
        for name, *where, model, mean, std in file["quoted"]
        if key(name) == key(dataset) and tuple(where) == asked
    }
    return kept | named


def _corrections(dataset: str, asked: tuple[str, str, str]) -> list[tuple[str, float, float, bool]]:
    setting, negatives, metric = asked
    if (setting, metric) != ("transductive", "ap"):
        return []
    file = _correction()
    return [
        (model, *cell)
        for name, cells in file["cells"].get(negatives, {}).items()
        if key(name) == key(dataset)
        for model, cell in zip(file["models"], cells, strict=True)
        if cell is not None
    ]


@cache
def _paper() -> dict[str, Any]:
    return _read("published.json")


@cache
def _correction() -> dict[str, Any]:
    return _read("corrected.json")


def _read(name: str) -> dict[str, Any]:
    return json.loads(files("dygmamba.studies").joinpath(name).read_text("utf-8"))
