"""From batches of Arrow columns to a dataset: shared by the readers of files and of in-memory tables.

Every column of a batch is parsed once, with a mask of its bad rows; rows that are bad in one of them are dropped or
refused here and nowhere else. `collect` keeps the good rows.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.id_values import MISSING_ID_WORDS, describe_missing_id
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.collect import BatchColumns, EventColumns, RowCollector
from dygmamba.data.readers.labels import LabelParser
from dygmamba.data.readers.options import ColumnRoles, ReadOptions
from dygmamba.data.readers.other_columns import OtherColumns, TextKind
from dygmamba.data.readers.text import undecodable_error
from dygmamba.data.readers.times import TimeParser, choose_time_parser
from dygmamba.data.readers.values import (
    BadRows,
    ColumnLocation,
    Parsed,
    find_bad_rows,
    find_nulls,
    is_text_type,
)

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.dataset import Dataset

MISSING_ID_HINT = "remove the row or name both its nodes"


def clean_ids(ids: pa.DictionaryArray, any_id: bool) -> Parsed:
    """Strip whitespace from the ids of a batch; a missing one is bad (see `id_values`)."""
    bad, pool = find_nulls(ids), ids.dictionary
    if is_text_type(pool.type):
        pool = pc.utf8_trim_whitespace(pool)
        words = pa.array(MISSING_ID_WORDS[:1] if any_id else MISSING_ID_WORDS, pool.type)
        missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=words))
        if len(missing):
            is_missing = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
            bad = bad | is_missing.to_numpy(zero_copy_only=False)
        ids = pa.DictionaryArray.from_arrays(ids.indices, pool)

    def explain(row: int) -> tuple[str, str]:
        written = ids[row].as_py()
        return "is empty" if written is None else describe_missing_id(written), MISSING_ID_HINT

    return Parsed(ids, bad, explain)


CHECK_ROWS = 1 << 16  # rows checked for NaN at a time
DEFAULT_NAME = "data"  # name of a dataset that was not read from a file


class RowReader:
    """Reads the rows of one table: parses each column of a batch once, and leaves out the bad rows."""

    def __init__(
        self,
        path: Path | str,
        roles: ColumnRoles,
        options: ReadOptions,
        kinds: Mapping[str, TextKind] | None = None,
    ) -> None:
        self._source, self._roles, self._options = str(path), roles, options
        self.bad_rows = BadRows(self._source, options.skip_bad)
        self.others = OtherColumns(roles, options.fill, options.decimal, keep_numeric=True, kinds=kinds)
        self.label_parser = LabelParser()
        self.time_parser: TimeParser | None = None  # chosen by the first batch
        self._rows = 0

    def read(self, batch: pa.RecordBatch) -> BatchColumns | None:
        """Parse a batch; None if it has no good row."""
        if not batch.num_rows:
            return None
        positions = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        ends, chosen = self._parse_ends(batch), self.others.parse_chosen(batch, self._locate)
        named = [(getattr(self._roles, role), column) for role, column in ends.items()]
        found = find_bad_rows([*named, *chosen.items()], len(batch))
        if found.bad.any():
            self.bad_rows.add_bad_values(positions, found)
            good = ~found.bad
            batch, positions = batch.filter(pa.array(good)), positions[good]
            ends, chosen = ({k: column.keep(good) for k, column in part.items()} for part in (ends, chosen))
        if not batch.num_rows:
            return None
        edge, codes, found = self.others.read(batch, chosen, self._locate, positions)
        if found.bad.any():
            self.bad_rows.add_bad_values(positions, found, certain=False)
            ends = {role: column.keep(~found.bad) for role, column in ends.items()}
        values = {role: column.values for role, column in ends.items()}
        if self._roles.label is not None:
            values["label"] = self.label_parser.encode(values["label"], self._locate(self._roles.label))
        return BatchColumns(**values, edge=edge, codes=codes) if len(edge) else None

    def _parse_ends(self, batch: pa.RecordBatch) -> dict[str, Parsed]:
        """Parse sources, destinations, times and labels, by role."""
        roles, options = self._roles, self._options
        src, dst = (clean_ids(batch.column(name), options.any_id) for name in (roles.src, roles.dst))
        time, location = batch.column(roles.time), self._locate(roles.time)
        if self.time_parser is None:
            self.time_parser = choose_time_parser(
                time,
                options.time_unit,
                location,
                time_format=options.time_format,
                order=options.date_order,
                guess=True,
            )
        ends = {"src": src, "dst": dst, "time": self.time_parser.parse(time, location)}
        if roles.label is not None:
            column, location = batch.column(roles.label), self._locate(roles.label)
            ends["label"] = self.label_parser.parse(column, location, options.fill, options.decimal)
        return ends

    def _locate(self, column: str) -> ColumnLocation:
        return ColumnLocation(self._source, column, 0)


# opens the batches of a table with the columns of some roles; rows without the right columns go to `BadRows`
OpenBatches = Callable[[BadRows], Iterable[pa.RecordBatch]]


def read_table(
    path: Path | str,
    format: str,
    open_batches: OpenBatches,
    roles: ColumnRoles,
    options: ReadOptions,
    keep_rows: bool = False,
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table with one event per row, in file order unless it had to be sorted on disk.

    Args:
        path: the file, or a few words for a table that has none.
        format: recorded in the origin.
        open_batches: opens the columns of `roles`; src and dst are dictionary-encoded. The table is read a second time
            if its later rows show that a column is not what the first ones look like.
        roles: which column is what.
        options: how to parse values.
        keep_rows: whether other files have values by row, so that events that were sorted must remember theirs.
    """
    collector = RowCollector(options, keep_rows)
    reader = _read_rows(path, open_batches, roles, options, collector)
    if kinds := reader.others.revise_kinds():
        collector = RowCollector(options, keep_rows)
        reader = _read_rows(path, open_batches, roles, options, collector, kinds)
    bad_rows, others, time_parser = reader.bad_rows, reader.others, reader.time_parser
    bad_rows.raise_unless_skipped()
    others.raise_for_bad_cells(bad_rows)
    if not collector or time_parser is None:
        if isinstance(path, Path) and bad_rows.are_undecodable:
            raise undecodable_error(path, options.encoding, options.skip_bad)
        problem = (
            f"no row that can be read ({bad_rows.summarize()})"
            if bad_rows.count
            else "column names but no rows"
        )
        raise FileError(f"{path} has {problem}; give at least one event", code="no-rows")
    columns, ids = collector.finish()
    columns = _finish_other_columns(columns, others)
    columns = replace(columns, label=reader.label_parser.finish(columns.label))
    unused = others.list_unused()
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=format,
        src=roles.src,
        dst=roles.dst,
        time=roles.time,
        label=roles.label or "",
        classes=reader.label_parser.classes,
        features=tuple(others.numeric[k] for k in others.kept_numeric),
        types=tuple(category.name for category in columns.categories),
        decimal="," if {*others.marks.values()} - {None} == {","} else "",
        unused_columns=tuple(unused),
        unused_reasons=tuple(unused.values()),
        time_unit="s" if time_parser.is_unix_time else "",
        time_origin="1970-01-01T00:00:00Z" if time_parser.is_unix_time else "",
        skipped=bad_rows.count,
        skipped_first=tuple(map(str, bad_rows.first)),
        **time_parser.describe(),
    )
    return columns, ids, origin


