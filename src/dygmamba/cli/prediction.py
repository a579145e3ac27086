"""Commands that query a trained run: `predict` and `explain`."""

import csv
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_line, print_note
from dygmamba.cli.messages import escape_text
from dygmamba.cli.progress import show_progress
from dygmamba.cli.reading_options import with_reading_options
from dygmamba.core.errors import ConfigError

if TYPE_CHECKING:
    from dygmamba.api.prediction import Predictions

SHOWN_IDS = 3  # in a note


@with_reading_options
def predict(
    run: Path = cli.run_argument("Predict with this run directory."),
    pairs: Path | None = cli.optional(
        "Score the pairs of this file: columns src, dst, optionally time, and those that the run reads of a "
        "query (query_columns). - is standard input."
    ),
    sources: str | None = cli.optional("Rank the destinations of these ids, a,b,c or a file; with --top."),
    destinations: str | None = cli.optional("Rank the sources of these ids, a,b,c or a file; with --top."),
    nodes: str | None = cli.optional(
        "Predict the labels of these ids, a,b,c or a file; for runs of the node task."
    ),
    events: Path | None = cli.NEW_EVENTS,
    out: Path | None = cli.optional(
        "Write the scores to this file: .csv, .jsonl, .csv.gz, .jsonl.gz, .parquet, .arrow or .xlsx.",
        default="stdout",
    ),
    top: int | None = cli.optional("Rank destinations per source, or nodes, and keep this many.", min=1),
    threshold: float | None = cli.optional("Keep only rows with at least this score.", min=0, max=1),
    costs: str | None = cli.optional(
        "Keep only rows that pay, by the costs FALSE_ALARM,MISS of an alert, e.g. 1,20."
    ),
    real_share: float | None = cli.optional(
        "Say which share of the scored pairs is real, e.g. 0.01; with --costs.", default="a half"
    ),
    top_per_day: int | None = cli.optional(
        "Keep only this many rows of each day (UTC), highest scores first.", min=1
    ),
    candidates: str | None = cli.optional(
        "Rank only these ids, a,b,c or a file, or all; with --top.",
        default="all; of more than 20,000 a shortlist",
    ),
    only_new: bool = cli.flag("--only-new", "Rank only destinations that the source never met; with --top."),
    at: str | None = cli.AT,
    *,
    reading: dict[str, Any],
    device: str = cli.DEVICE,
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    raw: bool = cli.RAW,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Score pairs, rank destinations or classify nodes with a trained run, for past or future times.

    Scores are probabilities, calibrated on the run's validation period.
    """
    with _open_standard_input(pairs) as file:
        from dygmamba.api.requests.prediction import PredictRequest

        request = PredictRequest.from_arguments(locals(), pairs=file).check()
        import_if_trusted(trust, run)

        from dygmamba.api import prediction

        with show_progress() as progress:
            found = prediction.run_prediction(request, progress)
    found, chosen = prediction.select_alerts(found, threshold, costs, top_per_day, real_share)
    _print_notes(found, run)
    if chosen is not None:
        print_note(f"note: {chosen}")
    if out is not None:
        prediction.write_predictions(out, found.table, raw)
        print_note(f"{found.table.num_rows:,} scores written to {out}")
    if as_json:
        emit_json({"predictions": list(prediction.iterate_rows(found.table))})
    elif out is None:
        format_cell = str if raw else prediction.escape_formula
        if sys.stdout.isatty():  # a file or a pipe gets the ids themselves
            sys.stdout.write(prediction.format_csv(found.table, lambda text: escape_text(format_cell(text))))
        else:
            sys.stdout.write(prediction.format_csv(found.table, format_cell))


@contextmanager
def _open_standard_input(path: Path | None) -> Iterator[Path | None]:
    """Return a file with what standard input holds if the path is "-", else the path itself."""
    if path != Path("-"):
        yield path
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "standard-input"
        file.write_bytes(sys.stdin.buffer.read())
        yield file


def _print_notes(found: "Predictions", run: Path) -> None:
    """Print on stderr what the user may not expect."""
    notes = []
    if found.bad_rows is not None:
        count = found.bad_rows.count
        left_out = "1 bad row was" if count == 1 else f"{count:,} bad rows were"
        notes.append(f"{left_out} left out: {found.bad_rows.summarize()}")
    if found.assumed_time is not None:
        notes.append(f"no time was given: scored just after the last known event, at {found.assumed_time}")
    if found.unknown_ids:
        count = f"{len(found.unknown_ids):,} id{'s' * (len(found.unknown_ids) != 1)}"
        notes.append(f"{count} without any event: {_shorten(found.unknown_ids)}")
    notes += found.wrong_sides.describe()
    notes += found.unknown_values.describe()
    if found.unread_columns:
        notes.append(found.unread_columns)
    if found.shortlist:
        notes.append(found.shortlist)
    if found.without:
        count = f"{len(found.without):,} source{'s' * (len(found.without) != 1)}"
        notes.append(f"{count} without any destination left: {_shorten(found.without)}")
    if not found.calibrated:
        notes.append(
            "this run has no calibration, so its scores rank but are no probabilities; "
            f"calibrate it with: dygmamba train --resume {shlex.quote(str(run))}"
        )
    for text in notes:
        print_note(f"note: {text}")


def _shorten(ids: tuple[str, ...]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")


@with_reading_options
def explain(
    run: Path = cli.run_argument("Explain a score of this run directory."),
    pair: str | None = cli.optional("Explain the score of two ids, a,b; quote an id that holds a comma."),
    node: str | None = cli.optional("Explain the score of this id; for runs of the node task."),
    at: str | None = cli.AT,
    top: int = cli.option(10, "Show this many events.", min=1),
    orders: int = cli.option(
        4, "Sample this many pairs of orders; more is slower and more exact.", min=1, max=1_000
    ),
    out: Path | None = cli.optional("Write a page (.html) or a picture (.svg)."),
    events: Path | None = cli.NEW_EVENTS,
    column: list[str] | None = cli.optional(
        "Give a column of the event in question, name=value, e.g. amount=12 (query_columns)."
    ),
    *,
    reading: dict[str, Any],
    device: str = cli.DEVICE,
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Show which past events of either side moved the score of a pair, and by how much."""
    if (pair is None) == (node is None):
        raise ConfigError(
            "say what to explain: --pair a,b, or for a run of the node task --node a", code="pair-or-node"
        )
    from dygmamba.api.requests.prediction import ExplainRequest

    query = _parse_pair(pair) if pair is not None else str(node)
    request = ExplainRequest.from_arguments(locals(), columns=_parse_columns(column or [])).check()
    import_if_trusted(trust, run)

    from dygmamba.api.explanation import build_explanation_document, run_explanation

    found = run_explanation(request)
    for text in found.notes:
        print_note(f"note: {text}")
    if out is not None:
        print_note(f"written to {out}")
    if as_json:
        emit_json(found.to_json(top))
    else:
        document = build_explanation_document(found, top)
        print_line(document.title)
        print_line("")
        print_document(document)


def _parse_columns(given: list[str]) -> dict[str, str]:
    """Parse columns of an event, each written as name=value."""
    columns = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(
                f"--column takes name=value, such as amount=12; got '{text}'", code="malformed-setting"
            )
        columns[name.strip()] = value.strip()
    return columns


def _parse_pair(text: str) -> tuple[str, str]:
    """Parse two ids, written as a line of CSV."""
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        cells = []
    ids = [cell.strip() for cell in cells]
    if len(ids) != 2 or not all(ids):
        raise ConfigError(
            f"--pair takes two ids with a comma between them, such as alice,bob; got '{text}' "
            "(put an id that holds a comma in double quotes)",
            code="malformed-pair",
        )
    return ids[0], ids[1]
