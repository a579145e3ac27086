"""Predictions of a trained run, in the user's ids and times."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.core.progress import SILENT, Advance, Progress, no_advance
from dygmamba.data.readers import ReadOptions, detect_format, read_dataset
from dygmamba.data.readers.in_memory import TABLE_FORMAT, is_in_memory, read_in_memory, wrap_table
from dygmamba.data.readers.options import USUAL_NAMES
from dygmamba.data.readers.queries import QuerySource
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import extend_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Ranker, StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.models.base import EncoderScorer
from dygmamba.models.classifiers import NodeClassifier, SourceEmbedding
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.export import build_view, export_inputs, require_exportable
from dygmamba.runs.node_training import open_classifier
from dygmamba.runs.opening import OpenRun, as_directory, choose_device, get_encoder, open_run
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
from dygmamba.sampling.columns import find_query_columns
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.calibration import Calibration, NewNodes

TABLE_FORMATS = ("csv", "jsonl", "parquet", "arrow", TABLE_FORMAT)


@dataclass(frozen=True, slots=True)
class Predictor:
    """A trained run and all events known to it: those of its dataset and those observed since."""

    run: OpenRun
    dataset: Dataset
    ranker: Ranker
    options: ReadOptions = field(default_factory=ReadOptions)  # how files with queries or events are read
    calibration: Calibration | None = None  # without one, scores are not probabilities
    new_nodes: NewNodes | None = None  # only if the calibration has offsets for new nodes

    @staticmethod
    def open(
        run: Path | str | RunDirectory,
        device: str = "auto",
        data_dir: Path | None = None,
        options: ReadOptions | None = None,
        tokens: int | None = None,
    ) -> "Predictor":
        """Open a run with its best weights on the stream it was trained on.

        Args:
            run: The run directory.
            device: cpu, cuda or auto.
            data_dir: Where to look for its dataset first.
            options: How to read files with queries or events.
            tokens: Most sequence tokens in one forward pass; by default chosen for the device.
        """
        folder = as_directory(Path(run) if isinstance(run, str) else run)
        open_task = open_classifier if folder.task == "node" else open_run
        opened = open_task(folder, choose_device(device), data_dir)
        ranker, calibration, new_nodes = (
            build_ranker(opened, opened.dataset, tokens),
            load_calibration(folder),
            None,
        )
        if calibration is not None and calibration.has_offsets:
            new_nodes = NewNodes.from_events(opened.stream.store, opened.stream.split.train)
        return Predictor(opened, opened.dataset, ranker, options or ReadOptions(), calibration, new_nodes)

    @property
    def query_parser(self) -> QueryParser:
        columns = find_query_columns(self.run.scorer.requests)
        return QueryParser(self.dataset, self.options, self.run.dataset.ids.kind == "int", columns)

    def with_events(self, events: Any) -> "Predictor":
        """Return a predictor that also knows these events, from a file or table with the dataset's columns."""
        where, more = self.read_events(events)
        try:
            dataset = extend_dataset(self.dataset, more)
        except EventError as error:
            raise FileError(f"{where}: {error}", code=error.code) from error
        self.require_known_nodes(dataset.store.num_nodes - self.dataset.store.num_nodes)
        return replace(
            self, dataset=dataset, ranker=build_ranker(self.run, dataset, self.ranker.stream_scorer.tokens)
        )

    def read_events(self, events: Any) -> tuple[str, Dataset]:
        """Read events from a file or table with the dataset's columns, on its time scale.

        Returns:
            A name for messages, and the events.
        """
        try:
            where, more = self._read_events(events)
        except NotFoundError as error:
            if error.code != "unknown-column" or self.options.fill is not None:
                raise
            advice = "or fill features that the events lack with `fill=VALUE`"
            raise NotFoundError(f"{error}, {advice}", code=error.code) from error
        self.query_parser.check_times(where, bool(more.origin.time_origin), more.store.time.numpy())
        return where, more

    def _read_events(self, events: Any) -> tuple[str, Dataset]:
        """Read events. Column names and time format come from the options, or else from how the dataset was read.

        Returns:
            A name for messages, and the events.
        """
        origin, options, bipartite = self.dataset.origin, self.options, self.dataset.store.bipartite
        if is_in_memory(events):
            table = wrap_table(events)
            names = {
                part: getattr(options, part) or _name_if_present(getattr(origin, part), table.names)
                for part in USUAL_NAMES
            }
            chosen = self._choose_columns(table.features)
            options = replace(options, **names, **chosen, bipartite=bipartite)
            return table.source, read_in_memory(events, options, bipartite)
        path, kind = Path(events), detect_format(Path(events), options)
        if kind in ("jodie", "dyglib") and origin.format in TABLE_FORMATS:
            kind = "csv"  # the dataset's file was read as a plain table too
        if kind in TABLE_FORMATS:
            names = {part: getattr(options, part) or getattr(origin, part) or None for part in USUAL_NAMES}
            options = replace(options, **names, **self._choose_columns(), bipartite=bipartite)
            time_format = origin.time_format if options.time_unit == "auto" else ""
            options = replace(
                options, time_format=options.time_format or time_format or None, date_order=origin.order
            )
            if options.time_unit == "auto" and not origin.guessed and not origin.time_origin:
                options = replace(options, time_unit="plain")  # the dataset's times are plain numbers
        return str(path), read_dataset(path, options, format=kind)

    def _choose_columns(self, own: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the options that read the dataset's columns; `own` are features that the table's layout fixes."""
        origin, features = self.dataset.origin, self.options.features
        chosen = {"features": features or own or origin.features, "types": origin.types}
        return {**chosen, "columns": False, "allow_absent": self.options.fill is not None}

    def score(
        self, pairs: QuerySource, at: TimeLike | None = None, progress: Progress = SILENT
    ) -> Predictions:
        """Score each pair, in the given order: columns src, dst, time, score."""
        self._require_task("link")
        queries, parser = self._read_queries(pairs, at), self.query_parser
        if queries.table.dst is None:
            raise NotFoundError(
                f"{queries.table.source} has no column of destinations; name it 'dst', or rank destinations instead",
                code="column-not-recognized",
            )
        with progress.stage("scoring", len(queries.src)) as stage:
            logit = self.ranker.logits(queries.src, queries.dst, queries.time, stage.advance, queries.columns)
        columns = {
            "src": parser.to_user_type(queries.table.src),
            "dst": parser.to_user_type(queries.table.dst),
            "time": queries.times.shown,
            **score_column(
                logit, self.calibration, self.find_new_ends(queries.src, queries.dst, queries.time)
            ),
        }
        return build_predictions(queries, columns, self.calibration)

    def find_new_ends(self, src: Tensor, dst: Tensor, time: Tensor) -> Tensor | None:
        """Return which ends of pairs are new, as `NewNodes.find`; None if the calibration does not depend on it."""
        return None if self.new_nodes is None else self.new_nodes.find(src, dst, time)

    def inputs(self, pairs: QuerySource, at: TimeLike | None = None) -> dict[str, Tensor]:
        """Return the tensors that an exported program takes to score these pairs."""
        self._require_task("link")
        queries, stream = self._read_queries(pairs, at), self.ranker.stream_scorer.stream
        batch = PairBatch.from_pairs(queries.src, queries.dst, queries.time).with_columns(queries.columns)
        require_exportable(self.run.scorer, self.run.about["model"])
        return export_inputs(
            self.run.scorer, build_view(stream, self.run.scorer.requests, batch, self.run.seed)
        )

    def top(
        self,
        pairs: QuerySource,
        k: int,
        at: TimeLike | None = None,
        progress: Progress = SILENT,
        candidates: pa.Array | Path | None = None,
        only_new: bool = False,
    ) -> Predictions:
        """Rank the k likeliest destinations of each source and time among the candidates (default: all)."""
        self._require_task("link")
        queries, parser = self._read_queries(pairs, at, sources_only=True), self.query_parser
        nodes, calibration = parser.read_candidates(candidates), self.calibration

        def log_odds(logit: Tensor, rows: Tensor) -> Tensor:
            if calibration is None:
                return logit.double()
            ends = torch.broadcast_tensors(queries.src[rows, None], nodes, queries.time[rows, None])
            return calibration.log_odds(logit, self.find_new_ends(*ends))

        with progress.stage("scoring", len(queries.src) * len(nodes)) as stage:
            best = self.ranker.top_k(
                queries.src, queries.time, nodes, k, stage.advance, only_new=only_new, log_odds=log_odds
            )
        # a source has fewer than k rows if it has fewer than k candidates: the rest is -inf
        row, position = torch.nonzero(torch.isfinite(best.logit), as_tuple=True)
        logit, sources = best.logit[row, position], parser.to_user_type(queries.table.src)
        new_ends = self.find_new_ends(queries.src[row], best.node[row, position], queries.time[row])
        columns = {
            "src": sources.take(pa.array(row.numpy())),
            "dst": parser.to_user_type(self.dataset.ids.to_user(best.node[row, position].numpy())),
            "time": queries.times[row.numpy()].shown,
            **score_column(logit, calibration, new_ends),
            **probability_column(logit, best.total[row], calibration, new_ends),
            "rank": pa.array((1 + position).numpy()),
        }
        without_candidates = sources.filter(pa.array(torch.isinf(best.total).numpy())).to_pylist()
        return build_predictions(
            queries, columns, calibration, tuple(dict.fromkeys(map(str, without_candidates)))
        )

    def classify(
        self,
        nodes: QuerySource | None = None,
        at: TimeLike | None = None,
        k: int | None = None,
        progress: Progress = SILENT,
    ) -> Predictions:
        """Compute the probability that each node, as a source, is in state 1: columns node, time, score.

        Without `nodes`, all nodes that were a source before are scored. Then, or with `k`, rows are sorted by
        descending score and numbered in a column rank.
        """
        self._require_task("node")
        queries = self._query_all_sources(at) if nodes is None else self._read_queries(nodes, at)
        with progress.stage("scoring", len(queries.src)) as stage:
            logit = self._run_on_sources(queries, self.run.scorer, stage.advance)
        columns = self._key_columns(queries) | score_column(logit, self.calibration)
        if nodes is not None and k is None:
            return build_predictions(queries, columns, self.calibration)
        order = pa.array(torch.sort(logit, descending=True, stable=True).indices[:k].numpy())
        ranked = {name: column.take(order) for name, column in columns.items()}
        ranked["rank"] = pa.array(range(1, len(order) + 1), pa.int64())
        return build_predictions(queries, ranked, self.calibration)

    def embed(self, nodes: QuerySource, at: TimeLike | None = None) -> Predictions:
        """Compute the embedding of each node, as a source: columns node, time, embedding."""
        queries, encoder = self._read_queries(nodes, at), get_encoder(self.run.scorer, self.run.folder)
        embedding = self._run_on_sources(queries, SourceEmbedding(encoder))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(embedding.flatten().numpy()), embedding.shape[1])
        return build_predictions(queries, self._key_columns(queries) | {"embedding": rows}, self.calibration)

    def _key_columns(self, queries: QueryBatch) -> dict[str, pa.Array]:
        return {"node": self.query_parser.to_user_type(queries.table.src), "time": queries.times.shown}

    def _run_on_sources(
        self,
        queries: QueryBatch,
        scorer: SourceEmbedding | NodeClassifier | EncoderScorer,
        advance: Advance = no_advance,
    ) -> Tensor:
        """Run a model on each source, paired with the given destination or its last neighbor."""
        stream = self.ranker.stream_scorer.stream
        partner = queries.dst if queries.table.dst is not None else self.last_neighbors(queries)
        schedule = None
        if scorer.stateful:  # work on a copy, so that the ranker's memory does not change
            everything = torch.arange(len(stream.store))
            schedule = MemorySchedule.from_periods(stream.store, (everything,), self.run.rule.batch_size)
            scorer = deepcopy(scorer)
        visible = None if schedule is None else schedule.count_earlier(queries.time)
        score_stream = StreamScorer(scorer, stream, self.run.seed, schedule, self.ranker.stream_scorer.tokens)
        return score_stream(PairBatch.from_pairs(queries.src, partner, queries.time), visible, advance)

    def last_neighbors(self, queries: QueryBatch) -> Tensor:
        """Return the last neighbor of each source strictly before its query, or a placeholder node."""
        index, device = self.ranker.stream_scorer.stream.index, self.ranker.stream_scorer.stream.device
        last = index.recent(queries.src.to(device), queries.time.to(device), 1)
        placeholder = torch.full_like(queries.src, self.dataset.store.num_nodes + 1)
        return torch.where(last.length.cpu() > 0, last.node[:, 0].cpu().long(), placeholder)

    def _read_queries(
        self, pairs: QuerySource, at: TimeLike | None, sources_only: bool = False
    ) -> QueryBatch:
        queries = self.query_parser.read(pairs, at, sources_only)
        self.require_known_nodes(len(queries.unknown_ids))
        return queries

    def _query_all_sources(self, at: TimeLike | None) -> QueryBatch:
        queries = self.query_parser.query_all_sources(at)
        if not len(queries.src):
            raise NotFoundError(
                f"no node of '{self.dataset.name}' was a source before {at}; give a later time",
                code="no-source-yet",
            )
        return queries

    def _require_task(self, task: str) -> None:
        if (task == "node") == isinstance(self.run.scorer, NodeClassifier):
            return
        path = self.run.folder.path
        if task == "node":
            raise ConfigError(
                f"{path} predicts links and has no node states; give a run with task 'node'",
                code="not-a-node-run",
            )
        backbone = self.run.about.get("backbone")
        raise ConfigError(
            f"{path} classifies nodes; give a link run, such as its backbone {backbone}",
            code="not-a-link-run",
        )

    def require_known_nodes(self, new_nodes: int) -> None:
        """Raise ConfigError if there are new nodes and the model has a memory of those it was trained with."""
        if new_nodes and self.run.scorer.stateful:
            raise ConfigError(
                f"model '{self.run.about['model']}' has a memory of the nodes it was trained with and cannot take new "
                f"ones; got {new_nodes} new nodes, leave them out",
                code="memory-needs-known-nodes",
            )


def _name_if_present(name: str, names: tuple[str, ...]) -> str | None:
    return name if name in names else None


def build_ranker(run: OpenRun, dataset: Dataset, tokens: int | None) -> Ranker:
    """Build a ranker on the stream without labels, with extra nodes that stand for unknown ids."""
    store = dataset.store.without_labels().with_extra_nodes(PLACEHOLDER_NODES)
    stream = Stream(store, run.stream.split, run.stream.device)
    return Ranker(run.scorer, stream, run.seed, tokens, run.rule.batch_size)
