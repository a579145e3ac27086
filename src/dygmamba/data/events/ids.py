"""Whose node is it: the user's own ids on one side, 0..N-1 on the other."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, NotFoundError

if TYPE_CHECKING:  # compiled when there is more than memory takes
    from dygmamba.ops.hash_map import HashMap

Side = Literal["src", "dst"]


@dataclass(frozen=True, slots=True)
class NodeIds:
    """The user's id of every node; in a bipartite stream also how many are sources, and which: the first, if not said.

    There the two sides are separate name spaces: source 7 and destination 7 are two nodes.
    """

    values: pa.Array  # int64 or large_string; row = node
    sources: int | None = None
    is_source: pa.Array | None = (
        None  # of booleans; a stream that goes on gets new sources behind its destinations
    )

    def __post_init__(self) -> None:
        if self.values.type not in (pa.int64(), pa.large_string()):
            raise EventError(f"node ids are {self.values.type}; give 64-bit integers or strings")
        if self.sources is not None and not 0 <= self.sources <= len(self.values):
            raise EventError(
                f"{self.sources} sources among {len(self.values)} nodes; give at most one per node"
            )
        if self.sources is not None and self.is_source is None:
            object.__setattr__(self, "is_source", pa.array(np.arange(len(self.values)) < self.sources))
        if self.is_source is not None and (
            len(self.is_source) != len(self.values) or self.is_source.true_count != self.sources
        ):
            raise EventError(
                f"the column of sources does not name {self.sources} of {len(self.values)} nodes"
            )
        for side in ("src", "dst"):
            pool, _ = self._pool(side)
            if pool.null_count or len(pc.unique(pool)) != len(pool):
                raise EventError(f"the {side} ids are not unique; give each node one id of its own")

    @staticmethod
    def identity(num_nodes: int, sources: int | None = None) -> "NodeIds":
        """Nodes that are their own ids."""
        return NodeIds(pa.array(np.arange(num_nodes, dtype=np.int64)), sources)

    @property
    def kind(self) -> Literal["int", "string"]:
        """What the user's ids are."""
        return "int" if pa.types.is_integer(self.values.type) else "string"

    def __len__(self) -> int:
        return len(self.values)

    def to_node(self, values: Sequence | np.ndarray | pa.Array, side: Side) -> np.ndarray:
        """The nodes of these ids, -1 where an id is unknown; '7' and 7 are the same id."""
        pool, node = self._pool(side)
        wanted: pa.Array = values if isinstance(values, pa.Array) else pa.array(values)
        if wanted.type != pool.type:
            wanted = _strip_decimal_zero(wanted)
            wanted, pool = wanted.cast(pa.large_string()), pool.cast(pa.large_string())
        found = pc.index_in(wanted, value_set=pool)
        place = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.append(node, -1)[place]

    def to_user(self, nodes: Sequence[int] | np.ndarray) -> pa.Array:
        """The ids of these nodes."""
        rows = np.asarray(nodes, dtype=np.int64)
        wrong = rows[(rows < 0) | (rows >= len(self))]
        if len(wrong):
            raise NotFoundError(
                f"there is no node {wrong[0]} among {len(self)}; give numbers from 0 to {len(self) - 1}"
            )
        return self.values.take(pa.array(rows))

    def _pool(self, side: Side) -> tuple[pa.Array, np.ndarray]:
        """The ids of one side and the nodes they are of."""
        if self.is_source is None:
            return self.values, np.arange(len(self))
        chosen = self.is_source if side == "src" else pc.invert(self.is_source)
        return self.values.filter(chosen), np.flatnonzero(chosen.to_numpy(zero_copy_only=False))


def number_nodes(
    src: Sequence[pa.DictionaryArray], dst: Sequence[pa.DictionaryArray], bipartite: bool
) -> tuple[np.ndarray, np.ndarray, NodeIds]:
    """Number the ids of two chunked columns: in sorted order, integers by value, strings by their bytes.

    Sorted, so the numbering depends neither on the order of the rows nor on how the file was cut, and ids
    that already are 0..N-1 keep their numbers. Bipartite: all sources, then all destinations.
    """
    numbers = NodeNumbering(bipartite)
    codes = numbers.add(src, dst)
    node_of, ids = numbers.finish()
    return node_of["src"][codes[0]], node_of["dst"][codes[1]], ids


