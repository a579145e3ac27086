"""Folders of the TGB family: TGB's own tables, and TGB-Seq's.

Nodes keep TGB's numbers, because the published negatives refer to them.

TGB (Huang et al., NeurIPS 2023): NAME_edgelist.csv. Nodes are numbered in order of appearance; in tables with JODIE's
layout by the number in the table, destinations after the sources. Columns are known by position, and transformed as
the loaders of py-tgb 2.3 do it: weights of stablecoins and reviews to log2, of tokens to natural logarithms, with 1 in
place of 0; word counts of comments to a share of 5,000; callsigns and types of flights to one number per letter.

Any other NAME_edgelist.csv with NAME_val_ns.pkl and NAME_test_ns.pkl beside it is a folder of one's own in this format.

TGB-Seq (Yi et al., ICLR 2025): NAME.csv of src, dst, time and split, with feature arrays next to it.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from dygmamba.core.errors import FileError, first_line
from dygmamba.core.files.untrusted import report_damage
from dygmamba.data.catalogue.leaderboard_folders import find_tgb_edge_list, find_tgb_seq_table
from dygmamba.data.events.ids import NodeIds, order_by_first_event
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.collect import EventColumns
from dygmamba.data.readers.delimited import open_csv
from dygmamba.data.readers.header import read_header
from dygmamba.data.readers.jodie_dyglib import read_jodie_table
from dygmamba.data.readers.numpy_files import (
    MAX_NODES_PER_EVENT,
    MAX_SPARSE_NODES,
    build_numbered_ids,
    load_matrix,
)
from dygmamba.data.readers.options import COLUMN_OPTIONS, TGB_FORMAT, ReadOptions
from dygmamba.data.readers.table import build_dataset, read_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

TGB_SEQ_FORMAT = "tgb-seq"
MAX_WORDS = 5000
LETTER_COUNT = 8
AIRPORT_REGION_LETTERS = 7
SPLIT_COLUMN = "split"
OWN_COLUMNS = ("src", "dst", "time")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Positions of the features in a table of time, source and destination, and their transformation."""

    features: tuple[int, ...] = (3,)
    transform: Callable[[np.ndarray], np.ndarray] = lambda edge: edge
    texts: tuple[int, ...] = ()  # columns encoded letter by letter
    bipartite: bool = False  # sources and destinations are numbered apart; TGB does so in node tasks only
    nodes: str = ""  # name of a table of node features, if there is one


def log_transform(base: float) -> Callable[[np.ndarray], np.ndarray]:
    """Build a transform that takes the logarithm of the first column, 0 for values that have none."""

    def transform(edge: np.ndarray) -> np.ndarray:
        weight = edge[:, 0].astype(np.float64)
        return np.column_stack([np.log(np.where(weight > 0, weight, 1.0)) / np.log(base), edge[:, 1:]])

    return transform


def scale_words(edge: np.ndarray) -> np.ndarray:
    """Divide the word count by `MAX_WORDS`; the score in the second column stays."""
    return edge / np.array([MAX_WORDS, 1], np.float32)


TABLE_LAYOUTS = {
    "tgbl-coin": TableLayout(transform=log_transform(2)),
    "tgbl-review": TableLayout(transform=log_transform(2)),
    "tgbl-comment": TableLayout((3, 4), scale_words),
    "tgbl-flight": TableLayout((), texts=(3, 4), nodes="airport_node_feat"),
    "tgbn-trade": TableLayout(),
    "tgbn-genre": TableLayout(bipartite=True),
    "tgbn-reddit": TableLayout((4,), bipartite=True),
    "tgbn-token": TableLayout((3, 4), log_transform(np.e), bipartite=True),
}
# tables with the layout of JODIE's files
JODIE_LAYOUTS = ("tgbl-wiki", "tgbl-subreddit", "tgbl-uci", "tgbl-enron", "tgbl-lastfm")


