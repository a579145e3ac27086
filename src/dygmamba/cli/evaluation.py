"""`dygmamba evaluate`: the published protocol on a trained run, or on a model that needs no training.

`dygmamba audit`: what a stream's test allows, what was published above it, what a model's score depends on.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, make_result_tables, plain_table, stack_heading, stderr, stdout
from dygmamba.cli.messages import escape_text, parse_overrides
from dygmamba.core.errors import ConfigError
from dygmamba.tasks.metric_names import SETTING_LABELS

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.lab.audit import Audit


def evaluate(
    data: Annotated[str, typer.Argument(help="A run folder, or a dataset for a model without training.")],
    model: Annotated[
        str,
        typer.Option(
            help="Without training: edgebank, popularity, recency, source-recency, persistent, moving-average."
        ),
    ] = "edgebank",
    negatives: Annotated[
        str | None, typer.Option(help="random, historical, inductive; comma-separated.")
    ] = None,
    split: Annotated[str, typer.Option(help="val, test; comma-separated.")] = "test",
    setting: Annotated[
        str, typer.Option(help="transductive (all nodes), inductive (new nodes); comma-separated.")
    ] = "transductive,inductive",
    metrics: Annotated[
        str | None, typer.Option(help="ap, auc, mrr, hits@K; comma-separated. Or ndcg@10 of node properties.")
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Destinations that ranks are among: a number (100 unless said), all, or board (TGB's)."
        ),
    ] = None,
    filtered: Annotated[
        bool,
        typer.Option("--filtered", help="No candidate is a true destination of that source and time (TGB)."),
    ] = False,
    draws: Annotated[
        int, typer.Option(min=1, max=1000, help="Independent draws of the negatives, from --seed on.")
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the negatives instead of the published one.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Model setting, key=value.")] = None,
    visible: Annotated[
        str | None,
        typer.Option(
            help="What a memory or a table may know: strict (strictly earlier), batch (as published); a run's own."
        ),
    ] = None,
    store_negatives: Annotated[
        Path | None, typer.Option(help="Keep drawn negatives here and reuse them.")
    ] = None,
    activity: Annotated[
        bool,
        typer.Option(
            "--activity", help="Add the source's rate to the score where negatives replace the source."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for a trained run.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Rank what happened against negatives (AP, AUC) or among many candidates (MRR, hits@K)."""
    of_links = {
        "negatives": negatives,
        "candidates": candidates,
        "filtered": filtered,
        "seed": seed,
        "visible": visible,
    }
    if precheck.is_property_evaluation(metrics, **of_links):
        _evaluate_properties(data, model, split, data_dir, as_json)
        return
    settings = parse_overrides(overrides or [])
    for option, given in (("negatives", negatives), ("split", split), ("setting", setting)):
        precheck.check_names(option, given)
    precheck.check_visible(visible)
    precheck.parse_metrics(metrics, candidates, filtered)
    precheck.check_device(device)
    if precheck.is_run_directory(data):
        if overrides or store_negatives or draws > 1 or seed is not None:
            raise ConfigError("--set, --seed, --draws and --store-negatives are for untrained models")
        precheck.require_run(data)
    else:
        precheck.check_untrained_model(model, data, settings)
        precheck.require_dataset(data, data_dir)

    from dygmamba.api.evaluation import combine_choices, evaluate_run, evaluate_untrained, parse_ranking
    from dygmamba.api.processes import process_group
    from dygmamba.cli.progress import ExamBars
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.runs.opening import choose_device

    asked = parse_ranking(metrics, candidates, filtered)
    if precheck.is_run_directory(data):
        with process_group(choose_device(device)) as ranks:
            rows = evaluate_run(
                Path(data), negatives, split, setting, visible, device, data_dir, asked, activity
            )
        if not ranks.leads:
            return
    else:
        chosen = combine_choices(negatives or "random", split, setting)
        rows = evaluate_untrained(
            open_dataset(data, data_dir),
            model,
            settings,
            chosen,
            seeds=[seed] if draws == 1 else list(range(seed or 0, (seed or 0) + draws)),
            visible=visible,
            folder=store_negatives,
            meter=ExamBars(),
            asked=asked,
            activity=activity,
        )
    if as_json:
        emit_json({"results": rows})
    else:
        for table in make_result_tables(rows):
            stdout().print(table)


def _evaluate_properties(data: str, model: str, split: str, data_dir: Path | None, as_json: bool) -> None:
    """What a forecast of node properties reaches."""
    precheck.check_names("split", split)
    precheck.check_forecast(model)
    precheck.require_dataset(data, data_dir)

    from dygmamba.api.evaluation import evaluate_node_properties
    from dygmamba.data.storage.library import open_dataset

    rows = evaluate_node_properties(open_dataset(data, data_dir), model, split)
    if as_json:
        emit_json({"results": rows})
    else:
        for table in make_result_tables(rows):
            stdout().print(table)


PAPER_PREFIX = "DyG-Mamba, NeurIPS 2025, "
MAX_HEADING_LETTERS = 6  # letters of a kind of negatives, so that six columns fit a terminal


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
    _check_audit_options(data, run, model, settings, data_dir)

    from dygmamba.api.studies import watched_audit
    from dygmamba.lab.audit import write_page

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
        _print_audit(found)
        if out is not None:
            stdout().print(f"page: {out}", soft_wrap=True, markup=False, highlight=False)
    if not found.sound:
        raise typer.Exit(1)


