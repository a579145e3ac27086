"""A trained run to query in the user's own ids and times; results are Arrow tables, which have `.to_pandas()`."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dygmamba.api.batch_scoring import BatchScorer
from dygmamba.api.evaluation import rows_to_table, run_evaluation, run_monitoring
from dygmamba.api.reports import run_report
from dygmamba.api.requests.base import Names
from dygmamba.api.requests.evaluation import EvaluateRequest, MonitorRequest
from dygmamba.api.requests.prediction import ExportRequest, ReportRequest
from dygmamba.api.sharing import fetch_shared_run
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.choices import SCOPES
from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.core.notebook_html import format_facts, format_table
from dygmamba.core.progress import LOGGER
from dygmamba.data.readers import ReadOptions
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.explanation import Explanation
from dygmamba.explain.pairs import DEFAULT_ORDERS, explain_pair
from dygmamba.runs.export import Program, export_run
from dygmamba.runs.export import load_program as load_exported
from dygmamba.runs.observed_events import load_observed, save_observed
from dygmamba.runs.opening import warn_if_unfinished
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import Predictions, TimeLike
from dygmamba.runs.query_inputs import as_sources, require_positive
from dygmamba.runs.run_names import find_run
from dygmamba.tasks.metric_names import list_metrics

SHOWN_IDS = 3  # in a warning
# columns of results that a notebook shows
SHOWN_RESULTS = ("split", "setting", "negatives", "seeds", *list_metrics(shown="summary"), "n")
# options that say how a file of events is read; the others of `ReadOptions` are decided by the run's dataset
READING_NAMES = (
    "src", "dst", "time", "label", "features", "types", "time_unit", "time_format", "fill", "decimal", "skip_bad",
    "header", "delimiter", "encoding",
)  # fmt: skip

if TYPE_CHECKING:
    from torch import Tensor

    from dygmamba.api.datasets import Source

    Nodes = Iterable[str | int] | Source  # ids, or a table with a column of sources
else:
    Nodes = Any


@dataclass(frozen=True)
class Run:
    """A trained run and the events it knows.

    A score is a probability, calibrated on the validation period: for a pair, that it is a real event and not a random
    one, if both are equally likely a priori; for a node, that its state is 1. A run without a calibration has a column
    `uncalibrated_score` instead, which only ranks; `dygmamba.resume` calibrates it. Without a time, a query is just
    after the last known event.
    """

    path: Path
    device: str = "auto"
    data_dir: Path | None = None
    time_unit: str = "auto"
    time_format: str | None = None
    observed: Path | None = None  # a file of `save`, whose events it knows too
    address: str = ""  # of the shared run that `path` is a copy of
    _extended: Predictor | None = field(default=None, repr=False, compare=False)  # with the observed events

    @cached_property
    def _predictor(self) -> Predictor:
        if self._extended is not None:
            return self._extended
        options = ReadOptions(time_unit=self.time_unit, time_format=self.time_format)
        predictor = Predictor.open(self._folder, self.device, self.data_dir, options)
        return predictor if self.observed is None else load_observed(predictor, self.observed)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without the opened model, which the copy opens again from the run directory."""
        if self._extended is not None:
            raise ConfigError(
                f"a run that observed events cannot be sent to another process; `save` them, and open {self.path} with "
                "that file as `observed`",
                code="run-not-picklable",
            )
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _repr_html_(self) -> str:
        about, page = self._folder.config().get("run", {}), self.path / "report.html"
        facts = {name: about.get(name) for name in ("data", "model", "seed", "task")}
        facts |= {"path": self.path, "report": page if page.is_file() else None}
        facts |= {"state": "" if self.finished else "not finished"}
        rows = self.results.to_pylist()
        kept = [name for name in SHOWN_RESULTS if rows and name in rows[0]]
        results = format_table(kept, [[row[name] for name in kept] for row in rows], "results")
        return format_facts("run", facts) + (results if rows else "")

    @cached_property
    def _folder(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """Everything needed to repeat the run: sections run, train, model, made_with."""
        return self._folder.config()

    @property
    def task(self) -> str:
        """The task it was trained for: "link" or "node"."""
        return self._folder.task

    @property
    def finished(self) -> bool:
        """Whether it is trained and evaluated; `dygmamba.resume` finishes a run that was stopped."""
        return self._folder.finished

    @property
    def data(self) -> Dataset:
        """The events it knows, including those it was trained on."""
        return self._predictor.dataset

    @property
    def metrics(self) -> pa.Table:
        """One row per epoch: loss, validation metrics, seconds."""
        return pa.Table.from_pylist(self._folder.metrics())

    @property
    def results(self) -> pa.Table:
        """The final evaluation, one row per split, setting and negatives; no rows if the run is not finished."""
        return rows_to_table(self._folder.results())

    @property
    def rules(self) -> pa.Table:
        """Results of heuristics, such as recency, on the same queries; rows like those of `results`."""
        return pa.Table.from_pylist(self._folder.rules())

    @property
    def ranking(self) -> pa.Table:
        """Ranks of test events among all destinations: the run first, then baselines, the best MRR first.

        No rows where ranking takes too long; `evaluate(metrics="mrr,hits@10", candidates="all")` ranks every event.
        """
        return rows_to_table(self._folder.ranking())

    @property
    def selection(self) -> dict[str, Any]:
        """The models tried within a `budget` and why this run was chosen; empty for a run trained alone.

        "candidates" has a dictionary for each model, with its validation AP and standard error, seconds and megabytes,
        or the reason why it was skipped.
        """
        return self._folder.selection()

    @check_arguments
    def score(self, pairs: "Source", at: TimeLike | None = None) -> pa.Table:
        """Score pairs: a file, a table, or a list of (src, dst) or (src, dst, time).

        A model trained with `query_columns` also reads the columns of the events in question, by their names.

        Returns columns src, dst, time, those of the events in question that the model reads, and score, in the same
        order. Ids without events are allowed, unless the model has a node memory; the logger "dygmamba" warns of them,
        as they may be misspelt.
        """
        return _log_unknown_ids(self._predictor.score(pairs, at))

    @check_arguments
    def features(self, pairs: "Source", at: TimeLike | None = None) -> pa.Table:
        """Compute the features that trees read of pairs, for other models; the pairs are those of `score`.

        Returns columns src, dst, time and a column of 32-bit floats per feature, by its name, in the same order. Each
        reads strictly earlier events only. `scorer(features=True)` computes the same on many machines. The run must be
        one of `trees` or `walk-trees`.
        """
        return _log_unknown_ids(self._predictor.compute_features(pairs, at))

    @check_arguments
    def rank(
        self,
        sources: "Nodes | None" = None,
        k: int = 10,
        at: TimeLike | None = None,
        candidates: Iterable[str | int] | Path | None = None,
        only_new: bool = False,
        *,
        destinations: "Nodes | None" = None,
    ) -> pa.Table:
        """Rank the k likeliest destinations of each source, or the sources of each of the given `destinations`.

        Returns columns src, dst, time, score, probability, rank; `probability` is that of being the true one, given
        that exactly one candidate is. Candidates are ids, a file of them, or "all"; by default all nodes of the side,
        or a shortlist of more than 20,000, which the logger "dygmamba" says. With `only_new`, nodes that were met
        before are left out. Without self-loops in the data, a node is not its own destination.
        """
        return _log_unknown_ids(self._predictor.rank(sources, destinations, k, at, candidates, only_new))

    @check_arguments
    def embed(self, nodes: "Nodes", at: TimeLike | None = None) -> pa.Table:
        """Embed each node as a source: columns node, time, embedding.

        A model that encodes pairs needs a partner: the destination in the table, or else the last neighbor of the node.
        """
        return _log_unknown_ids(self._predictor.embed(as_sources("nodes", nodes), at))

    @check_arguments
    def classify(
        self, nodes: "Nodes | None" = None, at: TimeLike | None = None, k: int | None = None
    ) -> pa.Table:
        """Predict the label of each node, from a run of task="node": columns node, time and those of the label.

        Two states have the column score, the probability of state 1. Classes have class, uncalibrated_score (of that
        class) and, if they are few, the score of each class. A number has value. Without `nodes`, every node that was
        a source before is scored. Then, or with `k`, rows are sorted by descending score (or value) and numbered in a
        column rank. Only strictly earlier events are visible.
        """
        if k is not None:
            require_positive(k)
        sources = None if nodes is None else as_sources("nodes", nodes)
        return _log_unknown_ids(self._predictor.classify(sources, at, k))

    @check_arguments
    def explain(
        self,
        pair: tuple[str | int, str | int] | str | int,
        at: TimeLike | None = None,
        *,
        orders: int = DEFAULT_ORDERS,
        columns: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """Explain which past events moved the score of (src, dst), or of a node in a run of task="node".

        The contributions and the base add up to the logit. More sampled `orders` of the events make the errors of the
        contributions smaller, and take longer. `columns` are those of the event in question, such as {"amount": 12},
        for a model trained with `query_columns`.
        """
        return explain_pair(self._predictor, pair, at, orders, columns)

    @check_arguments
    def observe(self, events: "Source", fill: float | None = None, **options: Any) -> "Run":
        """Return a Run that also knows these events: a file, a table or a list of (src, dst, time).

        This run stays unchanged, and nothing is trained. A file is read as the run's own data was. `fill` replaces
        missing numbers, also of features that the events lack altogether; `options` are those of `dygmamba.read` (src,
        dst, time, features, delimiter, encoding, ...), where the file differs.
        """
        predictor = self._predictor
        _check_reading_names(options)
        reader = replace(predictor, options=replace(predictor.options, **options, fill=fill))
        return replace(self, _extended=replace(reader.with_events(events), options=predictor.options))

    @check_arguments
    def save(self, to: Path | str) -> Path:
        """Save all events that this run knows, those of `observe` too, as NAME.safetensors; returns the path.

        `dygmamba.open(run, observed=PATH)` knows them again. The weights stay in the run directory.
        """
        return save_observed(self._predictor, Path(to))

    @check_arguments
    def scorer(
        self,
        *,
        features: bool = False,
        at: TimeLike | None = None,
        src: str | None = None,
        dst: str | None = None,
        time: str | None = None,
    ) -> BatchScorer:
        """Return a function that adds scores to batches of pairs, and can be sent to the processes of an engine.

        It takes an Arrow table or record batch, a pandas or a polars frame, and returns the same with the columns that
        its attribute `columns` lists: the score, and which run and which events it is of. A batch has the scores that
        `score` gives its pairs. Pass it to `map_batches` of Ray or `map_partitions` of Dask, and its `map_batches` to
        `mapInArrow` of Spark. Every machine must be able to read the run and its dataset, under the same path or, for a
        run opened from an address, from there.

        Args:
            features: Add the features that trees read of each pair instead, to be read by other models.
            at: Time of all pairs, if they have no column of times.
            src: Name of the column of sources, by default the dataset's or a usual one; so are `dst` and `time`.
            dst: Name of the column of destinations.
            time: Name of the column of times.
        """
        return BatchScorer.create(self, {"src": src, "dst": dst, "time": time}, at, features)

    @check_arguments
    def evaluate(
        self,
        negatives: Names | None = None,
        split: Names = "test",
        setting: Names = SCOPES,
        visible: str | None = None,
        *,
        metrics: Names | None = None,
        candidates: int | str | None = None,
        filtered: bool = False,
        activity: bool = False,
        events: "Source | None" = None,
        period: str = "auto",
        **options: Any,
    ) -> pa.Table:
        """Evaluate by the published protocol: a row per negatives (random, historical, inductive), split and setting.

        A run of the node task has a row per split. Events added by `observe` are ignored.

        With `events`, a file or table of events after those of the run's dataset, the rows are the test period
        ("test"), all new events ("new") and each period of them, with AP, AUC, log loss, ECE, the AP of the best
        baseline, the events per day and the share of events with an unknown id. Only `period` applies then.

        Args:
            negatives: Which negatives: random, historical, inductive.
            split: val, test or both.
            setting: transductive (all nodes), inductive (new nodes) or both.
            visible: Which events a memory or count sees: "strict" or "batch"; default: as in training.
            metrics: Metrics such as "mrr,hits@10" rank each event's destination among `candidates` instead.
            candidates: Number of candidates, or "all".
            filtered: Leave out candidates that are true destinations at the same time.
            activity: Add the source's activity rate to the score for negatives that replace the source (historical,
                inductive); a run trained with `activity` always adds it.
            events: New events to evaluate on instead.
            period: Group new events by "hour", "day", "week", "month", "all", or by one that fits ("auto").
            **options: How `events` are read, as in `observe`.
        """
        if events is not None:
            _check_reading_names(options)
            reading = {"time_unit": self.time_unit, "time_format": self.time_format} | options
            own = {"run": self.path, "device": self.device, "data_dir": self.data_dir}
            request = MonitorRequest(events=events, period=period, reading=reading, **own)
            return rows_to_table(run_monitoring(request.check()).monitoring.rows)
        if options:
            raise ConfigError(
                f"`{next(iter(options))}` says how new events are read; give `events` too, or leave it out",
                code="option-without-events",
            )
        request = EvaluateRequest.from_arguments(
            locals(), data=self.path, device=self.device, data_dir=self.data_dir
        )
        return rows_to_table(run_evaluation(request.check()))

    @check_arguments
    def export(self, to: Path | str) -> Path:
        """Export the scorer as a torch program, NAME.pt2, an ONNX graph, NAME.onnx, or for numpy, NAME.zip.

        The export is loaded and its scores are compared with this run's before the file is put in place. It takes what
        `inputs` returns, for any number of pairs, and returns logits: `torch.export.load(to).module()`, or
        onnxruntime's `InferenceSession`, which also has the calibrated `probability`. `dygmamba.load_program` has it
        for both, and checks the digest, NAME.sha256. The file describes its inputs and its calibration. Networks that
        read sequences can be exported, and trees as ONNX, which needs the extra `onnx`. NAME.zip holds trees and
        scorer.py, which computes their features from a table of events with numpy and Numba.

        Returns:
            The path.
        """
        request = ExportRequest(run=self.path, to=Path(to), data_dir=self.data_dir).check()
        return export_run(request.run, request.to, request.data_dir)

    @check_arguments
    def inputs(self, pairs: "Source", at: TimeLike | None = None) -> "dict[str, Tensor]":
        """Return what an exported program takes for these pairs: node numbers, times, neighbor sequences, features.

        `new_ends` says which sources and destinations are new, for the probability.
        """
        return self._predictor.inputs(pairs, at)

    @check_arguments
    def report(
        self, out: Path | str | None = None, costs: str | None = None, real_share: float | None = None
    ) -> Path:
        """Write results, curves, learned decay and settings as one page that opens offline; returns the path.

        `costs`, such as "1,20", are those of a false alarm and of a miss; they choose a threshold for alerts.
        `real_share` is the share of real events among the pairs that will be scored, by default a half.
        """
        request = ReportRequest.from_arguments(locals(), run=self.path, data_dir=self.data_dir)
        return run_report(request.check())


@check_arguments
def open(
    folder: Path | str,
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    time_unit: str = "auto",
    time_format: str | None = None,
    trust: bool = False,
    observed: Path | str | None = None,
) -> Run:
    """Open the run in a directory, with its best weights.

    The name of a dataset stands for its newest finished run under runs/, "latest" for the newest of all datasets, and a
    folder of runs for the newest in it; a warning says which run that is.

    `time_unit` and `time_format` say how times in queries are read; by default dates are read as in the run's own data,
    or as ISO dates. A model of another package must be registered, or come from an installed entry point; with `trust`
    the module that the run names is imported, which runs its code. `observed` is a file of `Run.save`: the run knows
    its events too. `folder` may also be the address of a shared run, such as s3://bucket/run (read with fsspec) or
    hf://user/name; it is copied into the user's cache, once for each content.

    >>> import dygmamba as dm
    >>> (trained,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1)
    >>> run = dm.open(trained.path)
    >>> run.rank([3, 5], k=2).column_names
    ['src', 'dst', 'time', 'score', 'probability', 'rank']
    >>> run.observe([(3, 39, 1.8e9)]).score([(3, 39)]).num_rows
    1
    """
    address = folder if isinstance(folder, str) and "://" in folder else ""
    path = fetch_shared_run(address) if address else find_run(folder)
    if not address and path not in (Path(folder), Path(folder).resolve()):
        warnings.warn(DygWarning(f"{str(folder)!r} is the run {path}"), stacklevel=3)
    import_if_trusted(trust, path)
    data_dir, observed = (None if place is None else Path(place) for place in (data_dir, observed))
    run = Run(path, device, data_dir, time_unit, time_format, observed, address)
    warn_if_unfinished(run._folder)  # also raises for a folder that is not a run
    if observed is not None:
        _ = run.data  # raises for events of another run
    return run


@check_arguments
def load_program(path: Path | str) -> Program:
    """Load a program that `Run.export` wrote: a function from `Run.inputs` to logits, and `.probability` to scores.

    `.about` is what the file says of itself, such as its inputs with types and meaning. The file is compared with its
    digest, NAME.sha256 beside it, first: a damaged ONNX graph may load and compute something else.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2)
    >>> program = dm.load_program(run.export("trees.onnx"))
    >>> inputs = run.inputs([(3, 5)])
    >>> program(inputs).shape
    torch.Size([1])
    >>> program.probability(inputs).tolist() == run.score([(3, 5)])["score"].to_pylist()
    True
    """
    return load_exported(Path(path))


def _log_unknown_ids(found: Predictions) -> pa.Table:
    """Return the table; warn of ids without events and of unknown values, which may be misspelt."""
    ids = found.unknown_ids
    if ids:
        shown = ", ".join(map(str, ids[:SHOWN_IDS])) + ", ..." * (len(ids) > SHOWN_IDS)
        subject = "1 id has no event and is" if len(ids) == 1 else f"{len(ids):,} ids have no event and are"
        LOGGER.warning("%s scored without a history: %s", subject, shown)
    for text in (*found.wrong_sides.describe(), *found.unknown_values.describe()):
        LOGGER.warning("%s", text)
    if found.shortlist:
        LOGGER.info("%s", found.shortlist)
    return found.table


def _check_reading_names(options: dict[str, Any]) -> None:
    unknown = [name for name in options if name not in READING_NAMES]
    if unknown:
        raise ConfigError(
            f"`{unknown[0]}` is not an option of reading; choose from {', '.join(READING_NAMES)}",
            code="unknown-option",
        )
