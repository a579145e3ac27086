"""Rows of text as values: a batch at once if all its rows are good, otherwise without the bad ones."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats.clocks import Clock
from dygmamba.data.formats.faults import Faults
from dygmamba.data.formats.options import ReadOptions, Roles
from dygmamba.data.formats.values import BadValue, Place, is_text, numbers

# what programs write for nothing
NO_IDS = pa.array(["", "nan", "null", "none", "n/a", "#n/a", "<na>", "\\n"])
NOTHING = NO_IDS.slice(0, 1)
NAMED = "remove the row or name both its nodes"


@dataclass(frozen=True, slots=True)
class Values:
    """The columns of one batch."""

    src: pa.DictionaryArray
    dst: pa.DictionaryArray
    time: np.ndarray
    edge: np.ndarray
    label: np.ndarray | None


@dataclass(frozen=True, slots=True)
class RowReader:
    """How the columns of a file become values, or a `BadValue`."""

    path: Path | str
    roles: Roles
    options: ReadOptions
    clock: Clock
    first_row: int

    def read(self, batch: pa.RecordBatch) -> Values:
        """All columns of some rows."""
        roles, fill = self.roles, self.options.fill
        missing = NOTHING if self.options.any_id else NO_IDS
        src, dst = (
            _identifiers(batch.column(name), self._place(name), missing) for name in (roles.src, roles.dst)
        )
        time = self.clock.seconds(batch.column(roles.time), self._place(roles.time))
        edge = np.empty((batch.num_rows, len(roles.features)), np.float32)
        for k, name in enumerate(roles.features):
            edge[:, k] = numbers(batch.column(name), self._place(name), fill)
        label = None
        if roles.label is not None:
            label = numbers(batch.column(roles.label), self._place(roles.label), fill)
        return Values(src, dst, time, edge, label)

    def _place(self, column: str) -> Place:
        return Place(str(self.path), column, self.first_row)


def without_bad(reader: RowReader, batch: pa.RecordBatch, faults: Faults) -> pa.RecordBatch:
    """The rows that can be read, the others told; found by halving, so that few bad rows cost little."""
    bad: list[int] = []

    def look(start: int, stop: int) -> None:
        try:
            reader.read(batch.slice(start, stop - start))
        except BadValue as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                look(start, middle)
                look(middle, stop)
            else:
                bad.append(start)
                faults.bad(reader.first_row + start, error.why, error.do)

    look(0, batch.num_rows)
    good = batch.filter(pa.array(np.isin(np.arange(batch.num_rows), bad, invert=True)))
    for name in {reader.roles.src, reader.roles.dst}:  # ids that only bad rows had must not become nodes
        column = good.column(name)
        fresh = column.dictionary_decode().dictionary_encode()
        good = good.set_column(good.schema.get_field_index(name), name, fresh)
    return good


def _identifiers(ids: pa.DictionaryArray, place: Place, nothing: pa.Array) -> pa.DictionaryArray:
    """The ids of a batch, white space around them ignored, none of them a word for nothing."""
    if ids.null_count:
        row = pc.index(pc.is_null(ids), True).as_py()
        raise place.error(row, "is empty", NAMED)
    if not is_text(ids.dictionary.type):
        return ids
    pool = pc.utf8_trim_whitespace(ids.dictionary)
    missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=nothing.cast(pool.type)))
    if len(missing):
        bad = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
        row = pc.index(bad, True).as_py()
        if row >= 0:
            written = pool[ids.indices[row].as_py()].as_py()
            raise place.error(row, f"is {written!r}, no id" if written else "is empty", NAMED)
    return pa.DictionaryArray.from_arrays(ids.indices, pool)
