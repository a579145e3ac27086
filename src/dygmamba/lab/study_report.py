"""Studies that are curves: figures against length, size, epoch or noise.

From the records of a study to its tables and charts: SECTIONS by study.
"""

from collections.abc import Callable
from statistics import mean
from typing import Any

from dygmamba.lab.studies import FULL, STUDIES
from dygmamba.report.comparison import (
    NEGATIVES,
    SETTING_LABELS,
    collect_values,
    describe_conditions,
    format_or_dash,
    group_records,
    link_grids,
    overview_grid,
    published_cell,
)
from dygmamba.report.document import Cell, Document, HeatMap, LineChart, ReportTable, Section
from dygmamba.report.published import PublishedValue as Printed
from dygmamba.report.published import key, table
from dygmamba.report.result_records import ResultRecord, SeedValues, StudyResults, select_work

SHOWN_EPOCHS = (20, 40, 60, 80, 100)
NOISE_TITLES = {
    "insert": "noise events inserted into what every model sees",
    "release": "entries of histories overwritten, as the released code does",
}


def length_sections(book: StudyResults) -> list[Section]:
    """AP against the length, with the published points."""
    parts = []
    for data, own in group_records(book.records, lambda one: one.data).items():
        curves = {
            f"{model} ({SETTING_LABELS[setting]})": _curve(records, "length", setting)
            for model, records in group_records(own, lambda one: one.model).items()
            for setting in SETTING_LABELS
        }
        said = {
            float(row["length"]): row
            for row in table("sequence_length_ap").rows
            if key(row["dataset"]) == key(data) and row["mean"] is not None
        }
        if said:
            curves["published"] = [(length, row["mean"]) for length, row in sorted(said.items())]
        chart = LineChart(
            f"{data}: test AP against the length of histories",
            "tokens of a history",
            "AP (%)",
            curves,
            x_kind="log",
        )
        tables = link_grids(book, own, lambda one: f"{one.model} L = {one.about['length']}", False)
        parts.append(Section(data, "", tuple(tables), (chart,)))
    return parts


def sensitivity_sections(book: StudyResults) -> list[Section]:
    """AP against each size."""
    parts = []
    for data, own in group_records(book.records, lambda one: one.data).items():
        curves = tuple(
            LineChart(
                f"{data}: test AP against {name}",
                name,
                "AP (%)",
                {name: _curve(records, "value", "transductive")},
                x_kind="log",
            )
            for name, records in group_records(own, lambda one: one.about["setting"]).items()
        )
        tables = link_grids(book, own, lambda one: f"{one.about['setting']} = {one.about['value']}", False)
        parts.append(Section(data, "", tuple(tables), curves))
    return parts


def efficiency_sections(book: StudyResults) -> list[Section]:
    """An epoch of every model; time and memory against length."""
    parts = []
    for data, own in group_records(book.records, lambda one: one.data).items():
        whole = [one for one in own if "length" not in one.about]
        rows = tuple(
            (
                Cell(one.model),
                format_or_dash(one.rows[0].get("epoch_seconds"), "{:.2f}"),
                Cell(_format_timed_steps(one.rows[0])),
                format_or_dash(one.rows[0].get("peak_mb"), "{:,.0f}"),
                format_or_dash(one.rows[0].get("parameters"), "{:,}"),
                Cell(str(one.settings.get("length", one.settings.get("neighbors", "")))),
            )
            for one in sorted(whole, key=lambda one: one.rows[0].get("epoch_seconds") or 0)
        )
        columns = ("model", "seconds an epoch", "steps timed", "peak memory (MB)", "parameters")
        columns += ("length or neighbours",)
        tables = (
            (
                ReportTable(
                    "A training epoch with the published settings", describe_conditions(whole), columns, rows
                ),
            )
            if rows
            else ()
        )
        times, sizes = (_cost_curves(own, field) for field in ("epoch_seconds", "peak_mb"))
        charts = tuple(
            LineChart(f"{data}: {name} against length", "tokens of a history", unit, curves, "log", "log")
            for name, curves, unit in (("epoch time", times, "seconds"), ("memory", sizes, "MB"))
        )
        against = (_against_length(own, times, sizes),) if times else ()
        parts.append(Section(data, "", tables + against, charts))
    return parts


def _format_timed_steps(row: dict[str, Any]) -> str:
    """How many steps of the epoch its time was measured in."""
    return f"{row['stepstimed']:,} of {row['steps']:,}" if "steps" in row else ""


