"""Node ids that new ids are appended to, and dropped from again, newest first.

Look-ups take constant time per id, whatever the number of nodes, and give the answers of `NodeIds`: '7' and 7 are the
same id, and in a bipartite stream source 7 and destination 7 are two nodes.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false
# ids that change compute what fixed ids store
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import NotFoundError
from dygmamba.data.events.id_values import strip_decimal_zero
from dygmamba.data.events.ids import NodeIds, Side

Key = int | str
MAX_DIGITS = 20  # of a 64-bit integer, with its sign


class BaseIds:
    """The ids of a dataset with a dictionary for each side; never changes, so replicas share it."""

    def __init__(self, ids: NodeIds) -> None:
        self.ids = ids
        values = ids.values.to_pylist()
        self.whole = (ids.has_whole_ids("src"), ids.has_whole_ids("dst"))
        self.counts_up = ids.kind == "int" and ids.is_source is None and values == list(range(len(values)))
        self._nodes: Mapping[str, Mapping[Key, int]] = {}
        if self.counts_up:  # ids that are the nodes' numbers need no dictionary
            return
        if ids.is_source is None:
            both = {value: node for node, value in enumerate(values)}
            self._nodes = {"src": both, "dst": both}
            return
        is_source = ids.is_source.to_pylist()
        self._nodes = {
            side: {
                value: node
                for node, (value, own) in enumerate(zip(values, is_source, strict=True))
                if own == (side == "src")
            }
            for side in ("src", "dst")
        }

    def to_key(self, value: Key, side: Side) -> Key:
        """Return an id in the type of the dataset's ids; text that is no 64-bit integer stays text."""
        text = strip_decimal_zero(str(value)) if self.whole[side == "dst"] else str(value)
        if self.ids.kind == "string" or len(text) > MAX_DIGITS:
            return text
        try:
            number = int(text)
        except ValueError:
            return text
        return number if str(number) == text and -(2**63) <= number < 2**63 else text  # '007' is not 7

    def find(self, key: Key, side: Side) -> int:
        """Return the node of an id, -1 for an unknown one."""
        if self.counts_up:
            return key if isinstance(key, int) and 0 <= key < len(self.ids) else -1
        return self._nodes[side].get(key, -1)


class LiveIds(NodeIds):
    """The ids of a dataset, and those of later events behind them in the order in which they were added."""

    __slots__ = ("_base", "_new", "_nodes")
    __setattr__ = object.__setattr__  # unlike other ids, these change

    def __init__(self, base: BaseIds) -> None:
        self._base = base
        self._new: list[tuple[Key, Side]] = []  # id and side of each new node
        known: dict[Key, int] = {}
        self._nodes: dict[str, dict[Key, int]] = {
            "src": known,
            "dst": known if base.ids.is_source is None else {},
        }

    def __len__(self) -> int:
        return len(self._base.ids) + len(self._new)

    def has_whole_ids(self, side: Side) -> bool:
        return self._base.whole[side == "dst"]

    @property
    def new(self) -> list[tuple[Key, Side]]:
        """Id and side of each node that the dataset does not have."""
        return self._new

    @property
    def _has_text(self) -> bool:
        return self._base.ids.kind == "string" or any(isinstance(key, str) for key, _ in self._new)

    @property
    def values(self) -> pa.Array:
        """The user's id of every node."""
        kind = pa.large_string() if self._has_text else pa.int64()
        added = [str(key) for key, _ in self._new] if self._has_text else [key for key, _ in self._new]
        return pa.concat_arrays([self._base.ids.values.cast(kind), pa.array(added, kind)])

    @property
    def is_source(self) -> pa.Array | None:
        """Mask of the nodes that are sources, in a bipartite stream; None in another."""
        known = self._base.ids.is_source
        if known is None:
            return None
        return pa.concat_arrays([known, pa.array([side == "src" for _, side in self._new], pa.bool_())])

    @property
    def sources(self) -> int | None:
        """Number of sources, in a bipartite stream."""
        known = self._base.ids.sources
        return None if known is None else known + sum(side == "src" for _, side in self._new)

    @property
    def kind(self) -> Literal["int", "string"]:
        return "string" if self._has_text else "int"

    def to_node(self, values: Sequence | np.ndarray | pa.Array, side: Side) -> np.ndarray:
        """Return the nodes of these ids, -1 for an unknown id; '7' and 7 are the same id."""
        wanted = values.to_pylist() if isinstance(values, pa.Array) else values
        found = (self._find(self._base.to_key(value, side), side) for value in wanted)
        return np.fromiter(found, np.int64, len(wanted))

    def to_user(self, nodes: Sequence[int] | np.ndarray) -> pa.Array:
        """Return the ids of these nodes; raise NotFoundError for a node out of range."""
        rows = np.asarray(nodes, dtype=np.int64)
        wrong = rows[(rows < 0) | (rows >= len(self))]
        if len(wrong):
            raise NotFoundError(
                f"node {wrong[0]} does not exist; give numbers from 0 to {len(self) - 1}",
                code="unknown-node",
            )
        known, kind = self._base.ids.values, pa.large_string() if self._has_text else pa.int64()
        if (rows < len(known)).all():
            return known.take(pa.array(rows)).cast(kind)
        keys = [
            known[row].as_py() if row < len(known) else self._new[row - len(known)][0]
            for row in rows.tolist()
        ]
        return pa.array([str(key) for key in keys] if self._has_text else keys, kind)

    def add(self, src: Sequence[Key], dst: Sequence[Key]) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of the ends of events; unknown ids become new nodes, each source before its destination."""
        nodes = np.empty((2, len(src)), np.int64)
        for row, pair in enumerate(zip(src, dst, strict=True)):
            for end, value in enumerate(pair):
                side = "dst" if end else "src"
                nodes[end, row] = self._number(self._base.to_key(value, side), side)
        return nodes[0], nodes[1]

    def restore(self, new: Sequence[tuple[Key, Side]]) -> None:
        """Add new nodes that were saved; raise ValueError if one of them is known."""
        for known, (key, side) in enumerate(new, len(self)):
            if self._number(self._base.to_key(key, side), side) < known:
                raise ValueError(f"id {str(key)[:60]!r} is that of another node")

    def truncate(self, nodes: int) -> None:
        """Drop the newest ids so that there are `nodes` of them."""
        while len(self) > nodes:
            key, side = self._new.pop()
            del self._nodes[side][key]

    def _number(self, key: Key, side: Side) -> int:
        node = self._find(key, side)
        if node < 0:
            node = self._nodes[side][key] = len(self)
            self._new.append((key, side))
        return node

    def _find(self, key: Key, side: Side) -> int:
        node = self._base.find(key, side)
        return node if node >= 0 else self._nodes[side].get(key, -1)
