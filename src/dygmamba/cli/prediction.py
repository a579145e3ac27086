"""`dygmamba predict`: a trained run's answer to who will meet whom, with events that came since.

`dygmamba explain`: which past events moved the score of a pair, and what if they had not happened.
"""

import csv
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dygmamba.api import precheck
from dygmamba.cli.data_files import DELIMITERS, require_writable
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.export import escape_formula

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from dygmamba.explain.explanation import Explanation, Reason
    from dygmamba.runs.queries import Predictions


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run.")],
    pairs: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file with columns src, dst and, optionally, time.")
    ] = None,
    sources: Annotated[
        str | None, typer.Option(help="With --top, instead of --pairs: ids, a,b,c, or a file of them.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Of a run with --task node: ids, a,b,c, or a file of them; default: all sources."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="New events, with the column names of the dataset.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the scores here instead of to stdout; .parquet, .arrow, .jsonl or CSV."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Rank destinations per source, or nodes; keep this many.")
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="With --top: rank these only, a,b,c, or a file of them.")
    ] = None,
    only_new: Annotated[
        bool,
        typer.Option("--only-new", help="With --top: only destinations that the source never met before."),
    ] = False,
    at: Annotated[
        str | None, typer.Option(help="The time of all pairs; default: just after the last event.")
    ] = None,
    src: Annotated[str | None, typer.Option(help="Column of the source ids, if not the dataset's.")] = None,
    dst: Annotated[
        str | None, typer.Option(help="Column of the destination ids, if not the dataset's.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column of the times, if not the dataset's.")] = None,
    features: Annotated[
        str, typer.Option(help="Feature columns of --events, if not the dataset's, separated by commas.")
    ] = "",
    time_unit: Annotated[
        str, typer.Option(help="auto (numbers as they are), or s, ms, us, ns since 1970.")
    ] = "auto",
    time_format: Annotated[
        str | None, typer.Option(help='Of dates in files and in --at, like "%d.%m.%Y %H:%M".')
    ] = None,
    fill: Annotated[float | None, typer.Option(help="Stands in for missing features.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Found out unless given; also tab, blanks.")] = None,
    encoding: Annotated[str, typer.Option(help="Of text files.")] = "utf-8",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV cells as they are, even if a spreadsheet would run them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Score pairs, rank destinations, or give nodes' risk, with a trained run: known or new nodes, past or future.

    Scores are probabilities, calibrated on the run's validation period.
    """
    given = {"pairs": pairs, "sources": sources, "nodes": nodes, "candidates": candidates}
    asked = [f"--{name}" for name, value in given.items() if value is not None]
    asked += ["--only-new"] if only_new else []
    _check_query_options(asked, top)
    if out is not None:
        require_writable(out, "--out")
    precheck.require_run(run)
    precheck.check_device(device)
    precheck.check_choice("time_unit", time_unit)
    precheck.require_file(pairs, "--pairs")
    precheck.require_file(events, "--events")

    from dygmamba.api.evaluation import warn_if_unfinished
    from dygmamba.data.readers import ReadOptions
    from dygmamba.runs.opening import read_task
    from dygmamba.runs.predictor import Predictor

    warn_if_unfinished(run)
    task = read_task(run)
    _check_task_options(run, task, asked)
    options = ReadOptions(
        src=src,
        dst=dst,
        time=time,
        features=tuple(_split_names(features)),
        time_unit=time_unit,
        time_format=time_format,
        fill=fill,
        delimiter=DELIMITERS.get(delimiter or "", delimiter),
        encoding=encoding,
    )
    predictor = Predictor.open(run, device, data_dir, options)
    if events is not None:
        predictor = predictor.with_events(events)
    found = _predict_with_progress(
        lambda meter: (
            predictor.classify(None if nodes is None else _parse_sources(nodes), at, top, meter)
            if task == "node"
            else predictor.score(pairs, at, meter)
            if top is None
            else predictor.top(
                pairs or _parse_sources(sources), top, at, meter, _parse_candidates(candidates), only_new
            )
        )
    )
    _print_notes(found, run)
    _output_predictions(found.table, out, raw, as_json)


def _check_query_options(asked: list[str], top: int | None) -> None:
    """Refuse what asks two things at once, or half a thing."""
    if "--pairs" in asked and "--sources" in asked:
        raise ConfigError("give the pairs to score with --pairs FILE, or with --top K also --sources a,b,c")
    ranking = [name for name in asked if name in ("--sources", "--candidates", "--only-new")]
    if ranking and top is None:
        raise ConfigError(f"{ranking[0]} asks for a ranking; say how many to keep with --top K")


def _check_task_options(run: Path, task: str, asked: list[str]) -> None:
    """Refuse what a run of this task cannot be asked."""
    wrong = [name for name in asked if (name == "--nodes") != (task == "node")]
    if wrong and task == "node":
        raise ConfigError(
            f"{run} gives the risk of nodes and knows no pairs; leave out {wrong[0]}, and ask with --nodes a,b,c, or "
            "with neither about all sources"
        )
    if wrong:
        raise ConfigError(
            f"{run} predicts links and knows no states of nodes; ask with --pairs FILE instead of --nodes, or give "
            "a run of train --task node"
        )
    if task == "link" and not {"--pairs", "--sources"} & set(asked):
        raise ConfigError("give the pairs to score with --pairs FILE, or with --top K also --sources a,b,c")


def _parse_sources(text: str | None) -> "Path | dict[str, list[str]]":
    """Ids, or the file of that name."""
    return Path(text or "") if _is_file(text) else {"src": _split_names(text or "")}


def _parse_candidates(text: str | None) -> "Path | pa.Array | None":
    if text is None or _is_file(text):
        return None if text is None else Path(text)
    import pyarrow as pa

    return pa.array(_split_names(text), pa.large_string())


def _is_file(text: str | None) -> bool:
    try:
        return Path(text or "").is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def _predict_with_progress(
    question: "Callable[[Callable[[int], partial[None]]], Predictions]",
) -> "Predictions":
    from dygmamba.cli.console import open_progress

    with open_progress() as bar:

        def meter(total: int) -> partial[None]:
            return partial(bar.advance, bar.add_task("scoring", total=total))

        return question(meter)


def _print_notes(found: "Predictions", run: Path) -> None:
    """Say on stderr what the user may not expect."""
    from dygmamba.cli.console import print_note

    notes = []
    if found.assumed_time is not None:
        notes.append(f"no time was given: scored just after the last known event, at {found.assumed_time}")
    if found.unknown_ids:
        shown = ", ".join(found.unknown_ids[:3]) + (", ..." if len(found.unknown_ids) > 3 else "")
        notes.append(f"{len(found.unknown_ids):,} asked about but in no event, so without a past: {shown}")
    if found.without:
        shown = ", ".join(found.without[:3]) + (", ..." if len(found.without) > 3 else "")
        notes.append(f"no destination is left for {len(found.without):,} of the sources: {shown}")
    if not found.calibrated:
        notes.append(
            "this run has no calibration, so its scores rank but are no probabilities; "
            f"calibrate it with: dygmamba train --resume {run}"
        )
    for said in notes:
        print_note(f"note: {said}")


def _output_predictions(table: "pa.Table", out: Path | None, raw: bool, as_json: bool) -> None:
    import sys

    from dygmamba.cli.console import emit_json, print_note
    from dygmamba.cli.messages import escape_text

    cell = str if raw else escape_formula
    if out is not None:
        _write_predictions(out, table, raw)
        print_note(f"{table.num_rows:,} scores written to {out}")
    if as_json:
        emit_json({"predictions": list(_iterate_rows(table))})
    elif out is None:  # a file or a pipe gets the ids themselves, a terminal is shown them
        to_show = sys.stdout.isatty()
        sys.stdout.write(_format_csv(table, (lambda text: escape_text(cell(text))) if to_show else cell))


def _write_predictions(out: Path, table: "pa.Table", raw: bool) -> None:
    """Parquet and Arrow hold the table as it is, JSON lines and CSV its rows as they are printed."""
    from dygmamba.core.files.writing import write_text
    from dygmamba.data.storage.export import TABLE_ENDINGS, write_table

    kind = TABLE_ENDINGS.get(out.suffix.lower(), "csv")
    if kind in ("parquet", "arrow"):
        write_table(out, table)
    elif kind == "jsonl":
        write_text(out, "".join(json.dumps(row) + "\n" for row in _iterate_rows(table)))
    else:
        write_text(out, _format_csv(table, str if raw else escape_formula))


def _iterate_rows(table: "pa.Table") -> "Iterator[dict]":
    """Row by row, the scores to as many digits as mean something."""
    figures = [name for name in ("score", "uncalibrated_score", "probability") if name in table.column_names]
    for batch in table.to_batches(max_chunksize=1 << 14):
        for row in batch.to_pylist():
            yield row | {name: float(f"{row[name]:.9g}") for name in figures}


def _format_csv(table: "pa.Table", cell: "Callable[[str], str]") -> str:
    """Numbers as they are, and text by way of `cell`."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, table.column_names))
    for row in _iterate_rows(table):
        writer.writerow(cell(value) if isinstance(value, str) else value for value in row.values())
    return text.getvalue()


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


