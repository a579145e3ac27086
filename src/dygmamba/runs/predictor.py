"""What will happen next: a trained run asked in the user's own ids and times."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.data.readers import ReadOptions, detect_format, read_dataset
from dygmamba.data.readers.in_memory import TABLE_FORMAT, is_in_memory, read_in_memory, wrap_table
from dygmamba.data.readers.options import USUAL_NAMES
from dygmamba.data.readers.queries import QuerySource
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import extend_dataset
from dygmamba.engine.scoring import Advance, Ranker, StreamScorer, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.models.base import EncoderScorer
from dygmamba.models.classifiers import NodeClassifier, SourceEmbedding
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.export import build_view, export_inputs, require_exportable
from dygmamba.runs.node_training import open_classifier
from dygmamba.runs.opening import OpenRun, choose_device, get_encoder, open_run, read_task
from dygmamba.runs.queries import (
    PLACEHOLDER_NODES,
    Predictions,
    QueryBatch,
    QueryParser,
    TimeLike,
    build_predictions,
    probability_column,
    score_column,
)
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.calibration import Calibration

ProgressFactory = Callable[
    [int], Advance
]  # told how many pairs there are, says whom to tell of each one done

TABLE_FORMATS = ("csv", "jsonl", "parquet", "arrow", TABLE_FORMAT)


def _no_progress(total: int) -> Advance:
    return unwatched


@dataclass(frozen=True, slots=True)
class Predictor:
    """A trained run and every event it knows of: its own dataset's and those that came since."""

    run: OpenRun
    dataset: Dataset
    links: Ranker
    options: ReadOptions = field(default_factory=ReadOptions)
    calibration: Calibration | None = None  # of a run that has none, scores are no probabilities

    @staticmethod
    def open(
        run: Path | str,
        device: str = "auto",
        data_dir: Path | None = None,
        options: ReadOptions | None = None,
        tokens: int | None = None,
    ) -> "Predictor":
        """A run's best weights on the stream they were trained on; `options` say how files are to be read."""
        opening = open_classifier if read_task(Path(run)) == "node" else open_run
        opened = opening(Path(run), choose_device(device), data_dir)
        links, calibration = _build_ranker(opened, opened.dataset, tokens), load_calibration(opened.folder)
        return Predictor(opened, opened.dataset, links, options or ReadOptions(), calibration)

    @property
    def query_parser(self) -> QueryParser:
        """Where its questions are read."""
        return QueryParser(self.dataset, self.options, self.run.dataset.ids.kind == "int")

    def with_events(self, events: Any) -> "Predictor":
        """The same run, knowing more events: of a file or table with the dataset's own columns; this one stays."""
        where, more = self._read(events)
        self.query_parser.check_times(where, bool(more.origin.time_origin), more.store.time.numpy())
        try:
            dataset = extend_dataset(self.dataset, more)
        except EventError as error:
            raise FileError(f"{where}: {error}") from error
        self._require_stateless(dataset.store.num_nodes - self.dataset.store.num_nodes)
        return replace(self, dataset=dataset, links=_build_ranker(self.run, dataset, self.links.walk.tokens))

    def _read(self, events: Any) -> tuple[str, Dataset]:
        origin, options, bipartite = self.dataset.origin, self.options, self.dataset.store.bipartite
        if is_in_memory(events):
            held = wrap_table(events)
            names = {
                part: getattr(options, part) or _name_if_present(getattr(origin, part), held.names)
                for part in USUAL_NAMES
            }
            features = options.features or held.features or origin.features
            options = replace(options, **names, features=features, bipartite=bipartite)
            return held.where, read_in_memory(events, options, bipartite)
        path, kind = Path(events), detect_format(Path(events), options)
        if kind in ("jodie", "dyglib") and origin.format in TABLE_FORMATS:
            kind = "csv"  # as the dataset's own file was read
        if kind in TABLE_FORMATS:
            names = {part: getattr(options, part) or getattr(origin, part) or None for part in USUAL_NAMES}
            features = options.features or origin.features
            options = replace(options, **names, features=features, bipartite=bipartite)
            own = origin.time_format if options.time_unit == "auto" else ""
            options = replace(
                options, time_format=options.time_format or own or None, date_order=origin.order
            )
            if options.time_unit == "auto" and not origin.guessed and not origin.time_origin:
                options = replace(options, time_unit="plain")  # numbers like the dataset's own
        return str(path), read_dataset(path, options, format=kind)

    def score(
        self, pairs: QuerySource, at: TimeLike | None = None, meter: ProgressFactory = _no_progress
    ) -> Predictions:
        """The score of each pair, in the order asked: columns src, dst, time, score."""
        self._require_task("link")
        queries = self._read_queries(pairs, at)
        if queries.asked.dst is None:
            raise NotFoundError(
                f"{queries.asked.where} has no column of destinations; name it 'dst', or ask for a ranking"
            )
        logit = self.links.logits(queries.src, queries.dst, queries.when, meter(len(queries.src)))
        own = {
            "src": self.query_parser.own(queries.asked.src),
            "dst": self.query_parser.own(queries.asked.dst),
        }
        columns = own | {"time": queries.time.shown} | score_column(logit, self.calibration)
        return build_predictions(queries, columns, self.calibration)

    def inputs(self, pairs: QuerySource, at: TimeLike | None = None) -> dict[str, Tensor]:
        """What an exported program takes to score these pairs."""
        self._require_task("link")
        queries, walk = self._read_queries(pairs, at), self.links.walk
        asked = PairBatch.of(queries.src, queries.dst, queries.when)
        require_exportable(self.run.scorer, self.run.about["model"])
        view = build_view(walk.stream, self.run.scorer.requests, asked, self.run.seed)
        return export_inputs(self.run.scorer, view)

    def top(
        self,
        pairs: QuerySource,
        k: int,
        at: TimeLike | None = None,
        meter: ProgressFactory = _no_progress,
        candidates: pa.Array | Path | None = None,
        only_new: bool = False,
    ) -> Predictions:
        """The k likeliest destinations of each source and time, among all the stream knows or the candidates."""
        self._require_task("link")
        queries, among = (
            self._read_queries(pairs, at, sources_only=True),
            self.query_parser.destinations(candidates),
        )
        advance, known = meter(len(queries.src) * len(among)), self.calibration
        odds = Tensor.double if known is None else known.log_odds
        best = self.links.best(queries.src, queries.when, among, k, advance, only_new=only_new, log_odds=odds)
        row, place = torch.nonzero(torch.isfinite(best.logit), as_tuple=True)
        logit, own = best.logit[row, place], self.query_parser.own(queries.asked.src)
        columns = {
            "src": own.take(pa.array(row.numpy())),
            "dst": self.query_parser.own(self.dataset.ids.to_user(best.node[row, place].numpy())),
            "time": queries.time[row.numpy()].shown,
            **score_column(logit, known),
            **probability_column(logit, best.total[row], known),
            "rank": pa.array((1 + place).numpy()),
        }
        left = own.filter(pa.array(torch.isinf(best.total).numpy()))
        return build_predictions(queries, columns, known, tuple(dict.fromkeys(map(str, left.to_pylist()))))

    def classify(
        self,
        nodes: QuerySource | None = None,
        at: TimeLike | None = None,
        k: int | None = None,
        meter: ProgressFactory = _no_progress,
    ) -> Predictions:
        """The score of state 1 for each node, as a source: columns node, time, score.

        Without nodes, for all that were a source before; these, or the k highest, come in order, with a rank.
        """
        self._require_task("node")
        queries = self._query_all_sources(at) if nodes is None else self._read_queries(nodes, at)
        logit = self._run_on_sources(queries, self.run.scorer, meter(len(queries.src)))
        columns = self._key_columns(queries) | score_column(logit, self.calibration)
        if nodes is not None and k is None:
            return build_predictions(queries, columns, self.calibration)
        order = pa.array(torch.sort(logit, descending=True, stable=True).indices[:k].numpy())
        ranked = {name: column.take(order) for name, column in columns.items()}
        ranked["rank"] = pa.array(range(1, len(order) + 1), pa.int64())
        return build_predictions(queries, ranked, self.calibration)

    def _query_all_sources(self, at: TimeLike | None) -> QueryBatch:
        """A question about each source that the stream knows by then."""
        queries = self.query_parser.everyone(at)
        if not len(queries.src):
            raise NotFoundError(
                f"no node of '{self.dataset.name}' was a source before {at}; ask about a later time"
            )
        return queries

    def embed(self, nodes: QuerySource, at: TimeLike | None = None) -> Predictions:
        """What the encoder makes of each node, as a source: columns node, time, embedding."""
        queries, encoder = self._read_queries(nodes, at), get_encoder(self.run.scorer, self.run.folder)
        found = self._run_on_sources(queries, SourceEmbedding(encoder))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(found.flatten().numpy()), found.shape[1])
        return build_predictions(queries, self._key_columns(queries) | {"embedding": rows}, self.calibration)

    def _key_columns(self, queries: QueryBatch) -> dict[str, pa.Array]:
        return {"node": self.query_parser.own(queries.asked.src), "time": queries.time.shown}

    def _run_on_sources(
        self,
        queries: QueryBatch,
        reader: SourceEmbedding | NodeClassifier | EncoderScorer,
        advance: Advance = unwatched,
    ) -> Tensor:
        """Sources are asked about beside a partner: the one given, or the last they met before."""
        stream = self.links.walk.stream
        partner = queries.dst if queries.asked.dst is not None else self._last_neighbors(queries)
        clock = None
        if reader.stateful:  # a memory of its own: the ranker's goes on where it stands
            clock = MemorySchedule.of(stream.store, (torch.arange(len(stream.store)),), self.run.rule.cell)
            reader = deepcopy(reader)
        seen = None if clock is None else clock.earlier(queries.when)
        walk = StreamScorer(reader, stream, self.run.seed, clock, self.links.walk.tokens)
        return walk(PairBatch.of(queries.src, partner, queries.when), seen, advance)

    def _last_neighbors(self, queries: QueryBatch) -> Tensor:
        """Whom each source met last, strictly before; a stranger where that was nobody."""
        index, device = self.links.walk.stream.index, self.links.walk.stream.device
        last = index.recent(queries.src.to(device), queries.when.to(device), 1)
        stranger = torch.full_like(queries.src, self.dataset.store.num_nodes + 1)
        return torch.where(last.length.cpu() > 0, last.node[:, 0].cpu().long(), stranger)

    def _read_queries(
        self, pairs: QuerySource, at: TimeLike | None, sources_only: bool = False
    ) -> QueryBatch:
        queries = self.query_parser.read(pairs, at, sources_only)
        self._require_stateless(len(queries.unknown_ids))
        return queries

    def _require_task(self, task: str) -> None:
        if (task == "node") != isinstance(self.run.scorer, NodeClassifier):
            backbone = self.run.about.get("backbone")
            raise ConfigError(
                f"{self.run.folder.path} predicts links and knows no states; give a run of the node task"
                if task == "node"
                else f"{self.run.folder.path} classifies nodes; give a link run, such as its backbone {backbone}"
            )

    def _require_stateless(self, new_nodes: int) -> None:
        if new_nodes and self.run.scorer.stateful:
            raise ConfigError(
                f"model '{self.run.about['model']}' keeps a memory of the nodes it was trained with and knows no "
                f"new ones, but {new_nodes} are asked about; leave them out"
            )


def _name_if_present(name: str, names: tuple[str, ...]) -> str | None:
    return name if name in names else None


def _build_ranker(run: OpenRun, dataset: Dataset, tokens: int | None) -> Ranker:
    """The scorer on the stream, with room for strangers."""
    store = replace(dataset.store, label=None)
    node = torch.cat(
        [store.features.node, store.features.node.new_zeros(PLACEHOLDER_NODES, store.features.node.shape[1])]
    )
    features = FeatureTable(node, store.features.edge)
    store = replace(store, num_nodes=store.num_nodes + PLACEHOLDER_NODES, features=features)
    return Ranker(
        run.scorer, Stream(store, run.stream.split, run.stream.device), run.seed, tokens, run.rule.cell
    )
