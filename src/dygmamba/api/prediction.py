"""Predictions of a trained run in one call: score pairs, rank destinations, classify nodes.

`dygmamba.open(run)` offers the same step by step.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.api.requests.prediction import PredictRequest
from dygmamba.core.costs import choose_threshold
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.untrusted import escape_formula
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.times import looks_like_epoch_seconds
from dygmamba.data.readers import ReadOptions
from dygmamba.data.readers.sources import looks_like_file
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.export import write_table
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import warn_if_unfinished
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import Predictions

SCORE_COLUMNS = ("score", "uncalibrated_score", "probability", "value")  # also `uncalibrated_score CLASS`


def run_prediction(request: PredictRequest, progress: Progress = SILENT) -> Predictions:
    """Score pairs, rank the `top` destinations per source, or classify nodes, as the task of the run demands."""
    folder, at, top, nodes = RunDirectory(request.run), request.at, request.top, request.nodes
    warn_if_unfinished(folder)
    predictor = Predictor.open(folder, request.device, request.data_dir, ReadOptions(**request.reading))
    if request.events is not None:
        predictor = predictor.with_events(request.events)
    if folder.task == "node":
        return predictor.classify(
            None if nodes is None else _read_ids(nodes, predictor.dataset), at, top, progress
        )
    if top is None:
        assert request.pairs is not None
        return predictor.score(request.pairs, at, progress)
    among = candidates = request.candidates
    if candidates is not None and candidates != "all":
        among = _read_ids(candidates, predictor.dataset)
        among = pa.array(among["src"], pa.large_string()) if isinstance(among, dict) else among
    queries = request.pairs or _read_ids(request.destinations or request.sources or "", predictor.dataset)
    side = "dst" if request.destinations is None else "src"
    return predictor.top(queries, top, at, progress, among, request.only_new, side)


def select_alerts(
    found: Predictions,
    threshold: float | None = None,
    costs: str | None = None,
    per_day: int | None = None,
    real_share: float | None = None,
) -> tuple[Predictions, str | None]:
    """Keep the rows that deserve an alert.

    Args:
        found: Scores of pairs or nodes.
        threshold: Least score.
        costs: Costs of a false alarm and of a miss, such as "1,20"; they give the threshold.
        per_day: Number of rows to keep of each day (UTC), those with the highest scores.
        real_share: Share of real events among the scored pairs, for the costs; by default a half.

    Returns:
        The predictions with these rows only, and a sentence for the user; None if every row is kept.
    """
    limit = choose_threshold(threshold, costs, real_share)
    if real_share is not None and "node" in found.table.column_names:
        raise ConfigError(
            "`real_share` is for scores of pairs, which are calibrated for even odds; those of nodes are probabilities "
            "as they are, so leave it out",
            code="share-of-nodes",
        )
    if limit is None and per_day is None:
        return found, None
    if costs is not None and not found.calibrated:
        raise ConfigError(
            "`costs` need calibrated scores, which this run does not have; give `threshold`",
            code="not-calibrated",
        )
    table, total = found.table, found.table.num_rows
    name = next(name for name in SCORE_COLUMNS if name in table.column_names)
    if limit is not None:
        table = table.filter(pa.array(table[name].to_numpy() >= limit))
    if per_day is not None:
        table = _keep_best_of_each_day(table, name, per_day)
    words = [] if limit is None else [f"score of at least {limit:.4g}"]
    words += [] if per_day is None else [f"the {per_day:,} highest scores of each day"]
    return replace(found, table=table), f"{table.num_rows:,} of {total:,} rows kept: {', '.join(words)}"


def _keep_best_of_each_day(table: pa.Table, name: str, count: int) -> pa.Table:
    """Return the rows with the highest scores of each day, in day order and by falling score."""
    days = [_find_day(time) for time in table["time"].to_pylist()]
    scores, kept = table[name].to_pylist(), Counter[str]()
    rows = []
    for row in sorted(range(len(days)), key=lambda row: (days[row], -scores[row])):
        kept[days[row]] += 1
        if kept[days[row]] <= count:
            rows.append(row)
    return table.take(pa.array(rows, pa.int64()))


def _find_day(time: Any) -> str:
    """Return the day (UTC) of a time of a prediction, which is an ISO date or seconds since 1970."""
    if isinstance(time, str):
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            moment = None
        if moment is not None:
            return (moment.astimezone(UTC) if moment.tzinfo else moment).strftime("%Y-%m-%d")
    elif looks_like_epoch_seconds(float(time), float(time)):
        return datetime.fromtimestamp(float(time), UTC).strftime("%Y-%m-%d")
    raise ConfigError(
        f"`top_per_day` needs times that are dates; got {time}, use `threshold` instead",
        code="times-without-days",
    )


def _read_ids(text: str, dataset: Dataset) -> "Path | dict[str, list[str]]":
    """Return the file of this name, or the ids that it lists; a mistyped name of a file is no id."""
    if _is_file(text):
        return Path(text)
    ids = [name.strip() for name in text.split(",") if name.strip()]
    if len(ids) == 1 and looks_like_file(ids[0]):
        column = pa.array(ids, pa.large_string())
        if all(dataset.ids.to_node(column, side)[0] < 0 for side in ("src", "dst")):
            raise FileError(
                f"{ids[0]} is neither a file nor an id of '{dataset.name}'; check the name and the folder",
                code="file-missing",
            )
    return {"src": ids}


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def write_predictions(path: Path, table: pa.Table, raw: bool = False) -> None:
    """Write predictions in the format of the file's suffix, such as .csv, .jsonl.gz or .parquet.

    In text, scores have nine significant digits; formulas in CSV are escaped unless `raw`.
    """
    write_table(path, table, raw, {"csv": _make_csv_chunks, "jsonl": _make_jsonl_chunks})


def _make_csv_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    yield format_csv(table, str if raw else escape_formula).encode()


def _make_jsonl_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    for row in iterate_rows(table):
        yield f"{json.dumps(row)}\n".encode()


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield predictions as dictionaries, with scores to nine significant digits."""
    fields = (
        (field.name, field.type) for field in table.schema if field.name.partition(" ")[0] in SCORE_COLUMNS
    )
    names = [name for name, kind in fields if pa.types.is_floating(kind)]
    for batch in table.to_batches(max_chunksize=1 << 14):
        for row in batch.to_pylist():
            yield row | {name: float(f"{row[name]:.9g}") for name in names}


def format_csv(table: pa.Table, format_cell: Callable[[str], str] = escape_formula) -> str:
    """Return predictions as CSV; `format_cell` is applied to text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(format_cell, table.column_names))
    for row in iterate_rows(table):
        writer.writerow(format_cell(value) if isinstance(value, str) else value for value in row.values())
    return text.getvalue()
