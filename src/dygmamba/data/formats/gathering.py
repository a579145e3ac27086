"""The rows of a file as they come: in memory while they are few, beyond that in sorted runs on the disk.

What is on the disk is written once if the file is in order of time; otherwise every run is sorted as it is written and
all of them are merged at the end. Ids stay in memory, each once.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.options import ReadOptions, Roles
from dygmamba.data.formats.rows import Values
from dygmamba.data.ids import NodeIds, Numbering

if TYPE_CHECKING:  # torch waits until there is too much for the memory, or the file is read to its end
    from dygmamba.data.scratch import Scratch

SHARE = (
    8  # rows that are held at a time take this part of the memory at most: they are joined, sorted, written
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The events of a file; an absent label or node table is None.

    `late` is how many rows were out of order before they were sorted; None: they are in the order of the file.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    edge: np.ndarray
    label: np.ndarray | None = None
    node: np.ndarray | None = None
    late: int | None = None


@dataclass(slots=True)
class _Held:
    """Rows in memory, one entry per batch; text is gone once a batch is in."""

    src: list[pa.DictionaryArray] = field(default_factory=list)
    dst: list[pa.DictionaryArray] = field(default_factory=list)
    time: list[np.ndarray] = field(default_factory=list)
    edge: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    size: int = 0

    def add(self, values: Values) -> None:
        for name in ("src", "dst", "time", "edge", "label"):
            if (column := getattr(values, name)) is not None:
                getattr(self, name).append(column)
                self.size += column.nbytes

    def joined(self, numbers: Numbering) -> dict[str, np.ndarray]:
        """Ids by the order of their arrival; the others as they are."""
        src, dst = numbers.add(self.src, self.dst)
        rest = {"time": self.time, "edge": self.edge, "label": self.label}
        return {"src": src, "dst": dst} | {k: np.concatenate(v) for k, v in rest.items() if v}


class Gathering:
    """All good rows of one file, in whatever way there is room for them."""

    def __init__(self, roles: Roles, options: ReadOptions) -> None:
        self._roles, self._options = roles, options
        self._numbers, self._held = Numbering(options.bipartite), _Held()
        self._disk: dict[str, Scratch] = {}
        self._runs: list[int] = [0]  # where each begins, and where the last one ends
        self._late, self._latest = 0, -np.inf

    def __bool__(self) -> bool:
        return bool(self._held.time) or len(self._runs) > 1

    def add(self, values: Values) -> None:
        """The rows of another batch."""
        self._held.add(values)
        if self._held.size * SHARE > self._options.memory:
            self._spill()

    def finish(self) -> tuple[Columns, NodeIds]:
        """Every column, with the nodes numbered."""
        if len(self._runs) == 1:
            found = self._held.joined(self._numbers)
            node_of, ids = self._numbers.finish()
            src, dst = (node_of[name][found[name]] for name in ("src", "dst"))
            return Columns(src, dst, found["time"], found["edge"], found.get("label")), ids
        if self._held.time:
            self._spill()
        node_of, ids = self._numbers.finish()
        self._disk = self._merged(node_of)
        found = {name: column.mapped().numpy() for name, column in self._disk.items()}
        columns = (found["src"], found["dst"], found["time"], found["edge"], found.get("label"))
        return Columns(*columns, late=self._late), ids

    def _spill(self) -> None:
        """What is held becomes a run on the disk, in order of time."""
        from dygmamba.data.scratch import Scratch

        rows = self._held.joined(self._numbers)
        self._held = _Held()
        time = rows["time"]
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        late = int((time < latest).sum())
        self._late, self._latest = self._late + late, latest[-1]
        order = np.argsort(time, kind="stable") if late else None
        for name, column in rows.items():
            if name not in self._disk:
                self._disk[name] = Scratch(self._folder, column.dtype, column.shape[1:])
            self._disk[name].append(column if order is None else column[order])
        self._runs.append(self._runs[-1] + len(time))

    def _merged(self, node_of: dict[str, np.ndarray]) -> dict[str, "Scratch"]:
        """The runs as one, and nodes in place of ids; columns that are in order already stay where they are."""
        from dygmamba.data.merging import interleaved
        from dygmamba.data.pages import cuts
        from dygmamba.data.scratch import Scratch

        width = sum(column.row_bytes for column in self._disk.values()) + 16
        most = max(1, self._options.memory // (SHARE * width))
        moved = [name for name in self._disk if self._late or name in node_of]
        kinds = {name: np.dtype(np.int64) if name in node_of else self._disk[name].dtype for name in moved}
        out = {name: Scratch(self._folder, kinds[name], self._disk[name].width) for name in moved}
        if self._late:
            rounds = interleaved(self._disk["time"], self._runs, most)
        else:
            rounds = (([(rows.start, rows.stop)], None) for rows in cuts(self._runs[-1], width, most * width))
        for parts, order in rounds:
            for name in moved:
                found = np.concatenate([self._disk[name].read(*part) for part in parts])
                found = node_of[name][found] if name in node_of else found
                out[name].append(found if order is None else found[order])
        return self._disk | out

    @property
    def _folder(self) -> Path:
        from tempfile import gettempdir

        return self._options.scratch or Path(gettempdir())
