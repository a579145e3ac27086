"""From the records of a study to its tables and charts: SECTIONS by study."""

from collections.abc import Callable, Iterable
from typing import Any

from dygmamba.report.sheets import Cell, Grid, Heat, Lines, Section, Sheet, Tone
from dygmamba.studies.figures import Figure, paired_p, ranks
from dygmamba.studies.plan import FULL, STUDIES
from dygmamba.studies.published import Cell as Printed
from dygmamba.studies.published import corrected, key, published, table
from dygmamba.studies.records import Book, Record, of_work

NEGATIVES = ("random", "historical", "inductive")
SETTINGS = {"transductive": "all nodes", "inductive": "new nodes"}
EPOCHS = (20, 40, 60, 80, 100)

Name = Callable[[Record], str]


def sheet(book: Book) -> Sheet:
    """Everything a study has to say."""
    return Sheet(
        STUDIES[book.study].title, stamp(book.records, book.command), tuple(SECTIONS[book.study](book))
    )


def stamp(records: Iterable[Record], command: str = "") -> str:
    """Seeds, rule, batch, hardware and command of some records."""
    records = list(records)
    rows = [row for record in records for row in record.rows]
    parts = {
        "seeds": _listed(record.seed for record in records if record.seed is not None),
        "rule": _listed(row["visible"] for row in rows if "visible" in row),
        "batch": _listed(row["batch"] for row in rows if "batch" in row),
        "": _listed(record.device for record in records if record.device),
    }
    said = "; ".join(f"{name} {value}".strip() for name, value in parts.items() if value)
    return f"{said}; {command}" if command else said


def link_sections(book: Book) -> list[Section]:
    """A part per stream, with a table per setting and negatives."""
    records = of_work(book.records, "link", "heuristic")
    return [
        Section(
            f"{data}", _ceiling_text(book, data), tuple(_link_grids(book, own, lambda one: one.model, True))
        )
        for data, own in _by(records, lambda one: one.data).items()
    ]


def ablation_sections(book: Book) -> list[Section]:
    """A part per stream; each variant beside the model as it is."""
    parts = []
    for data, own in _by(book.records, lambda one: one.data).items():
        grids = list(_link_grids(book, own, lambda one: one.about["variant"], False, reference=FULL))
        parts.append(Section(data, _ceiling_text(book, data), tuple(grids)))
    return parts


def length_sections(book: Book) -> list[Section]:
    """AP against the length, with the published points."""
    parts = []
    for data, own in _by(book.records, lambda one: one.data).items():
        curves = {
            f"{model} ({SETTINGS[setting]})": _curve(records, "length", setting)
            for model, records in _by(own, lambda one: one.model).items()
            for setting in SETTINGS
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
            log_x=True,
        )
        grids = _link_grids(book, own, lambda one: f"{one.model} L = {one.about['length']}", False)
        parts.append(Section(data, "", tuple(grids), (chart,)))
    return parts


def sensitivity_sections(book: Book) -> list[Section]:
    """AP against each size."""
    parts = []
    for data, own in _by(book.records, lambda one: one.data).items():
        curves = tuple(
            Lines(
                f"{data}: test AP against {name}",
                name,
                "AP (%)",
                {name: _curve(records, "value", "transductive")},
                log_x=True,
            )
            for name, records in _by(own, lambda one: one.about["setting"]).items()
        )
        grids = _link_grids(book, own, lambda one: f"{one.about['setting']} = {one.about['value']}", False)
        parts.append(Section(data, "", tuple(grids), curves))
    return parts


def node_sections(book: Book) -> list[Section]:
    """AUC of classifiers on frozen backbones, beside the published."""
    parts = []
    for data, own in _by(of_work(book.records, "node"), lambda one: one.data).items():
        said = {
            key(row["model"]): row
            for row in table("node_classification_auc").rows
            if key(row["dataset"]) == key(data)
        }
        figures = {
            metric: _figures(own, lambda one: one.model, {"split": "test"}, metric)
            for metric in ("auc", "ap")
        }
        best = max(figures["auc"], key=lambda name: figures["auc"][name].mean)
        rows = [
            (
                Cell(model),
                Cell(str(figure), "best" if model == best else ""),
                Cell(str(figures["ap"][model])),
                _printed(_cell(said.get(key(model)))),
                Cell(str(len(figure.by_seed))),
            )
            for model, figure in sorted(figures["auc"].items(), key=lambda pair: -pair[1].mean)
        ]
        columns = ("model", "AUC", "AP", "published AUC", "seeds")
        parts.append(
            Section(data, "", (Grid("Node classification, test", stamp(own), columns, tuple(rows)),))
        )
    return parts


