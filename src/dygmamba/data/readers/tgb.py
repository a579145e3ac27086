"""What the columns of each of TGB's tables are, and what its loaders make of them (py-tgb 2.3).

Columns are known by their places. Weights of stablecoins and reviews are logarithms to the base 2 there, those of
tokens natural ones, with 1 in place of 0; the words of a comment are a share of 5,000. A flight's callsign and type are
letters as numbers, eight places each.

TGB's tables (Huang et al., NeurIPS 2023): a folder with NAME_edgelist.csv, and what is published beside it.

Nodes get the numbers that TGB gives them, for its files of negatives speak of these: in the order in which they appear,
or of tables in JODIE's layout the number that stands there, destinations behind the sources.

TGB-Seq's tables (Yi et al., ICLR 2025): NAME.csv of src, dst, time and split, features as arrays beside it.

TGB's sets as RelBench stores them: db/events.parquet of event_id, src_id, dst_id, event_ts and weight.

Where there are two tables of nodes, sources and destinations are numbered apart; TGB's own numbers, of which its
negatives speak, have the destinations behind the sources, and so have ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from pyarrow import parquet

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.catalogue.leaderboard_folders import (
    RELBENCH_EVENTS,
    find_tgb_edge_list,
    find_tgb_seq_table,
)
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.columnar import BATCH_ROWS, encode_id_columns
from dygmamba.data.readers.delimited import read_csv_rows, read_header
from dygmamba.data.readers.jodie_dyglib import JODIE_COLUMNS
from dygmamba.data.readers.numpy_files import (
    DAMAGED_FILE_ERRORS,
    MAX_NODES_PER_EVENT,
    MAX_SPARSE_NODES,
    build_numbered_ids,
    describe_load_error,
    read_array_header,
)
from dygmamba.data.readers.options import COLUMN_OPTIONS, ColumnRoles, ReadOptions, require_column
from dygmamba.data.readers.table import EventColumns, build_dataset, drop_zero_columns, read_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


MAX_WORDS = 5000
LETTER_COUNT = 8


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The places of the features in a table of time, source and destination, and what is made of them."""

    features: tuple[int, ...] = (3,)
    made: Callable[[np.ndarray], np.ndarray] = lambda edge: edge
    texts: tuple[int, ...] = ()  # columns that are read letter by letter
    bipartite: bool = False  # two name spaces; of link tables TGB makes one
    nodes: str = ""  # a table about the nodes, where there is one


def log_transform(base: float) -> Callable[[np.ndarray], np.ndarray]:
    """The first column's logarithm, 1 in place of what has none."""

    def made(edge: np.ndarray) -> np.ndarray:
        weight = edge[:, 0].astype(np.float64)
        return np.column_stack([np.log(np.where(weight > 0, weight, 1.0)) / np.log(base), edge[:, 1:]])

    return made


def scale_words(edge: np.ndarray) -> np.ndarray:
    """Words as a share, and the score as it is."""
    return edge / np.array([MAX_WORDS, 1], np.float32)


TABLE_LAYOUTS = {
    "tgbl-coin": TableLayout(made=log_transform(2)),
    "tgbl-review": TableLayout(made=log_transform(2)),
    "tgbl-comment": TableLayout((3, 4), scale_words),
    "tgbl-flight": TableLayout((), texts=(3, 4), nodes="airport_node_feat"),
    "tgbn-trade": TableLayout(),
    "tgbn-genre": TableLayout(bipartite=True),
    "tgbn-reddit": TableLayout((4,), bipartite=True),
    "tgbn-token": TableLayout((3, 4), log_transform(np.e), bipartite=True),
}
JODIE_LAYOUTS = (
    "tgbl-wiki",
    "tgbl-subreddit",
    "tgbl-uci",
    "tgbl-enron",
    "tgbl-lastfm",
)  # written as JODIE's files are


