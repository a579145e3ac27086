"""Predictions of a trained run, in the user's ids and times."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.core.progress import SILENT, Advance, Progress, no_advance
from dygmamba.data.events.ids import Side
from dygmamba.data.readers import ReadOptions, read_in_memory, read_more_events
from dygmamba.data.readers.in_memory import is_in_memory, open_in_memory
from dygmamba.data.readers.options import ROLES
from dygmamba.data.readers.queries import QuerySource, QueryTimes
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import check_time_scale, extend_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Ranker, StreamScorer, TopCandidates
from dygmamba.engine.shortlist import MAX_EXACT, Shortlist
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.columns import find_query_columns
from dygmamba.history.view import PairBatch
from dygmamba.models.base import Scorer
from dygmamba.models.classifiers import SourceEmbedding
from dygmamba.models.trees import FeatureTable, TreeScorer
from dygmamba.runs.calibration import load_calibration
from dygmamba.runs.opening import as_directory, choose_device, open_run
from dygmamba.runs.queries import (
    PLACEHOLDER_NODES,
    RAW_SCORE_COLUMN,
    Predictions,
    QueryBatch,
    QueryParser,
    TimeLike,
    build_predictions,
    probability_column,
    score_column,
)
from dygmamba.runs.query_inputs import as_id_column, as_sources, require_positive
from dygmamba.runs.recipes import OpenRun, describe_node_run, get_encoder, hide_labels
from dygmamba.tasks.calibration import Calibration, NewNodes
from dygmamba.tasks.node_targets import ClassTarget, NodeTarget, RegressionTarget

CLASS_COLUMN, VALUE_COLUMN = "class", "value"
MAX_CLASS_COLUMNS = 20  # with more classes only the score of the best one is a column


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
        opened = open_run(folder, choose_device(device), data_dir, task=folder.task)
        ranker = build_ranker(opened, opened.dataset, tokens)
        calibration, new_nodes = load_calibration(folder), None
        if calibration is not None and calibration.has_offsets:
            new_nodes = NewNodes.from_events(opened.stream.store, opened.stream.split.train)
        return Predictor(opened, opened.dataset, ranker, options or ReadOptions(), calibration, new_nodes)

    @property
    def query_parser(self) -> QueryParser:
        columns = find_query_columns(self.run.scorer.requests)
        options, is_int = self.options.recall(self.dataset.origin), self.run.dataset.ids.kind == "int"
        return QueryParser(self.dataset, options, is_int, columns)

    def with_events(self, events: Any) -> "Predictor":
        """Return a predictor that also knows these events, from a file or table with the dataset's columns."""
        return self.with_dataset(self.extend(*self.read_events(events)))

    def with_dataset(self, dataset: Dataset) -> "Predictor":
        """Return a predictor that knows the events of a dataset, which has all those of the run's own."""
        self.require_known_nodes(dataset.store.num_nodes - self.dataset.store.num_nodes)
        ranker = build_ranker(self.run, dataset, self.ranker.stream_scorer.tokens)
        return replace(self, dataset=dataset, ranker=ranker)

    def extend(self, where: str, more: Dataset) -> Dataset:
        """Return the known events and these ones; `where` names their source in messages."""
        check_time_scale(self.dataset, where, bool(more.origin.time_origin), more.store.time.numpy())
        try:
            # a model that reads labels must not take a missing one for 0
            missing_label = 0.0 if self.run.shown is None else nan
            dataset = extend_dataset(self.dataset, more, missing_label)
        except EventError as error:
            raise FileError(f"{where}: {error}", code=error.code) from error
        self.require_known_nodes(dataset.store.num_nodes - self.dataset.store.num_nodes)
        return dataset

    def read_events(self, events: Any) -> tuple[str, Dataset]:
        """Read events. Column names and time format come from the options, or else from how the dataset was read.

        Returns:
            A name for messages, and the events.
        """
        try:
            return self._read_file_or_table(events)
        except NotFoundError as error:
            if error.code != "unknown-column" or self.options.fill is not None:
                raise
            advice = "or fill features that the events lack with `fill=VALUE`"
            raise NotFoundError(f"{error}, {advice}", code=error.code) from error

    def _read_file_or_table(self, events: Any) -> tuple[str, Dataset]:
        if not is_in_memory(events):
            path = Path(events)
            return str(path), read_more_events(path, self.options, self.dataset)
        table, origin, bipartite = open_in_memory(events), self.dataset.origin, self.dataset.store.bipartite
        like = self.options.resemble(origin, bipartite)
        names = {
            part: getattr(self.options, part)
            or (name if (name := getattr(origin, part)) in table.names else None)
            for part in ROLES
        }
        # times in memory have a type, so only what the user says of them counts
        times = {part: getattr(self.options, part) for part in ("time_unit", "time_format", "date_order")}
        features = self.options.features or table.features or origin.features
        return table.name, read_in_memory(
            events, replace(like, **names, **times, features=features), bipartite
        )

    def score(
        self, pairs: QuerySource, at: TimeLike | QueryTimes | None = None, progress: Progress = SILENT
    ) -> Predictions:
        """Score each pair, in the given order: columns src, dst, time, those that the model reads of a query, score."""
        self.require_task("link")
        queries, parser = self._read_pairs(pairs, at), self.query_parser
        with progress.stage("scoring", len(queries.src)) as stage:
            logit = self.ranker.logits(queries.src, queries.dst, queries.time, stage.advance, queries.columns)
        new_ends = self.find_new_ends(queries.src, queries.dst, queries.time)
        columns = {
            **self._pair_columns(queries),
            **parser.repeat_columns(queries.table),
            **score_column(logit, self.calibration, new_ends),
        }
        unread = parser.describe_unread_columns(queries.table)
        return replace(build_predictions(queries, columns, self.calibration), unread_columns=unread)

    def _read_pairs(self, pairs: QuerySource, at: TimeLike | QueryTimes | None) -> QueryBatch:
        """Read queries with destinations; raise NotFoundError if they have none."""
        queries = self._read_queries(pairs, at)
        if queries.table.dst is None:
            raise NotFoundError(
                f"{queries.table.source} has no column of destinations; name it 'dst', or rank destinations instead",
                code="column-not-recognized",
            )
        return queries

    def _pair_columns(self, queries: QueryBatch) -> dict[str, pa.Array]:
        own, to_user_type = queries.table, self.query_parser.to_user_type
        return {"src": to_user_type(own.src), "dst": to_user_type(own.dst), "time": queries.times.shown}

    def find_new_ends(self, src: Tensor, dst: Tensor, time: Tensor) -> Tensor | None:
        """Return which ends of pairs are new, as `NewNodes.find`; None if the calibration does not depend on it."""
        return None if self.new_nodes is None else self.new_nodes.find(src, dst, time)

    def get_trees(self) -> TreeScorer:
        """Return the trees of the run; ConfigError if its model is another one, which reads no table of features."""
        if not isinstance(self.run.scorer, TreeScorer):
            raise ConfigError(
                f"model '{self.run.model}' reads no table of features; use a run of 'trees'",
                code="no-features",
            )
        return self.run.scorer

    def compute_features(self, pairs: QuerySource, at: TimeLike | None = None) -> Predictions:
        """Compute what the trees read of each pair, in the given order: src, dst, time, a 32-bit float per feature."""
        trees, queries, scorer = self.get_trees(), self._read_pairs(pairs, at), self.ranker.stream_scorer
        batch = PairBatch.from_pairs(queries.src, queries.dst, queries.time).with_columns(queries.columns)
        table = StreamScorer(FeatureTable(trees), scorer.stream, self.run.seed, tokens=scorer.tokens)(batch)
        features = {name: pa.array(table[:, k].numpy()) for k, name in enumerate(trees.names)}
        return build_predictions(queries, self._pair_columns(queries) | features, self.calibration)

    def inputs(self, pairs: QuerySource, at: TimeLike | None = None) -> dict[str, Tensor]:
        """Return the tensors that an exported program takes to score these pairs."""
        from dygmamba.runs.export import (
            build_view,
            export_inputs,
            require_exportable,
        )  # costs every prediction 0.1 s

        self.require_task("link")
        queries, stream = self._read_queries(pairs, at), self.ranker.stream_scorer.stream
        batch = PairBatch.from_pairs(queries.src, queries.dst, queries.time).with_columns(queries.columns)
        require_exportable(self.run.scorer, self.run.model)
        trained = self.run.stream
        new_nodes = self.new_nodes or NewNodes.from_events(trained.store, trained.split.train)
        view = build_view(stream, self.run.scorer.requests, batch, self.run.seed)
        return export_inputs(self.run.scorer, view, new_nodes.find(queries.src, queries.dst, queries.time))

    def rank(
        self,
        sources: Any,
        destinations: Any,
        k: int,
        at: TimeLike | None = None,
        candidates: Iterable[str | int] | Path | None = None,
        only_new: bool = False,
        progress: Progress = SILENT,
    ) -> Predictions:
        """Rank destinations of these sources, or sources of these destinations, as `Run.rank` takes them."""
        if (sources is None) == (destinations is None):
            raise ConfigError(
                "give either `sources`, whose destinations are ranked, or `destinations`, whose sources are",
                code="sources-and-destinations",
            )
        require_positive(k)
        if candidates is not None and candidates != "all" and not isinstance(candidates, Path):
            candidates = as_id_column("candidates", candidates)
        if destinations is None:
            return self.top(as_sources("sources", sources), k, at, progress, candidates, only_new)
        return self.top(
            as_sources("destinations", destinations), k, at, progress, candidates, only_new, "src"
        )

    def top(
        self,
        queries: QuerySource,
        k: int,
        at: TimeLike | None = None,
        progress: Progress = SILENT,
        candidates: pa.Array | Path | Literal["all"] | None = None,
        only_new: bool = False,
        side: Side = "dst",
    ) -> Predictions:
        """Rank the k likeliest destinations of each source and time, or with `side="src"` the sources of destinations.

        Without candidates, all nodes of the side are, or a shortlist of them if they are many (`engine/shortlist.py`);
        "all" is always all.
        """
        self.require_task("link")
        parser = self.query_parser
        if parser.columns:
            raise ConfigError(
                "a run with query_columns cannot rank destinations, because a candidate has no "
                f"{' or '.join(parser.column_names)}; use a run trained with `query_columns=false`",
                code="query-columns-missing",
            )
        given = self._read_queries(queries, at, sources_only=True, side="src" if side == "dst" else "dst")
        nodes = parser.read_candidates(None if isinstance(candidates, str) else candidates, side)
        if candidates is None and len(nodes) > MAX_EXACT:
            best = self._rank_shortlists(given, nodes, k, only_new, side, progress)
            shortlist = f"of {len(nodes):,} candidates a shortlist was scored; `candidates='all'` scores all"
        else:
            with progress.stage("scoring", len(given.src) * len(nodes)) as stage:
                best = self._rank(given, nodes, k, only_new, side, stage.advance)
            shortlist = ""
        # a source has fewer than k rows if it has fewer than k candidates: the rest is -inf
        row, position = torch.nonzero(torch.isfinite(best.logit), as_tuple=True)
        logit, asked = best.logit[row, position], parser.to_user_type(given.table.src)
        src, dst = given.src[row], best.node[row, position]
        src, dst = (src, dst) if side == "dst" else (dst, src)
        new_ends = self.find_new_ends(src, dst, given.time[row])
        own = asked.take(pa.array(row.numpy()))
        ranked = parser.to_user_type(self.dataset.ids.to_user(best.node[row, position].numpy()))
        columns = {
            "src": own if side == "dst" else ranked,
            "dst": ranked if side == "dst" else own,
            "time": given.times[row.numpy()].shown,
            **score_column(logit, self.calibration, new_ends),
            **probability_column(logit, best.total[row], self.calibration, new_ends),
            "rank": pa.array((1 + position).numpy()),
        }
        without_candidates = asked.filter(pa.array(torch.isinf(best.total).numpy())).to_pylist()
        without = tuple(dict.fromkeys(map(str, without_candidates)))
        return replace(build_predictions(given, columns, self.calibration, without), shortlist=shortlist)

    def _rank(
        self,
        given: QueryBatch,
        nodes: Tensor,
        k: int,
        only_new: bool,
        side: Side,
        advance: Advance,
        chosen: slice = slice(None),
    ) -> TopCandidates:
        """Return the best of these nodes for each query, or for the chosen ones."""
        own, time, calibration = given.src[chosen], given.time[chosen], self.calibration

        def log_odds(logit: Tensor, rows: Tensor) -> Tensor:
            if calibration is None:
                return logit.double()
            ends = (own[rows, None], nodes) if side == "dst" else (nodes, own[rows, None])
            return calibration.log_odds(
                logit, self.find_new_ends(*torch.broadcast_tensors(*ends, time[rows, None]))
            )

        return self.ranker.top_k(
            own, time, nodes, k, advance, only_new=only_new, rank_sources=side == "src", log_odds=log_odds
        )

    def _rank_shortlists(
        self, given: QueryBatch, nodes: Tensor, k: int, only_new: bool, side: Side, progress: Progress
    ) -> TopCandidates:
        """Return the best of each query's own shortlist; a place without a candidate is -inf."""
        shortlist = Shortlist(self.ranker.stream_scorer.stream, side, nodes)
        node, logit = torch.zeros(len(given.src), k, dtype=torch.int64), torch.full((len(given.src), k), -inf)
        total = torch.full((len(given.src),), -inf, dtype=torch.float64)
        with progress.stage("scoring", len(given.src)) as stage:
            for row in torch.argsort(given.time, stable=True).tolist():  # a memory only moves forward
                proposed = shortlist.propose(int(given.src[row]), float(given.time[row]))
                found = self._rank(given, proposed, k, only_new, side, no_advance, slice(row, row + 1))
                count = found.node.shape[1]
                node[row, :count], logit[row, :count], total[row] = (
                    found.node[0],
                    found.logit[0],
                    found.total[0],
                )
                stage.advance(1)
        return TopCandidates(node, logit, total)

    def classify(
        self,
        nodes: QuerySource | None = None,
        at: TimeLike | None = None,
        k: int | None = None,
        progress: Progress = SILENT,
    ) -> Predictions:
        """Predict the label of each node, as a source: columns node, time and those of `label_columns`.

        Without `nodes`, all nodes that were a source before are scored. Then, or with `k`, rows are sorted by
        descending score (of numbers: by descending value) and numbered in a column rank.
        """
        self.require_task("node")
        queries = (
            self._query_all_sources(at) if nodes is None else self._read_queries(nodes, at, nodes_only=True)
        )
        with progress.stage("scoring", len(queries.src)) as stage:
            output = self._run_on_sources(queries, self.run.scorer, stage.advance)
        target = self.run.target
        assert target is not None
        labels, key = label_columns(target, output, self.calibration, self.dataset.origin.classes)
        columns = self._key_columns(queries) | labels
        if nodes is None or k is not None:
            order = pa.array(torch.sort(key, descending=True, stable=True).indices[:k].numpy())
            columns = {name: column.take(order) for name, column in columns.items()}
            columns["rank"] = pa.array(range(1, len(order) + 1), pa.int64())
        # classes and numbers have no calibration that could be missing
        is_complete = target.kind != "binary" or self.calibration is not None
        return replace(build_predictions(queries, columns, self.calibration), calibrated=is_complete)

    def embed(self, nodes: QuerySource, at: TimeLike | None = None) -> Predictions:
        """Compute the embedding of each node, as a source: columns node, time, embedding."""
        queries = self._read_queries(nodes, at, nodes_only=True)
        encoder = get_encoder(self.run.scorer, self.run.folder.path)
        embedding = self._run_on_sources(queries, SourceEmbedding(encoder))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(embedding.flatten().numpy()), encoder.out_dim)
        return build_predictions(queries, self._key_columns(queries) | {"embedding": rows}, self.calibration)

    def _key_columns(self, queries: QueryBatch) -> dict[str, pa.Array]:
        return {"node": self.query_parser.to_user_type(queries.table.src), "time": queries.times.shown}

    def _run_on_sources(self, queries: QueryBatch, scorer: Scorer, advance: Advance = no_advance) -> Tensor:
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
        self,
        pairs: QuerySource,
        at: TimeLike | QueryTimes | None,
        sources_only: bool = False,
        nodes_only: bool = False,
        side: Side = "src",
    ) -> QueryBatch:
        queries = self.query_parser.read(pairs, at, sources_only, nodes_only, side)
        self.require_known_nodes(len(queries.unknown_ids) + len(queries.wrong_sides))
        return queries

    def _query_all_sources(self, at: TimeLike | None) -> QueryBatch:
        queries = self.query_parser.query_all_sources(at)
        if not len(queries.src):
            raise NotFoundError(
                f"no node of '{self.dataset.name}' was a source before {at}; give a later time",
                code="no-source-yet",
            )
        return queries

    def require_task(self, task: str) -> None:
        if (task == "node") == (self.run.target is not None):
            return
        path = self.run.folder.path
        if task == "node":
            raise ConfigError(
                f"{path} predicts links and has no node states; give a run with task 'node'",
                code="not-a-node-run",
            )
        raise ConfigError(describe_node_run(self.run.config), code="not-a-link-run")

    def require_known_nodes(self, new_nodes: int) -> None:
        """Raise ConfigError if there are new nodes and the model has a memory of those it was trained with."""
        if new_nodes and self.run.scorer.stateful:
            raise ConfigError(
                f"model '{self.run.model}' has a memory of the nodes it was trained with and cannot take new "
                f"ones; got {new_nodes} new nodes, leave them out",
                code="memory-needs-known-nodes",
            )