PICTURE_SUFFIXES = (".html", ".htm", ".svg")


def explain(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run.")],
    pair: Annotated[
        str | None, typer.Option(help="Two ids, a,b; one that holds a comma in double quotes.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Of a run of the node task: the id of a node.")] = None,
    at: Annotated[str | None, typer.Option(help="When; default: just after the last event.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many events to show.")] = 10,
    orders: Annotated[
        int, typer.Option(min=1, max=1_000, help="Pairs of drawn orders: more, smaller errors, slower.")
    ] = 4,
    out: Annotated[Path | None, typer.Option(help="Write a page (.html) or a picture (.svg) here.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="Events that came since, with the column names of the dataset.")
    ] = None,
    time_unit: Annotated[
        str, typer.Option(help="auto (numbers as they are), or s, ms, us, ns since 1970.")
    ] = "auto",
    time_format: Annotated[
        str | None, typer.Option(help='Of dates in --at and --events, like "%d.%m.%Y %H:%M".')
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say which past events of either side moved the score of a pair, and by how much."""
    if (pair is None) == (node is None):
        raise ConfigError("say what to explain: --pair a,b, or of a run of the node task --node a")
    asked = node if pair is None else _parse_pair(pair)
    if out is not None and out.suffix.lower() not in PICTURE_SUFFIXES:
        raise ConfigError(f"--out takes a page, name.html, or a picture, name.svg; got {out}")
    precheck.require_run(run)
    precheck.check_device(device)
    precheck.check_choice("time_unit", time_unit)
    precheck.require_file(events, "--events")

    from dygmamba.api.run import open as open_run
    from dygmamba.cli.console import emit_json, print_note
    from dygmamba.report.explanation_page import write_explanation

    opened = open_run(run, device=device, data_dir=data_dir, time_unit=time_unit, time_format=time_format)
    opened = opened if events is None else opened.observe(events)
    found = opened.explain(asked or "", at, orders=orders)
    for said in found.notes:
        print_note(f"note: {said}")
    if out is not None:
        print_note(f"written to {write_explanation(found, out, top)}")
    if as_json:
        emit_json(found.to_json(top))
    else:
        _print_explanation(found, top)


def _parse_pair(text: str) -> tuple[str, str]:
    """Two ids as a line of CSV has them."""
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        cells = []
    ids = [cell.strip() for cell in cells]
    if len(ids) != 2 or not all(ids):
        raise ConfigError(
            f"--pair takes two ids with a comma between them, such as alice,bob; got '{text}' "
            "(an id that holds a comma goes in double quotes)"
        )
    return ids[0], ids[1]


def _print_explanation(found: "Explanation", top: int) -> None:
    from dygmamba.cli.console import plain_table, print_line, stdout
    from dygmamba.report.explanation_page import (
        describe_base,
        describe_counterfactuals,
        describe_query,
        describe_rest,
    )

    print_line(describe_query(found))
    print_line("")
    if found.numbers is not None:
        table = plain_table("what the trees look at", figures=("value", "contribution"))
        for number in found.numbers.strongest[:top]:
            table.add_row(number.name, f"{number.value:.4g}", f"{number.contribution:+.3f}")
        table.add_row("base", "", f"{found.numbers.base:+.3f}")
        stdout().print(table)
        print_line("")
    table = plain_table("when", "event", figures=("contribution", "error", "without it", "left"))
    for reason in found.reasons[:top]:
        table.add_row(*_format_reason(found, reason))
    for name, amount in (describe_rest(found, top), describe_base(found)):
        if name:
            table.add_row("", name, f"{amount:+.3f}")
    table.add_row("", "logit", f"{found.logit:+.3f}")
    stdout().print(table)
    for line in describe_counterfactuals(found):
        print_line(line)


def _format_reason(found: "Explanation", reason: "Reason") -> tuple[str, ...]:
    from dygmamba.report.explanation_page import describe_event, describe_time

    return (
        describe_time(found, reason),
        describe_event(found, reason),
        f"{reason.contribution:+.3f}",
        "-" if reason.error is None else f"{reason.error:.3f}",
        "-" if reason.score_without is None else f"{reason.score_without:.3f}",
        "-" if reason.left is None else f"{100 * reason.left:.0f} %",
    )
