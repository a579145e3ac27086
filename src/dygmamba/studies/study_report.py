"""Pages of the studies: the tables and charts of each study (`SECTIONS` by name), built from its records."""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

from dygmamba.core.choices import NEGATIVES
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.report.comparison import (
    build_link_tables,
    build_overview_table,
    collect_values,
    describe_conditions,
    format_or_dash,
    published_cell,
)
from dygmamba.report.document import Cell, Document, HeatMap, LineChart, ReportTable, Section
from dygmamba.report.published import PublishedValue, load_table
from dygmamba.report.result_records import ResultRecord, SeedValues, StudyResults, group_records, select_work
from dygmamba.report.short_training import add_training_column, describe_trainings, name_label
from dygmamba.studies.studies import FULL, STUDIES
from dygmamba.tasks.metric_names import SCOPE_LABELS

SHOWN_EPOCHS = (20, 40, 60, 80, 100)
NOISE_TITLES = {
    "insert": "noise events inserted into the stream",
    "release": "entries of histories overwritten, as in the released code",
}


def build_study_document(results: StudyResults) -> Document:
    """Build the page of a study."""
    return Document(
        STUDIES[results.study].title,
        describe_conditions(results.records, results.command),
        tuple(SECTIONS[results.study](results)),
    )


def paper_sections(results: StudyResults) -> list[Section]:
    """The sections of every study that the plan has a part of; trainings with other settings are apart."""
    return [
        replace(section, title=f"{STUDIES[study].title}{f', {cell}' if cell else ''}: {section.title}")
        for study, of_study in group_records(results.records, lambda one: one.about["study"]).items()
        for cell, records in group_records(of_study, lambda one: one.about.get("cell", "")).items()
        for section in SECTIONS[study](replace(results, records=tuple(records)))
    ]


def link_sections(results: StudyResults) -> list[Section]:
    """An overview of all datasets, if there are several, then a section per dataset."""
    records = select_work(results.records, "link", "heuristic")
    overviews = tuple(
        table
        for setting in SCOPE_LABELS
        for negatives in NEGATIVES
        if (table := build_overview_table(records, _model, (setting, negatives))) is not None
    )
    sections = [
        Section(
            data,
            _describe_ceilings(results, data),
            tuple(build_link_tables(group, _model, ceilings=results.ceilings, show_published=True)),
        )
        for data, group in group_records(records, _data).items()
    ]
    return [Section("All datasets", "", overviews), *sections] if overviews else sections


def build_ablation_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """Ablations; each variant is compared with the full model."""
    ceilings = results.ceilings
    tables = build_link_tables(group, _model, ceilings=ceilings, show_published=False, reference=FULL)
    return Section(data, _describe_ceilings(results, data), tuple(tables))


def build_node_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """AUC of node classifiers on frozen encoders, next to the published values."""
    rows = _list_published("node_classification_auc", data)
    published = {normalize_name(row["model"]): row for row in rows}
    auc, ap = (collect_values(group, _model, {"split": "test"}, metric) for metric in ("auc", "ap"))
    best = max(auc, key=lambda model: auc[model].mean)
    rows = [
        (
            Cell(model),
            Cell(str(values), "best" if model == best else ""),
            Cell(str(ap[model])),
            published_cell(_to_published_value(published.get(normalize_name(model)))),
            Cell(str(len(values.by_seed))),
        )
        for model, values in sorted(auc.items(), key=lambda pair: -pair[1].mean)
    ]
    columns = ("model", "AUC", "AP", "published AUC", "seeds")
    table = ReportTable(
        "Node classification on the test split", describe_conditions(group), columns, tuple(rows)
    )
    text = "" if published else "The paper has no AUC of node classification on this dataset."
    table = table if published else table.drop_column("published AUC")
    return Section(data, text, (add_training_column(table, group, _model),))