def _against_length(
    records: list[ResultRecord],
    times: dict[str, list[tuple[float, ...]]],
    sizes: dict[str, list[tuple[float, ...]]],
) -> ReportTable:
    """The points of both charts as a table."""
    timed = [one for one in records if "length" in one.about]
    kinds = [
        (f"{label}: {unit}", {point[0]: point[1] for point in points}, form)
        for curves, unit, form in ((times, "s", "{:.2f}"), (sizes, "MB", "{:,.0f}"))
        for label, points in curves.items()
    ]
    rows = tuple(
        (Cell(str(length)), *(format_or_dash(found.get(float(length)), form) for _, found, form in kinds))
        for length in sorted({int(one.about["length"]) for one in timed})
    )
    columns = ("length", *(name for name, _, _ in kinds))
    return ReportTable("A training epoch against length", describe_conditions(timed), columns, rows)


def convergence_sections(book: StudyResults) -> list[Section]:
    """Training loss by epoch."""
    parts = []
    for data, own in group_records(book.records, lambda one: one.data).items():
        by_model = group_records(own, lambda one: one.model)
        curves = {model: _loss_curve(records) for model, records in by_model.items()}
        said = {
            (key(row["model"].removeprefix("Vanilla ")), int(row["epoch"])): row["value"]
            for row in table("training_convergence").rows
            if key(row["dataset"]) == key(data)
        }
        rows = tuple(
            (
                Cell(str(epoch)),
                *(
                    format_or_dash(
                        {point[0]: point[1] for point in curves[model]}.get(float(epoch)), "{:.4f}"
                    )
                    for model in by_model
                ),
                *(format_or_dash(said.get((key(model), epoch)), "{:.4f}", "soft") for model in by_model),
            )
            for epoch in SHOWN_EPOCHS
        )
        columns = ("epoch", *by_model, *(f"published {model}" for model in by_model))
        grid = ReportTable("Training loss, mean over seeds", describe_conditions(own), columns, rows)
        parts.append(
            Section(
                data, "", (grid,), (LineChart(f"{data}: training loss", "epoch", "loss", curves, "count"),)
            )
        )
    return parts


def robustness_sections(book: StudyResults) -> list[Section]:
    """AP against the share of noise, a chart for each definition of it."""
    parts = []
    for data, own in group_records(select_work(book.records, "robustness"), lambda one: one.data).items():
        for kind, records in group_records(own, lambda one: one.about["noise"]).items():
            curves, rows = {}, []
            for model, mine in group_records(records, lambda one: one.model).items():
                found = {
                    rate: collect_values(mine, lambda one: one.model, {"noise": rate}, "ap")
                    for rate in _list_noise_rates(mine)
                }
                found = {rate: figure[model] for rate, figure in found.items() if model in figure}
                if found:
                    curves[model] = [
                        (100 * rate, 100 * one.mean, 100 * (one.std or 0)) for rate, one in found.items()
                    ]
                    rows.append((Cell(model), *(Cell(str(one)) for one in found.values())))
            columns = ("model", *(f"{100 * rate:.0f} %" for rate in _list_noise_rates(records)))
            grid = ReportTable(
                f"Test AP, random negatives, noise by `{kind}`",
                describe_conditions(records),
                columns,
                tuple(rows),
            )
            chart = LineChart(f"{data}, noise by {kind}", "noise (% of the events)", "AP (%)", curves)
            parts.append(Section(f"{data}: {NOISE_TITLES[kind]}", "", (grid,), (chart,)))
    return parts


def _curve(records: list[ResultRecord], axis: str, setting: str) -> list[tuple[float, ...]]:
    """AP with its spread over an axis of `about`."""
    where = {"split": "test", "setting": setting, "negatives": "random"}
    by_place = collect_values(records, lambda one: str(one.about[axis]), where, "ap")
    return [
        (float(at), 100 * one.mean, 100 * (one.std or 0))
        for at, one in sorted(by_place.items(), key=lambda p: float(p[0]))
    ]


def _cost_curves(records: list[ResultRecord], field: str) -> dict[str, list[tuple[float, ...]]]:
    curves: dict[str, list[tuple[float, ...]]] = {}
    for one in records:
        value = one.rows[0].get(field)
        if "length" in one.about and value:
            patch = one.about.get("patch")
            label = (
                one.model
                if patch in (None, "none")
                else f"{one.model}, patches {'of one' if patch == 'one' else 'as published'}"
            )
            curves.setdefault(label, []).append((float(one.about["length"]), float(value)))
    return {label: sorted(points) for label, points in curves.items()}


