"""Questions in the user's own ids and times, as nodes and 64-bit times of a stream; answers back in the user's ids."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.data.extension import just_after
from dygmamba.data.formats.id_lists import read_ids, read_list
from dygmamba.data.formats.options import ReadOptions
from dygmamba.data.formats.pairs import Asked, Pairs, Times, iso, own_times, read_pairs
from dygmamba.data.formats.values import Place
from dygmamba.data.statistics import looks_like_epoch
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError, FileError, NotFoundError

Moment = str | float  # a date or a number

FAR = 1e11  # seconds since 1970: the year 5138, so the number must be of a finer tick
STRANGERS = 2  # nodes without events, standing in for all unknown ids: a pair has no more than two


@dataclass(frozen=True, slots=True)
class Asking:
    """Questions as nodes: `strangers` are the ids in no event, `assumed` the time that was taken where none was given.

    Without destinations, `dst` is the sources again.
    """

    asked: Asked
    src: Tensor
    dst: Tensor
    time: Times
    assumed: Moment | None
    strangers: tuple[str, ...]

    @property
    def when(self) -> Tensor:
        """The times as a tensor."""
        return torch.from_numpy(self.time.value)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where questions about a dataset are read; `options` say how their files are to be read.

    Answers come in integers where the ids were integers at first, whatever came since.
    """

    dataset: Dataset
    options: ReadOptions
    integers: bool

    def read(self, pairs: Pairs, at: Moment | None, sources_only: bool = False) -> Asking:
        """The questions of a file or table; each source, or source and time, once if only those are asked about."""
        listed = self._listed(pairs)
        asked = read_pairs(pairs if listed is None else {"src": listed}, self.options, self.dataset.origin)
        return self._asking(asked.distinct_sources() if sources_only else asked, at)

    def everyone(self, at: Moment | None) -> Asking:
        """A question about each node that was the source of an event strictly before."""
        node, first = np.unique(self.dataset.store.src.numpy(), return_index=True)
        began, ids = self.dataset.store.time.numpy()[first], self.dataset.ids.to_user(node)
        asked = read_pairs({"src": ids}, ReadOptions(), self.dataset.origin)
        known = self._times(asked, at)[0].value > began
        return self._asking(asked[np.flatnonzero(known)], at)

    def _asking(self, asked: Asked, at: Moment | None) -> Asking:
        time, assumed = self._times(asked, at)
        src, dst, strangers = self._nodes(asked)
        return Asking(asked, src, dst, time, assumed, strangers)

    def _listed(self, given: Pairs) -> pa.Array | None:
        """The ids of a file that is a plain list of them; nothing of all else."""
        return read_list(given, self.options, self.dataset.origin) if isinstance(given, Path) else None

    def own(self, ids: pa.Array) -> pa.Array:
        """Ids as the dataset's: integers where those are, unless one is not written as an integer is."""
        try:
            whole = ids.cast(pa.int64()) if self.integers else ids
        except pa.ArrowInvalid:
            return ids
        return whole if whole.cast(ids.type).equals(ids) else ids

    def destinations(self, candidates: pa.Array | Path | None) -> Tensor:
        """The nodes of these ids, or of those in a file, or all that ever were a destination."""
        if candidates is None:
            return torch.unique(self.dataset.store.dst)
        given = candidates
        if isinstance(given, Path):
            given = read_ids(given, self.options, self.dataset.origin)
        node = self.dataset.ids.to_node(given, "dst")
        if (node < 0).any():
            unknown = given[int((node < 0).argmax())]
            raise NotFoundError(
                f"candidate {unknown} is in no event; leave it out, or observe an event of it first"
            )
        return torch.from_numpy(np.unique(node))

    def check_times(self, where: str, epoch: bool, time: np.ndarray) -> None:
        """Refuse times that cannot be of the stream's own kind."""
        stream = self.dataset.store.time
        dated = bool(self.dataset.origin.time_origin) or looks_like_epoch(float(stream[0]), float(stream[-1]))
        if epoch and not dated:
            raise FileError(
                f"{where} has dates, but the times of '{self.dataset.name}' are plain numbers up to "
                f"{float(stream[-1]):.12g}; give numbers on that scale"
            )
        if dated and not epoch and np.abs(time).max(initial=0) > FAR:
            raise FileError(
                f"{where} has the time {time[np.abs(time).argmax()]:.12g}, no seconds since 1970; "
                "give `time_unit='ms'`, us or ns"
            )

    def _times(self, asked: Asked, at: Moment | None) -> tuple[Times, Moment | None]:
        """The pairs' own times, or one for all: the one given, or the first that sees the whole stream."""
        if asked.time is not None:
            if at is not None:
                raise ConfigError(f"{asked.where} has a column of times; leave out that column or `at`")
            self.check_times(asked.where, asked.time.epoch, asked.time.value)
            return asked.time, None
        if at is not None:
            return self._moment(at)[np.zeros(len(asked), np.int64)], None
        dated = bool(self.dataset.origin.time_origin)
        moment = just_after(self.dataset.store.time, dated)
        shown = iso(moment) if dated else int(moment) if moment.is_integer() else moment
        return Times(np.full(len(asked), moment), pa.repeat(shown, len(asked)), dated), shown

    def _moment(self, at: Moment) -> Times:
        try:
            time = own_times(pa.array([str(at)]), Place("`at`", "time", 0), self.options, self.dataset.origin)
        except (FileError, UnicodeEncodeError) as error:
            form = self.options.time_format
            takes = "a date like 2024-05-31T12:00:00Z or a number" if form is None else f"a date like {form}"
            raise ConfigError(f"`at` takes {takes}, got '{at}'") from error
        self.check_times("`at`", time.epoch, time.value)
        return time

    def _nodes(self, asked: Asked) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """The nodes of sources and destinations (none asked: sources again), and the ids that have none."""
        ids, stranger = self.dataset.ids, self.dataset.store.num_nodes
        columns = [(asked.src, ids.to_node(asked.src, "src"))]
        if asked.dst is not None:
            columns.append((asked.dst, ids.to_node(asked.dst, "dst")))
        unknown = pa.concat_arrays([column.filter(pa.array(node < 0)) for column, node in columns])
        (src, at_src), (dst, at_dst) = columns[0], columns[-1]
        same = pc.equal(src, dst).to_numpy(zero_copy_only=False) & (ids.sources is None)
        at_dst = np.where(at_dst < 0, np.where(same, stranger, stranger + 1), at_dst)
        at_src = np.where(at_src < 0, stranger, at_src)
        strangers = tuple(pc.unique(unknown).to_pylist())
        return torch.from_numpy(at_src), torch.from_numpy(at_dst), strangers
