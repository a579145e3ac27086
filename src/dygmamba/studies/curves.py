"""Studies that are curves: figures against length, size, epoch or noise."""

from typing import Any

from dygmamba.report.figures import Lines
from dygmamba.report.sheets import Cell, Grid, Section
from dygmamba.studies.figures import Figure
from dygmamba.studies.published import key, table
from dygmamba.studies.records import Book, Record, of_work
from dygmamba.studies.tables import NODES, figures, grouped, link_grids, or_dash, stamp

EPOCHS = (20, 40, 60, 80, 100)
NOISES = {
    "insert": "noise events inserted into what every model sees",
    "release": "entries of histories overwritten, as the released code does",
}


def length_sections(book: Book) -> list[Section]:
    """AP against the length, with the published points."""
    parts = []
    for data, own in grouped(book.records, lambda one: one.data).items():
        curves = {
            f"{model} ({NODES[setting]})": _curve(records, "length", setting)
            for model, records in grouped(own, lambda one: one.model).items()
            for setting in NODES
        }
        said = {
            float(row["length"]): row
            for row in table("sequence_length_ap").rows
            if key(row["dataset"]) == key(data) and row["mean"] is not None
        }
        if said:
            curves["published"] = [(length, row["mean"]) for length, row in sorted(said.items())]
        chart = Lines(
            f"{data}: test AP against the length of histories",
            "tokens of a history",
            "AP (%)",
            curves,
            x_kind="log",
        )
        grids = link_grids(book, own, lambda one: f"{one.model} L = {one.about['length']}", False)
        parts.append(Section(data, "", tuple(grids), (chart,)))
    return parts


def sensitivity_sections(book: Book) -> list[Section]:
    """AP against each size."""
    parts = []
    for data, own in grouped(book.records, lambda one: one.data).items():
        curves = tuple(
            Lines(
                f"{data}: test AP against {name}",
                name,
                "AP (%)",
                {name: _curve(records, "value", "transductive")},
                x_kind="log",
            )
            for name, records in grouped(own, lambda one: one.about["setting"]).items()
        )
        grids = link_grids(book, own, lambda one: f"{one.about['setting']} = {one.about['value']}", False)
        parts.append(Section(data, "", tuple(grids), curves))
    return parts


def efficiency_sections(book: Book) -> list[Section]:
    """An epoch of every model; time and memory against length."""
    parts = []
    for data, own in grouped(book.records, lambda one: one.data).items():
        whole = [one for one in own if "length" not in one.about]
        rows = tuple(
            (
                Cell(one.model),
                or_dash(one.rows[0].get("epoch_seconds"), "{:.2f}"),
                Cell(_share_timed(one.rows[0])),
                or_dash(one.rows[0].get("peak_mb"), "{:,.0f}"),
                or_dash(one.rows[0].get("parameters"), "{:,}"),
                Cell(str(one.settings.get("length", one.settings.get("neighbors", "")))),
            )
            for one in sorted(whole, key=lambda one: one.rows[0].get("epoch_seconds") or 0)
        )
        columns = ("model", "seconds an epoch", "steps timed", "peak memory (MB)", "parameters")
        columns += ("length or neighbours",)
        grids = (
            (Grid("A training epoch with the published settings", stamp(whole), columns, rows),)
            if rows
            else ()
        )
        times, sizes = (_cost_curves(own, field) for field in ("epoch_seconds", "peak_mb"))
        charts = tuple(
            Lines(f"{data}: {name} against length", "tokens of a history", unit, curves, "log", "log")
            for name, curves, unit in (("epoch time", times, "seconds"), ("memory", sizes, "MB"))
        )
        against = (_against_length(own, times, sizes),) if times else ()
        parts.append(Section(data, "", grids + against, charts))
    return parts


def _share_timed(row: dict[str, Any]) -> str:
    """How many steps of the epoch its time was measured in."""
    return f"{row['stepstimed']:,} of {row['steps']:,}" if "steps" in row else ""


