"""Node ids: the mapping between the ids of the user's data and nodes 0..N-1; `id_values` says what an id is."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, NotFoundError
from dygmamba.data.events.id_values import are_whole, as_integers, strip_decimal_zeros

if TYPE_CHECKING:  # a compiled kernel, imported only for inputs larger than one chunk
    from dygmamba.ops.hash_map import HashMap

Side = Literal["src", "dst"]


@dataclass(frozen=True, slots=True)
class NodeIds:
    """The user's id of every node, and in a bipartite stream which nodes are sources.

    In a bipartite stream source 7 and destination 7 are two nodes. The sources are the first `sources` nodes unless
    `is_source` says otherwise.

    Raises:
        EventError: Ids are neither integers nor strings, not unique, or do not fit the number of sources.
    """

    values: pa.Array  # int64 or large_string; row = node
    sources: int | None = None
    is_source: pa.Array | None = None  # booleans; an extended stream has new sources behind its destinations
    whole: tuple[bool, bool] | None = field(default=None, compare=False)  # of the ids before an extension

    def __post_init__(self) -> None:
        if self.values.type not in (pa.int64(), pa.large_string()):
            raise EventError(
                f"node ids are {self.values.type}; give 64-bit integers or strings", code="node-id-type"
            )
        if self.sources is not None and not 0 <= self.sources <= len(self.values):
            raise EventError(
                f"{self.sources} sources among {len(self.values)} nodes; give at most one per node",
                code="source-count",
            )
        if self.sources is not None and self.is_source is None:
            object.__setattr__(self, "is_source", pa.array(np.arange(len(self.values)) < self.sources))
        if self.is_source is not None and (
            len(self.is_source) != len(self.values) or self.is_source.true_count != self.sources
        ):
            raise EventError(
                f"is_source does not mark {self.sources} of {len(self.values)} nodes; give one boolean per node",
                code="source-count",
            )
        for side in ("src", "dst"):
            pool, _ = self._pool(side)
            if pool.null_count or len(pc.unique(pool)) != len(pool):
                raise EventError(
                    f"the {side} ids are not unique; give each node one id of its own",
                    code="node-ids-not-unique",
                )

    @staticmethod
    def identity(num_nodes: int, sources: int | None = None) -> "NodeIds":
        """Ids equal to the node numbers."""
        return NodeIds(pa.array(np.arange(num_nodes, dtype=np.int64)), sources)

    @property
    def kind(self) -> Literal["int", "string"]:
        return "int" if pa.types.is_integer(self.values.type) else "string"

    def __len__(self) -> int:
        return len(self.values)

    def has_whole_ids(self, side: Side) -> bool:
        """Return whether the ids of a side are integers, so that '7.0' is 7 there; later ids do not change that."""
        if self.whole is not None:
            return self.whole[side == "dst"]
        return self.kind == "int" or are_whole(self._pool(side)[0])

    def normalize(self, values: pa.Array, side: Side) -> pa.Array:
        """Return ids with '7' for '7.0' if the ids of that side are integers."""
        if pa.types.is_integer(values.type) or not self.has_whole_ids(side):
            return values
        return strip_decimal_zeros(values.cast(pa.large_string()))

    def to_node(self, values: Sequence | np.ndarray | pa.Array, side: Side) -> np.ndarray:
        """Return the nodes of these ids, -1 for an unknown id; '7' and 7 are the same id."""
        pool, node = self._pool(side)
        wanted = self.normalize(values if isinstance(values, pa.Array) else pa.array(values), side)
        if wanted.type != pool.type:
            wanted, pool = wanted.cast(pa.large_string()), pool.cast(pa.large_string())
        index = pc.index_in(wanted, value_set=pool)
        position = pc.fill_null(index, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.append(node, -1)[position]  # position -1 is the appended -1

    def to_user(self, nodes: Sequence[int] | np.ndarray) -> pa.Array:
        """Return the ids of these nodes; raise NotFoundError for a node out of range."""
        rows = np.asarray(nodes, dtype=np.int64)
        wrong = rows[(rows < 0) | (rows >= len(self))]
        if len(wrong):
            raise NotFoundError(
                f"node {wrong[0]} does not exist; give numbers from 0 to {len(self) - 1}",
                code="unknown-node",
            )
        return self.values.take(pa.array(rows))

    def _pool(self, side: Side) -> tuple[pa.Array, np.ndarray]:
        """Return the ids of one side and their nodes."""
        if self.is_source is None:
            return self.values, np.arange(len(self))
        chosen = self.is_source if side == "src" else pc.invert(self.is_source)
        return self.values.filter(chosen), np.flatnonzero(chosen.to_numpy(zero_copy_only=False))


class NodeNumbering:
    """Number the ids of two columns that arrive in any number of parts.

    Ids are numbered in sorted order: integers by value, strings by their bytes. So the numbers depend neither on the
    order of the rows nor on how the file was divided, and ids that are 0..N-1 already keep their numbers. In a
    bipartite stream all sources come before all destinations.
    """

    def __init__(self, bipartite: bool) -> None:
        self._bipartite = bipartite
        self._pools = [_IdPool() for _ in range(1 + bipartite)]

    def add(
        self, src: Sequence[pa.DictionaryArray], dst: Sequence[pa.DictionaryArray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a part and return a code for each row of both columns; `finish` maps codes to nodes."""
        if self._bipartite:
            return self._pools[0].codes(src), self._pools[1].codes(dst)
        cut = sum(len(chunk) for chunk in src)
        both = self._pools[0].codes([*src, *dst])
        return both[:cut], both[cut:]

    def finish(self) -> tuple[dict[str, np.ndarray], NodeIds]:
        """Return the node of each code, by column, and the ids."""
        encoded = [_strip_if_whole(pool.values).dictionary_encode() for pool in self._pools]
        pools = [column.dictionary for column in encoded]
        integers = [numbers for pool in pools if (numbers := as_integers(pool)) is not None]
        pools = integers if len(integers) == len(pools) else [pool.cast(pa.large_string()) for pool in pools]
        nodes, values, start = [], [], 0
        for codes, pool in zip(encoded, pools, strict=True):
            order = pc.sort_indices(pool)
            rank = np.empty(len(pool), dtype=np.int64)
            rank[order.to_numpy()] = np.arange(start, start + len(pool))
            nodes.append(rank[codes.indices.to_numpy()])
            values.append(pool.take(order))
            start += len(pool)
        ids = NodeIds(pa.concat_arrays(values), len(pools[0]) if self._bipartite else None)
        return {"src": nodes[0], "dst": nodes[-1]}, ids


