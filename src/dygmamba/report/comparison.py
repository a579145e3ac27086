"""Tables of results over seeds, with published values and ceilings, and the comparison of finished runs."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from dygmamba.core.choices import NEGATIVES
from dygmamba.core.errors import ConfigError, DygWarning, FileError
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.data.storage.dataset import VERSION_SEPARATOR
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import load_forgetting
from dygmamba.models.stored_settings import update_stored_settings
from dygmamba.report.document import Cell, Document, LineChart, ReportTable, Section, Tone
from dygmamba.report.published import PublishedValue, published_values, retrained_values
from dygmamba.report.published_leaks import LeakLabel, judge_published_values
from dygmamba.report.query_type_tables import build_query_type_table
from dygmamba.report.result_records import (
    PATH_FIELDS,
    RecordLabel,
    ResultRecord,
    SeedValues,
    group_records,
    paired_t_test,
    rank_by_mean,
)
from dygmamba.report.short_training import (
    NEUTRAL_SETTINGS,
    add_training_column,
    describe_by_dataset,
    describe_trainings,
    find_changed_settings,
    format_setting,
    name_label,
)
from dygmamba.runs.run_config import read_split
from dygmamba.tasks.metric_names import (
    NODE_METRICS,
    SCOPE_LABELS,
    get_metric_scale,
    get_metric_title,
    get_metric_unit,
    list_changes,
    list_metrics,
)
from dygmamba.tasks.statistics import SIGNIFICANT_ERRORS

SIGNIFICANT = 0.05  # p-value below which a difference is coloured
PUBLISHED_RUNS = 5  # behind a published mean and standard deviation
PUBLISHED_COLUMNS = ("published AP", "vs. published", "published: leaks", LeakLabel.RETRAINED.value)
# that a narrow terminal does without, dropped in this order
OPTIONAL_COLUMNS = (
    *(LeakLabel.RETRAINED.value, "published: leaks", "rank", "seeds", "vs. published", "published AP"),
)

T = TypeVar("T")


def describe_conditions(records: Iterable[ResultRecord], command: str = "") -> str:
    """Describe how results were obtained: seeds, visibility, batch size, hardware, changed settings and command."""
    records = list(records)
    rows = [row for record in records for row in record.rows]
    parts = {
        "seeds": _format_values(record.seed for record in records if record.seed is not None),
        "visibility": _format_values(row["visible"] for row in rows if "visible" in row),
        "batch size": _format_values(row["batch"] for row in rows if "batch" in row),
        "": _format_values(record.device for record in records if record.device),
        "evaluation:": "; ".join(list_changes(_select_unlabelled_rows(records))),
        f"{name_label(records)}:": describe_trainings(records),
    }
    text = "; ".join(f"{name} {value}".strip() for name, value in parts.items() if value)
    return f"{text}; {command}" if command else text


def _select_unlabelled_rows(records: Iterable[ResultRecord]) -> Iterable[dict[str, Any]]:
    """Return the rows of records whose changed settings do not name the split or the protocol already."""
    return (row for record in records if "protocol" not in record.changed for row in record.rows)


def build_link_tables(
    records: list[ResultRecord], label: RecordLabel, **options: Any
) -> Iterable[ReportTable]:
    """Yield a table for every setting and negative sampler that the records contain, then one by query type.

    The options are those of `build_link_table`.
    """
    for setting in SCOPE_LABELS:
        for negatives in NEGATIVES:
            table = build_link_table(records, label, (setting, negatives), **options)
            if table is not None:
                yield table
    by_type = build_query_type_table(records, label)
    if by_type is not None:
        yield add_training_column(by_type, records, label)


def build_link_table(
    records: list[ResultRecord],
    label: RecordLabel,
    evaluation: tuple[str, str],
    *,
    ceilings: Mapping[str, float],
    show_published: bool = True,
    reference: str | None = None,
) -> ReportTable | None:
    """Build the table of one dataset, setting and negative sampler.

    Args:
        records: Records of one dataset.
        label: Returns the row of a record; records of the same row differ in their seed.
        evaluation: Setting and negative sampler.
        ceilings: AP of the edge oracle by "<dataset> <setting> <negatives>".
        show_published: Whether to add the columns of published values.
        reference: Row that all others are compared with; None compares with the best other row.

    Returns:
        The table, or None if no record has such rows.
    """
    setting, negatives = evaluation
    filters = {"split": "test", "setting": setting, "negatives": negatives}
    ap, events = (collect_values(records, label, filters, name) for name in ("ap", "n"))
    others = {
        get_metric_title(name): collect_values(records, label, filters, name)
        for name in list_metrics("pairs", "ranks", "probabilities")
        if name != "ap"
    }
    if not ap:
        return None
    data, ranks = records[0].data, rank_by_mean(ap)
    names = sorted(ap, key=lambda name: ranks[name])
    published, retrained = (
        source(data, setting, negatives) for source in (published_values, retrained_values)
    )
    judged = judge_published_values(data, setting, negatives)
    labels = {one.model: one.label for one in judged if one.label is not LeakLabel.RETRAINED}
    changed = {label(record) for record in records if record.changed}  # not what was published: no difference
    rows = []
    for name in names:
        other = reference if reference in ap else next((one for one in names if one != name), None)
        cells: list[str | Cell] = [
            name,
            Cell(str(ap[name]), "best" if ranks[name] == 1 else ""),
            f"{ranks[name]:g}",
            _compare_cell(ap[name], None if other in (None, name) else ap[other]),
        ]
        if show_published:
            cells += [
                published_cell(_find_model(published, name)),
                _difference_cell(
                    ap[name], events.get(name), None if name in changed else _find_model(published, name)
                ),
                Cell(_find_model(labels, name) or "", "soft"),
                published_cell(_find_model(retrained, name)),
            ]
        cells += [str(found.get(name, "")) for found in others.values()]
        rows.append((*cells, str(len(ap[name].by_seed))))
    versus = f"vs. {reference}" if reference else "vs. best other"
    extra = PUBLISHED_COLUMNS if show_published else ()
    columns = ("model", "AP", "rank", versus, *extra, *others, "seeds")
    note = describe_conditions(records)
    ceiling = ceilings.get(f"{data} {setting} {negatives}")
    note += "" if ceiling is None else f"; AP of the edge oracle {100 * ceiling:.2f}"
    title = f"{data}, {SCOPE_LABELS[setting]}, {negatives} negatives"
    optional = (*reversed(others), *OPTIONAL_COLUMNS)
    table = ReportTable.of_rows(title, note, columns, rows, optional).drop_empty_columns()
    return add_training_column(table, records, label)


def build_overview_table(
    records: list[ResultRecord], label: RecordLabel, evaluation: tuple[str, str]
) -> ReportTable | None:
    """Build a table of AP with a column per dataset, sorted by mean rank; None for fewer than two datasets.

    Only rows with a value on every dataset have a mean rank, and they are ranked among themselves.
    """
    setting, negatives = evaluation
    filters = {"split": "test", "setting": setting, "negatives": negatives}
    by_dataset = {
        data: collect_values(group, label, filters, "ap")
        for data, group in group_records(records, lambda record: record.data).items()
    }
    by_dataset = {data: values for data, values in by_dataset.items() if values}
    if len(by_dataset) < 2:
        return None
    names = list(dict.fromkeys(name for values in by_dataset.values() for name in values))
    complete = [name for name in names if all(name in values for values in by_dataset.values())]
    ranks = [rank_by_mean({name: values[name] for name in complete}) for values in by_dataset.values()]
    mean_ranks = {name: mean(rank[name] for rank in ranks) for name in complete}
    best_rank = min(mean_ranks.values(), default=inf)
    best = {data: max(values, key=lambda name: values[name].mean) for data, values in by_dataset.items()}
    rows = tuple(
        (
            Cell(name),
            format_or_dash(
                mean_ranks.get(name), "{:.1f}", "best" if mean_ranks.get(name) == best_rank else ""
            ),
            *(
                Cell(str(values.get(name, "-")), "best" if name == best[data] else "")
                for data, values in by_dataset.items()
            ),
        )
        for name in sorted(names, key=lambda name: mean_ranks.get(name, inf))
    )
    title = f"AP on {len(by_dataset)} datasets, {SCOPE_LABELS[setting]}, {negatives} negatives"
    table = ReportTable(title, describe_conditions(records), ("model", "mean rank", *by_dataset), rows)
    return add_training_column(table, records, label, describe_by_dataset)


def collect_values(
    records: list[ResultRecord], label: RecordLabel, filters: dict[str, Any], metric: str
) -> dict[str, SeedValues]:
    """Collect a metric by label and seed, from the rows whose fields equal those of `filters`."""
    values: dict[str, dict[int | None, float]] = {}
    for record in records:
        for row in record.rows:
            is_wanted = all(row.get(field) == value for field, value in filters.items())
            if is_wanted and row.get(metric) is not None:
                values.setdefault(label(record), {})[record.seed] = row[metric]
    return {name: SeedValues(by_seed) for name, by_seed in values.items()}


def _compare_cell(own: SeedValues, other: SeedValues | None) -> Cell:
    """Show the difference to another row, with its p-value over shared seeds."""
    if other is None:
        return Cell("")
    difference, p = 100 * (own.mean - other.mean), paired_t_test(own, other)
    tone: Tone = "" if p is None or p >= SIGNIFICANT else "good" if difference > 0 else "bad"
    return Cell(f"{difference:+.2f}" + ("" if p is None else f" (p {p:.2g})"), tone)


def _difference_cell(own: SeedValues, events: SeedValues | None, published: PublishedValue | None) -> Cell:
    """Show the difference to the published mean, coloured if it is larger than two standard errors."""
    if published is None:
        return Cell("")
    difference = 100 * own.mean - published.mean
    error = _estimate_difference_error(own, events, published)
    is_large = error is not None and abs(difference) > SIGNIFICANT_ERRORS * error
    return Cell(f"{difference:+.2f}", ("good" if difference > 0 else "bad") if is_large else "soft")


def _estimate_difference_error(
    own: SeedValues, events: SeedValues | None, published: PublishedValue
) -> float | None:
    """Return the standard error of the difference between our mean and the published one, in percent.

    It has three parts: the draw of the test events and their negatives, which all seeds share, and the spread over our
    seeds and over the published runs. The draw's is the binomial standard error of an average precision (Boyd, Eng and
    Page 2013, Area under the precision-recall curve), because a single seed shows no spread. None if the number of
    events is not known.
    """
    if events is None or not events.mean:
        return None
    draw = 100 * sqrt(own.mean * (1 - own.mean) / events.mean)
    seeds = 100 * (own.std or 0.0) / sqrt(len(own.by_seed))
    runs = (published.std or 0.0) / sqrt(PUBLISHED_RUNS)
    return sqrt(draw**2 + seeds**2 + runs**2)


def published_cell(value: PublishedValue | None) -> Cell:
    """Show a published value; empty if there is none."""
    if value is None:
        return Cell("", "soft")
    spread = f" ± {value.std:.2f}" if value.std is not None else ""
    return Cell(f"{value.mean:.2f}{spread}", "soft")


def _find_model(values: Mapping[str, T], label: str) -> T | None:
    """Return the value of a label's model; text after a comma describes how the model was run."""
    by_name = {normalize_name(model): value for model, value in values.items()}
    return by_name.get(normalize_name(label.partition(",")[0]))


