"""What the columns of each of TGB's tables are, and what its loaders make of them (py-tgb 2.3).

Columns are known by their places. Weights of stablecoins and reviews are logarithms to the base 2 there, those of
tokens natural ones, with 1 in place of 0; the words of a comment are a share of 5,000. A flight's callsign and type are
letters as numbers, eight places each.
"""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from dygmamba.errors import FileError, first_line

MOST_WORDS = 5000
LETTERS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the features in a table of time, source and destination, and what is made of them."""

    features: tuple[int, ...] = (3,)
    made: Callable[[np.ndarray], np.ndarray] = lambda edge: edge
    texts: tuple[int, ...] = ()  # columns that are read letter by letter
    bipartite: bool = False  # two name spaces; of link tables TGB makes one
    nodes: str = ""  # a table about the nodes, where there is one


def logs(base: float) -> Callable[[np.ndarray], np.ndarray]:
    """The first column's logarithm, 1 in place of what has none."""

    def made(edge: np.ndarray) -> np.ndarray:
        weight = edge[:, 0].astype(np.float64)
        return np.column_stack([np.log(np.where(weight > 0, weight, 1.0)) / np.log(base), edge[:, 1:]])

    return made


def words(edge: np.ndarray) -> np.ndarray:
    """Words as a share, and the score as it is."""
    return edge / np.array([MOST_WORDS, 1], np.float32)


LAYOUTS = {
    "tgbl-coin": Layout(made=logs(2)),
    "tgbl-review": Layout(made=logs(2)),
    "tgbl-comment": Layout((3, 4), words),
    "tgbl-flight": Layout((), texts=(3, 4), nodes="airport_node_feat"),
    "tgbn-trade": Layout(),
    "tgbn-genre": Layout(bipartite=True),
    "tgbn-reddit": Layout((4,), bipartite=True),
    "tgbn-token": Layout((3, 4), logs(np.e), bipartite=True),
}
JODIES = (
    "tgbl-wiki",
    "tgbl-subreddit",
    "tgbl-uci",
    "tgbl-enron",
    "tgbl-lastfm",
)  # written as JODIE's files are


def letters(texts: pa.Array | pa.ChunkedArray, width: int, too_long: bool) -> np.ndarray:
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


def text_columns(path: Path, places: tuple[int, ...]) -> list[pa.ChunkedArray]:
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


def airports(path: Path, ids: list[str]) -> np.ndarray:
    """What is known of each airport: its type and continent by number of kind, its region in letters, where it is.

    Airports without a row have zeros throughout.
    """
    code, kind, continent, region, east, north = text_columns(path, (0, 1, 2, 3, 4, 5))
    place = pc.index_in(code, value_set=pa.array(ids, pa.string()))
    there = pc.is_valid(place)
    rows = pc.filter(place, there).to_numpy().astype(np.int64)
    kinds = [_kinds(pc.filter(column, there)) for column in (kind, continent)]
    where = [_floats(path, pc.filter(column, there)) for column in (east, north)]
    known = np.column_stack([*kinds, letters(pc.filter(region, there).combine_chunks(), 7, False), *where])
    table = np.zeros((len(ids), known.shape[1]), np.float32)
    table[rows] = known
    return table


def _kinds(column: pa.ChunkedArray) -> np.ndarray:
    """A column of words as one column per word, in the order in which they appear."""
    codes = column.combine_chunks().dictionary_encode()
    return np.eye(max(1, len(codes.dictionary)), dtype=np.float32)[codes.indices.to_numpy()]


def _floats(path: Path, column: pa.ChunkedArray) -> np.ndarray:
    try:
        return column.cast(pa.float64()).to_numpy().astype(np.float32)
    except pa.ArrowInvalid as error:
        raise FileError(
            f"{path} has a place that is no number ({first_line(error)}); copy it again"
        ) from error
