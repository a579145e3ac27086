"""Queries in the user's ids and times as nodes and 64-bit times of a stream, and predictions back in the user's ids."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError, NotFoundError, ScoreError
from dygmamba.data.events.columns import ColumnFacts
from dygmamba.data.events.times import looks_like_epoch_seconds
from dygmamba.data.readers.options import ReadOptions
from dygmamba.data.readers.queries import (
    QuerySource,
    QueryTable,
    QueryTimes,
    read_id_list,
    read_ids,
    read_queries,
    read_query_times,
)
from dygmamba.data.readers.times import format_iso_time
from dygmamba.data.readers.values import ColumnLocation
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import next_instant
from dygmamba.sampling.columns import QueryColumns
from dygmamba.tasks.calibration import Calibration

TimeLike = str | float  # a date or a number

MAX_EPOCH_SECONDS = 1e11  # the year 5138: a larger number must be milliseconds or finer
PLACEHOLDER_NODES = 2  # nodes without events that stand for unknown ids; a pair has at most two of them
SCORE_COLUMN, RAW_SCORE_COLUMN = "score", "uncalibrated_score"  # of runs with and without a calibration


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries with node numbers and times of the stream instead of the user's ids and dates."""

    table: QueryTable  # as the user gave them
    src: Tensor
    dst: Tensor  # the sources again if the queries have no destinations
    times: QueryTimes
    assumed_time: TimeLike | None  # used for all queries if neither the table nor the user gave a time
    unknown_ids: tuple[str, ...]  # ids without events
    columns: QueryColumns | None = None  # of the events in question, if the model reads them

    @property
    def time(self) -> Tensor:
        return torch.from_numpy(self.times.value)