def _format_values(values: Iterable[Any]) -> str:
    """List distinct values in order; three or more consecutive integers become a range."""
    distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    are_whole = len(distinct) > 2 and all(isinstance(value, int) for value in distinct)
    if are_whole and distinct[-1] - distinct[0] == len(distinct) - 1:
        return f"{distinct[0]}-{distinct[-1]}"
    return ", ".join(map(str, distinct))


def format_or_dash(value: float | None, form: str, tone: Tone = "") -> Cell:
    """Format a number, or "-" for None."""
    return Cell("-" if value is None else form.format(value), tone)


def compare_runs(paths: Sequence[Path]) -> Document:
    """Compare finished runs: test metrics, training curves and learned decay. Runs that differ by seed share a row.

    Versions of a dataset are datasets of their own, named NAME@VERSION, because their results do not compare.
    """
    directories = [RunDirectory(path) for path in paths]
    if not directories:
        raise ConfigError("give at least one run directory to compare", code="no-runs")
    records = label_records(separate_versions([read_run_record(directory) for directory in directories]))
    sections = [
        section
        for data, group in group_records(records, lambda record: record.data).items()
        for section in _build_sections(data, group)
    ]
    chart = _forgetting_chart(directories, records)
    if chart.series:
        text = "Share of the state that is left after a time gap between two events."
        sections.append(Section("Forgetting", text, (), (chart,)))
    return Document(f"Comparison of {len(directories)} runs", describe_conditions(records), tuple(sections))


