"""From an open table to a dataset: the one place where rows are judged.

Every column of a batch is parsed once, with a mask of its bad rows; rows that are bad in one of them are dropped or
refused here and nowhere else. `collect` keeps the good rows. What the first batch shows of times, decimals and kinds of
columns is a first guess: where other rows show something else, the table is read again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.bad_rows import BadRows, ColumnLocation, Parsed, ReadAgainError
from dygmamba.data.readers.collect import EventColumns, RowCollector
from dygmamba.data.readers.column_kinds import LabelParser, TextEvidence, TextKind, find_decimal_mark
from dygmamba.data.readers.in_memory import drop_mixed_candidates
from dygmamba.data.readers.options import TABLE_FORMAT, Layout, ReadOptions
from dygmamba.data.readers.other_columns import OtherColumns
from dygmamba.data.readers.roles import find_layout
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.text import undecodable_error
from dygmamba.data.readers.time_evidence import TimeEvidence
from dygmamba.data.readers.times import TimeParser
from dygmamba.data.readers.values import clean_ids, convert_ids, parse_floats, proves_other_mark

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.dataset import Dataset

DEFAULT_NAME = "data"  # name of a dataset that was not read from a file


def read_events(source: Source, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """Read a table with one event per row.

    `bipartite` is the caller's setting for a table in memory; None means that the table's hints decide.
    """
    if source.format == "jsonl":
        options.reject("JSONL", "delimiter", "header")
    options = options.complete(source.hints, (*source.names, *source.matrices), bipartite)
    chosen = options.features if options.features or options.types else source.features
    features = [column for name in chosen for column in source.matrices.get(name, (name,))]
    layout = find_layout(source, replace(options, features=tuple(features)))
    if source.format == TABLE_FORMAT:
        layout = drop_mixed_candidates(source, layout)
    columns, ids, origin = read_table(source, layout)
    if (header := source.header) is not None:
        origin = replace(origin, header=header.named, delimiter=header.delimiter, comments=header.comments)
    return build_dataset(source.place, columns, ids, origin)


class RowReader:
    """Reads the rows of one table: parses each column of a batch once, and leaves out the bad rows.

    Args:
        source: The table.
        layout: Which column is what, and how values are written.
        time: How times are parsed, if all rows are known; None: the first batch decides.
        marks: Decimal marks of numeric columns of which all rows are known.
        kinds: Kinds of other columns, if all rows are known.
    """

    def __init__(
        self,
        source: Source,
        layout: ReadOptions,
        *,
        time: TimeParser | None = None,
        marks: Mapping[str, str | None] | None = None,
        kinds: Mapping[str, TextKind] | None = None,
    ) -> None:
        self._source, self._layout = source, layout
        self.bad_rows = BadRows(source.name, layout.skip_bad)
        self.others = OtherColumns(self.bad_rows, layout, keep_numeric=True, kinds=kinds)
        self.label_parser = LabelParser()
        self.time_parser = time
        self._evidence = TimeEvidence() if time is None and layout.time_format is None else None
        self.marks, self._final_marks = dict(marks or {}), dict(marks or {})
        self._id_type: pa.DataType | None = None
        self._rows = 0

    def read(self, batch: pa.RecordBatch) -> dict[str, Any] | None:
        """Parse a batch: src, dst, time, edge, codes and, if there is one, label; None if it has no good row."""
        if not batch.num_rows:
            return None
        positions = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        layout = self._layout
        ends = self._parse_ids(batch) | {"time": self._parse_time(batch.column(layout.time))}
        if layout.label is not None:
            column, location = batch.column(layout.label), self._locate(layout.label)
            ends["label"] = self.label_parser.parse(column, location, layout.fill, layout.decimal)
        chosen = {
            name: self._parse_feature(name, batch.column(name))
            for name in layout.features
            if name not in layout.absent
        }
        named = [(getattr(layout, role), column) for role, column in ends.items()]
        good = self.bad_rows.judge([*named, *chosen.items()], positions)
        if not good.all():
            batch, positions = batch.filter(pa.array(good)), positions[good]
            ends, chosen = ({k: column.keep(good) for k, column in part.items()} for part in (ends, chosen))
        if not batch.num_rows:
            return None
        edge, codes, good = self.others.read(batch, chosen, positions)
        if not good.all():
            ends = {role: column.keep(good) for role, column in ends.items()}
        values = {role: column.values for role, column in ends.items()}
        if layout.label is not None:
            values["label"] = self.label_parser.encode(values["label"], self._locate(layout.label))
        return {**values, "edge": edge, "codes": codes} if len(edge) else None

    def _parse_ids(self, batch: pa.RecordBatch) -> dict[str, Parsed]:
        names = {role: getattr(self._layout, role) for role in ("src", "dst")}
        ids = {role: batch.column(name) for role, name in names.items()}
        if self._source.header is None:  # delimited text is dictionary-encoded already
            ids = {role: convert_ids(column, self._locate(names[role])) for role, column in ids.items()}
            if self._id_type is None:
                has_text = pa.string() in [column.type for column in ids.values()]
                self._id_type = pa.string() if has_text else pa.int64()
            ids = {role: column.cast(self._id_type).dictionary_encode() for role, column in ids.items()}
        return {role: clean_ids(column, self._layout.any_id) for role, column in ids.items()}

    def _parse_time(self, column: pa.Array) -> Parsed:
        location = self._locate(self._layout.time)
        if self.time_parser is None:
            try:
                self.time_parser = self._choose_time_parser(self._evidence, column)
            except FileError as error:
                if error.code != "ambiguous-date-order":
                    raise
                self.time_parser, self._evidence = self._survey_times(), None  # other rows may tell
            return self.time_parser.parse(column, location)
        parsed = self.time_parser.parse(column, location)
        if self._evidence is not None:
            self._evidence.add_parsed(column, self.time_parser, parsed)
            if self._choose_time_parser(self._evidence) != self.time_parser:
                final = self._survey_times()
                if final != self.time_parser:
                    raise ReadAgainError(time=final)
                self._evidence = None
        return parsed

    def _choose_time_parser(
        self, evidence: TimeEvidence | None, column: pa.Array | None = None
    ) -> TimeParser:
        layout, evidence = self._layout, evidence or TimeEvidence()
        if column is not None and layout.time_format is None:
            evidence.add(column)
        return evidence.choose(
            layout.time_unit,
            self._locate(layout.time),
            time_format=layout.time_format,
            order=layout.date_order,
            guess=True,
        )

    def _survey_times(self) -> TimeParser:
        """Choose how times are parsed by all rows, in a pass over their column."""
        evidence = TimeEvidence()
        for column in self._iterate_column(Layout(time=self._layout.time)):
            evidence.add(column)
        return self._choose_time_parser(evidence)

    def _parse_feature(self, name: str, column: pa.Array) -> Parsed:
        """Parse a numeric column that was asked for."""
        layout = self._layout
        if name not in self.marks:
            self.marks[name] = layout.decimal or find_decimal_mark(column)
        parsed = parse_floats(column, self._locate(name), layout.fill, self.marks[name])
        if layout.decimal is not None or name in self._final_marks or not parsed.bad.any():
            return parsed
        if proves_other_mark(column.filter(pa.array(parsed.bad)), self.marks[name]):
            evidence = TextEvidence()
            for values in self._iterate_column(Layout(features=(name,))):
                evidence.add(values)
            mark = evidence.choose_mark()
            self._final_marks[name] = mark
            if mark != self.marks[name]:
                raise ReadAgainError(marks=self._final_marks)
        return parsed

    def _iterate_column(self, layout: Layout) -> Iterator[pa.Array]:
        for batch in self._source.iterate(layout, BadRows(self._source.name, skip=True)):
            yield batch.column(0)

    def _locate(self, column: str | None) -> ColumnLocation:
        return ColumnLocation(self._source.name, str(column))


def read_table(
    source: Source, layout: ReadOptions, keep_rows: bool = False
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table with one event per row, in file order unless it had to be sorted on disk.

    Args:
        source: The table.
        layout: Which column is what, as `find_layout` returns it, and how values are written.
        keep_rows: Whether other files have values by row, so that events that were sorted must remember theirs.
    """
    decided: dict[str, Any] = {}
    while True:
        collector, reader = RowCollector(layout, keep_rows), RowReader(source, layout, **decided)
        try:
            _read_rows(source, layout, reader, collector)
            return _finish_table(source, layout, reader, collector)
        except ReadAgainError as error:
            decided |= error.decided


