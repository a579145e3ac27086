"""`dygmamba audit`: what a stream's test allows, what was published above it, what a model's score depends on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, plain_table, stacked, stderr, stdout
from dygmamba.cli.words import parse_overrides, shown
from dygmamba.errors import ConfigError
from dygmamba.tasks.asked import NODES

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.studies.audit import Audit

PAPER = "DyG-Mamba, NeurIPS 2025, "
SHORT = 6  # letters of a kind of negatives, so that six columns fit a terminal


def audit(
    data: Annotated[str, typer.Argument(help="A dataset by name, a file, or a run folder.")],
    run: Annotated[Path | None, typer.Argument(help="A run folder, trained on that dataset.")] = None,
    model: Annotated[str | None, typer.Option(help="A model by name, instead of a run.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Model setting, key=value.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a page for readers here.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What a score on this stream can say; exit code 1 if the model's score depends on what it must not."""
    settings = parse_overrides(overrides or [])
    _check(data, run, model, settings, data_dir)

    from dygmamba.door.audit import watched_audit
    from dygmamba.studies.audit.page import write_page

    console = stderr()
    with console.status("reading") as status:
        found = watched_audit(
            data,
            model,
            run=run,
            data_dir=data_dir,
            settings=settings,
            watch=lambda doing: status.update(doing),
        )
    if out is not None:
        write_page(found, out)
    if as_json:
        emit_json(found.to_dict())
    else:
        _print(found)
        if out is not None:
            stdout().print(f"page: {out}", soft_wrap=True, markup=False, highlight=False)
    if not found.sound:
        raise typer.Exit(1)


def _check(
    data: str, run: Path | None, model: str | None, settings: dict[str, Any], data_dir: Path | None
) -> None:
    """Before anything heavy is imported."""
    own = run is None and early.is_run(data)
    if model is not None and (own or run is not None):
        raise ConfigError("give a model by name or a run, not both; a run brings its own model")
    if model is None and settings:
        raise ConfigError(f"settings ({', '.join(settings)}) are of a model; name it with --model")
    if run is not None:
        early.require_run(run)
    if model is not None:
        early.require_model(model)
    if own:
        early.require_run(data)
    else:
        early.require_dataset(data, data_dir)


def _print(found: "Audit") -> None:
    console = stdout()
    tables = (_ceilings(found), _rules(found), _bias(found), _padding(found), _above(found), _checks(found))
    for table in tables:
        if table is not None:
            console.print(table)
            console.print()
    test = next(one for one in found.periods if one.split == "test")
    lines = [
        f"test: {test.events:,} events at {test.times:,} times; {100 * test.repeats:.1f} % repeat an earlier pair, "
        f"{100 * test.new_nodes:.1f} % touch a new node, {100 * test.tied:.1f} % share their time; "
        f"surprise {100 * test.surprise:.1f} %",
        f"own time: {100 * test.visible:.1f} % of the test's events follow a batch of 200 with events of their time",
        *_order(found),
        f"published above the ceiling: {found.above}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _order(found: "Audit") -> list[str]:
    """What the row number says, where events share a time."""
    order = found.order
    if order.neighbors is None or order.chance is None:
        return []
    larger = " and ".join("-" if auc is None else f"{auc:.2f}" for auc in (order.source, order.destination))
    return [
        f"order: ROC-AUC of the row number within a time {larger} (source, destination); the next row of a time has "
        f"the same source in {100 * order.neighbors:.1f} %, any other row in {100 * order.chance:.1f} %"
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _ceilings(found: "Audit") -> "Table":
    title = f"{shown(found.dataset)}: the most that is possible, AP in per cent"
    heads = (
        ("true", "negatives"),
        ("edge", "oracle"),
        ("", "pooled"),
        ("ties", "broken"),
        ("who is", "there"),
    )
    figures = tuple(stacked(*lines) for lines in heads)
    table = plain_table("split", "nodes", "negatives", title=title, figures=figures)
    for one, _ in found.ceilings:
        oracles = (one.edge_oracle_ap, one.edge_oracle_ap_pooled, one.edge_oracle_ap_untied)
        cells = [*map(_percent, oracles), _percent(one.membership_oracle_ap)]
        table.add_row(one.split, NODES[one.setting], one.negatives, f"{_percent(one.true_share)} %", *cells)
    return table


def _rules(found: "Audit") -> "Table":
    """A line per rule, a column per question of the test."""
    rows: dict[str, list[str]] = {}
    heads: dict[tuple[str, str], None] = {}
    for one in found.rules:
        negatives = one.negatives if len(one.negatives) <= SHORT else f"{one.negatives[:SHORT]}."
        heads[NODES[one.setting], negatives] = None
        rows.setdefault(one.rule, []).append(_percent(one.ap))
    table = plain_table(
        "rule",
        title="what simple rules reach on the test, AP",
        figures=tuple(stacked(*head) for head in heads),
    )
    for rule, cells in rows.items():
        table.add_row(rule, *cells)
    return table


def _bias(found: "Audit") -> "Table":
    """What batches do to the same scores."""
    sizes = tuple(f"by {size}" for size in found.bias[0].ap)
    title = "AP of the same scores in batches of several sizes"
    table = plain_table("scores", title=title, figures=(*sizes, "pooled"))
    for one in found.bias:
        table.add_row(one.scores, *map(_percent, one.ap.values()), _percent(one.ap_pooled))
    return table


def _padding(found: "Audit") -> "Table":
    """The padded length of a call alone, by the longest history and the events of a call."""
    figures = tuple(f"calls of {size}" for size in sorted({one.batch for one in found.padding}))
    title = "ROC-AUC of the padded length of a call alone"
    table = plain_table("longest history", title=title, figures=figures)
    for length in sorted({one.length for one in found.padding}):
        cells = [f"{one.auc:.3f}" for one in found.padding if one.length == length]
        table.add_row(f"{length:,}", *cells)
    return table


def _above(found: "Audit") -> "Table | None":
    if not found.above:
        return None
    title = f"published above the ceiling; tables are those of {PAPER.removesuffix(', ')}"
    table = plain_table("model", "question", title=title, figures=("published", "possible"))
    table.add_column("where", overflow="fold")
    for one, cells in found.ceilings:
        for cell in cells:
            value, limit = f"{cell.metric.upper()} {cell.value:.2f}", _percent(cell.ceiling)
            question = f"{NODES[one.setting]}, {one.negatives}"
            table.add_row(cell.model, question, value, limit, cell.source.removeprefix(PAPER))
    return table


def _checks(found: "Audit") -> "Table | None":
    if not found.checks:
        return None
    title = f"what the score of {shown(found.model or '')} must not depend on"
    table = plain_table("check", "passed", "moved by", "detail", title=title)
    for check in found.checks:
        value = "-" if check.value is None else f"{check.value:.2g}"
        table.add_row(check.name, "yes" if check.passed else "NO", value, shown(check.detail))
    return table