def read_run_record(directory: RunDirectory) -> ResultRecord:
    """Read the results of a finished run."""
    config, rows = directory.config(), directory.results()
    if not rows:
        raise FileError(
            f"{directory.path} has no results yet; finish it with `dygmamba.resume({str(directory.path)!r})`",
            code="unfinished-run",
        )
    about, epochs = config["run"], directory.metrics()
    plotted = f"val_{_get_plotted_metric(directory)}"
    is_complete = all({plotted, "loss"} <= set(epoch) for epoch in epochs)
    if not is_complete or not all("split" in row for row in rows):
        raise FileError(
            f"the results of {directory.path} are incomplete; restore them or train again",
            code="damaged-results",
        )
    return ResultRecord(
        directory.task,
        about["data"],
        about["model"],
        int(about["seed"]),
        {
            "model": about["model"],
            # runs from before datasets had versions have the digest of their events only
            "version": str(about.get("version") or about["digest"])[:8],
            "validation": [epoch[plotted] for epoch in epochs],
            **({} if directory.task == "link" else {"target": about.get("target", "binary")}),
        },
        [{name: value for name, value in row.items() if name not in PATH_FIELDS} for row in rows],
        config.get("train", {})
        | update_stored_settings(about["model"], config.get("model", {}))
        | read_split(directory).stamp,
        {"epochs": len(epochs)},
        [epoch["loss"] for epoch in epochs],
        config.get("made_with", {}).get("device", ""),
    )


