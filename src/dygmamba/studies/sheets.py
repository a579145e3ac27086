"""From the records of a study to its tables and charts: SECTIONS by study."""

from collections.abc import Callable
from statistics import mean
from typing import Any

from dygmamba.report.figures import Heat
from dygmamba.report.sheets import Cell, Grid, Section, Sheet
from dygmamba.studies.curves import (
    convergence_sections,
    efficiency_sections,
    length_sections,
    robustness_sections,
    sensitivity_sections,
)
from dygmamba.studies.jobs import FULL
from dygmamba.studies.plan import STUDIES
from dygmamba.studies.published import Cell as Printed
from dygmamba.studies.published import key, table
from dygmamba.studies.records import Book, Record, of_work
from dygmamba.studies.tables import NEGATIVES, figures, grouped, link_grids, overview_grid, printed, stamp
from dygmamba.tasks.asked import NODES


def sheet(book: Book) -> Sheet:
    """Everything a study has to say."""
    return Sheet(
        STUDIES[book.study].title, stamp(book.records, book.command), tuple(SECTIONS[book.study](book))
    )


def link_sections(book: Book) -> list[Section]:
    """Streams side by side, where there are several; then a part for each, with a table per setting and negatives."""
    records = of_work(book.records, "link", "heuristic")
    sides = [overview_grid(records, _model, (setting, kind)) for setting in NODES for kind in NEGATIVES]
    overviews = tuple(grid for grid in sides if grid is not None)
    parts = [
        Section(f"{data}", _ceiling_text(book, data), tuple(link_grids(book, own, _model, True)))
        for data, own in grouped(records, lambda one: one.data).items()
    ]
    return [Section("All streams", "", overviews), *parts] if overviews else parts


def _model(record: Record) -> str:
    return record.model


def ablation_sections(book: Book) -> list[Section]:
    """A part per stream; each variant beside the model as it is."""
    parts = []
    for data, own in grouped(book.records, lambda one: one.data).items():
        grids = list(link_grids(book, own, lambda one: one.about["variant"], False, reference=FULL))
        parts.append(Section(data, _ceiling_text(book, data), tuple(grids)))
    return parts


def node_sections(book: Book) -> list[Section]:
    """AUC of classifiers on frozen backbones, beside the published."""
    parts = []
    for data, own in grouped(of_work(book.records, "node"), lambda one: one.data).items():
        said = {
            key(row["model"]): row
            for row in table("node_classification_auc").rows
            if key(row["dataset"]) == key(data)
        }
        found = {
            metric: figures(own, lambda one: one.model, {"split": "test"}, metric) for metric in ("auc", "ap")
        }
        best = max(found["auc"], key=lambda name: found["auc"][name].mean)
        rows = [
            (
                Cell(model),
                Cell(str(figure), "best" if model == best else ""),
                Cell(str(found["ap"][model])),
                printed(_cell(said.get(key(model)))),
                Cell(str(len(figure.by_seed))),
            )
            for model, figure in sorted(found["auc"].items(), key=lambda pair: -pair[1].mean)
        ]
        columns = ("model", "AUC", "AP", "published AUC", "seeds")
        parts.append(
            Section(data, "", (Grid("Node classification, test", stamp(own), columns, tuple(rows)),))
        )
    return parts


def case_sections(book: Book) -> list[Section]:
    """Similarity maps of hidden states, and how alike these are on the whole."""
    records = of_work(book.records, "similarity")
    parts = [Section("How alike hidden states are", "", (_likeness(records),))] if records else []
    for record in records:
        row = record.rows[0]
        maps = tuple(
            Heat(f"{record.model}: {name}", x, y, tuple(map(tuple, row[field])), 0.0, 1.0)
            for field, name, x, y in (
                ("src", "within the source's history", "token", "token"),
                ("dst", "within the destination's history", "token", "token"),
                ("across", "across the pair", "destination", "source"),
            )
        )
        text = f"Event {row['event']:,}, the test event whose two histories are longest; "
        text += f"{row['tokens_per_state']} token(s) a state."
        parts.append(Section(f"{record.data}, {record.model}, seed {record.seed}", text, (), maps))
    return parts


def _likeness(records: list[Record]) -> Grid:
    """Means of the maps, a state beside itself left out; of neighbouring tokens too."""
    columns = ("model", "source, neighbours", "source, all", "destination, neighbours", "destination, all")
    rows = []
    for record in records:
        row, means = record.rows[0], []
        for field in ("src", "dst"):
            means.append(mean(line[at + 1] for at, line in enumerate(row[field][:-1])))
            means.append(
                mean(one for at, line in enumerate(row[field]) for to, one in enumerate(line) if to != at)
            )
        means.append(mean(one for line in row["across"] for one in line))
        rows.append((Cell(f"{record.model}, seed {record.seed}"), *(Cell(f"{one:.3f}") for one in means)))
    return Grid("Mean cosine similarity", stamp(records), (*columns, "across the pair"), tuple(rows))


SECTIONS: dict[str, Callable[[Book], list[Section]]] = {
    "link": link_sections,
    "node": node_sections,
    "ablation": ablation_sections,
    "length": length_sections,
    "efficiency": efficiency_sections,
    "convergence": convergence_sections,
    "robustness": robustness_sections,
    "sensitivity": sensitivity_sections,
    "case-study": case_sections,
    "large": efficiency_sections,
}


def _cell(row: dict[str, Any] | None) -> Printed | None:
    return None if row is None or row["mean"] is None else Printed(row["mean"], row["std"], "")


def _ceiling_text(book: Book, data: str) -> str:
    own = {
        name: value
        for name, value in book.ceilings.items()
        if name.split()[0] == data and "transductive" in name
    }
    said = ", ".join(f"{100 * value:.2f} with {name.split()[2]} negatives" for name, value in own.items())
    return f"No leak-free score can be above the edge oracle: {said}." if said else ""