def efficiency_sections(book: Book) -> list[Section]:
    """An epoch of every model; time and memory against length."""
    parts = []
    for data, own in _by(book.records, lambda one: one.data).items():
        whole = [one for one in own if "length" not in one.about]
        rows = tuple(
            (
                Cell(one.model),
                _or_dash(one.rows[0].get("epoch_seconds"), "{:.2f}"),
                _or_dash(one.rows[0].get("peak_mb"), "{:,.0f}"),
                _or_dash(one.rows[0].get("parameters"), "{:,}"),
                Cell(str(one.settings.get("length", one.settings.get("neighbors", "")))),
            )
            for one in sorted(whole, key=lambda one: one.rows[0].get("epoch_seconds") or 0)
        )
        columns = ("model", "seconds an epoch", "peak memory (MB)", "parameters", "length or neighbours")
        grids = (
            (Grid("A training epoch with the published settings", stamp(whole), columns, rows),)
            if rows
            else ()
        )
        charts = tuple(
            Lines(
                f"{data}: {name} against length",
                "tokens of a history",
                unit,
                _cost_curves(own, field),
                True,
                True,
            )
            for name, field, unit in (("epoch time", "epoch_seconds", "seconds"), ("memory", "peak_mb", "MB"))
        )
        parts.append(Section(data, "", grids, charts))
    return parts


def convergence_sections(book: Book) -> list[Section]:
    """Training loss by epoch."""
    parts = []
    for data, own in _by(book.records, lambda one: one.data).items():
        by_model = _by(own, lambda one: one.model)
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
                    _or_dash({point[0]: point[1] for point in curves[model]}.get(float(epoch)), "{:.4f}")
                    for model in by_model
                ),
                *(_or_dash(said.get((key(model), epoch)), "{:.4f}", "soft") for model in by_model),
            )
            for epoch in EPOCHS
        )
        columns = ("epoch", *by_model, *(f"published {model}" for model in by_model))
        grid = Grid("Training loss, mean over seeds", stamp(own), columns, rows)
        parts.append(Section(data, "", (grid,), (Lines(f"{data}: training loss", "epoch", "loss", curves),)))
    return parts


def robustness_sections(book: Book) -> list[Section]:
    """AP against the share of noise, a chart for each definition of it."""
    parts = []
    for data, own in _by(of_work(book.records, "robustness"), lambda one: one.data).items():
        for kind, records in _by(own, lambda one: one.about["noise"]).items():
            curves, rows = {}, []
            for model, mine in _by(records, lambda one: one.model).items():
                figures = {
                    rate: _figures(mine, lambda one: one.model, {"noise": rate}, "ap")
                    for rate in _rates(mine)
                }
                found = {rate: figure[model] for rate, figure in figures.items() if model in figure}
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


def case_sections(book: Book) -> list[Section]:
    """Similarity maps of hidden states."""
    parts = []
    for record in of_work(book.records, "similarity"):
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


NOISES = {
    "insert": "noise events inserted into what every model sees",
    "release": "entries of histories overwritten, as the released code does",
}
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


def _link_grids(
    book: Book, records: list[Record], name: Name, cells: bool, reference: str | None = None
) -> Iterable[Grid]:
    """A table per setting and negatives that has rows."""
    for setting in SETTINGS:
        for negatives in NEGATIVES:
            grid = link_grid(book, records, name, (setting, negatives), cells, reference)
            if grid is not None:
                yield grid