def encode_letters(texts: pa.Array | pa.ChunkedArray, width: int, too_long: bool) -> np.ndarray:
    """Text as one number a letter: digits themselves, letters by the alphabet, -1 where there is none.

    `too_long`: what is longer than it may be counts as nothing, else it is cut.
    """
    texts = pc.fill_null(texts.cast(pa.string()), "")
    if too_long:
        texts = pc.if_else(pc.greater(pc.utf8_length(texts), width), "", texts)
    padded = pc.utf8_upper(pc.utf8_slice_codeunits(pc.utf8_rpad(texts, width, "!"), 0, width))
    plain = pc.replace_substring_regex(padded, "[^ -~]", "?")
    codes = np.array(plain.to_pylist(), f"S{width}").view(np.uint8).reshape(-1, width).astype(np.float32)
    digit = (codes >= ord("0")) & (codes <= ord("9"))
    return np.where(codes == ord("!"), -1, np.where(digit, codes - ord("0"), codes - 35)).astype(np.float32)


def read_text_columns(path: Path, places: tuple[int, ...]) -> list[pa.ChunkedArray]:
    """Columns of a table as text, by their places."""
    names = [str(place) for place in range(max(places) + 1)]
    try:
        rows = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(skip_rows=1, autogenerate_column_names=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[f"f{place}" for place in places],
                column_types={f"f{name}": pa.string() for name in names},
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} is no table of TGB's ({first_line(error)}); copy it again") from error
    return rows.columns


def read_airports(path: Path, ids: list[str]) -> np.ndarray:
    """What is known of each airport: its type and continent by number of kind, its region in letters, where it is.

    Airports without a row have zeros throughout.
    """
    code, kind, continent, region, east, north = read_text_columns(path, (0, 1, 2, 3, 4, 5))
    place = pc.index_in(code, value_set=pa.array(ids, pa.string()))
    there = pc.is_valid(place)
    rows = pc.filter(place, there).to_numpy().astype(np.int64)
    kinds = [_one_hot(pc.filter(column, there)) for column in (kind, continent)]
    where = [_as_floats(path, pc.filter(column, there)) for column in (east, north)]
    known = np.column_stack(
        [*kinds, encode_letters(pc.filter(region, there).combine_chunks(), 7, False), *where]
    )
    table = np.zeros((len(ids), known.shape[1]), np.float32)
    table[rows] = known
    return table


def _one_hot(column: pa.ChunkedArray) -> np.ndarray:
    """A column of words as one column per word, in the order in which they appear."""
    codes = column.combine_chunks().dictionary_encode()
    return np.eye(max(1, len(codes.dictionary)), dtype=np.float32)[codes.indices.to_numpy()]


def _as_floats(path: Path, column: pa.ChunkedArray) -> np.ndarray:
    try:
        return column.cast(pa.float64()).to_numpy().astype(np.float32)
    except pa.ArrowInvalid as error:
        raise FileError(
            f"{path} has a place that is no number ({first_line(error)}); copy it again"
        ) from error


TGB_FORMAT = "tgb"


def read_tgb(path: Path, options: ReadOptions) -> "Dataset":
    """The events of a folder, or of its table, named as TGB names it."""
    options.refuse("TGB", *COLUMN_OPTIONS, "bipartite", "header")
    table, name, version = find_tgb_edge_list(path)
    options = replace(options, any_id=True)
    if name in JODIE_LAYOUTS:
        columns, ids, origin = _read_jodie_layout(table, options)
    elif name in TABLE_LAYOUTS:
        columns, ids, origin = _read_known_layout(table, name, version, options)
    else:
        raise FileError(f"{table} is of no known set of TGB's; read it with `format='csv'`")
    return replace(build_dataset(table, columns, ids, replace(origin, format=TGB_FORMAT)), name=name)


def _read_jodie_layout(table: Path, options: ReadOptions) -> tuple[EventColumns, NodeIds, Origin]:
    header = read_header(table, replace(options, header=True))
    if header.width < len(JODIE_COLUMNS):
        raise FileError(
            f"{table} has {header.width} columns, a table of TGB's in this layout {len(JODIE_COLUMNS)}; copy it again"
        )
    features = tuple(f"feature_{k}" for k in range(header.width - len(JODIE_COLUMNS)))
    roles = ColumnRoles(*JODIE_COLUMNS[:3], features, JODIE_COLUMNS[3])
    header = replace(header, names=JODIE_COLUMNS + features)
    columns, ids, origin = read_csv_rows(table, TGB_FORMAT, header, roles, replace(options, bipartite=True))
    columns, ids = _number_nodes(table, columns, ids)
    columns = drop_zero_columns(columns)
    return columns, ids, replace(origin, features=features[: columns.edge.shape[1]])


