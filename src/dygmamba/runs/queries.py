"""Queries in the user's ids and times as nodes and 64-bit times of a stream, and predictions back in the user's ids."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError, NotFoundError, ScoreError
from dygmamba.data.events.column_facts import ColumnFacts
from dygmamba.data.events.ids import Side
from dygmamba.data.readers.bad_rows import BadRows, ColumnLocation
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
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import check_time_scale, next_instant
from dygmamba.history.query_columns import QueryColumns
from dygmamba.tasks.calibration import Calibration, compute_logistic

TimeLike = str | float  # a date or a number

PLACEHOLDER_NODES = 2  # nodes without events that stand for unknown ids; a pair has at most two of them
SHOWN_IDS = 5  # of those that a message names
SCORE_COLUMN, RAW_SCORE_COLUMN = "score", "uncalibrated_score"  # of runs with and without a calibration
# columns of predictions; a query's column of such a name is repeated as query_NAME
PREDICTION_COLUMNS = ("src", "dst", "time", SCORE_COLUMN, RAW_SCORE_COLUMN, "probability", "value")


def list_some(names: Sequence[str]) -> str:
    """Return the first names of a list, for a message."""
    return ", ".join(names[:SHOWN_IDS]) + ", ..." * (len(names) > SHOWN_IDS)


@dataclass(frozen=True, slots=True)
class WrongSides:
    """Ids of queries on a bipartite stream that have events on the other side only, hence no history where they are."""

    only_destinations: tuple[str, ...] = ()  # given as sources
    only_sources: tuple[str, ...] = ()  # given as destinations

    def __len__(self) -> int:
        return len(self.only_destinations) + len(self.only_sources)

    def describe(self) -> list[str]:
        """Say which ids these are, and what to do; empty if there are none."""
        reverse = "to find the likely sources of a destination, rank them with `destinations`"
        swapped = "check that sources and destinations are not swapped"
        sides = (
            (self.only_destinations, "source", "destination", reverse),
            (self.only_sources, "destination", "source", swapped),
        )
        texts = []
        for ids, side, other, advice in sides:
            many = f"{len(ids):,} ids were only ever {other}s, and count here as {side}s without events"
            one = f"1 id was only ever a {other}, and counts here as a {side} without events"
            texts += [f"{one if len(ids) == 1 else many}: {list_some(ids)}; {advice}"] if ids else []
        return texts


@dataclass(frozen=True, slots=True)
class UnknownValues:
    """Values of categorical columns of the queries that no event has; they may be misspelt."""

    by_column: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Say which values these are, a sentence for each column; empty if there are none."""
        texts = []
        for name, values in self.by_column.items():
            shown = list_some([value or "(empty)" for value in values])
            count = "1 value" if len(values) == 1 else f"{len(values):,} values"
            texts.append(f"{count} of {name} that no event has: {shown}; check the spelling")
        return texts


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
    wrong_sides: WrongSides = field(default_factory=WrongSides)
    unknown_values: UnknownValues = field(default_factory=UnknownValues)

    @property
    def time(self) -> Tensor:
        return torch.from_numpy(self.times.value)