def build_ranker(run: OpenRun, dataset: Dataset, tokens: int | None) -> Ranker:
    """Build a ranker on the stream, with extra nodes that stand for unknown ids.

    Labels are hidden unless the model reads those of earlier events.
    """
    store = hide_labels(dataset.store, run.shown).with_extra_nodes(PLACEHOLDER_NODES)
    stream = Stream(store, run.stream.split, run.stream.device)
    return Ranker(run.scorer, stream, run.seed, tokens, run.rule.batch_size)


def label_columns(
    target: NodeTarget,
    output: Float[Tensor, "p *c"],
    calibration: Calibration | None = None,
    names: tuple[str, ...] = (),
) -> tuple[dict[str, pa.Array], Float[Tensor, "p"]]:
    """Return the columns of predicted labels, and the number by which predictions are ranked.

    Two states have the column of `score_column`: the probability of the larger label. A number has the column `value`.
    Classes have `class`, the most probable one, `uncalibrated_score`, its probability by the model, and that of every
    class if there are few.

    Args:
        target: What is predicted.
        output: Outputs of the model.
        calibration: Of a run with two states.
        names: Names of the labels 0, 1, ... if the dataset has text labels.
    """
    if isinstance(target, RegressionTarget):
        value = target.decode(output)
        return {VALUE_COLUMN: pa.array(value.numpy())}, value
    if isinstance(target, ClassTarget):
        scores = output.double().reshape(len(output), len(target.values))  # of no nodes it has no columns
        return _class_columns(target, scores.softmax(dim=1), names)
    return score_column(output, calibration), output


def _class_columns(
    target: ClassTarget, score: Float[Tensor, "p c"], names: tuple[str, ...]
) -> tuple[dict[str, pa.Array], Float[Tensor, "p"]]:
    labels = name_classes(target.values, names)
    best = score.max(dim=1)
    columns = {
        CLASS_COLUMN: pa.array(labels).take(pa.array(best.indices.numpy())),
        RAW_SCORE_COLUMN: pa.array(best.values.numpy()),
    }
    if len(labels) <= MAX_CLASS_COLUMNS:
        each = zip(labels, score.unbind(dim=1), strict=True)
        columns |= {f"{RAW_SCORE_COLUMN} {label}": pa.array(own.numpy()) for label, own in each}
    return columns, best.values


def name_classes(values: tuple[float, ...], names: tuple[str, ...]) -> list[str] | list[int] | list[float]:
    """Return labels as the user wrote them: text, whole numbers or other numbers."""
    if names:
        return [names[int(value)] for value in values]
    if all(value.is_integer() for value in values):
        return [int(value) for value in values]
    return list(values)
