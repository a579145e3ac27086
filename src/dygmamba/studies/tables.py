"""Records as tables: one stream's models or variants beside one another, beside what is published and its ceiling."""

from collections.abc import Callable, Iterable
from math import inf
from statistics import mean
from typing import Any

from dygmamba.report.sheets import Cell, Grid, Tone
from dygmamba.studies.figures import Figure, paired_p, ranks
from dygmamba.studies.published import Cell as Printed
from dygmamba.studies.published import corrected, key, published
from dygmamba.studies.records import Book, Record
from dygmamba.tasks.asked import NODES

NEGATIVES = ("random", "historical", "inductive")

Name = Callable[[Record], str]


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


def link_grids(
    book: Book, records: list[Record], name: Name, cells: bool, reference: str | None = None
) -> Iterable[Grid]:
    """A table per setting and negatives that has rows."""
    for setting in NODES:
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
    found = {metric: figures(records, name, where, metric) for metric in ("ap", "auc", "ap_pooled")}
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
            own += [
                printed(_named(said, label)),
                _difference(ap[label], _named(said, label)),
                printed(_named(rerun, label)),
            ]
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
    title = f"{data}, {NODES[setting]}, {negatives} negatives"
    return Grid(title, note, columns, tuple(rows)).without_empty()


def overview_grid(records: list[Record], name: Name, asked: tuple[str, str]) -> Grid | None:
    """AP of one setting and negatives on several streams side by side, by the mean rank; nothing of a single stream.

    A mean rank is of those that have a figure on every stream, ranked among themselves.
    """
    setting, negatives = asked
    where = {"split": "test", "setting": setting, "negatives": negatives}
    by_stream = {data: figures(own, name, where, "ap") for data, own in grouped(records, _data).items()}
    by_stream = {data: found for data, found in by_stream.items() if found}
    if len(by_stream) < 2:
        return None
    labels = list(dict.fromkeys(label for found in by_stream.values() for label in found))
    whole = [label for label in labels if all(label in found for found in by_stream.values())]
    places = [ranks({label: found[label] for label in whole}) for found in by_stream.values()]
    overall = {label: mean(place[label] for place in places) for label in whole}
    first = min(overall.values(), default=inf)  # of nobody where no model is on every stream
    best = {data: max(found, key=lambda label: found[label].mean) for data, found in by_stream.items()}
    rows = tuple(
        (
            Cell(label),
            or_dash(overall.get(label), "{:.1f}", "best" if overall.get(label) == first else ""),
            *(
                Cell(str(found.get(label, "-")), "best" if label == best[data] else "")
                for data, found in by_stream.items()
            ),
        )
        for label in sorted(labels, key=lambda label: overall.get(label, inf))
    )
    title = f"AP on {len(by_stream)} streams, {NODES[setting]}, {negatives} negatives"
    return Grid(title, stamp(records), ("model", "mean rank", *by_stream), rows)


def _data(record: Record) -> str:
    return record.data


def figures(records: list[Record], name: Name, where: dict[str, Any], metric: str) -> dict[str, Figure]:
    """By label, the metric of the rows that are about this."""
    found: dict[str, dict[int | None, float]] = {}
    for record in records:
        for row in record.rows:
            if all(row.get(field) == value for field, value in where.items()) and row.get(metric) is not None:
                found.setdefault(name(record), {})[record.seed] = row[metric]
    return {label: Figure(values) for label, values in found.items()}


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


def printed(said: Printed | None) -> Cell:
    """A published figure."""
    return Cell(
        "" if said is None else f"{said.mean:.2f}" + (f" ± {said.std:.2f}" if said.std is not None else ""),
        "soft",
    )


def _named(cells: dict[str, Printed], label: str) -> Printed | None:
    """The cell of a label's model; what follows a comma says how that model was run."""
    return {key(model): cell for model, cell in cells.items()}.get(key(label.partition(",")[0]))


def grouped(records: Iterable[Record], name: Name) -> dict[str, list[Record]]:
    """Records by name, in the order of their first."""
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


def or_dash(value: float | None, form: str, tone: Tone = "") -> Cell:
    """A number, or that there is none."""
    return Cell("-" if value is None else form.format(value), tone)
