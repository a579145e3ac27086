"""Commands that judge: `evaluate` a run or a heuristic, `audit` what a score on a dataset can say."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api.formatting import SETTING_LABELS
from dygmamba.api.trusted_code import import_if_trusted, import_model
from dygmamba.cli.console import emit_json, plain_table, print_line, print_note, stack_heading, stdout
from dygmamba.cli.messages import escape_text
from dygmamba.cli.monitoring import describe_monitoring, make_monitoring_tables
from dygmamba.cli.options import (
    Activity,
    DataDir,
    Device,
    HeuristicSettings,
    Json,
    Protocol,
    Trust,
    optional,
    parse_overrides,
    parse_run,
    run_argument,
)
from dygmamba.cli.progress import show_progress
from dygmamba.cli.reading_options import with_reading_options
from dygmamba.cli.tables import make_result_tables
from dygmamba.core.choices import NEGATIVES
from dygmamba.core.errors import ConfigError
from dygmamba.core.process_settings import is_first_process

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.requests.evaluation import MonitorRequest
    from dygmamba.api.studies import Audit

PAPER_PREFIX = "DyG-Mamba, NeurIPS 2025, "
MAX_HEADING_LETTERS = 6  # of the name of a negative sampler, so that six columns fit a terminal


@with_reading_options
def evaluate(
    data: Annotated[
        str, typer.Argument(help="Evaluate this run directory, or on this dataset a model without training.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Evaluate a heuristic (edgebank, recency, pair-recency; `dygmamba models` lists all)."
        ),
    ] = "edgebank",
    negatives: Annotated[
        str | None,
        optional(
            help=f"Evaluate against these negatives: {', '.join(NEGATIVES)} (comma-separated).",
            default="random; all three for a run",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Evaluate on these splits: val, test or both (val,test).")
    ] = "test",
    setting: Annotated[
        str,
        typer.Option(
            help="Evaluate all nodes (transductive), new nodes (inductive), or both (comma-separated)."
        ),
    ] = "transductive,inductive",
    metrics: Annotated[
        str | None,
        optional(help="Compute ap, auc, mrr, hits@K (comma-separated).", default="ap,auc"),
    ] = None,
    candidates: Annotated[
        str | None,
        optional(
            help="Rank among this number of destinations, all, or board (the leaderboard's).", default="100"
        ),
    ] = None,
    filtered: Annotated[
        bool,
        typer.Option("--filtered", help="Leave out candidates that are true at the same time (as TGB does)."),
    ] = False,
    draws: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Draw the negatives this many times, with seeds from --seed on."),
    ] = 1,
    seed: Annotated[
        int | None,
        optional(
            help="Draw the negatives with this seed instead of the published one.",
            default="the published seed",
        ),
    ] = None,
    overrides: HeuristicSettings = None,
    protocol: Protocol = "auto",
    visible: Annotated[
        str | None,
        optional(
            help="Let a memory see only strictly earlier events (strict) or whole batches (batch).",
            default="strict; for a run its own",
        ),
    ] = None,
    store_negatives: Annotated[
        Path | None, optional(help="Store drawn negatives in this folder and reuse them.")
    ] = None,
    activity: Activity = False,
    events: Annotated[
        Path | None,
        optional(help="Evaluate a run on the events of this file, which came after its dataset, by period."),
    ] = None,
    period: Annotated[
        str, typer.Option(help="Group --events by hour, day, week, month, all, or a period that fits (auto).")
    ] = "auto",
    fail_below: Annotated[
        list[str] | None,
        optional(
            help="Exit with code 1 below METRIC=PERCENT on --events: ap, auc, lead (points above the best baseline)."
        ),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        optional(
            help="Exit with code 1 above METRIC=VALUE on --events: ece, unknown_share (per cent), log_loss."
        ),
    ] = None,
    *,
    reading: dict[str, Any],
    device: Device = "auto",
    data_dir: DataDir = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Evaluate a run or a heuristic: against negatives (AP, AUC) or among many candidates (MRR, hits@K)."""
    from dygmamba.api.requests.evaluation import EvaluateRequest, MonitorRequest

    if events is not None:
        _evaluate_events(MonitorRequest.from_arguments(locals(), run=parse_run(data)), trust, as_json)
        return
    for option, value in (("fail_below", fail_below), ("fail_above", fail_above)):
        if value:
            raise ConfigError(f"`{option}` needs new events; give `events` too", code="option-without-events")
    request = EvaluateRequest.from_arguments(
        locals(),
        data=_resolve_latest(data),
        model=import_model(model) or model,
        settings=parse_overrides(overrides),
        seeds=None if seed is None and draws == 1 else range(seed or 0, (seed or 0) + draws),
    ).check()
    import_if_trusted(trust, request.data)

    from dygmamba.api.evaluation import run_evaluation

    with show_progress() as progress:
        rows = run_evaluation(request, progress)
    if not is_first_process():
        return
    if as_json:
        emit_json({"results": rows})
    else:
        for table in make_result_tables(rows):
            stdout().print(table)