@dataclass(frozen=True, slots=True)
class QueryParser:
    """Reads queries about a dataset."""

    dataset: Dataset
    options: ReadOptions  # of files
    has_integer_ids: bool  # whether predictions have integer ids, as the dataset had at first
    # of the events in question that the model reads
    columns: ColumnFacts = field(default_factory=ColumnFacts)

    @property
    def column_names(self) -> list[str]:
        """Columns of the events in question that the model reads."""
        return [column.name for column in (*self.columns.numeric, *self.columns.types)]

    def require_read_columns(self, names: Iterable[str]) -> None:
        """Raise ConfigError if the model does not read one of these columns of the event in question."""
        unread = [name for name in names if name not in self.column_names]
        if not unread:
            return
        given = ", ".join(map(repr, unread))
        if not self.columns:
            raise ConfigError(
                f"the run reads no column of the event in question, but got {given}; leave that out, or train a run "
                "that reads them with `query_columns=true`",
                code="columns-not-read",
            )
        raise ConfigError(
            f"the run does not read {given} of the event in question; give only {', '.join(self.column_names)}",
            code="columns-not-read",
        )

    def read(
        self,
        pairs: QuerySource,
        at: TimeLike | QueryTimes | None,
        sources_only: bool = False,
        nodes_only: bool = False,
        side: Side = "src",
    ) -> QueryBatch:
        """Read the queries of a file or table.

        `at` is the time of all queries, or of each. With `sources_only` each source (and time) counts once; with
        `nodes_only` a column node or id holds the sources. With `side="dst"` ids in the place of sources are those of
        destinations.
        """
        ids = read_id_list(pairs, self.options, self.dataset.origin) if isinstance(pairs, Path) else None
        table = read_queries(
            pairs if ids is None else {"src": ids},
            self.options,
            self.dataset.origin,
            [column.name for column in self.columns.numeric],
            [column.name for column in self.columns.types],
            nodes_only,
        )
        return self._to_batch(table.distinct_sources() if sources_only else table, at, side)

    def query_all_sources(self, at: TimeLike | None) -> QueryBatch:
        """Query each node that was the source of an event strictly before `at`."""
        node, first = np.unique(self.dataset.store.src.numpy(), return_index=True)
        first_time, ids = self.dataset.store.time.numpy()[first], self.dataset.ids.to_user(node)
        table = read_queries({"src": ids}, ReadOptions(), self.dataset.origin)
        is_known = self._resolve_times(table, at)[0].value > first_time
        return self._to_batch(table[np.flatnonzero(is_known)], at)

    def _to_batch(
        self, table: QueryTable, at: TimeLike | QueryTimes | None, side: Side = "src"
    ) -> QueryBatch:
        times, assumed_time = self._resolve_times(table, at)
        src, dst, unknown_ids, wrong_sides = self._find_nodes(table, side)
        columns, unknown_values = self._read_columns(table)
        return QueryBatch(
            table, src, dst, times, assumed_time, unknown_ids, columns, wrong_sides, unknown_values
        )

    def _read_columns(self, table: QueryTable) -> tuple[QueryColumns | None, UnknownValues]:
        """Return the columns of the events in question that the model reads, and the unknown values of categories.

        Columns that the model does not read are 0.

        Raises:
            NotFoundError: The table has some of them, but not all.
        """
        wanted = self.column_names
        missing = [name for name in wanted if name not in table.columns]
        if len(missing) == len(wanted):
            return None, UnknownValues()
        if missing:
            raise NotFoundError(
                f"{table.source} has no column {missing[0]!r}, which the run reads with each pair; add it",
                code="query-columns-missing",
            )
        features = self.dataset.store.features
        edge = torch.zeros(len(table), features.edge.shape[1])
        for column in self.columns.numeric:
            edge[:, column.index] = torch.from_numpy(table.parse_numbers(column.name, self.options))
        codes, unknown_values = None, {}
        if features.codes is not None:
            codes = torch.zeros(len(table), features.codes.shape[1], dtype=torch.int32)
            for column in self.columns.types:
                code = table.parse_codes(column.name, features.categories[column.index])
                codes[:, column.index] = torch.from_numpy(code.copy())  # Arrow's buffers are read-only
                if (code < 0).any():
                    unknown_values[column.name] = table.unique_categories(column.name, code < 0)
        return QueryColumns(torch.arange(len(table)), edge, codes), UnknownValues(unknown_values)

    def describe_unread_columns(self, table: QueryTable) -> str:
        """Name columns of the dataset's events in the table that the model does not read; "" if none."""
        features = self.dataset.store.features
        own = {*features.edge_names, *(category.name for category in features.categories)}
        unread = [name for name in table.unread if name in own]
        if not unread:
            return ""
        return f"the run does not read {list_some(unread)}" + " (trained without query_columns)" * (
            not self.columns
        )

    def repeat_columns(self, table: QueryTable) -> dict[str, pa.Array]:
        """Return the columns of the events in question that the model reads, for a table of predictions."""
        numeric, columns = {column.name for column in self.columns.numeric}, {}
        for name in table.columns:
            key = f"query_{name}" if name.partition(" ")[0] in PREDICTION_COLUMNS else name
            columns[key] = (
                table.format_numbers(name, self.options.decimal)
                if name in numeric
                else table.format_categories(name)
            )
        return columns

    def to_user_type(self, ids: pa.Array) -> pa.Array:
        """Cast ids to integers if the dataset has integer ids and all of them are written as integers."""
        try:
            integers = ids.cast(pa.int64()) if self.has_integer_ids else ids
        except pa.ArrowInvalid:
            return ids
        # "007" is cast to 7, which is another id
        return integers if integers.cast(ids.type).equals(ids) else ids

    def read_candidates(self, candidates: pa.Array | Path | None, side: Side = "dst") -> Tensor:
        """Return the nodes of these ids or of those in a file; without candidates, all nodes of the side so far."""
        if candidates is None:
            store = self.dataset.store
            return store.destinations if side == "dst" else torch.unique(store.src)
        ids = candidates
        if isinstance(ids, Path):
            ids = read_ids(ids, self.options, self.dataset.origin)
        if not len(ids):
            raise ConfigError("`candidates` is empty; give at least one id", code="no-ids")
        node = self.dataset.ids.to_node(ids, side)
        if (node < 0).any():
            unknown = ids[int((node < 0).argmax())]
            raise NotFoundError(
                f"candidate {unknown} has no event; leave it out, or observe an event of it first",
                code="unknown-candidate",
            )
        return torch.from_numpy(np.unique(node))

    def _resolve_times(
        self, table: QueryTable, at: TimeLike | QueryTimes | None
    ) -> tuple[QueryTimes, TimeLike | None]:
        """Return the times of the table, or `at` for all, or the first time that sees the whole stream."""
        if isinstance(at, QueryTimes):
            return at, None
        if table.time is not None:
            if at is not None:
                raise ConfigError(
                    f"{table.source} has a column of times; leave out that column or `at`",
                    code="time-given-twice",
                )
            check_time_scale(self.dataset, table.source, table.time.is_unix_time, table.time.value)
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
                pa.array([str(at)]), ColumnLocation("`at`", "time"), self.options, self.dataset.origin
            )
        except (FileError, UnicodeEncodeError) as error:
            form = self.options.time_format
            expected = (
                "a date like 2024-05-31T12:00:00Z or a number" if form is None else f"a date like {form}"
            )
            raise ConfigError(f"`at` takes {expected}; got '{at}'", code="invalid-time") from error
        check_time_scale(self.dataset, "`at`", time.is_unix_time, time.value)
        return time

    def _find_nodes(
        self, table: QueryTable, side: Side
    ) -> tuple[Tensor, Tensor, tuple[str, ...], WrongSides]:
        """Return the nodes of sources and destinations, the ids without a node, and those on the wrong side.

        Unknown ids become placeholder nodes: `num_nodes` for the source, `num_nodes + 1` for another destination.
        """
        ids, placeholder = self.dataset.ids, self.dataset.store.num_nodes
        columns = [(table.src, ids.to_node(table.src, side))]
        if table.dst is not None:
            columns.append((table.dst, ids.to_node(table.dst, "dst")))
        missing = [column.filter(pa.array(node < 0)) for column, node in columns]
        (src, src_node), (dst, dst_node) = columns[0], columns[-1]
        # in a bipartite stream, source 7 is not destination 7
        is_same = pc.equal(src, dst).to_numpy(zero_copy_only=False) & (ids.sources is None)
        dst_node = np.where(dst_node < 0, np.where(is_same, placeholder, placeholder + 1), dst_node)
        src_node = np.where(src_node < 0, placeholder, src_node)
        if side == "dst":
            missing = [missing[0][:0], *missing]
        only_destinations = self._find_on_side(missing[0], "dst")
        only_sources = self._find_on_side(missing[1], "src") if len(missing) > 1 else ()
        wrong_sides = WrongSides(only_destinations, only_sources)
        elsewhere = {*only_destinations, *only_sources}
        unknown = pc.unique(pa.concat_arrays(missing)).to_pylist()
        unknown_ids = tuple(name for name in unknown if name not in elsewhere)
        return torch.from_numpy(src_node), torch.from_numpy(dst_node), unknown_ids, wrong_sides

    def _find_on_side(self, ids: pa.Array, side: Side) -> tuple[str, ...]:
        """Return those of the ids that are nodes on this side of a bipartite stream."""
        if self.dataset.ids.sources is None or not len(ids):
            return ()
        ids = pc.unique(ids)
        return tuple(ids.filter(pa.array(self.dataset.ids.to_node(ids, side) >= 0)).to_pylist())