def build_length_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """AP by length, with the published points."""
    curves = {
        f"{model} ({SCOPE_LABELS[setting]})": _ap_curve(records, "length", setting)
        for model, records in group_records(group, _model).items()
        for setting in SCOPE_LABELS
    }
    rows = [row for row in _list_published("sequence_length_ap", data) if row["mean"] is not None]
    if rows:
        curves["published"] = sorted({float(row["sequence_length"]): row["mean"] for row in rows}.items())
    title, note = f"{data}: test AP by length of the neighbor sequences", _describe_training(group)
    chart = LineChart(title, "length", "AP (%)", curves, x_kind="log", note=note)
    label = "{0.model} L = {0.about[length]}".format
    tables = build_link_tables(group, label, ceilings=results.ceilings, show_published=False)
    return Section(data, "", tuple(tables), (chart,))


def build_sensitivity_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """AP by each size of the model."""
    charts = tuple(
        LineChart(
            f"{data}: test AP by {name}",
            name,
            "AP (%)",
            {name: _ap_curve(records, "value", "transductive")},
            x_kind="log",
            note=_describe_training(records),
        )
        for name, records in group_records(group, lambda record: record.about["setting"]).items()
    )
    label = "{0.about[setting]} = {0.about[value]}".format
    tables = build_link_tables(group, label, ceilings=results.ceilings, show_published=False)
    return Section(data, "", tuple(tables), charts)


def build_efficiency_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """Cost of an epoch for every model, then time and memory by length."""
    by_model = [record for record in group if "length" not in record.about]
    tables = [_cost_table(by_model)] if by_model else []
    times, sizes = (_cost_curves(group, field) for field in ("epoch_seconds", "peak_mb"))
    if times:
        tables.append(_cost_by_length_table(group, times, sizes))
    charts = tuple(
        LineChart(f"{data}: {name} by length", "length", unit, curves, "log", "log")
        for name, curves, unit in (("epoch time", times, "seconds"), ("peak memory", sizes, "MB"))
    )
    return Section(data, "", tuple(tables), charts)


def _cost_table(records: list[ResultRecord]) -> ReportTable:
    """Time, memory and parameters of an epoch, the fastest model first."""
    rows = tuple(
        (
            Cell(record.model),
            format_or_dash(record.rows[0].get("epoch_seconds"), "{:.2f}"),
            Cell(_format_timed_steps(record.rows[0])),
            format_or_dash(record.rows[0].get("peak_mb"), "{:,.0f}"),
            format_or_dash(record.rows[0].get("parameters"), "{:,}"),
            Cell(str(record.settings.get("length", record.settings.get("neighbors", "")))),
        )
        for record in sorted(records, key=lambda record: record.rows[0].get("epoch_seconds") or 0)
    )
    columns = (
        "model",
        "seconds per epoch",
        "timed steps",
        "peak memory (MB)",
        "parameters",
        "length or neighbors",
    )
    table = ReportTable("Cost of a training epoch", describe_conditions(records), columns, rows)
    return add_training_column(table, records, _model)


def _format_timed_steps(row: dict[str, Any]) -> str:
    return f"{row['stepstimed']:,} of {row['steps']:,}" if "steps" in row else ""


def _cost_by_length_table(
    records: list[ResultRecord],
    times: dict[str, list[tuple[float, ...]]],
    sizes: dict[str, list[tuple[float, ...]]],
) -> ReportTable:
    """The points of the time chart and the memory chart as one table."""
    by_length = [record for record in records if "length" in record.about]
    curves = [
        (f"{label}: {unit}", {point[0]: point[1] for point in points}, form)
        for group, unit, form in ((times, "s", "{:.2f}"), (sizes, "MB", "{:,.0f}"))
        for label, points in group.items()
    ]
    rows = tuple(
        (Cell(str(length)), *(format_or_dash(values.get(float(length)), form) for _, values, form in curves))
        for length in sorted({int(record.about["length"]) for record in by_length})
    )
    columns = ("length", *(name for name, _, _ in curves))
    return ReportTable("Cost of a training epoch by length", describe_conditions(by_length), columns, rows)