def _check_audit_options(
    data: str, run: Path | None, model: str | None, settings: dict[str, Any], data_dir: Path | None
) -> None:
    """Before anything heavy is imported."""
    own = run is None and precheck.is_run_directory(data)
    if model is not None and (own or run is not None):
        raise ConfigError("give a model by name or a run, not both; a run brings its own model")
    if model is None and settings:
        raise ConfigError(f"settings ({', '.join(settings)}) are of a model; name it with --model")
    if run is not None:
        precheck.require_run(run)
    if model is not None:
        precheck.require_model(model)
    if own:
        precheck.require_run(data)
    else:
        precheck.require_dataset(data, data_dir)


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
    test = next(one for one in found.periods if one.split == "test")
    lines = [
        f"test: {test.events:,} events at {test.times:,} times; {100 * test.repeats:.1f} % repeat an earlier pair, "
        f"{100 * test.new_nodes:.1f} % touch a new node, {100 * test.tied:.1f} % share their time; "
        f"surprise {100 * test.surprise:.1f} %",
        f"own time: {100 * test.visible:.1f} % of the test's events follow a batch of 200 with events of their time",
        *_describe_order(found),
        f"published above the ceiling: {found.above}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _describe_order(found: "Audit") -> list[str]:
    """What the row number says, where events share a time."""
    order = found.order
    if order.neighbors is None or order.chance is None:
        return []
    larger = " and ".join("-" if auc is None else f"{auc:.2f}" for auc in (order.source, order.destination))
    return [
        f"order: ROC-AUC of the row number within a time {larger} (source, destination); the next row of a time has "
        f"the same source in {100 * order.neighbors:.1f} %, any other row in {100 * order.chance:.1f} %"
    ]


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _make_ceiling_table(found: "Audit") -> "Table":
    title = f"{escape_text(found.dataset)}: the most that is possible, AP in per cent"
    heads = (
        ("true", "negatives"),
        ("edge", "oracle"),
        ("", "pooled"),
        ("ties", "broken"),
        ("who is", "there"),
    )
    figures = tuple(stack_heading(*lines) for lines in heads)
    table = plain_table("split", "nodes", "negatives", title=title, figures=figures)
    for one, _ in found.ceilings:
        oracles = (one.edge_oracle_ap, one.edge_oracle_ap_pooled, one.edge_oracle_ap_untied)
        cells = [*map(_format_percent, oracles), _format_percent(one.membership_oracle_ap)]
        table.add_row(
            one.split,
            SETTING_LABELS[one.setting],
            one.negatives,
            f"{_format_percent(one.true_share)} %",
            *cells,
        )
    return table


def _make_rule_table(found: "Audit") -> "Table":
    """A line per rule, a column per question of the test."""
    rows: dict[str, list[str]] = {}
    heads: dict[tuple[str, str], None] = {}
    for one in found.rules:
        negatives = (
            one.negatives
            if len(one.negatives) <= MAX_HEADING_LETTERS
            else f"{one.negatives[:MAX_HEADING_LETTERS]}."
        )
        heads[SETTING_LABELS[one.setting], negatives] = None
        rows.setdefault(one.rule, []).append(_format_percent(one.ap))
    table = plain_table(
        "rule",
        title="what simple rules reach on the test, AP",
        figures=tuple(stack_heading(*head) for head in heads),
    )
    for rule, cells in rows.items():
        table.add_row(rule, *cells)
    return table


def _make_bias_table(found: "Audit") -> "Table":
    """What batches do to the same scores."""
    sizes = tuple(f"by {size}" for size in found.bias[0].ap)
    title = "AP of the same scores in batches of several sizes"
    table = plain_table("scores", title=title, figures=(*sizes, "pooled"))
    for one in found.bias:
        table.add_row(one.scores, *map(_format_percent, one.ap.values()), _format_percent(one.ap_pooled))
    return table


def _make_padding_table(found: "Audit") -> "Table":
    """The padded length of a call alone, by the longest history and the events of a call."""
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
    title = f"published above the ceiling; tables are those of {PAPER_PREFIX.removesuffix(', ')}"
    table = plain_table("model", "question", title=title, figures=("published", "possible"))
    table.add_column("where", overflow="fold")
    for one, cells in found.ceilings:
        for cell in cells:
            value, limit = f"{cell.metric.upper()} {cell.value:.2f}", _format_percent(cell.ceiling)
            question = f"{SETTING_LABELS[one.setting]}, {one.negatives}"
            table.add_row(cell.model, question, value, limit, cell.source.removeprefix(PAPER_PREFIX))
    return table


def _make_check_table(found: "Audit") -> "Table | None":
    if not found.checks:
        return None
    title = f"what the score of {escape_text(found.model or '')} must not depend on"
    table = plain_table("check", "passed", "moved by", "detail", title=title)
    for check in found.checks:
        value = "-" if check.value is None else f"{check.value:.2g}"
        table.add_row(check.name, "yes" if check.passed else "NO", value, escape_text(check.detail))
    return table