def encode_letters(texts: pa.Array | pa.ChunkedArray, width: int, drop_long: bool) -> np.ndarray:
    """Encode text as one number per letter, as py-tgb does: digits as themselves, A as 30, -1 past the end.

    With `drop_long`, text longer than `width` counts as empty, otherwise it is cut.
    """
    texts = pc.fill_null(texts.cast(pa.string()), "")
    if drop_long:
        texts = pc.if_else(pc.greater(pc.utf8_length(texts), width), "", texts)
    padded = pc.utf8_upper(pc.utf8_slice_codeunits(pc.utf8_rpad(texts, width, "!"), 0, width))
    ascii_only = pc.replace_substring_regex(padded, "[^ -~]", "?")
    codes = np.array(ascii_only.to_pylist(), f"S{width}").view(np.uint8).reshape(-1, width).astype(np.float32)
    is_digit = (codes >= ord("0")) & (codes <= ord("9"))
    numbers = np.where(codes == ord("!"), -1, np.where(is_digit, codes - ord("0"), codes - 35))
    return numbers.astype(np.float32)


def read_text_columns(path: Path, positions: tuple[int, ...]) -> list[pa.ChunkedArray]:
    """Read columns of a CSV table as text, by their positions."""
    reading = arrow_csv.ReadOptions(skip_rows=1, autogenerate_column_names=True)
    conversion = arrow_csv.ConvertOptions(
        include_columns=[f"f{position}" for position in positions],
        column_types={f"f{position}": pa.string() for position in range(max(positions) + 1)},
        strings_can_be_null=False,
    )
    with report_damage(path, "a valid TGB table", (pa.ArrowException, OSError), "copy it again"):
        return arrow_csv.read_csv(path, reading, convert_options=conversion).columns


def read_airports(path: Path, ids: list[str]) -> np.ndarray:
    """Read the features of airports: type and continent one-hot, region in letters, longitude and latitude.

    Airports without a row have zeros throughout.
    """
    code, kind, continent, region, east, north = read_text_columns(path, (0, 1, 2, 3, 4, 5))
    node = pc.index_in(code, value_set=pa.array(ids, pa.string()))
    known = pc.is_valid(node)
    rows = pc.filter(node, known).to_numpy().astype(np.int64)
    one_hots = [_one_hot(pc.filter(column, known)) for column in (kind, continent)]
    position = [_as_floats(path, pc.filter(column, known)) for column in (east, north)]
    letters = encode_letters(pc.filter(region, known).combine_chunks(), AIRPORT_REGION_LETTERS, False)
    features = np.column_stack([*one_hots, letters, *position])
    table = np.zeros((len(ids), features.shape[1]), np.float32)
    table[rows] = features
    return table


def _one_hot(column: pa.ChunkedArray) -> np.ndarray:
    """Encode words one-hot, in order of appearance."""
    codes = column.combine_chunks().dictionary_encode()
    return np.eye(max(1, len(codes.dictionary)), dtype=np.float32)[codes.indices.to_numpy()]


def _as_floats(path: Path, column: pa.ChunkedArray) -> np.ndarray:
    try:
        return column.cast(pa.float64()).to_numpy().astype(np.float32)
    except pa.ArrowInvalid as error:
        raise FileError(
            f"{path} has a coordinate that is not a number ({first_line(error)}); copy it again",
            code="file-damaged",
        ) from error


def read_tgb(path: Path, options: ReadOptions) -> "Dataset":
    """Read a TGB folder, or its table; the dataset is named as TGB names it."""
    options.reject("TGB", *COLUMN_OPTIONS, "bipartite", "header")
    table, name, version = find_tgb_edge_list(path)
    options = replace(options, any_id=True)
    if name in JODIE_LAYOUTS:
        columns, ids, origin = read_jodie_table(
            table, TGB_FORMAT, replace(options, header=True), "a TGB table with this layout", "copy it again"
        )
        columns, ids = _number_nodes(table, columns, ids)
    elif name in TABLE_LAYOUTS:
        columns, ids, origin = _read_known_layout(table, name, version, options)
    else:
        columns, ids, origin = _read_own_layout(table, name, version, options)
    return replace(build_dataset(table, columns, ids, replace(origin, format=TGB_FORMAT)), name=name)