def link_grid(
    book: Book,
    records: list[Record],
    name: Name,
    asked: tuple[str, str],
    cells: bool = True,
    reference: str | None = None,
) -> Grid | None:
    """One stream's rows of one setting and negatives; `cells`: the published too, `reference`: a row to differ from."""
    setting, negatives = asked
    where = {"split": "test", "setting": setting, "negatives": negatives}
    found = {metric: _figures(records, name, where, metric) for metric in ("ap", "auc", "ap_pooled")}
    ap = found["ap"]
    if not ap:
        return None
    data, rank = records[0].data, ranks(ap)
    order = sorted(ap, key=lambda label: rank[label])
    said, rerun = (source(data, setting, negatives) for source in (published, corrected))
    rows = []
    for label in order:
        other = reference if reference in ap else next((one for one in order if one != label), None)
        own = [
            Cell(label),
            Cell(str(ap[label]), "best" if rank[label] == 1 else ""),
            Cell(f"{rank[label]:g}"),
        ]
        own.append(_against(ap[label], None if other in (None, label) else ap[other]))
        if cells:
            printed = _named(said, label)
            own += [_printed(printed), _difference(ap[label], printed), _printed(_named(rerun, label))]
        own += [
            Cell(str(found["auc"][label])),
            Cell(str(found["ap_pooled"][label])),
            Cell(str(len(ap[label].by_seed))),
        ]
        rows.append(tuple(own))
    versus = f"against {reference}" if reference else "against the best other"
    extra = ("published AP", "difference", "re-run, leaks closed") if cells else ()
    columns = ("model", "AP", "rank", versus, *extra, "AUC", "AP pooled", "seeds")
    note = stamp(records)
    ceiling = book.ceilings.get(f"{data} {setting} {negatives}")
    note += "" if ceiling is None else f"; ceiling (edge oracle) {100 * ceiling:.2f}"
    title = f"{data}, {SETTINGS[setting]} ({setting}), {negatives} negatives"
    return Grid(title, note, columns, tuple(rows)).without_empty()


def _figures(records: list[Record], name: Name, where: dict[str, Any], metric: str) -> dict[str, Figure]:
    """By label, the metric of the rows that are about this."""
    found: dict[str, dict[int | None, float]] = {}
    for record in records:
        for row in record.rows:
            if all(row.get(field) == value for field, value in where.items()) and row.get(metric) is not None:
                found.setdefault(name(record), {})[record.seed] = row[metric]
    return {label: Figure(values) for label, values in found.items()}


def _curve(records: list[Record], axis: str, setting: str) -> list[tuple[float, ...]]:
    """AP with its spread over an axis of `about`."""
    where = {"split": "test", "setting": setting, "negatives": "random"}
    by_place = _figures(records, lambda one: str(one.about[axis]), where, "ap")
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


def _against(own: Figure, other: Figure | None) -> Cell:
    """The difference to another model, with p over shared seeds."""
    if other is None:
        return Cell("")
    gap, p = 100 * (own.mean - other.mean), paired_p(own, other)
    tone: Tone = "" if p is None or p >= 0.05 else "good" if gap > 0 else "bad"
    return Cell(f"{gap:+.2f}" + ("" if p is None else f" (p {p:.2g})"), tone)


def _difference(own: Figure, said: Printed | None) -> Cell:
    """Ours less the published mean; coloured where it is beyond two deviations of either."""
    if said is None:
        return Cell("")
    gap = 100 * own.mean - said.mean
    beyond = abs(gap) > 2 * max(said.std or 0.0, 100 * (own.std or 0.0))
    return Cell(f"{gap:+.2f}", ("good" if gap > 0 else "bad") if beyond else "soft")


def _printed(said: Printed | None) -> Cell:
    return Cell(
        "" if said is None else f"{said.mean:.2f}" + (f" ± {said.std:.2f}" if said.std is not None else ""),
        "soft",
    )


def _cell(row: dict[str, Any] | None) -> Printed | None:
    return None if row is None or row["mean"] is None else Printed(row["mean"], row["std"], "")


def _named(cells: dict[str, Printed], label: str) -> Printed | None:
    return {key(model): cell for model, cell in cells.items()}.get(key(label))


def _ceiling_text(book: Book, data: str) -> str:
    own = {
        name: value
        for name, value in book.ceilings.items()
        if name.split()[0] == data and "transductive" in name
    }
    said = ", ".join(f"{100 * value:.2f} with {name.split()[2]} negatives" for name, value in own.items())
    return f"No leak-free score can be above the edge oracle: {said}." if said else ""


def _by(records: Iterable[Record], name: Name) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(str(name(record)), []).append(record)
    return groups


def _listed(values: Iterable[Any]) -> str:
    """Different values in order; whole numbers in a row as a range."""
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if (
        len(found) > 2
        and all(isinstance(value, int) for value in found)
        and found[-1] - found[0] == len(found) - 1
    ):
        return f"{found[0]}-{found[-1]}"
    return ", ".join(map(str, found))


def _or_dash(value: float | None, form: str, tone: Tone = "") -> Cell:
    return Cell("-" if value is None else form.format(value), tone)