@dataclass(frozen=True, slots=True)
class Predictions:
    """A table of predictions, and what a user should know about it."""

    table: pa.Table
    assumed_time: TimeLike | None  # used because no time was given
    unknown_ids: tuple[str, ...]  # ids without events
    calibrated: bool = True  # whether scores are probabilities
    without: tuple[str, ...] = ()  # sources without any candidate
    wrong_sides: WrongSides = field(default_factory=WrongSides)
    bad_rows: BadRows | None = None  # of the queries, left out
    unknown_values: UnknownValues = field(default_factory=UnknownValues)
    unread_columns: str = ""  # a sentence about columns of the queries that the model does not read
    shortlist: str = ""  # a sentence that not every candidate was scored


def score_column(
    logit: Tensor, calibration: Calibration | None, new_ends: Tensor | None = None
) -> dict[str, pa.Array]:
    """Return the column of scores in 64 bits, so that scores near 1 keep their order.

    The arguments are those of `Calibration.probability`.
    """
    if calibration is None:
        return {RAW_SCORE_COLUMN: _finite_column(compute_logistic(logit.double()))}
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
        pa.table(columns),
        queries.assumed_time,
        queries.unknown_ids,
        calibration is not None,
        without,
        queries.wrong_sides,
        queries.table.bad_rows,
        queries.unknown_values,
    )
