"""Questions in the user's own ids and times, as nodes and 64-bit times of a stream; answers back in the user's ids.

Answers in the user's own ids: tables of scores, which are probabilities where the run has a calibration.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, FileError, NotFoundError
from dygmamba.data.events.statistics import looks_like_epoch_seconds
from dygmamba.data.readers.options import ReadOptions
from dygmamba.data.readers.queries import (
    QuerySource,
    QueryTable,
    QueryTimes,
    format_iso_time,
    read_id_list,
    read_ids,
    read_queries,
    read_query_times,
)
from dygmamba.data.readers.values import ColumnLocation
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import next_instant
from dygmamba.tasks.calibration import Calibration

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


TimeLike = str | float  # a date or a number

MAX_EPOCH_SECONDS = 1e11  # seconds since 1970: the year 5138, so the number must be of a finer tick
PLACEHOLDER_NODES = 2  # nodes without events, standing in for all unknown ids: a pair has no more than two


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Questions as nodes: `strangers` are the ids in no event, `assumed` the time that was taken where none was given.

    Without destinations, `dst` is the sources again.
    """

    asked: QueryTable
    src: Tensor
    dst: Tensor
    time: QueryTimes
    assumed: TimeLike | None
    unknown_ids: tuple[str, ...]

    @property
    def when(self) -> Tensor:
        """The times as a tensor."""
        return torch.from_numpy(self.time.value)


@dataclass(frozen=True, slots=True)
class QueryParser:
    """Where questions about a dataset are read; `options` say how their files are to be read.

    Answers come in integers where the ids were integers at first, whatever came since.
    """

    dataset: Dataset
    options: ReadOptions
    integers: bool

    def read(self, pairs: QuerySource, at: TimeLike | None, sources_only: bool = False) -> QueryBatch:
        """The questions of a file or table; each source, or source and time, once if only those are asked about."""
        listed = self._listed(pairs)
        asked = read_queries(pairs if listed is None else {"src": listed}, self.options, self.dataset.origin)
        return self._read_queries(asked.distinct_sources() if sources_only else asked, at)

    def everyone(self, at: TimeLike | None) -> QueryBatch:
        """A question about each node that was the source of an event strictly before."""
        node, first = np.unique(self.dataset.store.src.numpy(), return_index=True)
        began, ids = self.dataset.store.time.numpy()[first], self.dataset.ids.to_user(node)
        asked = read_queries({"src": ids}, ReadOptions(), self.dataset.origin)
        known = self._times(asked, at)[0].value > began
        return self._read_queries(asked[np.flatnonzero(known)], at)

    def _read_queries(self, asked: QueryTable, at: TimeLike | None) -> QueryBatch:
        time, assumed = self._times(asked, at)
        src, dst, unknown_ids = self._nodes(asked)
        return QueryBatch(asked, src, dst, time, assumed, unknown_ids)

    def _listed(self, given: QuerySource) -> pa.Array | None:
        """The ids of a file that is a plain list of them; nothing of all else."""
        return read_id_list(given, self.options, self.dataset.origin) if isinstance(given, Path) else None

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
        dated = bool(self.dataset.origin.time_origin) or looks_like_epoch_seconds(
            float(stream[0]), float(stream[-1])
        )
        if epoch and not dated:
            raise FileError(
                f"{where} has dates, but the times of '{self.dataset.name}' are plain numbers up to "
                f"{float(stream[-1]):.12g}; give numbers on that scale"
            )
        if dated and not epoch and np.abs(time).max(initial=0) > MAX_EPOCH_SECONDS:
            raise FileError(
                f"{where} has the time {time[np.abs(time).argmax()]:.12g}, no seconds since 1970; "
                "give `time_unit='ms'`, us or ns"
            )

    def _times(self, asked: QueryTable, at: TimeLike | None) -> tuple[QueryTimes, TimeLike | None]:
        """The pairs' own times, or one for all: the one given, or the first that sees the whole stream."""
        if asked.time is not None:
            if at is not None:
                raise ConfigError(f"{asked.where} has a column of times; leave out that column or `at`")
            self.check_times(asked.where, asked.time.epoch, asked.time.value)
            return asked.time, None
        if at is not None:
            return self._moment(at)[np.zeros(len(asked), np.int64)], None
        dated = bool(self.dataset.origin.time_origin)
        moment = next_instant(self.dataset.store.time, dated)
        shown = format_iso_time(moment) if dated else int(moment) if moment.is_integer() else moment
        return QueryTimes(np.full(len(asked), moment), pa.repeat(shown, len(asked)), dated), shown

    def _moment(self, at: TimeLike) -> QueryTimes:
        try:
            time = read_query_times(
                pa.array([str(at)]), ColumnLocation("`at`", "time", 0), self.options, self.dataset.origin
            )
        except (FileError, UnicodeEncodeError) as error:
            form = self.options.time_format
            takes = "a date like 2024-05-31T12:00:00Z or a number" if form is None else f"a date like {form}"
            raise ConfigError(f"`at` takes {takes}, got '{at}'") from error
        self.check_times("`at`", time.epoch, time.value)
        return time

    def _nodes(self, asked: QueryTable) -> tuple[Tensor, Tensor, tuple[str, ...]]:
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
        unknown_ids = tuple(pc.unique(unknown).to_pylist())
        return torch.from_numpy(at_src), torch.from_numpy(at_dst), unknown_ids


SCORE_COLUMN, RAW_SCORE_COLUMN = (
    "score",
    "uncalibrated_score",
)  # the column of a run with a calibration, and of one without


@dataclass(frozen=True, slots=True)
class Predictions:
    """Answers in a table; the time that was assumed where none was given; which ids are in no event.

    `calibrated`: whether the scores are probabilities. `without` are the sources for whom no destination was left.
    """

    table: pa.Table
    assumed_time: TimeLike | None
    unknown_ids: tuple[str, ...]
    calibrated: bool = True
    without: tuple[str, ...] = ()


def score_column(logit: Tensor, calibration: Calibration | None) -> dict[str, pa.Array]:
    """The column of scores, in 64 bits: certain pairs keep their order."""
    if calibration is None:
        return {RAW_SCORE_COLUMN: pa.array(torch.sigmoid(logit.double()).numpy())}
    return {SCORE_COLUMN: pa.array(calibration.probability(logit).numpy())}


def probability_column(logit: Tensor, total: Tensor, calibration: Calibration | None) -> dict[str, pa.Array]:
    """The column of probabilities among candidates of whom exactly one is true, each as likely before: odds by odds.

    The odds of a score are how many times likelier a real event would be this pair than a random one would, so the
    chance of a candidate is its odds by the sum of all candidates' odds (Bayes). A run without a calibration has none.
    """
    if calibration is None:
        return {}
    return {"probability": pa.array((calibration.log_odds(logit) - total).exp().numpy())}


def build_predictions(
    queries: QueryBatch,
    columns: dict[str, pa.Array],
    calibration: Calibration | None,
    without: tuple[str, ...] = (),
) -> Predictions:
    """A table with what is to be said of it."""
    return Predictions(
        pa.table(columns), queries.assumed, queries.unknown_ids, calibration is not None, without
    )