def _read_rows(
    path: Path | str,
    open_batches: OpenBatches,
    roles: ColumnRoles,
    options: ReadOptions,
    collector: RowCollector,
    kinds: Mapping[str, TextKind] | None = None,
) -> RowReader:
    """Collect all good rows, once."""
    reader = RowReader(path, roles, options, kinds)
    try:
        for batch in open_batches(reader.bad_rows):
            if (columns := reader.read(batch)) is not None:
                collector.add(columns)
    except FileError as error:
        is_encoding = error.code == "mostly-bad-rows" and reader.bad_rows.are_undecodable
        if isinstance(path, Path) and is_encoding:
            raise undecodable_error(path, options.encoding, options.skip_bad) from error
        raise
    return reader


def _finish_other_columns(columns: EventColumns, others: OtherColumns) -> EventColumns:
    """Drop the candidates that are not usable after all, and give values of categorical columns their final codes."""
    others.finish()
    edge, codes = columns.edge, columns.codes
    if len(others.kept_numeric) < edge.shape[1]:
        edge = np.ascontiguousarray(edge[:, others.kept_numeric])
    finished = [others.vocabularies[k].finish() for k in others.kept_vocabularies]
    if codes is None or not finished:
        return replace(columns, edge=edge, codes=None)
    final = [order[codes[:, k]] for k, (_, order) in zip(others.kept_vocabularies, finished, strict=True)]
    categories = tuple(category for category, _ in finished)
    return replace(columns, edge=edge, codes=np.stack(final, axis=1), categories=categories)


def build_dataset(path: Path | str, columns: EventColumns, ids: NodeIds, origin: Origin) -> "Dataset":
    """Build a dataset named after its file, with events sorted by time; ties keep their order."""
    if not len(columns.time):
        raise FileError(f"{path} has no rows; give at least one event", code="no-rows")
    node = np.zeros((len(ids), 0), np.float32) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        if values is not None and not all(np.isfinite(values[rows]).all() for rows in _iter_slices(values)):
            raise FileError(
                f"{path} has {name} that are not finite; replace NaN and infinite values",
                code="values-not-finite",
            )

    import torch

    from dygmamba.data.events.event_store import EventStore, FeatureTable
    from dygmamba.data.storage.dataset import Dataset

    src, dst, time, edge = map(
        torch.from_numpy,
        (columns.src, columns.dst, columns.time.astype(np.float64, copy=False), columns.edge),
    )
    is_sorted = columns.out_of_order is not None
    out_of_order = (
        columns.out_of_order
        if columns.out_of_order is not None
        else int((time < time.cummax(0).values).sum())
    )
    try:
        store = (EventStore.from_unsorted if out_of_order and not is_sorted else EventStore.from_columns)(
            src,
            dst,
            time,
            features=FeatureTable(
                torch.from_numpy(node).to(torch.float32),
                edge.to(torch.float32),
                None if columns.codes is None else torch.from_numpy(columns.codes),
                origin.features if len(origin.features) == edge.shape[1] else (),
                columns.categories,
            ),
            label=None if columns.label is None else torch.from_numpy(columns.label),
            num_nodes=len(ids),
            bipartite=ids.sources is not None,
        )
    except EventError as error:
        raise FileError(f"{path}: {error}", code=error.code) from error
    name = path.name.split(".")[0] if isinstance(path, Path) else DEFAULT_NAME
    return Dataset.from_events(name, store, ids, replace(origin, out_of_order=out_of_order))


def _iter_slices(values: np.ndarray) -> Iterator[slice]:
    for start in range(0, len(values), CHECK_ROWS):
        yield slice(start, start + CHECK_ROWS)


def drop_zero_columns(columns: EventColumns) -> EventColumns:
    """Drop feature tables and labels that are zero throughout; published files use them as padding."""

    def drop_if_zero(matrix: np.ndarray) -> np.ndarray:
        return matrix if matrix.any() else matrix[:, :0]

    return replace(
        columns,
        edge=drop_if_zero(columns.edge),
        node=None if columns.node is None else drop_if_zero(columns.node),
        label=columns.label if columns.label is not None and bool(columns.label.any()) else None,
    )
