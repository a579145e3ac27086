"""Records as tables: one stream's models or variants beside one another, beside what is published and its ceiling.

Run folders beside one another: their results over seeds, their curves, what they forget.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import load_forgetting
from dygmamba.report.document import Cell, Document, LineChart, ReportTable, Section, Tone
from dygmamba.report.published import PublishedValue as Printed
from dygmamba.report.published import corrected_values, key, published_values
from dygmamba.report.result_records import (
    PATH_FIELDS,
    ResultRecord,
    SeedValues,
    StudyResults,
    paired_t_test,
    rank_by_mean,
)
from dygmamba.runs.opening import read_split
from dygmamba.tasks.metric_names import SETTING_LABELS

NEGATIVES = ("random", "historical", "inductive")

RecordLabel = Callable[[ResultRecord], str]


def describe_conditions(records: Iterable[ResultRecord], command: str = "") -> str:
    """Seeds, rule, batch, hardware and command of some records."""
    records = list(records)
    rows = [row for record in records for row in record.rows]
    parts = {
        "seeds": _format_values(record.seed for record in records if record.seed is not None),
        "rule": _format_values(row["visible"] for row in rows if "visible" in row),
        "batch": _format_values(row["batch"] for row in rows if "batch" in row),
        "": _format_values(record.device for record in records if record.device),
    }
    said = "; ".join(f"{name} {value}".strip() for name, value in parts.items() if value)
    return f"{said}; {command}" if command else said


def link_grids(
    book: StudyResults,
    records: list[ResultRecord],
    name: RecordLabel,
    cells: bool,
    reference: str | None = None,
) -> Iterable[ReportTable]:
    """A table per setting and negatives that has rows."""
    for setting in SETTING_LABELS:
        for negatives in NEGATIVES:
            grid = link_grid(book, records, name, (setting, negatives), cells, reference)
            if grid is not None:
                yield grid


def link_grid(
    book: StudyResults,
    records: list[ResultRecord],
    name: RecordLabel,
    asked: tuple[str, str],
    cells: bool = True,
    reference: str | None = None,
) -> ReportTable | None:
    """One stream's rows of one setting and negatives; `cells`: the published too, `reference`: a row to differ from."""
    setting, negatives = asked
    where = {"split": "test", "setting": setting, "negatives": negatives}
    found = {metric: collect_values(records, name, where, metric) for metric in ("ap", "auc", "ap_pooled")}
    ap = found["ap"]
    if not ap:
        return None
    data, rank = records[0].data, rank_by_mean(ap)
    order = sorted(ap, key=lambda label: rank[label])
    said, rerun = (source(data, setting, negatives) for source in (published_values, corrected_values))
    rows = []
    for label in order:
        other = reference if reference in ap else next((one for one in order if one != label), None)
        own = [
            Cell(label),
            Cell(str(ap[label]), "best" if rank[label] == 1 else ""),
            Cell(f"{rank[label]:g}"),
        ]
        own.append(_compare_cell(ap[label], None if other in (None, label) else ap[other]))
        if cells:
            own += [
                published_cell(_find_published(said, label)),
                _difference_cell(ap[label], _find_published(said, label)),
                published_cell(_find_published(rerun, label)),
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
    note = describe_conditions(records)
    ceiling = book.ceilings.get(f"{data} {setting} {negatives}")
    note += "" if ceiling is None else f"; ceiling (edge oracle) {100 * ceiling:.2f}"
    title = f"{data}, {SETTING_LABELS[setting]}, {negatives} negatives"
    return ReportTable(title, note, columns, tuple(rows)).without_empty()


def overview_grid(
    records: list[ResultRecord], name: RecordLabel, asked: tuple[str, str]
) -> ReportTable | None:
    """AP of one setting and negatives on several streams side by side, by the mean rank; nothing of a single stream.

    A mean rank is of those that have a figure on every stream, ranked among themselves.
    """
    setting, negatives = asked
    where = {"split": "test", "setting": setting, "negatives": negatives}
    by_stream = {
        data: collect_values(own, name, where, "ap")
        for data, own in group_records(records, _dataset_name).items()
    }
    by_stream = {data: found for data, found in by_stream.items() if found}
    if len(by_stream) < 2:
        return None
    labels = list(dict.fromkeys(label for found in by_stream.values() for label in found))
    whole = [label for label in labels if all(label in found for found in by_stream.values())]
    places = [rank_by_mean({label: found[label] for label in whole}) for found in by_stream.values()]
    overall = {label: mean(place[label] for place in places) for label in whole}
    first = min(overall.values(), default=inf)  # of nobody where no model is on every stream
    best = {data: max(found, key=lambda label: found[label].mean) for data, found in by_stream.items()}
    rows = tuple(
        (
            Cell(label),
            format_or_dash(overall.get(label), "{:.1f}", "best" if overall.get(label) == first else ""),
            *(
                Cell(str(found.get(label, "-")), "best" if label == best[data] else "")
                for data, found in by_stream.items()
            ),
        )
        for label in sorted(labels, key=lambda label: overall.get(label, inf))
    )
    title = f"AP on {len(by_stream)} streams, {SETTING_LABELS[setting]}, {negatives} negatives"
    return ReportTable(title, describe_conditions(records), ("model", "mean rank", *by_stream), rows)


def _dataset_name(record: ResultRecord) -> str:
    return record.data


def collect_values(
    records: list[ResultRecord], name: RecordLabel, where: dict[str, Any], metric: str
) -> dict[str, SeedValues]:
    """By label, the metric of the rows that are about this."""
    found: dict[str, dict[int | None, float]] = {}
    for record in records:
        for row in record.rows:
            if all(row.get(field) == value for field, value in where.items()) and row.get(metric) is not None:
                found.setdefault(name(record), {})[record.seed] = row[metric]
    return {label: SeedValues(values) for label, values in found.items()}


def _compare_cell(own: SeedValues, other: SeedValues | None) -> Cell:
    """The difference to another model, with p over shared seeds."""
    if other is None:
        return Cell("")
    gap, p = 100 * (own.mean - other.mean), paired_t_test(own, other)
    tone: Tone = "" if p is None or p >= 0.05 else "good" if gap > 0 else "bad"
    return Cell(f"{gap:+.2f}" + ("" if p is None else f" (p {p:.2g})"), tone)


def _difference_cell(own: SeedValues, said: Printed | None) -> Cell:
    """Ours less the published mean; coloured where it is beyond two deviations of either."""
    if said is None:
        return Cell("")
    gap = 100 * own.mean - said.mean
    beyond = abs(gap) > 2 * max(said.std or 0.0, 100 * (own.std or 0.0))
    return Cell(f"{gap:+.2f}", ("good" if gap > 0 else "bad") if beyond else "soft")


def published_cell(said: Printed | None) -> Cell:
    """A published figure."""
    return Cell(
        "" if said is None else f"{said.mean:.2f}" + (f" ± {said.std:.2f}" if said.std is not None else ""),
        "soft",
    )


def _find_published(cells: dict[str, Printed], label: str) -> Printed | None:
    """The cell of a label's model; what follows a comma says how that model was run."""
    return {key(model): cell for model, cell in cells.items()}.get(key(label.partition(",")[0]))


def group_records(records: Iterable[ResultRecord], name: RecordLabel) -> dict[str, list[ResultRecord]]:
    """Records by name, in the order of their first."""
    groups: dict[str, list[ResultRecord]] = {}
    for record in records:
        groups.setdefault(str(name(record)), []).append(record)
    return groups


def _format_values(values: Iterable[Any]) -> str:
    """Different values in order; whole numbers in a row as a range."""
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if (
        len(found) > 2
        and all(isinstance(value, int) for value in found)
        and found[-1] - found[0] == len(found) - 1
    ):
        return f"{found[0]}-{found[-1]}"
    return ", ".join(map(str, found))


def format_or_dash(value: float | None, form: str, tone: Tone = "") -> Cell:
    """A number, or that there is none."""
    return Cell("-" if value is None else form.format(value), tone)


NEUTRAL_SETTINGS = ("save_every", "graphs")  # settings that change no result


def compare_runs(paths: Sequence[Path]) -> Document:
    """Everything the runs have in common to show; runs that differ by seed alone are one line."""
    folders = [RunDirectory(path) for path in paths]
    if not folders:
        raise ConfigError("give at least one run folder to compare")
    records = label_records([read_run_record(folder) for folder in folders])
    parts = [
        part
        for data, own in group_records(records, lambda one: one.data).items()
        for part in _sections(data, own)
    ]
    curve = _forgetting_chart(folders, records)
    parts += (
        [Section("Forgetting", "The share of the state that a gap leaves.", (), (curve,))]
        if curve.series
        else []
    )
    return Document(f"{len(folders)} runs", describe_conditions(records), tuple(parts))


def read_run_record(folder: RunDirectory) -> ResultRecord:
    """What a finished run found."""
    sections, rows = folder.config(), folder.results()
    if not rows:
        raise FileError(
            f"{folder.path} has no results yet; finish it with `dygmamba.resume('{folder.path}')`"
        )
    about, epochs = sections["run"], folder.metrics()
    return ResultRecord(
        folder.task,
        about["data"],
        about["model"],
        int(about["seed"]),
        {"model": about["model"], "validation": [epoch["val_ap"] for epoch in epochs]},
        [{key: value for key, value in row.items() if key not in PATH_FIELDS} for row in rows],
        sections.get("train", {}) | sections.get("model", {}) | read_split(folder).stamp,
        {"epochs": len(epochs)},
        [epoch["loss"] for epoch in epochs],
        sections.get("made_with", {}).get("device", ""),
    )


def label_records(records: list[ResultRecord]) -> list[ResultRecord]:
    """The same with a label: the model, and where runs of one model differ, the settings in which they do."""
    for model, own in group_records(records, lambda one: one.model).items():
        names = {name for one in own for name in one.settings} - set(NEUTRAL_SETTINGS)
        told = [name for name in sorted(names) if len({str(one.settings.get(name)) for one in own}) > 1]
        for one in own:
            differs = ", ".join(f"{name}={_format_setting(one.settings.get(name))}" for name in told)
            one.about["label"] = f"{model} ({differs})" if differs else model
    return records


def _sections(data: str, records: list[ResultRecord]) -> list[Section]:
    by_task = group_records(records, lambda one: one.work)
    parts = []
    if link := by_task.get("link"):
        tables = tuple(link_grids(StudyResults("link", "", ()), link, _label, True))
        parts.append(Section(data, "", tables, _training_charts(data, link)))
    if node := by_task.get("node"):
        found = {metric: collect_values(node, _label, {"split": "test"}, metric) for metric in ("auc", "ap")}
        rows = tuple(
            (
                Cell(label),
                Cell(str(found["auc"][label])),
                Cell(str(found["ap"][label])),
                Cell(str(len(one.by_seed))),
            )
            for label, one in found["auc"].items()
        )
        grid = ReportTable(
            "Node classification, test", describe_conditions(node), ("model", "AUC", "AP", "seeds"), rows
        )
        parts.append(Section(f"{data}, node classification", "", (grid,), _training_charts(data, node)))
    return parts


def _training_charts(data: str, records: list[ResultRecord]) -> tuple[LineChart, ...]:
    loss = {
        _label_run(record): [(float(n + 1), y) for n, y in enumerate(record.losses)] for record in records
    }
    quality = {
        _label_run(record): [(float(n + 1), 100 * y) for n, y in enumerate(record.about["validation"])]
        for record in records
    }
    return (
        LineChart(f"{data}: training loss", "epoch", "loss", loss, "count"),
        LineChart(f"{data}: validation AP", "epoch", "AP (%)", quality, "count"),
    )


def _forgetting_chart(folders: list[RunDirectory], records: list[ResultRecord]) -> LineChart:
    series = {}
    for folder, record in zip(folders, records, strict=True):
        found = load_forgetting(folder)
        if found is not None and found.retention:
            series[_label_run(record)] = list(zip(found.span, found.retention["0.5"], strict=True))
    return LineChart(
        "Median channel", "gap between two events", "share of the state kept", series, x_kind="log"
    )


def _label(record: ResultRecord) -> str:
    return record.about["label"]


def _label_run(record: ResultRecord) -> str:
    return f"{record.about['label']}, seed {record.seed}"


def _format_setting(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)