@dataclass(frozen=True, slots=True)
class QueryParser:
    """Reads queries about a dataset."""

    dataset: Dataset
    options: ReadOptions  # of files
    has_integer_ids: bool  # whether predictions have integer ids, as the dataset had at first
    columns: ColumnFacts = field(
        default_factory=ColumnFacts
    )  # of the events in question that the model reads

    def read(self, pairs: QuerySource, at: TimeLike | None, sources_only: bool = False) -> QueryBatch:
        """Read the queries of a file or table; with `sources_only` each source (and time) once."""
        ids = read_id_list(pairs, self.options, self.dataset.origin) if isinstance(pairs, Path) else None
        wanted = [column.name for column in (*self.columns.numeric, *self.columns.types)]
        table = read_queries(
            pairs if ids is None else {"src": ids}, self.options, self.dataset.origin, wanted
        )
        return self._to_batch(table.distinct_sources() if sources_only else table, at)

    def query_all_sources(self, at: TimeLike | None) -> QueryBatch:
        """Query each node that was the source of an event strictly before `at`."""
        node, first = np.unique(self.dataset.store.src.numpy(), return_index=True)
        first_time, ids = self.dataset.store.time.numpy()[first], self.dataset.ids.to_user(node)
        table = read_queries({"src": ids}, ReadOptions(), self.dataset.origin)
        is_known = self._resolve_times(table, at)[0].value > first_time
        return self._to_batch(table[np.flatnonzero(is_known)], at)

    def _to_batch(self, table: QueryTable, at: TimeLike | None) -> QueryBatch:
        times, assumed_time = self._resolve_times(table, at)
        src, dst, unknown_ids = self._find_nodes(table)
        return QueryBatch(table, src, dst, times, assumed_time, unknown_ids, self._read_columns(table))

    def _read_columns(self, table: QueryTable) -> QueryColumns | None:
        """Return the columns of the events in question that the model reads; the others are 0.

        Raises:
            NotFoundError: The table has some of them, but not all.
        """
        wanted = [column.name for column in (*self.columns.numeric, *self.columns.types)]
        missing = [name for name in wanted if name not in table.columns]
        if len(missing) == len(wanted):
            return None
        if missing:
            raise NotFoundError(
                f"{table.source} has no column {missing[0]!r}, which the run reads with each pair; add it",
                code="query-columns-missing",
            )
        features = self.dataset.store.features
        edge = torch.zeros(len(table), features.edge.shape[1])
        for column in self.columns.numeric:
            edge[:, column.index] = torch.from_numpy(table.parse_numbers(column.name, self.options.fill))
        codes = None
        if features.codes is not None:
            codes = torch.zeros(len(table), features.codes.shape[1], dtype=torch.int32)
            for column in self.columns.types:
                code = table.parse_codes(column.name, features.categories[column.index])
                codes[:, column.index] = torch.from_numpy(code.copy())  # Arrow's buffers are read-only
        return QueryColumns(torch.arange(len(table)), edge, codes)

    def to_user_type(self, ids: pa.Array) -> pa.Array:
        """Cast ids to integers if the dataset has integer ids and all of them are written as integers."""
        try:
            integers = ids.cast(pa.int64()) if self.has_integer_ids else ids
        except pa.ArrowInvalid:
            return ids
        # "007" is cast to 7, which is another id
        return integers if integers.cast(ids.type).equals(ids) else ids

    def read_candidates(self, candidates: pa.Array | Path | None) -> Tensor:
        """Return the nodes of these ids or of those in a file; without candidates, of all destinations so far."""
        if candidates is None:
            return self.dataset.store.destinations
        ids = candidates
        if isinstance(ids, Path):
            ids = read_ids(ids, self.options, self.dataset.origin)
        node = self.dataset.ids.to_node(ids, "dst")
        if (node < 0).any():
            unknown = ids[int((node < 0).argmax())]
            raise NotFoundError(
                f"candidate {unknown} has no event; leave it out, or observe an event of it first",
                code="unknown-candidate",
            )
        return torch.from_numpy(np.unique(node))

    def check_times(self, where: str, epoch: bool, time: np.ndarray) -> None:
        """Raise FileError for times that cannot be on the time scale of the stream.

        Args:
            where: What has the times, for the message.
            epoch: Whether they were dates, that is, are seconds since 1970.
            time: The times.
        """
        stream = self.dataset.store.time
        is_dated = bool(self.dataset.origin.time_origin) or looks_like_epoch_seconds(
            float(stream[0]), float(stream[-1])
        )
        if epoch and not is_dated:
            raise FileError(
                f"{where} has dates, but the times of '{self.dataset.name}' are plain numbers up to "
                f"{float(stream[-1]):.12g}; give numbers on that scale",
                code="dates-for-plain-times",
            )
        if is_dated and not epoch and np.abs(time).max(initial=0) > MAX_EPOCH_SECONDS:
            raise FileError(
                f"{where} has the time {time[np.abs(time).argmax()]:.12g}, too large for seconds since 1970; "
                "give `time_unit='ms'`, 'us' or 'ns'",
                code="time-out-of-range",
            )

    def _resolve_times(self, table: QueryTable, at: TimeLike | None) -> tuple[QueryTimes, TimeLike | None]:
        """Return the times of the table, or `at` for all, or the first time that sees the whole stream."""
        if table.time is not None:
            if at is not None:
                raise ConfigError(
                    f"{table.source} has a column of times; leave out that column or `at`",
                    code="time-given-twice",
                )
            self.check_times(table.source, table.time.is_unix_time, table.time.value)
            return table.time, None
        if at is not None:
            return self._parse_time(at)[np.zeros(len(table), np.int64)], None
        is_dated = bool(self.dataset.origin.time_origin)
        time = next_instant(self.dataset.store, is_dated)
        shown = format_iso_time(time) if is_dated else int(time) if time.is_integer() else time
        return QueryTimes(np.full(len(table), time), pa.repeat(shown, len(table)), is_dated), shown

    def _parse_time(self, at: TimeLike) -> QueryTimes:
        try:
            time = read_query_times(
                pa.array([str(at)]), ColumnLocation("`at`", "time", 0), self.options, self.dataset.origin
            )
        except (FileError, UnicodeEncodeError) as error:
            form = self.options.time_format
            expected = (
                "a date like 2024-05-31T12:00:00Z or a number" if form is None else f"a date like {form}"
            )
            raise ConfigError(f"`at` takes {expected}; got '{at}'", code="invalid-time") from error
        self.check_times("`at`", time.is_unix_time, time.value)
        return time

    def _find_nodes(self, table: QueryTable) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Return the nodes of sources and destinations, and the ids without a node.

        Unknown ids become placeholder nodes: `num_nodes` for the source, `num_nodes + 1` for another destination.
        """
        ids, placeholder = self.dataset.ids, self.dataset.store.num_nodes
        columns = [(table.src, ids.to_node(table.src, "src"))]
        if table.dst is not None:
            columns.append((table.dst, ids.to_node(table.dst, "dst")))
        unknown = pa.concat_arrays([column.filter(pa.array(node < 0)) for column, node in columns])
        (src, src_node), (dst, dst_node) = columns[0], columns[-1]
        # in a bipartite stream, source 7 is not destination 7
        is_same = pc.equal(src, dst).to_numpy(zero_copy_only=False) & (ids.sources is None)
        dst_node = np.where(dst_node < 0, np.where(is_same, placeholder, placeholder + 1), dst_node)
        src_node = np.where(src_node < 0, placeholder, src_node)
        unknown_ids = tuple(pc.unique(unknown).to_pylist())
        return torch.from_numpy(src_node), torch.from_numpy(dst_node), unknown_ids


@dataclass(frozen=True, slots=True)
class Predictions:
    """A table of predictions, and what a user should know about it."""

    table: pa.Table
    assumed_time: TimeLike | None  # used because no time was given
    unknown_ids: tuple[str, ...]  # ids without events
    calibrated: bool = True  # whether scores are probabilities
    without: tuple[str, ...] = ()  # sources without any candidate


def score_column(
    logit: Tensor, calibration: Calibration | None, new_ends: Tensor | None = None
) -> dict[str, pa.Array]:
    """Return the column of scores in 64 bits, so that scores near 1 keep their order.

    The arguments are those of `Calibration.probability`.
    """
    if calibration is None:
        return {RAW_SCORE_COLUMN: _finite_column(torch.sigmoid(logit.double()))}
    return {SCORE_COLUMN: _finite_column(calibration.probability(logit, new_ends))}


def _finite_column(values: Tensor) -> pa.Array:
    """Return values as a column; raise ScoreError if one of them is not a finite number."""
    if not bool(torch.isfinite(values).all()):
        raise ScoreError(
            "a probability is not a finite number, so the logits of the model or its calibration are absurd; delete "
            "calibration.json of the run to see raw scores, or train again",
            code="not-finite",
        )
    return pa.array(values.numpy())


def probability_column(
    logit: Tensor, total: Tensor, calibration: Calibration | None, new_ends: Tensor | None = None
) -> dict[str, pa.Array]:
    """Return the column of probabilities, given that exactly one candidate is the true destination.

    The odds of a score say how much likelier this pair is as a real event than as a random one. With equal prior
    probabilities, the probability of a candidate is its odds divided by the sum of the odds of all candidates (Bayes).
    Without a calibration there is no such column.

    Args:
        logit: Logits of the candidates.
        total: Logarithm of the summed odds of all candidates of the same source.
        calibration: From logits to odds.
        new_ends: Whether the source and the destination of each candidate pair are new.
    """
    if calibration is None:
        return {}
    return {"probability": _finite_column((calibration.log_odds(logit, new_ends) - total).exp())}


def build_predictions(
    queries: QueryBatch,
    columns: dict[str, pa.Array],
    calibration: Calibration | None,
    without: tuple[str, ...] = (),
) -> Predictions:
    return Predictions(
        pa.table(columns), queries.assumed_time, queries.unknown_ids, calibration is not None, without
    )
