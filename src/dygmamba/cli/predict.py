"""`dygmamba predict`: a trained run's answer to who will meet whom, with events that came since."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.exporting import require_place
from dygmamba.cli.importing import DELIMITERS
from dygmamba.errors import ConfigError
from dygmamba.files.cells import harmless

if TYPE_CHECKING:  # torch and pyarrow wait until the command is called
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from dygmamba.runs.answers import Predictions


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
    _require_one_question(asked, top)
    if out is not None:
        require_place(out, "--out")
    early.require_run(run)
    early.check_device(device)
    early.check_choice("time_unit", time_unit)
    early.require_file(pairs, "--pairs")
    early.require_file(events, "--events")

    from dygmamba.data.formats import ReadOptions
    from dygmamba.door.states import tell_unfinished
    from dygmamba.runs.opening import task_of
    from dygmamba.runs.predictor import Predictor

    tell_unfinished(run)
    task = task_of(run)
    _require_of_the_task(run, task, asked)
    options = ReadOptions(
        src=src,
        dst=dst,
        time=time,
        features=tuple(_listed(features)),
        time_unit=time_unit,
        time_format=time_format,
        fill=fill,
        delimiter=DELIMITERS.get(delimiter or "", delimiter),
        encoding=encoding,
    )
    predictor = Predictor.open(run, device, data_dir, options)
    if events is not None:
        predictor = predictor.with_events(events)
    found = _ask(
        lambda meter: (
            predictor.classify(None if nodes is None else _sources(nodes), at, top, meter)
            if task == "node"
            else predictor.score(pairs, at, meter)
            if top is None
            else predictor.top(pairs or _sources(sources), top, at, meter, _candidates(candidates), only_new)
        )
    )
    _note(found, run)
    _hand_over(found.table, out, raw, as_json)


def _require_one_question(asked: list[str], top: int | None) -> None:
    """Refuse what asks two things at once, or half a thing."""
    if "--pairs" in asked and "--sources" in asked:
        raise ConfigError("give the pairs to score with --pairs FILE, or with --top K also --sources a,b,c")
    ranking = [name for name in asked if name in ("--sources", "--candidates", "--only-new")]
    if ranking and top is None:
        raise ConfigError(f"{ranking[0]} asks for a ranking; say how many to keep with --top K")


def _require_of_the_task(run: Path, task: str, asked: list[str]) -> None:
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


def _sources(text: str | None) -> "Path | dict[str, list[str]]":
    """Ids, or the file of that name."""
    return Path(text or "") if _is_file(text) else {"src": _listed(text or "")}


def _candidates(text: str | None) -> "Path | pa.Array | None":
    if text is None or _is_file(text):
        return None if text is None else Path(text)
    import pyarrow as pa

    return pa.array(_listed(text), pa.large_string())


def _is_file(text: str | None) -> bool:
    try:
        return Path(text or "").is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def _ask(question: "Callable[[Callable[[int], partial[None]]], Predictions]") -> "Predictions":
    from dygmamba.cli.console import progress

    with progress() as bar:

        def meter(total: int) -> partial[None]:
            return partial(bar.advance, bar.add_task("scoring", total=total))

        return question(meter)


def _note(found: "Predictions", run: Path) -> None:
    """Say on stderr what the user may not expect."""
    from dygmamba.cli.console import note

    notes = []
    if found.assumed_time is not None:
        notes.append(f"no time was given: scored just after the last known event, at {found.assumed_time}")
    if found.strangers:
        shown = ", ".join(found.strangers[:3]) + (", ..." if len(found.strangers) > 3 else "")
        notes.append(f"{len(found.strangers):,} asked about but in no event, so without a past: {shown}")
    if found.without:
        shown = ", ".join(found.without[:3]) + (", ..." if len(found.without) > 3 else "")
        notes.append(f"no destination is left for {len(found.without):,} of the sources: {shown}")
    if not found.calibrated:
        notes.append(
            "this run has no calibration, so its scores rank but are no probabilities; "
            f"calibrate it with: dygmamba train --resume {run}"
        )
    for said in notes:
        note(f"note: {said}")


def _hand_over(table: "pa.Table", out: Path | None, raw: bool, as_json: bool) -> None:
    import sys

    from dygmamba.cli.console import emit_json, note
    from dygmamba.cli.words import shown

    cell = str if raw else harmless
    if out is not None:
        _write(out, table, raw)
        note(f"{table.num_rows:,} scores written to {out}")
    if as_json:
        emit_json({"predictions": list(_rows(table))})
    elif out is None:  # a file or a pipe gets the ids themselves, a terminal is shown them
        to_show = sys.stdout.isatty()
        sys.stdout.write(_as_csv(table, (lambda text: shown(cell(text))) if to_show else cell))


def _write(out: Path, table: "pa.Table", raw: bool) -> None:
    """Parquet and Arrow hold the table as it is, JSON lines and CSV its rows as they are printed."""
    from dygmamba.data.written import ENDINGS, write_table
    from dygmamba.files.writing import write_text

    kind = ENDINGS.get(out.suffix.lower(), "csv")
    if kind in ("parquet", "arrow"):
        write_table(out, table)
    elif kind == "jsonl":
        write_text(out, "".join(json.dumps(row) + "\n" for row in _rows(table)))
    else:
        write_text(out, _as_csv(table, str if raw else harmless))


def _rows(table: "pa.Table") -> "Iterator[dict]":
    """Row by row, the scores to as many digits as mean something."""
    figures = [name for name in ("score", "uncalibrated_score", "probability") if name in table.column_names]
    for batch in table.to_batches(max_chunksize=1 << 14):
        for row in batch.to_pylist():
            yield row | {name: float(f"{row[name]:.9g}") for name in figures}


def _as_csv(table: "pa.Table", cell: "Callable[[str], str]") -> str:
    """Numbers as they are, and text by way of `cell`."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, table.column_names))
    for row in _rows(table):
        writer.writerow(cell(value) if isinstance(value, str) else value for value in row.values())
    return text.getvalue()


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
