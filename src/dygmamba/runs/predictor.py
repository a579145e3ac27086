"""What will happen next: a trained run asked in the user's own ids and times."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.data.events import FeatureTable
from dygmamba.data.extension import extended, just_after
from dygmamba.data.formats import ReadOptions, detect_format, read_dataset
from dygmamba.data.formats.options import USUAL_NAMES
from dygmamba.data.formats.pairs import Asked, Pairs, Times, iso, read_pairs, read_times
from dygmamba.data.formats.values import Place
from dygmamba.data.statistics import looks_like_epoch
from dygmamba.data.store import Dataset
from dygmamba.engine.rank import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.runs.opening import OpenRun, choose_device, open_run

Moment = str | float  # a date or a number
Meter = Callable[[int], Advance]  # told how many pairs there are, says whom to tell of each one done

FAR = 1e11  # seconds since 1970: the year 5138, so the number must be of a finer tick
STRANGERS = 2  # nodes without events, standing in for all unknown ids: a pair has no more than two
TABLES = ("csv", "parquet")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Columns src, dst, time, score and, of a ranking, rank; what was assumed; which ids are in no event."""

    table: pa.Table
    assumed_time: Moment | None
    strangers: tuple[str, ...]


def _unmetered(total: int) -> Advance:
    return unwatched


