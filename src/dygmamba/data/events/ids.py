"""Node ids: the mapping between the ids of the user's data and nodes 0..N-1; `id_values` says what an id is."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, NotFoundError
from dygmamba.data.events.id_values import are_whole, as_integers, strip_decimal_zero, strip_decimal_zeros

Side = Literal["src", "dst"]
Key = int | str
MAX_DIGITS = 20  # of a 64-bit integer, with its sign


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

    def to_node(self, values: Sequence | np.ndarray | pa.Array, side: Side) -> np.ndarray:
        """Return the nodes of these ids, -1 for an unknown id; '7' and 7 are the same id."""
        pool, node = self._pool(side)
        wanted = values if isinstance(values, pa.Array) else pa.array(values)
        if not pa.types.is_integer(wanted.type) and self.has_whole_ids(side):
            wanted = strip_decimal_zeros(wanted.cast(pa.large_string()))
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
                f"node {wrong[0]} does not exist; give numbers from 0 to {len(self) - 1}", code="unknown-node"
            )
        return self._take(rows)

    def _take(self, nodes: np.ndarray) -> pa.Array:
        return self.values.take(pa.array(nodes))

    def _pool(self, side: Side) -> tuple[pa.Array, np.ndarray]:
        """Return the ids of one side and their nodes."""
        if self.is_source is None:
            return self.values, np.arange(len(self))
        chosen = self.is_source if side == "src" else pc.invert(self.is_source)
        return self.values.filter(chosen), np.flatnonzero(chosen.to_numpy(zero_copy_only=False))


class IdIndex(NodeIds):
    """Ids that new ones are appended to, in the order in which they come, and dropped from again, newest first.

    Look-ups take constant time per id, whatever the number of nodes, and give the answers of `NodeIds`.
    """

    __slots__ = (
        *("_is_text", "_keys", "_known", "_known_count", "_known_nodes", "_new_nodes", "_sides", "_texts"),
    )
    __setattr__ = object.__setattr__  # unlike other ids, these change

    def __init__(self, known: NodeIds, like: "IdIndex | None" = None) -> None:
        """Begin with known ids; an index of the same known ids, `like`, shares its tables of them, never changed."""
        self._known, self._known_count, self._is_text = known, len(known), known.kind == "string"
        self._known_nodes = _map_ids(known) if like is None else like._known_nodes
        self.whole = (known.has_whole_ids("src"), known.has_whole_ids("dst")) if like is None else like.whole
        self._keys: list[Key] = []  # id of each new node
        self._sides: list[Side] = []  # side of each new node
        self._texts = 0  # how many new ids are text
        nodes: dict[Key, int] = {}
        self._new_nodes = {"src": nodes, "dst": nodes if self._known.is_source is None else {}}

    def __len__(self) -> int:
        return self._known_count + len(self._keys)

    @property
    def new(self) -> list[tuple[Key, Side]]:
        """Id and side of each new node."""
        return list(zip(self._keys, self._sides, strict=True))

    @property
    def kind(self) -> Literal["int", "string"]:
        return "string" if self._is_text or self._texts else "int"

    @property
    def values(self) -> pa.Array:
        """The user's id of every node."""
        new = self._to_array(self._keys)
        return pa.concat_arrays([self._known.values.cast(new.type), new])

    @property
    def is_source(self) -> pa.Array | None:
        """Mask of the nodes that are sources, in a bipartite stream; None in another."""
        known = self._known.is_source
        if known is None:
            return None
        return pa.concat_arrays([known, pa.array([side == "src" for side in self._sides], pa.bool_())])

    @property
    def sources(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of sources, in a bipartite stream."""
        known = self._known.sources
        return None if known is None else known + self._sides.count("src")

    def restart(self) -> "IdIndex":
        """Return an index of the known ids alone."""
        return IdIndex(self._known, like=self)

    def freeze(self) -> NodeIds:
        """Return the ids as they are now."""
        return NodeIds(self.values, self.sources, self.is_source, self.whole)

    def to_node(self, values: Sequence | np.ndarray | pa.Array, side: Side) -> np.ndarray:
        """Return the nodes of these ids, -1 for an unknown id; '7' and 7 are the same id."""
        wanted = values.to_pylist() if isinstance(values, pa.Array) else values
        found = (self._find(self._to_key(value, side), side) for value in wanted)
        return np.fromiter(found, np.int64, len(wanted))

    def add(self, value: Key, side: Side) -> int:
        """Return the node of an id; an unknown one becomes a new node."""
        key = self._to_key(value, side)
        node = self._known_nodes[side].get(key, -1)
        if node < 0:
            node = self._new_nodes[side].setdefault(key, len(self))
        if node == len(self):
            self._keys.append(key)
            self._sides.append(side)
            self._texts += isinstance(key, str)
        return node

    def add_events(self, src: Sequence[Key], dst: Sequence[Key]) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of the ends of events; unknown ids become new nodes, each source before its destination."""
        sources: dict[Key, int] = {}
        destinations: dict[Key, int] = sources if self._known.is_source is None else {}
        for a, b in zip(src, dst, strict=True):
            if a not in sources:
                sources[a] = self.add(a, "src")
            if b not in destinations:
                destinations[b] = self.add(b, "dst")
        return (
            np.fromiter(map(sources.__getitem__, src), np.int64, len(src)),
            np.fromiter(map(destinations.__getitem__, dst), np.int64, len(dst)),
        )

    def restore(self, new: Sequence[tuple[Key, Side]]) -> None:
        """Add new nodes that were saved; raise ValueError if one of them is known."""
        for known, (key, side) in enumerate(new, len(self)):
            if self.add(key, side) < known:
                raise ValueError(f"id {str(key)[:60]!r} is that of another node")

    def truncate(self, nodes: int) -> None:
        """Drop the newest ids so that there are `nodes` of them."""
        while len(self) > nodes:
            key, side = self._keys.pop(), self._sides.pop()
            del self._new_nodes[side][key]
            self._texts -= isinstance(key, str)

    def _take(self, nodes: np.ndarray) -> pa.Array:
        known = self._known.values
        if (nodes < len(known)).all():
            return known.take(pa.array(nodes)).cast(self._to_array([]).type)
        keys = (
            known[node].as_py() if node < len(known) else self._keys[node - len(known)]
            for node in nodes.tolist()
        )
        return self._to_array(list(keys))

    def _to_array(self, keys: list[Key]) -> pa.Array:
        if self.kind == "int":
            return pa.array(keys, pa.int64())
        return pa.array([str(key) for key in keys], pa.large_string())

    def _to_key(self, value: Key, side: Side) -> Key:
        """Return an id in the type of the known ids; text that is no 64-bit integer stays text."""
        text = strip_decimal_zero(str(value)) if self.has_whole_ids(side) else str(value)
        if self._is_text or len(text) > MAX_DIGITS or not text.removeprefix("-").isdecimal():
            return text
        number = int(text)
        return number if str(number) == text and -(2**63) <= number < 2**63 else text  # '007' is not 7

    def _find(self, key: Key, side: Side) -> int:
        node = self._known_nodes[side].get(key, -1)
        return node if node >= 0 else self._new_nodes[side].get(key, -1)


@dataclass(frozen=True, slots=True)
class _NodeNumbers:
    """Ids that are the numbers of their nodes, which need no dictionary."""

    count: int

    def get(self, key: Key, default: int) -> int:
        return key if isinstance(key, int) and 0 <= key < self.count else default


def _map_ids(ids: NodeIds) -> Mapping[str, dict[Key, int] | _NodeNumbers]:
    """Return the node of each id, by side."""
    if ids == NodeIds.identity(len(ids)):
        return dict.fromkeys(("src", "dst"), _NodeNumbers(len(ids)))
    pools = {side: ids._pool(side) for side in ("src", "dst")[: 1 + (ids.is_source is not None)]}
    nodes = {
        side: dict(zip(pool.to_pylist(), node.tolist(), strict=True)) for side, (pool, node) in pools.items()
    }
    return {"src": nodes["src"], "dst": nodes.get("dst", nodes["src"])}


def order_by_first_event(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return all nodes in the order of their first event, sources before destinations; those without events last."""
    ends = np.column_stack([src, dst]).ravel()
    first = np.full(num_nodes, len(ends))
    # assigned from the last event to the first, so that the earliest position of a node remains
    first[ends[::-1]] = np.arange(len(ends) - 1, -1, -1)
    return np.argsort(first, kind="stable")


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
            return self._pools[0].encode(src), self._pools[1].encode(dst)
        cut = sum(len(chunk) for chunk in src)
        both = self._pools[0].encode([*src, *dst])
        return both[:cut], both[cut:]

    def finish(self) -> tuple[dict[str, np.ndarray], NodeIds]:
        """Return the node of each code, by column, and the ids."""
        encoded = [_strip_if_whole(pool.values).dictionary_encode() for pool in self._pools]
        pools = _unify_types([column.dictionary for column in encoded])
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
    """Distinct ids in the order of their codes.

    Arrow builds its table again for every part. So from the second part on, ids that are natural numbers, also as text,
    are in a hash map that grows in place. Other ids stay with Arrow.
    """

    def __init__(self) -> None:
        self._values: pa.Array = pa.array([], pa.int64())
        self._parts, self._map = 0, None

    @property
    def values(self) -> pa.Array:
        return self._values if self._map is None else pa.array(self._map.keys())

    def encode(self, chunks: Sequence[pa.DictionaryArray]) -> np.ndarray:
        """Return the code of each row's id; new ids are appended."""
        codes = self._add([chunk.dictionary for chunk in chunks])
        own = zip(codes, chunks, strict=True)
        return np.concatenate([code[chunk.indices.to_numpy()] for code, chunk in own])

    def _add(self, parts: list[pa.Array]) -> list[np.ndarray]:
        """Return the codes of each part's ids."""
        self._parts += 1
        if self._parts == 2 and (known := _to_natural_numbers(self._values)) is not None:
            from dygmamba.ops.key_slots import KeySlots

            self._map = KeySlots()
            self._map.insert(known)
        if self._map is not None:
            numbers = [keys for part in parts if (keys := _to_natural_numbers(part)) is not None]
            if len(numbers) == len(parts):
                return [self._map.insert(keys).astype(np.int32) for keys in numbers]
            self._values, self._map = self.values, None
        # known ids come first, so they keep their codes; blanks were stripped, so an id can occur twice in a part
        parts = _unify_types([self._values, *parts])
        ids = pa.concat_arrays(parts).dictionary_encode()
        self._values = ids.dictionary
        return np.split(ids.indices.to_numpy(), np.cumsum([len(part) for part in parts[:-1]]))[1:]


def _to_natural_numbers(ids: pa.Array) -> np.ndarray | None:
    """Return ids as integers if all of them are natural numbers in their usual notation."""
    integers = as_integers(ids)
    if integers is None or (len(integers) and pc.min(integers).as_py() < 0):
        return None
    return integers.to_numpy(zero_copy_only=False)


def _unify_types(parts: list[pa.Array]) -> list[pa.Array]:
    """Return ids as integers if each of them is the usual notation of one, otherwise as text."""
    integers = [numbers for part in parts if (numbers := as_integers(part)) is not None]
    return integers if len(integers) == len(parts) else [part.cast(pa.large_string()) for part in parts]


def _strip_if_whole(pool: pa.Array) -> pa.Array:
    is_text = not pa.types.is_integer(pool.type)
    return strip_decimal_zeros(pool) if is_text and are_whole(pool, r"^-?\d+(\.0)?$") else pool