def build_convergence_section(results: StudyResults, data: str, group: list[ResultRecord]) -> Section:
    """Training loss by epoch, next to the published losses."""
    by_model = group_records(group, _model)
    curves = {model: _loss_curve(records) for model, records in by_model.items()}
    losses = {model: {point[0]: point[1] for point in curve} for model, curve in curves.items()}
    published = {
        (normalize_name(row["model"].removeprefix("Vanilla ")), int(row["epoch"])): row["value"]
        for row in _list_published("training_convergence", data)
    }
    rows = tuple(
        (
            Cell(str(epoch)),
            *(format_or_dash(losses[model].get(float(epoch)), "{:.4f}") for model in by_model),
            *(
                format_or_dash(published.get((normalize_name(model), epoch)), "{:.4f}", "soft")
                for model in by_model
            ),
        )
        for epoch in SHOWN_EPOCHS
    )
    own = (
        f"{model} ({text})" if (text := describe_trainings(records)) else model
        for model, records in by_model.items()
    )
    columns = ("epoch", *own, *(f"published {model}" for model in by_model))
    table = ReportTable("Training loss, mean over seeds", describe_conditions(group), columns, rows)
    note = _describe_training(group)
    chart = LineChart(f"{data}: training loss", "epoch", "loss", curves, "count", note=note)
    return Section(data, "", (table,), (chart,))


def robustness_sections(results: StudyResults) -> list[Section]:
    """AP by noise rate, a section for each kind of noise."""
    sections = []
    for data, group in group_records(select_work(results.records, "robustness"), _data).items():
        for kind, records in group_records(group, lambda record: record.about["noise"]).items():
            curves, rows = {}, []
            for model, model_records in group_records(records, _model).items():
                by_rate = {
                    rate: collect_values(model_records, _model, {"noise": rate}, "ap")
                    for rate in _list_noise_rates(model_records)
                }
                values = {rate: found[model] for rate, found in by_rate.items() if model in found}
                if values:
                    curves[model] = [
                        (100 * rate, 100 * ap.mean, 100 * (ap.std or 0)) for rate, ap in values.items()
                    ]
                    rows.append((Cell(model), *(Cell(str(ap)) for ap in values.values())))
            columns = ("model", *(f"{100 * rate:.0f} % noise" for rate in _list_noise_rates(records)))
            table = ReportTable(
                f"Test AP with random negatives by noise rate (`{kind}`)",
                describe_conditions(records),
                columns,
                tuple(rows),
            )
            table = add_training_column(table, records, _model)
            title, note = f"{data}: test AP by noise rate ({kind})", _describe_training(records)
            chart = LineChart(title, "noise (%)", "AP (%)", curves, note=note)
            sections.append(Section(f"{data}: {NOISE_TITLES[kind]}", "", (table,), (chart,)))
    return sections


def case_sections(results: StudyResults) -> list[Section]:
    """Similarity of hidden states: a table of means, then heat maps for each run."""
    records = select_work(results.records, "similarity")
    sections = (
        [Section("Mean similarity of hidden states", "", (_similarity_table(records),))] if records else []
    )
    for record in records:
        row = record.rows[0]
        maps = tuple(
            HeatMap(f"{record.model}: {name}", x, y, tuple(map(tuple, row[field])), 0.0, 1.0)
            for field, name, x, y in (
                ("src", "within the sequence of the source", "token", "token"),
                ("dst", "within the sequence of the destination", "token", "token"),
                ("across", "between both sequences", "destination", "source"),
            )
        )
        text = f"Event {row['event']:,}, the test event with the longest histories; "
        text += f"{row['tokens_per_state']} token(s) per state. {_describe_training([record])}".rstrip()
        sections.append(Section(f"{record.data}, {record.model}, seed {record.seed}", text, (), maps))
    return sections


def _similarity_table(records: list[ResultRecord]) -> ReportTable:
    """Mean cosine similarity of adjacent tokens and of all pairs of tokens, a token and itself excluded."""
    columns = (
        "model",
        "source, adjacent tokens",
        "source, all tokens",
        "destination, adjacent tokens",
        "destination, all tokens",
        "source with destination",
    )
    rows, label = [], "{0.model}, seed {0.seed}".format
    for record in records:
        row, means = record.rows[0], []
        for field in ("src", "dst"):
            matrix = row[field]
            means.append(mean(line[at + 1] for at, line in enumerate(matrix[:-1])))
            means.append(
                mean(value for at, line in enumerate(matrix) for to, value in enumerate(line) if to != at)
            )
        means.append(mean(value for line in row["across"] for value in line))
        rows.append((Cell(label(record)), *(Cell(f"{value:.3f}") for value in means)))
    table = ReportTable("Mean cosine similarity", describe_conditions(records), columns, tuple(rows))
    return add_training_column(table, records, label)