def _against_length(
    records: list[Record],
    times: dict[str, list[tuple[float, ...]]],
    sizes: dict[str, list[tuple[float, ...]]],
) -> Grid:
    """The points of both charts as a table."""
    timed = [one for one in records if "length" in one.about]
    kinds = [
        (f"{label}: {unit}", {point[0]: point[1] for point in points}, form)
        for curves, unit, form in ((times, "s", "{:.2f}"), (sizes, "MB", "{:,.0f}"))
        for label, points in curves.items()
    ]
    rows = tuple(
        (Cell(str(length)), *(or_dash(found.get(float(length)), form) for _, found, form in kinds))
        for length in sorted({int(one.about["length"]) for one in timed})
    )
    columns = ("length", *(name for name, _, _ in kinds))
    return Grid("A training epoch against length", stamp(timed), columns, rows)


def convergence_sections(book: Book) -> list[Section]:
    """Training loss by epoch."""
    parts = []
    for data, own in grouped(book.records, lambda one: one.data).items():
        by_model = grouped(own, lambda one: one.model)
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
                    or_dash({point[0]: point[1] for point in curves[model]}.get(float(epoch)), "{:.4f}")
                    for model in by_model
                ),
                *(or_dash(said.get((key(model), epoch)), "{:.4f}", "soft") for model in by_model),
            )
            for epoch in EPOCHS
        )
        columns = ("epoch", *by_model, *(f"published {model}" for model in by_model))
        grid = Grid("Training loss, mean over seeds", stamp(own), columns, rows)
        parts.append(
            Section(data, "", (grid,), (Lines(f"{data}: training loss", "epoch", "loss", curves, "count"),))
        )
    return parts


def robustness_sections(book: Book) -> list[Section]:
    """AP against the share of noise, a chart for each definition of it."""
    parts = []
    for data, own in grouped(of_work(book.records, "robustness"), lambda one: one.data).items():
        for kind, records in grouped(own, lambda one: one.about["noise"]).items():
            curves, rows = {}, []
            for model, mine in grouped(records, lambda one: one.model).items():
                found = {
                    rate: figures(mine, lambda one: one.model, {"noise": rate}, "ap") for rate in _rates(mine)
                }
                found = {rate: figure[model] for rate, figure in found.items() if model in figure}
                if found:
                    curves[model] = [
                        (100 * rate, 100 * one.mean, 100 * (one.std or 0)) for rate, one in found.items()
                    ]
                    rows.append((Cell(model), *(Cell(str(one)) for one in found.values())))
            columns = ("model", *(f"{100 * rate:.0f} %" for rate in _rates(records)))
            grid = Grid(f"Test AP, random negatives, noise by `{kind}`", stamp(records), columns, tuple(rows))
            chart = Lines(f"{data}, noise by {kind}", "noise (% of the events)", "AP (%)", curves)
            parts.append(Section(f"{data}: {NOISES[kind]}", "", (grid,), (chart,)))
    return parts


def _curve(records: list[Record], axis: str, setting: str) -> list[tuple[float, ...]]:
    """AP with its spread over an axis of `about`."""
    where = {"split": "test", "setting": setting, "negatives": "random"}
    by_place = figures(records, lambda one: str(one.about[axis]), where, "ap")
    return [
        (float(at), 100 * one.mean, 100 * (one.std or 0))
        for at, one in sorted(by_place.items(), key=lambda p: float(p[0]))
    ]


def _cost_curves(records: list[Record], field: str) -> dict[str, list[tuple[float, ...]]]:
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


def _loss_curve(records: list[Record]) -> list[tuple[float, ...]]:
    epochs = min((len(one.losses) for one in records), default=0)
    by_epoch = [Figure({one.seed: one.losses[number] for one in records}) for number in range(epochs)]
    return [(float(number + 1), one.mean, one.std or 0.0) for number, one in enumerate(by_epoch)]


def _rates(records: list[Record]) -> list[float]:
    return sorted({row["noise"] for record in records for row in record.rows})