class NodeNumbering:
    """The ids of two columns, met in any number of parts and numbered when all of them are known."""

    def __init__(self, bipartite: bool) -> None:
        self._bipartite = bipartite
        self._pools = [_IdPool() for _ in range(1 + bipartite)]

    def add(
        self, src: Sequence[pa.DictionaryArray], dst: Sequence[pa.DictionaryArray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """A code for each row of either column, for the arrays that `finish` returns."""
        if self._bipartite:
            return self._pools[0].codes(src), self._pools[1].codes(dst)
        cut = sum(len(chunk) for chunk in src)
        both = self._pools[0].codes([*src, *dst])
        return both[:cut], both[cut:]

    def finish(self) -> tuple[dict[str, np.ndarray], NodeIds]:
        """The node of each code, column by column, and the ids."""
        whole = [_strip_decimal_zero(pool.values).dictionary_encode() for pool in self._pools]
        pools = [one.dictionary for one in whole]
        integers = [found for pool in pools if (found := _as_integers(pool)) is not None]
        pools = integers if len(integers) == len(pools) else [pool.cast(pa.large_string()) for pool in pools]
        nodes, values, start = [], [], 0
        for codes, pool in zip(whole, pools, strict=True):
            order = pc.sort_indices(pool)
            rank = np.empty(len(pool), dtype=np.int64)
            rank[order.to_numpy()] = np.arange(start, start + len(pool))
            nodes.append(rank[codes.indices.to_numpy()])
            values.append(pool.take(order))
            start += len(pool)
        ids = NodeIds(pa.concat_arrays(values), len(pools[0]) if self._bipartite else None)
        return {"src": nodes[0], "dst": nodes[-1]}, ids


class _IdPool:
    """Distinct ids in the order they came.

    A part of a column is looked up as a whole. From the second part on, integers, written as such or as text, go
    through a map that is not made anew for each part; where an id is none, and for small columns, Arrow does it.
    """

    def __init__(self) -> None:
        self._values: pa.Array = pa.array([], pa.large_string())
        self._parts, self._map = 0, None

    def codes(self, chunks: Sequence[pa.DictionaryArray]) -> np.ndarray:
        """The place of each row's id among all of them; new ones are put behind the others."""
        self._parts += 1
        if self._parts == 2:
            self._map = _build_key_map(_as_natural_numbers(self._values))
        if self._map is not None:
            numbers = [_as_natural_numbers(chunk.dictionary) for chunk in chunks]
            if all(found is not None for found in numbers):
                places = [self._map.insert(found) for found in numbers if found is not None]
                return np.concatenate(
                    [place[chunk.indices] for place, chunk in zip(places, chunks, strict=True)]
                ).astype(np.int32)
            self._values, self._map = self.values, None
        return self._looked_up(pa.chunked_array(list(chunks)).unify_dictionaries())

    @property
    def values(self) -> pa.Array:
        """All of them."""
        if self._map is None:
            return self._values
        return pa.array(self._map.keys()).cast(self._values.type)

    def _looked_up(self, column: pa.ChunkedArray) -> np.ndarray:
        local = column.chunk(0).dictionary
        kind = local.type if pa.types.is_integer(local.type) else pa.large_string()
        met = local.cast(kind).dictionary_encode()  # blanks were cut off: one id may be there twice
        if not len(self._values):
            self._values = met.dictionary[:0]
        found = pc.index_in(met.dictionary, value_set=self._values)
        new = pc.is_null(found)
        place = pc.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int32)
        fresh = new.to_numpy(zero_copy_only=False)
        place[fresh] = len(self._values) + np.arange(np.count_nonzero(fresh))
        self._values = pa.concat_arrays([self._values, met.dictionary.filter(new)])
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
        return place[met.indices.to_numpy()[codes]]


def _as_natural_numbers(pool: pa.Array) -> np.ndarray | None:
    """The ids as integers from 0, if all of them are and are written so."""
    found = _as_integers(pool)
    if found is None or (len(found) and pc.min(found).as_py() < 0):
        return None
    return found.to_numpy(zero_copy_only=False)


def _build_key_map(numbers: np.ndarray | None) -> "HashMap | None":
    """Each number at its place."""
    if numbers is None:
        return None

    from dygmamba.ops.hash_map import HashMap

    found = HashMap(max(1024, len(numbers)))
    found.insert(numbers)
    return found


def _strip_decimal_zero(pool: pa.Array) -> pa.Array:
    """Integers that a data frame wrote as 978.0 are 978, if all ids are integers written one way or the other."""
    if not (pa.types.is_string(pool.type) or pa.types.is_large_string(pool.type)):
        return pool
    pointed = pc.ends_with(pool, ".0")
    if not pc.any(pointed).as_py() or not pc.all(pc.match_substring_regex(pool, r"^-?\d+(\.0)?$")).as_py():
        return pool
    return pc.replace_substring_regex(pool, r"\.0$", "")


def _as_integers(pool: pa.Array) -> pa.Array | None:
    """The ids as integers, unless one is not written the way an integer is: '007' is no 7."""
    if pa.types.is_integer(pool.type):
        return pool.cast(pa.int64())
    try:
        integers = pool.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return integers if integers.cast(pool.type).equals(pool) else None