def separate_versions(records: list[ResultRecord]) -> list[ResultRecord]:
    """Rename the dataset of records to NAME@VERSION where runs of several versions are compared, and warn."""
    versions: dict[str, set[str]] = {}
    for record in records:
        versions.setdefault(record.data, set()).add(record.about["version"])
    mixed = {data: sorted(found) for data, found in versions.items() if len(found) > 1}
    for data, found in mixed.items():
        note = f"the runs on '{data}' used {len(found)} versions of it ({', '.join(found)}), which are compared apart"
        warnings.warn(DygWarning(note), stacklevel=5)
    return [
        replace(record, data=f"{record.data}{VERSION_SEPARATOR}{record.about['version']}")
        if record.data in mixed
        else record
        for record in records
    ]


def label_records(records: list[ResultRecord]) -> list[ResultRecord]:
    """Set `about["label"]`: the model, and the settings in which the given runs of that model differ."""
    for model, group in group_records(records, lambda record: record.model).items():
        names = {name for record in group for name in record.settings} - set(NEUTRAL_SETTINGS)
        differing = [
            name for name in sorted(names) if len({str(record.settings.get(name)) for record in group}) > 1
        ]
        for record in group:
            settings = ", ".join(f"{name}={format_setting(record.settings.get(name))}" for name in differing)
            record.about["label"] = f"{model} ({settings})" if settings else model
    return records


def _build_sections(data: str, records: list[ResultRecord]) -> list[Section]:
    by_task = group_records(records, lambda record: record.work)
    sections = []
    if link := by_task.get("link"):
        is_published = all(
            row.get("protocol", row.get("split_by")) is None for one in link for row in one.rows
        )
        if is_published:
            link = [replace(record, changed=find_changed_settings(record)) for record in link]
        tables = tuple(build_link_tables(link, _label, ceilings={}, show_published=is_published))
        sections.append(Section(data, "", tables, _training_charts(data, link)))
    nodes = group_records(by_task.get("node", []), lambda record: record.about["target"])
    sections += [_build_node_section(data, group, kind) for kind, group in nodes.items()]
    return sections


def _build_node_section(data: str, records: list[ResultRecord], kind: str) -> Section:
    """Compare node runs with the same kind of target."""
    names = NODE_METRICS[kind]
    values = {name: collect_values(records, _label, {"split": "test"}, name) for name in names}
    task = "regression" if kind == "regression" else "classification"
    rows = (
        (label, *(own[label].format(name) for name, own in values.items()), str(len(first.by_seed)))
        for label, first in values[names[0]].items()
    )
    table = ReportTable.of_rows(
        f"Node {task} on the test split",
        describe_conditions(records),
        ("model", *map(get_metric_title, names), "seeds"),
        rows,
    )
    table = add_training_column(table, records, _label)
    charts = _training_charts(data, records, names[-1])
    return Section(f"{data}, node {task}", "", (table,), charts)


def _get_plotted_metric(directory: RunDirectory) -> str:
    """Return the validation metric of the training curves; two states keep AP, as links have it."""
    if directory.task == "link":
        return "ap"
    return NODE_METRICS[directory.config()["run"].get("target", "binary")][-1]


def _training_charts(data: str, records: list[ResultRecord], metric: str = "ap") -> tuple[LineChart, ...]:
    scale, title = get_metric_scale(metric), get_metric_title(metric)
    loss = {
        _label_run(record): [(float(n + 1), y) for n, y in enumerate(record.losses)] for record in records
    }
    validation = {
        _label_run(record): [(float(n + 1), scale * y) for n, y in enumerate(record.about["validation"])]
        for record in records
    }
    return (
        LineChart(f"{data}: training loss", "epoch", "loss", loss, "count"),
        LineChart(
            f"{data}: validation {title}", "epoch", f"{title}{get_metric_unit(metric)}", validation, "count"
        ),
    )


def _forgetting_chart(directories: list[RunDirectory], records: list[ResultRecord]) -> LineChart:
    series = {}
    for directory, record in zip(directories, records, strict=True):
        forgetting = load_forgetting(directory)
        if forgetting is not None and forgetting.retention:
            median = forgetting.retention["0.5"]  # over channels
            series[_label_run(record)] = list(zip(forgetting.span, median, strict=True))
    return LineChart(
        "Median channel", "time gap between two events", "share of the state left", series, x_kind="log"
    )


def _label(record: ResultRecord) -> str:
    return record.about["label"]


def _label_run(record: ResultRecord) -> str:
    return f"{record.about['label']}, seed {record.seed}"
