"""TGB's sets as RelBench stores them: db/events.parquet of event_id, src_id, dst_id, event_ts and weight.

Where there are two tables of nodes, sources and destinations are numbered apart; TGB's own numbers, of which its
negatives speak, have the destinations behind the sources, and so have ours.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dygmamba.data.folders import EVENTS
from dygmamba.data.formats.arrow import ROWS, with_id_columns
from dygmamba.data.formats.options import COLUMNS, ReadOptions, Roles, require_column
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.ids import NodeIds
from dygmamba.errors import FileError, first_line

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

FORMAT = "relbench"
WEIGHT = "weight"


def read(path: Path, options: ReadOptions) -> "Dataset":
    """The events of a folder, named after it; the nodes are as many as the tables of nodes say."""
    options.refuse("RelBench", *COLUMNS, "bipartite", "header")
    table = path / EVENTS
    if not table.is_file():
        raise FileError(f"{path} has no {EVENTS}; give a folder as RelBench stores TGB's sets")
    try:
        with parquet.ParquetFile(table) as file:
            names = file.schema_arrow.names
            src, dst, time = (require_column(table, names, name) for name in ("src_id", "dst_id", "event_ts"))
            roles = Roles(src, dst, time, (WEIGHT,) if WEIGHT in names else ())
            rows = file.iter_batches(batch_size=ROWS, columns=roles.columns)
            batches = options.watch(
                with_id_columns(table, file.schema_arrow, rows, roles), 1 + file.metadata.num_rows // ROWS
            )
            columns, ids, origin = read_table(table, FORMAT, batches, roles, options)
        counts = _counts(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"{table} is not a whole Parquet file ({first_line(error)}); copy it again"
        ) from error
    number = ids.values.to_numpy()
    src, dst = number[columns.src], number[columns.dst]
    if min(src.min(), dst.min()) < 0 or src.max() >= counts[0] or dst.max() >= counts[-1]:
        raise FileError(
            f"{table} names nodes beyond the {sum(counts):,} of its tables; copy the folder again"
        )
    every = np.concatenate([np.arange(count) for count in counts])
    two = len(counts) == 2
    columns = replace(columns, src=src, dst=dst + counts[0] if two else dst)
    named = NodeIds(pa.array(every), counts[0] if two else None)
    return replace(arranged(table, columns, named, replace(origin, file=path.name)), name=path.name)


def _counts(path: Path) -> list[int]:
    """How many nodes there are: one number, or one of each side."""
    whole = path / EVENTS.parent / "nodes.parquet"
    sides = [path / EVENTS.parent / f"{side}_nodes.parquet" for side in ("src", "dst")]
    found = [whole] if whole.is_file() else sides
    for file in found:
        if not file.is_file():
            raise FileError(
                f"{path} has no table of nodes ({file.name}); give a folder as RelBench stores TGB's sets"
            )
    return [parquet.read_metadata(file).num_rows for file in found]