def _read_rows(source: Source, layout: ReadOptions, reader: RowReader, collector: RowCollector) -> None:
    """Collect all good rows."""
    try:
        for batch in layout.watch(iter(source.iterate(layout, reader.bad_rows)), source.batches):
            if (columns := reader.read(batch)) is not None:
                collector.add(columns)
    except FileError as error:
        is_encoding = error.code == "mostly-bad-rows" and reader.bad_rows.are_undecodable
        if isinstance(source.place, Path) and is_encoding:
            raise undecodable_error(source.place, layout.encoding, layout.skip_bad) from error
        raise


def _finish_table(
    source: Source, layout: ReadOptions, reader: RowReader, collector: RowCollector
) -> tuple[EventColumns, NodeIds, Origin]:
    path, bad_rows, time_parser = source.place, reader.bad_rows, reader.time_parser
    if not collector or time_parser is None:
        bad_rows.raise_unless_skipped()
        if isinstance(path, Path) and bad_rows.are_undecodable:
            raise undecodable_error(path, layout.encoding, layout.skip_bad)
        problem = "column names but no rows"
        if bad_rows.count:
            problem = f"no row that can be read ({bad_rows.summarize()})"
        raise FileError(f"{path} has {problem}; give at least one event", code="no-rows")
    others = reader.others.finish()
    columns, ids = collector.finish()
    edge, codes = others.select(columns.edge, columns.codes)
    label, classes = reader.label_parser.finish(columns.label)
    columns = replace(columns, edge=edge, codes=codes, categories=others.categories, label=label)
    unused = {name: others.unused[name] for name in source.names if name in others.unused}
    marks = {*reader.marks.values(), *others.marks} - {None}
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=source.format,
        src=layout.src or "",
        dst=layout.dst or "",
        time=layout.time or "",
        label=layout.label or "",
        classes=classes,
        features=others.names,
        types=tuple(category.name for category in others.categories),
        decimal="," if marks == {","} else "",
        unused_columns=tuple(unused),
        unused_reasons=tuple(unused.values()),
        time_unit="s" if time_parser.is_unix_time else "",
        time_origin="1970-01-01T00:00:00Z" if time_parser.is_unix_time else "",
        skipped=bad_rows.count,
        skipped_first=tuple(map(str, bad_rows.first)),
        **time_parser.describe(),
    )
    return columns, ids, origin


def build_dataset(path: Path | str, columns: EventColumns, ids: NodeIds, origin: Origin) -> "Dataset":
    """Build a dataset named after its file, with events sorted by time; ties keep their order."""
    if not len(columns.time):
        raise FileError(f"{path} has no rows; give at least one event", code="no-rows")
    node = np.zeros((len(ids), 0), np.float32) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        # NaN and infinities show in minimum or maximum, which need no copy of the column
        if values is not None and values.size and not np.isfinite([values.min(), values.max()]).all():
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
    out_of_order, create_store = columns.out_of_order, EventStore.from_columns
    if out_of_order is None:
        out_of_order = int((time < time.cummax(0).values).sum())
        create_store = EventStore.from_unsorted if out_of_order else create_store
    try:
        store = create_store(
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