def _number_nodes(table: Path, columns: EventColumns, ids: NodeIds) -> tuple[EventColumns, NodeIds]:
    """The numbers in the table, those of destinations behind the highest source."""
    if ids.kind != "int":
        raise FileError(
            f"{table} names its nodes, which tables of TGB's in this layout number; copy it again"
        )
    number = ids.values.to_numpy()
    src, dst = number[columns.src], number[columns.dst]
    sources, others = int(src.max()) + 1, int(dst.max()) + 1
    if min(src.min(), dst.min()) < 0 or sources + others > max(
        MAX_SPARSE_NODES, MAX_NODES_PER_EVENT * len(src)
    ):
        raise FileError(
            f"{table} has {sources:,} sources for {len(src):,} events; number them from 0 without gaps"
        )
    every = np.concatenate([np.arange(sources), np.arange(others)])
    return replace(columns, src=src, dst=dst + sources), NodeIds(pa.array(every), sources)


def _read_known_layout(
    table: Path, name: str, version: str, options: ReadOptions
) -> tuple[EventColumns, NodeIds, Origin]:
    layout = TABLE_LAYOUTS[name]
    header = read_header(table, replace(options, header=True))
    needed = 1 + max((2, *layout.features, *layout.texts))
    if header.width < needed:
        raise FileError(f"{table} has {header.width} columns, TGB's {name} at least {needed}; copy it again")
    names = tuple(header.names[place] for place in layout.features)
    roles = ColumnRoles(header.names[1], header.names[2], header.names[0], names)
    how = replace(options, bipartite=layout.bipartite)
    columns, ids, origin = read_csv_rows(table, TGB_FORMAT, header, roles, how)
    edge = layout.made(columns.edge)
    if layout.texts:
        edge = np.column_stack(
            [
                encode_letters(text, LETTER_COUNT, k > 0)
                for k, text in enumerate(read_text_columns(table, layout.texts))
            ]
        )
        _require_all_rows(table, edge, columns)
    columns = replace(columns, edge=np.ascontiguousarray(edge, np.float32))
    if not layout.bipartite:
        columns, ids = number_by_appearance(columns, ids)
    known = table.with_name(f"{layout.nodes}{version}.csv")
    if layout.nodes and known.is_file():
        columns = replace(columns, node=read_airports(known, list(map(str, ids.values.to_pylist()))))
    return columns, ids, replace(origin, features=names or _letter_feature_names(layout.texts, header.names))


def _require_all_rows(table: Path, edge: np.ndarray, columns: EventColumns) -> None:
    if len(edge) != len(columns.src):
        raise FileError(f"{table} has rows that cannot be read; copy it again")