def _take_numbers(table: Path, columns: EventColumns, ids: NodeIds, advice: str) -> EventColumns:
    """Use the ids in the table, which must be integers, as node numbers; `advice` ends the error."""
    if ids.kind != "int":
        raise FileError(f"{table} has node names, but {advice}", code="bad-node-number")
    number = ids.values.to_numpy()
    return replace(columns, src=number[columns.src], dst=number[columns.dst])


def _number_nodes(table: Path, columns: EventColumns, ids: NodeIds) -> tuple[EventColumns, NodeIds]:
    """Use the numbers in the table as node numbers, destinations after the highest source."""
    advice = "TGB tables with this layout have node numbers; copy it again"
    columns = _take_numbers(table, columns, ids, advice)
    src, dst = columns.src, columns.dst
    sources, destinations = int(src.max()) + 1, int(dst.max()) + 1
    most = max(MAX_SPARSE_NODES, MAX_NODES_PER_EVENT * len(src))
    if min(src.min(), dst.min()) < 0 or sources + destinations > most:
        raise FileError(
            f"{table} has {sources:,} sources for {len(src):,} events; number them from 0 without gaps",
            code="node-numbers-too-sparse",
        )
    numbers = np.concatenate([np.arange(sources), np.arange(destinations)])
    return replace(columns, dst=dst + sources), NodeIds(pa.array(numbers), sources)