@dataclass(frozen=True, slots=True)
class Predictor:
    """A trained run and every event it knows of: its own dataset's and those that came since."""

    run: OpenRun
    dataset: Dataset
    links: Ranker
    options: ReadOptions = field(default_factory=ReadOptions)

    @staticmethod
    def open(
        run: Path | str,
        device: str = "auto",
        data_dir: Path | None = None,
        options: ReadOptions | None = None,
        tokens: int | None = None,
    ) -> "Predictor":
        """A run's best weights on the stream they were trained on; `options` say how files are to be read."""
        opened = open_run(Path(run), choose_device(device), data_dir)
        links = _links(opened, opened.dataset, tokens)
        return Predictor(opened, opened.dataset, links, options or ReadOptions())

    def with_events(self, file: Path | str) -> "Predictor":
        """The same run, knowing more events: those of a file with the dataset's own columns."""
        path, origin = Path(file), self.dataset.origin
        options, kind = self.options, detect_format(path, self.options)
        if kind in ("jodie", "dyglib") and origin.format in TABLES:
            kind = "csv"  # as the dataset's own file was read
        if kind in TABLES:
            names = {part: getattr(options, part) or getattr(origin, part) or None for part in USUAL_NAMES}
            features = options.features or origin.features
            options = replace(options, **names, features=features, bipartite=self.dataset.store.bipartite)
        events = read_dataset(path, options, format=kind)
        self._check_times(str(path), bool(events.origin.time_origin), events.store.time.numpy())
        try:
            dataset = extended(self.dataset, events)
        except EventError as error:
            raise FileError(f"{path}: {error}") from error
        self._require_stateless(dataset.store.num_nodes - self.dataset.store.num_nodes)
        return replace(self, dataset=dataset, links=_links(self.run, dataset, self.links.walk.tokens))

    def score(self, pairs: Pairs, at: Moment | None = None, meter: Meter = _unmetered) -> Predictions:
        """The probability of each pair, in the order asked."""
        asked = read_pairs(pairs, self.options, self.dataset.origin)
        if asked.dst is None:
            raise NotFoundError(f"{asked.where} has no column of destinations; name it 'dst', or use --top")
        time, assumed = self._times(asked, at)
        src, dst, strangers = self._nodes(asked)
        logit = self.links.logits(src, dst, torch.from_numpy(time.value), meter(len(src)))
        columns = {"src": self._own(asked.src), "dst": self._own(asked.dst), "time": time.shown}
        return Predictions(pa.table(columns | {"score": _probability(logit)}), assumed, strangers)

    def top(self, pairs: Pairs, k: int, at: Moment | None = None, meter: Meter = _unmetered) -> Predictions:
        """The k likeliest destinations of each source and time, among all the stream knows."""
        asked = read_pairs(pairs, self.options, self.dataset.origin).distinct_sources()
        time, assumed = self._times(asked, at)
        src, _, strangers = self._nodes(asked)
        candidates = torch.unique(self.dataset.store.dst)
        advance = meter(len(src) * len(candidates))
        node, logit = self.links.best(src, torch.from_numpy(time.value), candidates, k, advance)
        row, place = torch.nonzero(torch.isfinite(logit), as_tuple=True)
        columns = {
            "src": self._own(asked.src).take(pa.array(row.numpy())),
            "dst": self._own(self.dataset.ids.to_user(node[row, place].numpy())),
            "time": time[row.numpy()].shown,
            "score": _probability(logit[row, place]),
            "rank": pa.array((1 + place).numpy()),
        }
        return Predictions(pa.table(columns), assumed, strangers)

    def _times(self, asked: Asked, at: Moment | None) -> tuple[Times, Moment | None]:
        """The pairs' own times, or one for all: the one given, or the first that sees the whole stream."""
        if asked.time is not None:
            if at is not None:
                raise ConfigError(f"{asked.where} has a column of times; leave out that column or --at")
            self._check_times(asked.where, asked.time.epoch, asked.time.value)
            return asked.time, None
        if at is not None:
            return self._moment(at)[np.zeros(len(asked), np.int64)], None
        dated = bool(self.dataset.origin.time_origin)
        moment = just_after(self.dataset.store.time, dated)
        shown = iso(moment) if dated else int(moment) if moment.is_integer() else moment
        return Times(np.full(len(asked), moment), pa.repeat(shown, len(asked)), dated), shown

    def _moment(self, at: Moment) -> Times:
        try:
            time = read_times(pa.array([str(at)]), Place("--at", "time", 0), self.options.time_unit)
        except FileError as error:
            raise ConfigError(
                f"--at takes a date like 2024-05-31T12:00:00Z or a number, got '{at}'"
            ) from error
        self._check_times("--at", time.epoch, time.value)
        return time

    def _nodes(self, asked: Asked) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """The nodes of sources and destinations (none asked: sources again), and the ids that have none."""
        ids, stranger = self.dataset.ids, self.dataset.store.num_nodes
        columns = [(asked.src, ids.to_node(asked.src, "src"))]
        if asked.dst is not None:
            columns.append((asked.dst, ids.to_node(asked.dst, "dst")))
        unknown = pa.concat_arrays([column.filter(pa.array(node < 0)) for column, node in columns])
        strangers = tuple(pc.unique(unknown).to_pylist())
        self._require_stateless(len(strangers))
        (src, at_src), (dst, at_dst) = columns[0], columns[-1]
        same = pc.equal(src, dst).to_numpy(zero_copy_only=False) & (ids.sources is None)
        at_dst = np.where(at_dst < 0, np.where(same, stranger, stranger + 1), at_dst)
        at_src = np.where(at_src < 0, stranger, at_src)
        return torch.from_numpy(at_src), torch.from_numpy(at_dst), strangers

    def _own(self, ids: pa.Array) -> pa.Array:
        """Ids as the dataset's: integers where those are, unless one is not written as an integer is."""
        try:
            whole = ids.cast(pa.int64()) if self.run.dataset.ids.kind == "int" else ids
        except pa.ArrowInvalid:
            return ids
        return whole if whole.cast(ids.type).equals(ids) else ids

    def _check_times(self, where: str, epoch: bool, time: np.ndarray) -> None:
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
                "give --time-unit ms, us or ns"
            )

    def _require_stateless(self, new_nodes: int) -> None:
        if new_nodes and self.run.scorer.stateful:
            raise ConfigError(
                f"model '{self.run.about['model']}' keeps a memory of the nodes it was trained with and knows no "
                f"new ones, but {new_nodes} are asked about; leave them out"
            )


def predict(
    run: Path | str,
    pairs: Pairs,
    *,
    events: Path | str | None = None,
    at: Moment | None = None,
    top: int | None = None,
    device: str = "auto",
) -> Predictions:
    """Scores of pairs, or with `top` the likeliest destinations of their sources, after more events."""
    predictor = Predictor.open(run, device)
    if events is not None:
        predictor = predictor.with_events(events)
    return predictor.score(pairs, at) if top is None else predictor.top(pairs, top, at)


def _links(run: OpenRun, dataset: Dataset, tokens: int | None) -> Ranker:
    """The scorer on the stream, with room for strangers."""
    store = dataset.store
    node = torch.cat(
        [store.features.node, store.features.node.new_zeros(STRANGERS, store.features.node.shape[1])]
    )
    features = FeatureTable(node, store.features.edge)
    store = replace(store, num_nodes=store.num_nodes + STRANGERS, features=features)
    return Ranker(
        run.scorer, Stream(store, run.stream.split, run.stream.device), run.seed, tokens, run.rule.cell
    )


def _probability(logit: Tensor) -> pa.Array:
    """The logistic function in 64 bits: certain pairs keep their order."""
    return pa.array(torch.sigmoid(logit.double()).numpy())