def _letter_feature_names(texts: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{names[place]}_{k}" for place in texts for k in range(LETTER_COUNT))


def number_by_appearance(columns: EventColumns, ids: NodeIds) -> tuple[EventColumns, NodeIds]:
    """Nodes numbered by their first appearance, row by row, a source before its destination."""
    seen = np.column_stack([columns.src, columns.dst]).ravel()
    first = np.empty(len(ids), np.int64)
    first[seen[::-1]] = np.arange(len(seen) - 1, -1, -1)  # of several the last one stays: the earliest
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return replace(columns, src=number[columns.src], dst=number[columns.dst]), NodeIds(
        ids.values.take(pa.array(order))
    )


TGB_SEQ_FORMAT = "tgb-seq"
SPLIT_COLUMN = "split"


def read_tgb_seq(path: Path, options: ReadOptions) -> "Dataset":
    """The events; nodes keep their numbers, and two sides where every source comes before every destination."""
    options.refuse("TGB-Seq", *COLUMN_OPTIONS, "bipartite", "header")
    table = find_tgb_seq_table(path)
    columns, origin = read_split_table(table, options)
    edge, node = (read_matrix(find_companion(table, f"{kind}_feat")) for kind in ("edge", "node"))
    ids = build_numbered_ids(table, columns.src, columns.dst, node)
    columns = replace(columns, edge=columns.edge[:, :0] if edge is None else edge, label=None, node=node)
    if len(columns.edge) != len(columns.src):
        raise FileError(
            f"{find_companion(table, 'edge_feat')} has {len(columns.edge):,} rows for {len(columns.src):,} events"
        )
    return build_dataset(table, columns, ids, replace(origin, label=""))


def read_split_table(table: Path, options: ReadOptions) -> tuple[EventColumns, Origin]:
    """The table's rows in its own order, the period of each as its label."""
    header = read_header(table, replace(options, header=True))
    if SPLIT_COLUMN not in header.names:
        raise FileError(
            f"{table} has no column '{SPLIT_COLUMN}', as TGB-Seq's tables do; read it with `format='csv'`"
        )
    roles = ColumnRoles("src", "dst", "time", (), SPLIT_COLUMN)
    columns, ids, origin = read_csv_rows(
        table, TGB_SEQ_FORMAT, header, roles, replace(options, bipartite=False)
    )
    if ids.kind != "int":
        raise FileError(f"{table} names its nodes, which TGB-Seq numbers; read it with `format='csv'`")
    number = ids.values.to_numpy()
    return replace(columns, src=number[columns.src], dst=number[columns.dst]), origin


def find_companion(table: Path, what: str) -> Path:
    """A companion of a table: NAME_what.npy, of a version NAME_what_v1.npy or NAME_v1_what.npy."""
    name, mark, version = table.stem.rpartition("_v")
    if not mark or not version.isdigit():
        return table.with_name(f"{table.stem}_{what}.npy")
    behind = table.with_name(f"{name}_{what}_v{version}.npy")
    return behind if behind.exists() else table.with_name(f"{table.stem}_{what}.npy")


def read_matrix(path: Path, kinds: str = "fiu", kind: type = np.float32) -> np.ndarray | None:
    """An array of numbers with one row each, checked before it is read; None where there is none."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            shape = read_array_header(file, path.stat().st_size)
            if len(shape.axes) != 2 or shape.dtype.kind not in kinds:
                raise FileError(f"{path} is {shape}; it must be a matrix of numbers")
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False).astype(kind, copy=False)
    except DAMAGED_FILE_ERRORS as error:
        raise FileError(
            f"{path} is not a whole .npy file ({describe_load_error(error)}); copy it again"
        ) from error


RELBENCH_FORMAT = "relbench"
WEIGHT_COLUMN = "weight"


def read_relbench(path: Path, options: ReadOptions) -> "Dataset":
    """The events of a folder, named after it; the nodes are as many as the tables of nodes say."""
    options.refuse("RelBench", *COLUMN_OPTIONS, "bipartite", "header")
    table = path / RELBENCH_EVENTS
    if not table.is_file():
        raise FileError(f"{path} has no {RELBENCH_EVENTS}; give a folder as RelBench stores TGB's sets")
    try:
        with parquet.ParquetFile(table) as file:
            names = file.schema_arrow.names
            src, dst, time = (require_column(table, names, name) for name in ("src_id", "dst_id", "event_ts"))
            roles = ColumnRoles(src, dst, time, (WEIGHT_COLUMN,) if WEIGHT_COLUMN in names else ())
            rows = file.iter_batches(batch_size=BATCH_ROWS, columns=roles.columns)
            batches = options.watch(
                encode_id_columns(table, file.schema_arrow, rows, roles),
                1 + file.metadata.num_rows // BATCH_ROWS,
            )
            columns, ids, origin = read_table(table, RELBENCH_FORMAT, batches, roles, options)
        counts = _count_nodes(path)
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
    return replace(build_dataset(table, columns, named, replace(origin, file=path.name)), name=path.name)


def _count_nodes(path: Path) -> list[int]:
    """How many nodes there are: one number, or one of each side."""
    whole = path / RELBENCH_EVENTS.parent / "nodes.parquet"
    sides = [path / RELBENCH_EVENTS.parent / f"{side}_nodes.parquet" for side in ("src", "dst")]
    found = [whole] if whole.is_file() else sides
    for file in found:
        if not file.is_file():
            raise FileError(
                f"{path} has no table of nodes ({file.name}); give a folder as RelBench stores TGB's sets"
            )
    return [parquet.read_metadata(file).num_rows for file in found]