def _loss_curve(records: list[ResultRecord]) -> list[tuple[float, ...]]:
    epochs = min((len(one.losses) for one in records), default=0)
    by_epoch = [SeedValues({one.seed: one.losses[number] for one in records}) for number in range(epochs)]
    return [(float(number + 1), one.mean, one.std or 0.0) for number, one in enumerate(by_epoch)]


def _list_noise_rates(records: list[ResultRecord]) -> list[float]:
    return sorted({row["noise"] for record in records for row in record.rows})


def build_study_sheet(book: StudyResults) -> Document:
    """Everything a study has to say."""
    return Document(
        STUDIES[book.study].title,
        describe_conditions(book.records, book.command),
        tuple(SECTIONS[book.study](book)),
    )


def link_sections(book: StudyResults) -> list[Section]:
    """Streams side by side, where there are several; then a part for each, with a table per setting and negatives."""
    records = select_work(book.records, "link", "heuristic")
    sides = [
        overview_grid(records, _model, (setting, kind)) for setting in SETTING_LABELS for kind in NEGATIVES
    ]
    overviews = tuple(grid for grid in sides if grid is not None)
    parts = [
        Section(f"{data}", _ceiling_text(book, data), tuple(link_grids(book, own, _model, True)))
        for data, own in group_records(records, lambda one: one.data).items()
    ]
    return [Section("All streams", "", overviews), *parts] if overviews else parts


def _model(record: ResultRecord) -> str:
    return record.model


def ablation_sections(book: StudyResults) -> list[Section]:
    """A part per stream; each variant beside the model as it is."""
    parts = []
    for data, own in group_records(book.records, lambda one: one.data).items():
        tables = list(link_grids(book, own, lambda one: one.about["variant"], False, reference=FULL))
        parts.append(Section(data, _ceiling_text(book, data), tuple(tables)))
    return parts


def node_sections(book: StudyResults) -> list[Section]:
    """AUC of classifiers on frozen backbones, beside the published."""
    parts = []
    for data, own in group_records(select_work(book.records, "node"), lambda one: one.data).items():
        said = {
            key(row["model"]): row
            for row in table("node_classification_auc").rows
            if key(row["dataset"]) == key(data)
        }
        found = {
            metric: collect_values(own, lambda one: one.model, {"split": "test"}, metric)
            for metric in ("auc", "ap")
        }
        best = max(found["auc"], key=lambda name: found["auc"][name].mean)
        rows = [
            (
                Cell(model),
                Cell(str(figure), "best" if model == best else ""),
                Cell(str(found["ap"][model])),
                published_cell(_cell(said.get(key(model)))),
                Cell(str(len(figure.by_seed))),
            )
            for model, figure in sorted(found["auc"].items(), key=lambda pair: -pair[1].mean)
        ]
        columns = ("model", "AUC", "AP", "published AUC", "seeds")
        parts.append(
            Section(
                data,
                "",
                (ReportTable("Node classification, test", describe_conditions(own), columns, tuple(rows)),),
            )
        )
    return parts


def case_sections(book: StudyResults) -> list[Section]:
    """Similarity maps of hidden states, and how alike these are on the whole."""
    records = select_work(book.records, "similarity")
    parts = [Section("How alike hidden states are", "", (_similarity_table(records),))] if records else []
    for record in records:
        row = record.rows[0]
        maps = tuple(
            HeatMap(f"{record.model}: {name}", x, y, tuple(map(tuple, row[field])), 0.0, 1.0)
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


def _similarity_table(records: list[ResultRecord]) -> ReportTable:
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
    return ReportTable(
        "Mean cosine similarity", describe_conditions(records), (*columns, "across the pair"), tuple(rows)
    )


SECTIONS: dict[str, Callable[[StudyResults], list[Section]]] = {
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


def _ceiling_text(book: StudyResults, data: str) -> str:
    own = {
        name: value
        for name, value in book.ceilings.items()
        if name.split()[0] == data and "transductive" in name
    }
    said = ", ".join(f"{100 * value:.2f} with {name.split()[2]} negatives" for name, value in own.items())
    return f"No leak-free score can be above the edge oracle: {said}." if said else ""