def _read_own_layout(
    table: Path, name: str, version: str, options: ReadOptions
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table of one's own: src, dst, time and features; the negatives refer to the numbers in src and dst."""
    files = [f"{name}_{period}_ns{version}.pkl" for period in ("val", "test")]
    if missing := [file for file in files if not table.with_name(file).is_file()]:
        raise FileError(
            f"{table}: {name!r} is not a known TGB dataset, and a folder of your own needs its negatives in "
            f"{' and '.join(missing)}; add them, or read the table with `format='csv'`",
            code="unknown-tgb-dataset",
        )
    header = read_header(table, replace(options, header=True))
    if missing := [column for column in OWN_COLUMNS if column not in header.names]:
        raise FileError(
            f"{table} has no column {' and no column '.join(map(repr, missing))}; in a TGB folder of your own the "
            f"columns of the events are named {', '.join(OWN_COLUMNS)}",
            code="wrong-columns",
        )
    src, dst, time = OWN_COLUMNS
    features = tuple(column for column in header.names if column not in OWN_COLUMNS)
    layout = replace(options, src=src, dst=dst, time=time, features=features, bipartite=False)
    columns, ids, origin = read_table(open_csv(table, options, header, TGB_FORMAT), layout)
    advice = (
        "its negatives are node numbers; give the nodes numbers from 0, in the table and in the negatives"
    )
    columns = _take_numbers(table, columns, ids, advice)
    return columns, build_numbered_ids(table, columns.src, columns.dst), origin


def _read_known_layout(
    table: Path, name: str, version: str, options: ReadOptions
) -> tuple[EventColumns, NodeIds, Origin]:
    layout = TABLE_LAYOUTS[name]
    header = read_header(table, replace(options, header=True))
    needed = 1 + max((2, *layout.features, *layout.texts))
    if header.width < needed:
        raise FileError(
            f"{table} has {header.width} columns, {name} at least {needed}; copy it again",
            code="too-few-columns",
        )
    features = tuple(header.names[position] for position in layout.features)
    time, src, dst = header.names[:3]
    chosen = replace(options, src=src, dst=dst, time=time, features=features, bipartite=layout.bipartite)
    columns, ids, origin = read_table(open_csv(table, options, header, TGB_FORMAT), chosen, keep_rows=True)
    edge = layout.transform(columns.edge)
    if layout.texts:
        # py-tgb drops an aircraft type that is too long, but cuts a callsign
        texts = enumerate(read_text_columns(table, layout.texts))
        edge = np.column_stack([encode_letters(text, LETTER_COUNT, k > 0) for k, text in texts])
        if len(edge) != len(columns.src):
            raise FileError(f"{table} has rows that cannot be read; copy it again", code="file-damaged")
        edge = columns.sort_like(edge)
    columns = replace(columns, edge=np.ascontiguousarray(edge, np.float32))
    if not layout.bipartite:
        columns, ids = number_by_appearance(columns, ids)
    node_file = table.with_name(f"{layout.nodes}{version}.csv")
    if layout.nodes and node_file.is_file():
        columns = replace(columns, node=read_airports(node_file, list(map(str, ids.values.to_pylist()))))
    letters = (f"{header.names[position]}_{k}" for position in layout.texts for k in range(LETTER_COUNT))
    return columns, ids, replace(origin, features=features or tuple(letters))


def number_by_appearance(columns: EventColumns, ids: NodeIds) -> tuple[EventColumns, NodeIds]:
    """Number nodes by their first appearance in the file, row by row, a source before its destination."""
    rows = slice(None) if columns.row is None else np.argsort(columns.row)
    order = order_by_first_event(columns.src[rows], columns.dst[rows], len(ids))
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    ids = NodeIds(ids.values.take(pa.array(order)))
    return replace(columns, src=number[columns.src], dst=number[columns.dst]), ids


def read_tgb_seq(path: Path, options: ReadOptions) -> "Dataset":
    """Read a TGB-Seq folder, or its table.

    Nodes keep their numbers; the graph is bipartite if every source has a lower number than every destination.
    """
    options.reject("TGB-Seq", *COLUMN_OPTIONS, "bipartite", "header")
    table = find_tgb_seq_table(path)
    columns, origin = read_split_table(table, options)
    edge, node = (load_matrix(find_companion(table, f"{kind}_feat")) for kind in ("edge", "node"))
    ids = build_numbered_ids(table, columns.src, columns.dst, node)
    if edge is not None and len(edge) != len(columns.src):
        raise FileError(
            f"{find_companion(table, 'edge_feat')} has {len(edge):,} rows for {len(columns.src):,} events; "
            "fetch both again",
            code="row-count-differs",
        )
    edge = columns.edge[:, :0] if edge is None else columns.sort_like(edge)
    columns = replace(columns, edge=edge, label=None, node=node)
    return build_dataset(table, columns, ids, replace(origin, label=""))


def read_split_table(table: Path, options: ReadOptions) -> tuple[EventColumns, Origin]:
    """Read a TGB-Seq table, with the split of each event as its label."""
    header = read_header(table, replace(options, header=True))
    if SPLIT_COLUMN not in header.names:
        raise FileError(
            f"{table} has no column '{SPLIT_COLUMN}', as TGB-Seq's tables do; read it with `format='csv'`",
            code="wrong-columns",
        )
    layout = replace(options, src="src", dst="dst", time="time", label=SPLIT_COLUMN, bipartite=False)
    columns, ids, origin = read_table(
        open_csv(table, options, header, TGB_SEQ_FORMAT), layout, keep_rows=True
    )
    return _take_numbers(table, columns, ids, "TGB-Seq has node numbers; read it with `format='csv'`"), origin


def find_companion(table: Path, suffix: str) -> Path:
    """Return the path of NAME_suffix.npy; of a versioned table NAME_suffix_v1.npy or NAME_v1_suffix.npy."""
    name, mark, version = table.stem.rpartition("_v")
    if not mark or not version.isdigit():
        return table.with_name(f"{table.stem}_{suffix}.npy")
    version_last = table.with_name(f"{name}_{suffix}_v{version}.npy")
    return version_last if version_last.exists() else table.with_name(f"{table.stem}_{suffix}.npy")
