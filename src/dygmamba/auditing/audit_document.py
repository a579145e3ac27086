"""The page of an audit: what a test score on the stream can mean."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dygmamba.auditing.oracles import Ceiling
from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.report.document import BarChart, Cell, Document, ReportTable, Section
from dygmamba.report.published import list_published_values
from dygmamba.tasks.metric_names import SCOPE_LABELS
from dygmamba.tasks.metrics import PUBLISHED_BATCH

if TYPE_CHECKING:
    from dygmamba.auditing.audit import Audit, PeriodStatistics

CHART_LOW = 40.0  # percentage at which the bars begin
PAPER_PREFIX = "DyG-Mamba, NeurIPS 2025, "
PERIOD_ROWS: dict[str, "Callable[[PeriodStatistics], str]"] = {
    "events": lambda one: f"{one.events:,}",
    "distinct timestamps": lambda one: f"{one.times:,}",
    "nodes with events": lambda one: f"{one.nodes:,}",
    "events of a pair that had an earlier event": lambda one: _format_share(one.repeats),
    "distinct pairs without an event before the period (surprise)": lambda one: _format_share(one.surprise),
    "events with a node that is not in training": lambda one: _format_share(one.new_nodes),
    "events that share a timestamp": lambda one: _format_share(one.tied),
    f"events after a batch of {PUBLISHED_BATCH} with events of their timestamp": lambda one: _format_share(
        one.visible
    ),
}


def build_audit_document(audit: "Audit") -> Document:
    """Build the page of an audit."""
    sections = (
        _build_meaning_section(audit),
        _build_ceiling_section(audit),
        *([_build_above_section(audit)] if audit.above else []),
        *([_build_check_section(audit)] if audit.checks else []),
        _build_baseline_section(audit),
        _build_period_section(audit),
    )
    subtitle = (
        f"{audit.events:,} events among {audit.nodes:,} nodes. A model sees the earlier events and scores pairs of "
        "nodes: pairs with an event now (positives), and pairs that were drawn (negatives). 100 means that positives "
        "always rank first, 50 is chance."
    )
    return Document(f"Audit of {audit.dataset}: what a test score on it can mean", subtitle, sections)


def _build_meaning_section(audit: "Audit") -> Section:
    first = _list_test_ceilings(audit)[0]
    lines = [
        f"An oracle that knows every event of the query's timestamp has an AP of {_percent(first.reference_ap)} (test "
        f"split, all nodes, random negatives): {_format_share(first.true_share)} of the negatives are events at the "
        "same timestamp."
    ]
    if any(_list_published_ap(audit, one) for one in _list_test_ceilings(audit)):
        lines.append(
            f"Published values above the edge oracle: {audit.above}; above the best oracle: {audit.above_reference}."
        )
    if audit.model and audit.sound:
        lines.append(f"All checks of {audit.model} passed.")
    elif audit.model:
        lines.append(
            f"{audit.model} failed a check: its scores depend on something that they must not depend on."
        )
    return Section("What a score can mean", "\n".join(lines))


def _build_ceiling_section(audit: "Audit") -> Section:
    rows = (
        (
            f"{one.split}, {SCOPE_LABELS[one.setting]}, {one.negatives}",
            _format_share(one.true_share),
            *map(_percent, (one.edge_oracle_ap, one.moment_oracle_ap)),
            *map(_percent, (one.posterior_oracle_ap, one.reference_ap)),
        )
        for one, _ in audit.ceilings
    )
    oracles = ("edge oracle", "moment oracle", "posterior oracle", "best oracle")
    columns = ("evaluation", "negatives that are events", *oracles)
    title = f"{audit.dataset}: AP of oracles in per cent"
    table = ReportTable.of_rows(title, "", columns, rows, ("moment oracle", "posterior oracle"))
    text = (
        "The edge oracle knows which pairs are events at the timestamp, the moment oracle also how many events each "
        "source has, the posterior oracle also which events are positives of this evaluation. Oracles are references: "
        "some score has this AP."
    )
    return Section("Oracles", text, (table,), (_draw_ceilings(audit),))


def _draw_ceilings(audit: "Audit") -> BarChart:
    """Draw the best oracle of each test evaluation as a bar, and published values as dots."""
    values: dict[str, dict[str, float]] = {}
    marks: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for one in _list_test_ceilings(audit):
        group, name = SCOPE_LABELS[one.setting], f"{one.negatives} negatives"
        values.setdefault(group, {})[name] = 100 * one.reference_ap
        published = _list_published_ap(audit, one)
        if published:
            marks.setdefault(group, {})[name] = [(f"{model} {mean:.2f}", mean) for model, mean in published]
    note = "Each bar ends at the AP of the best oracle that knows all events at the timestamp of the query."
    return BarChart(
        f"AP of the best oracle{', and published values' if marks else ''}",
        "AP (%)",
        values,
        low=CHART_LOW,
        note=f"{note} Dots are published values." if marks else note,
        marks=marks,
    )


def _list_published_ap(audit: "Audit", one: Ceiling) -> list[tuple[str, float]]:
    """Return models and their published AP in an evaluation of this dataset, the lowest first; empty for own data."""
    published = {
        (model, value.mean)
        for model, metric, value in list_published_values(audit.dataset, one.setting, one.negatives)
        if metric == "ap"
    }
    return sorted(published, key=lambda pair: pair[1])


def _build_above_section(audit: "Audit") -> Section:
    rows = tuple(
        (
            Cell(cell.model),
            Cell(f"{SCOPE_LABELS[one.setting]}, {one.negatives}"),
            Cell(f"{cell.metric.upper()} {cell.value:.2f}", "bad"),
            *(Cell(_percent(value)) for value in (cell.ceiling, cell.reference)),
            Cell(cell.source.removeprefix(PAPER_PREFIX).replace("_", " "), "words"),
        )
        for one, published in audit.ceilings
        for cell in published
    )
    columns = ("model", "evaluation", "published", "edge oracle", "best oracle", "where")
    note = f"Tables are those of {PAPER_PREFIX.removesuffix(', ')}."
    table = ReportTable("published values above the edge oracle", note, columns, rows)
    text = (
        "The edge oracle knows which pairs have an event now. A value above the best oracle would need a better "
        "prediction of the present than knowing it. More likely it uses more than earlier events: the padding of a "
        "call, the order of the rows in the file, or events at the timestamp of the query."
    )
    return Section("Published values above the edge oracle", text, (table,))


def _build_check_section(audit: "Audit") -> Section:
    rows = tuple(
        (
            Cell(check.name),
            Cell("yes", "good") if check.passed else Cell("NO", "bad"),
            Cell("-" if check.value is None else f"{check.value:.2g}"),
            Cell(check.detail, "words"),
        )
        for check in audit.checks
    )
    title = f"invariances that the score of {audit.model} must have"
    table = ReportTable(title, "", ("check", "passed", "moved by", "detail"), rows).drop_empty_columns()
    return Section(f"Checks of {audit.model}", "", (table,))


def _build_baseline_section(audit: "Audit") -> Section:
    """Show the AP of each baseline by negative sampler, a table for all nodes and one for new nodes."""
    found = {(one["setting"], one["rule"], one["negatives"]): one["ap"] for one in audit.rules}
    tables = []
    for setting in dict.fromkeys(one["setting"] for one in audit.rules):
        names = dict.fromkeys(one["rule"] for one in audit.rules if one["setting"] == setting)
        rows = (
            (name, *(_percent(found.get((setting, name, kind))) for kind in PUBLISHED_NEGATIVES))
            for name in names
        )
        title = f"AP of baselines on the test period, {SCOPE_LABELS[setting]}"
        tables.append(ReportTable.of_rows(title, "", ("baseline", *PUBLISHED_NEGATIVES), rows))
    text = (
        f"Average precision on the test split, mean over batches of {PUBLISHED_BATCH} events. A trained model should "
        "be above these values."
    )
    return Section("Baselines", text, tuple(tables))


def _build_period_section(audit: "Audit") -> Section:
    rows = ((name, *map(format_one, audit.periods)) for name, format_one in PERIOD_ROWS.items())
    columns = ("", *(one.split for one in audit.periods))
    return Section("Events of the periods", "", (ReportTable.of_rows("", "", columns, rows),))


def _list_test_ceilings(audit: "Audit") -> list[Ceiling]:
    return [ceiling for ceiling, _ in audit.ceilings if ceiling.split == "test"]


def _percent(value: float | None) -> str:
    """Format a metric in per cent with one decimal."""
    return "-" if value is None else f"{100 * value:.1f}"


def _format_share(value: float) -> str:
    """Format a share in per cent; a small one is not rounded to zero."""
    return "<0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"