def _by_dataset(
    build: Callable[[StudyResults, str, list[ResultRecord]], Section], *works: str
) -> Callable[[StudyResults], list[Section]]:
    """Return a function that builds a section for each dataset, of the records of these works or of all."""

    def build_sections(results: StudyResults) -> list[Section]:
        records = select_work(results.records, *works) if works else results.records
        return [build(results, data, group) for data, group in group_records(records, _data).items()]

    return build_sections


SECTIONS: dict[str, Callable[[StudyResults], list[Section]]] = {
    "link": link_sections,
    "node": _by_dataset(build_node_section, "node"),
    "ablation": _by_dataset(build_ablation_section),
    "length": _by_dataset(build_length_section),
    "efficiency": _by_dataset(build_efficiency_section),
    "convergence": _by_dataset(build_convergence_section),
    "robustness": robustness_sections,
    "sensitivity": _by_dataset(build_sensitivity_section),
    "case-study": case_sections,
    "paper": paper_sections,
    "large": _by_dataset(build_efficiency_section),
}


def _data(record: ResultRecord) -> str:
    return record.data


def _model(record: ResultRecord) -> str:
    return str(record.about.get("variant", record.model))


def _describe_training(records: list[ResultRecord]) -> str:
    """Return a sentence on what is not as published for a caption; "" if all is."""
    text = describe_trainings(records)
    return text and f"{name_label(records).capitalize()}: {text}."


def _ap_curve(records: list[ResultRecord], axis: str, setting: str) -> list[tuple[float, ...]]:
    """Return points (x, mean, standard deviation) of AP with random negatives, x being the label `axis`."""
    filters = {"split": "test", "setting": setting, "negatives": "random"}
    by_x = collect_values(records, lambda record: str(record.about[axis]), filters, "ap")
    return [
        (float(x), 100 * values.mean, 100 * (values.std or 0))
        for x, values in sorted(by_x.items(), key=lambda pair: float(pair[0]))
    ]


def _cost_curves(records: list[ResultRecord], field: str) -> dict[str, list[tuple[float, ...]]]:
    """Return points (length, cost) by model; runs that ran out of memory have none."""
    curves: dict[str, list[tuple[float, ...]]] = {}
    for record in records:
        value = record.rows[0].get(field)
        if "length" in record.about and value:
            patch = record.about.get("patch")
            label = (
                record.model
                if patch in (None, "none")
                else f"{record.model}, {'patches of 1' if patch == 'one' else 'published patches'}"
            )
            curves.setdefault(label, []).append((float(record.about["length"]), float(value)))
    return {label: sorted(points) for label, points in curves.items()}


def _loss_curve(records: list[ResultRecord]) -> list[tuple[float, ...]]:
    """Return points (epoch, mean, standard deviation) of the loss, up to the shortest training."""
    epochs = min((len(record.losses) for record in records), default=0)
    by_epoch = [
        SeedValues({record.seed: record.losses[number] for record in records}) for number in range(epochs)
    ]
    return [(float(number + 1), values.mean, values.std or 0.0) for number, values in enumerate(by_epoch)]


def _list_noise_rates(records: list[ResultRecord]) -> list[float]:
    return sorted({row["noise"] for record in records for row in record.rows})


def _list_published(table: str, data: str) -> list[dict[str, Any]]:
    """Return the rows of a published table about a dataset."""
    name = normalize_name(data)
    return [row for row in load_table(table).rows if normalize_name(row["dataset"]) == name]


def _to_published_value(row: dict[str, Any] | None) -> PublishedValue | None:
    return None if row is None or row["mean"] is None else PublishedValue(row["mean"], row["std"], "")


def _describe_ceilings(results: StudyResults, data: str) -> str:
    ceilings = {
        name.split()[2]: value
        for name, value in results.ceilings.items()
        if name.split()[0] == data and "transductive" in name
    }
    values = ", ".join(
        f"{100 * value:.2f} with {negatives} negatives" for negatives, value in ceilings.items()
    )
    return f"AP of the edge oracle, which knows the events of the query time: {values}." if values else ""