class _IdPool:
    """Distinct ids in order of first occurrence.

    The first part is looked up by Arrow. From the second part on, ids that are natural numbers, also as text, use a
    hash map that grows in place; Arrow would rebuild its table for every part. Other ids stay with Arrow.
    """

    def __init__(self) -> None:
        self._values: pa.Array = pa.array([], pa.large_string())
        self._parts, self._map = 0, None

    def codes(self, chunks: Sequence[pa.DictionaryArray]) -> np.ndarray:
        """Return the position of each row's id among the distinct ids; new ids are appended."""
        self._parts += 1
        if self._parts == 2:
            self._map = _build_key_map(_as_natural_numbers(self._values))
        if self._map is not None:
            numbers = [_as_natural_numbers(chunk.dictionary) for chunk in chunks]
            if all(keys is not None for keys in numbers):
                positions = [self._map.insert(keys) for keys in numbers if keys is not None]
                return np.concatenate(
                    [position[chunk.indices] for position, chunk in zip(positions, chunks, strict=True)]
                ).astype(np.int32)
            self._values, self._map = self.values, None
        return self._look_up(pa.chunked_array(list(chunks)).unify_dictionaries())

    @property
    def values(self) -> pa.Array:
        if self._map is None:
            return self._values
        return pa.array(self._map.keys()).cast(self._values.type)

    def _look_up(self, column: pa.ChunkedArray) -> np.ndarray:
        local = column.chunk(0).dictionary
        kind = local.type if pa.types.is_integer(local.type) else pa.large_string()
        distinct = local.cast(kind).dictionary_encode()  # blanks were stripped, so an id can occur twice
        if not len(self._values):
            self._values = distinct.dictionary[:0]
        index = pc.index_in(distinct.dictionary, value_set=self._values)
        is_new = pc.is_null(index)
        position = pc.fill_null(index, 0).to_numpy(zero_copy_only=False).astype(np.int32)
        new = is_new.to_numpy(zero_copy_only=False)
        position[new] = len(self._values) + np.arange(np.count_nonzero(new))
        self._values = pa.concat_arrays([self._values, distinct.dictionary.filter(is_new)])
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
        return position[distinct.indices.to_numpy()[codes]]


def _as_natural_numbers(pool: pa.Array) -> np.ndarray | None:
    """Return the ids as integers if all of them are natural numbers in their usual notation."""
    integers = as_integers(pool)
    if integers is None or (len(integers) and pc.min(integers).as_py() < 0):
        return None
    return integers.to_numpy(zero_copy_only=False)


def _build_key_map(numbers: np.ndarray | None) -> "HashMap | None":
    """Map each number to its position."""
    if numbers is None:
        return None

    from dygmamba.ops.hash_map import HashMap

    key_map = HashMap(max(1024, len(numbers)))
    key_map.insert(numbers)
    return key_map


def _strip_if_whole(pool: pa.Array) -> pa.Array:
    is_text = not pa.types.is_integer(pool.type)
    return strip_decimal_zeros(pool) if is_text and are_whole(pool, r"^-?\d+(\.0)?$") else pool