def _resolve_latest(target: str) -> str:
    """Return the newest run for `latest`; the name of a dataset stands for the dataset here."""
    return str(parse_run(target)) if target == "latest" else target


def _evaluate_events(request: "MonitorRequest", trust: bool, as_json: bool) -> None:
    request.check()
    import_if_trusted(trust, request.run)

    from dygmamba.api.monitoring import run_monitoring

    with show_progress() as progress:
        found = run_monitoring(request, progress)
    if as_json:
        result = {"results": found.monitoring.rows, "columns": found.monitoring.columns}
        emit_json(result | {"left_out": found.monitoring.earlier, "crossed": found.crossed})
    else:
        for table in make_monitoring_tables(found.monitoring):
            stdout().print(table)
        for line in describe_monitoring(found.monitoring):
            print_line(line)
    for text in found.crossed:
        print_note(f"failed: {text}")
    if found.crossed:
        raise typer.Exit(1)


def audit(
    data: Annotated[str, typer.Argument(help="Audit this dataset, file, or run directory.")],
    run: Annotated[
        Path | None, run_argument("Also audit this run directory; the run was trained on the dataset.")
    ] = None,
    model: Annotated[str | None, optional(help="Audit this model instead of a run.")] = None,
    overrides: HeuristicSettings = None,
    protocol: Protocol = "auto",
    out: Annotated[Path | None, optional(help="Also write the audit as an HTML page to this file.")] = None,
    data_dir: DataDir = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Show what a score on this dataset can say; exit code 1 if the model's score depends on what it must not."""
    from dygmamba.api.requests.evaluation import AuditRequest

    request = AuditRequest.from_arguments(
        locals(),
        data=_resolve_latest(data),
        model=import_model(model),
        settings=parse_overrides(overrides),
    ).check()
    import_if_trusted(trust, request.data, run)

    from dygmamba.api import studies

    with show_progress() as progress:
        found = studies.run_audit(request, progress)
    if out is not None:
        studies.write_audit(found, out)
    if as_json:
        emit_json(found.to_dict())
    else:
        _print_audit(found)
        if out is not None:
            print_line(f"page: {out}")
    if not found.sound:
        raise typer.Exit(1)


def _print_audit(found: "Audit") -> None:
    console = stdout()
    tables = (
        _make_ceiling_table(found),
        _make_rule_table(found),
        _make_bias_table(found),
        _make_padding_table(found),
        _make_above_table(found),
        _make_check_table(found),
    )
    for table in tables:
        if table is not None:
            console.print(table)
            console.print()
    test = next(period for period in found.periods if period.split == "test")
    lines = [
        f"test: {test.events:,} events at {test.times:,} timestamps; {100 * test.repeats:.1f} % repeat a pair, "
        f"{100 * test.new_nodes:.1f} % touch a new node, {100 * test.tied:.1f} % share a timestamp; "
        f"surprise {100 * test.surprise:.1f} %",
        f"visible: {100 * test.visible:.1f} % of the test events follow a batch of 200 with events of that timestamp",
        *_describe_order(found),
        f"published values above the edge oracle: {found.above}; above the best oracle: {found.above_reference}; above "
        f"the likely bound: {found.above_likely_bound}; above the bound: {found.above_bound}",
    ]
    for line in lines:
        print_line(line)


def _describe_order(found: "Audit") -> list[str]:
    """Describe what the row number reveals about events that share a time."""
    order = found.order
    if order.neighbors is None or order.chance is None:
        return []
    larger = " and ".join("-" if auc is None else f"{auc:.2f}" for auc in (order.source, order.destination))
    return [
        f"order: ROC-AUC of the row number within a timestamp {larger} (source, destination); adjacent rows have "
        f"the same source in {100 * order.neighbors:.1f} %, random rows in {100 * order.chance:.1f} %"
    ]


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _make_ceiling_table(found: "Audit") -> "Table":
    title = f"{escape_text(found.dataset)}: AP of oracles, and bounds of AP, in per cent"
    heads = (
        ("negatives", "are events"),
        ("active", "nodes"),
        ("edge", "oracle"),
        ("best", "oracle"),
        ("likely", "bound"),
        ("", "bound"),
    )
    figures = tuple(stack_heading(*lines) for lines in heads)
    table = plain_table("split", "nodes", "negatives", title=title, figures=figures)
    for one, _ in found.ceilings:
        oracles = (one.membership_oracle_ap, one.edge_oracle_ap, one.reference_ap)
        table.add_row(
            one.split,
            SETTING_LABELS[one.setting],
            one.negatives,
            f"{_format_percent(one.true_share)} %",
            *map(_format_percent, (*oracles, one.likely_bound_ap, one.bound_ap)),
        )
    return table


def _make_rule_table(found: "Audit") -> "Table":
    """Make a table with a line per baseline and a column per setting and negative sampler."""
    found_ap = {(one.rule, one.setting, one.negatives): one.ap for one in found.rules}
    evaluations = dict.fromkeys((one.setting, one.negatives) for one in found.rules)
    heads = [
        stack_heading(
            SETTING_LABELS[setting].removesuffix(" nodes"),
            name if len(name) <= MAX_HEADING_LETTERS else f"{name[:MAX_HEADING_LETTERS]}.",
        )
        for setting, name in evaluations
    ]
    title = "AP of baselines on the test period, all nodes and new nodes"
    table = plain_table("baseline", title=title, figures=tuple(heads))
    for rule in dict.fromkeys(one.rule for one in found.rules):
        values = [found_ap.get((rule, *evaluation)) for evaluation in evaluations]
        table.add_row(rule, *("-" if value is None else _format_percent(value) for value in values))
    return table


def _make_bias_table(found: "Audit") -> "Table":
    sizes = tuple(f"by {size}" for size in found.bias[0].ap)
    title = "AP of the same scores in batches of several sizes"
    table = plain_table("scores", title=title, figures=(*sizes, "pooled"))
    for one in found.bias:
        table.add_row(one.scores, *map(_format_percent, one.ap.values()), _format_percent(one.ap_pooled))
    return table


def _make_padding_table(found: "Audit") -> "Table":
    figures = tuple(f"calls of {size}" for size in sorted({one.batch for one in found.padding}))
    title = "ROC-AUC of the padded length of a call alone"
    table = plain_table("longest history", title=title, figures=figures)
    for length in sorted({one.length for one in found.padding}):
        cells = [f"{one.auc:.3f}" for one in found.padding if one.length == length]
        table.add_row(f"{length:,}", *cells)
    return table


def _make_above_table(found: "Audit") -> "Table | None":
    if not found.above:
        return None
    title = f"published values above the edge oracle; tables are those of {PAPER_PREFIX.removesuffix(', ')}"
    figures = ("published", stack_heading("edge", "oracle"), stack_heading("best", "oracle"))
    table = plain_table("model", "evaluation", title=title, figures=figures)
    table.add_column("where", overflow="fold")
    for one, cells in found.ceilings:
        for cell in cells:
            value = f"{cell.metric.upper()} {cell.value:.2f}"
            limits = map(_format_percent, (cell.ceiling, cell.reference))
            question = f"{SETTING_LABELS[one.setting]}, {one.negatives}"
            table.add_row(cell.model, question, value, *limits, cell.source.removeprefix(PAPER_PREFIX))
    return table


def _make_check_table(found: "Audit") -> "Table | None":
    if not found.checks:
        return None
    title = f"invariances that the score of {escape_text(found.model or '')} must have"
    table = plain_table("check", "passed", "moved by", "detail", title=title)
    for check in found.checks:
        value = "-" if check.value is None else f"{check.value:.2g}"
        table.add_row(check.name, "yes" if check.passed else "NO", value, escape_text(check.detail))
    return table
