"""Scores of batches of pairs on engines such as Ray, Spark and Dask: a callable that can be sent to other processes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dygmamba.api.sharing import fetch_shared_run
from dygmamba.core.argument_types import ArgumentTypeError, short_repr
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers.in_memory import has_class
from dygmamba.data.readers.queries import read_query_columns
from dygmamba.data.readers.times import format_iso_time
from dygmamba.data.readers.values import is_text_type
from dygmamba.data.storage.dataset import Dataset
from dygmamba.live.serving_state import compute_run_digest
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import RAW_SCORE_COLUMN, SCORE_COLUMN, TimeLike

if TYPE_CHECKING:
    from dygmamba.api.run import Run
else:
    Run = Any

DIGEST_LENGTH = 16  # hex digits of the column of digests
OPEN_RUNS = 2  # that a process keeps open

Batch = TypeVar("Batch")  # an Arrow table or record batch, a pandas or a polars frame


@dataclass(frozen=True)
class BatchScorer:
    """Adds scores, or the features that trees read, to batches of pairs; made by `Run.scorer`.

    A process that it is sent to opens the run when it gets its first batch, and keeps it open. The last two columns are
    not metadata of the table, because Spark, pandas and the join of two parts would drop that: `run_digest` identifies
    settings and weights, `known_until` is the time of the last event that was known.

    Attributes:
        columns: The columns that it adds, with their types as Spark, DuckDB and `pyarrow.type_for_alias` name them.
        run_digest: The value of that column.
        known_until: The value of that column.
    """

    columns: dict[str, str]
    run_digest: str
    known_until: str
    _run: Run
    _events: str  # digest of the events that were known
    _names: dict[str, str | None]  # of the columns of pairs, by role
    _at: TimeLike | None
    _features: bool

    @staticmethod
    def create(
        run: "Run", names: dict[str, str | None], at: TimeLike | None = None, features: bool = False
    ) -> "BatchScorer":
        """Describe a run that is open in this process; the arguments are those of `Run.scorer`."""
        predictor = run._predictor
        predictor.require_task("link")
        if features:
            columns = dict.fromkeys(predictor.get_trees().names, "float")
        else:
            columns = {RAW_SCORE_COLUMN if predictor.calibration is None else SCORE_COLUMN: "double"}
        path = predictor.dataset.path
        # another machine may have other defaults, and another current folder
        folder = run.data_dir if path is None else path.parent
        places = {"path": run.path, "data_dir": folder, "observed": run.observed}
        return BatchScorer(
            columns | {"run_digest": "string", "known_until": "string"},
            compute_run_digest(predictor.run.folder)[:DIGEST_LENGTH],
            describe_last_time(predictor.dataset),
            replace(run, **{name: place and place.absolute() for name, place in places.items()}),
            predictor.dataset.digest,
            names,
            at,
            features,
        )

    def __call__(self, pairs: Batch) -> Batch:
        """Return the pairs with the columns added, as the same kind of table and in the same order."""
        is_pandas, is_polars = (has_class(pairs, package, "DataFrame") for package in ("pandas", "polars"))
        table: Any = pairs
        if not (is_pandas or is_polars or isinstance(pairs, pa.Table | pa.RecordBatch)):
            raise ArgumentTypeError(
                f"a scorer takes an Arrow table or record batch, or a data frame; got {short_repr(pairs)} "
                f"({type(pairs).__name__})"
            )
        names = table.schema.names if isinstance(pairs, pa.Table | pa.RecordBatch) else table.columns
        if taken := [name for name in self.columns if name in names]:
            raise ConfigError(
                f"the pairs have a column {taken[0]!r} already; rename or drop it before scoring",
                code="column-exists",
            )
        added = self._compute_columns(pairs)
        if is_pandas:
            return table.assign(**{name: column.to_pandas().array for name, column in added.items()})
        if is_polars:
            return table.with_columns(**{name: type(table)(pa.table(added))[name] for name in added})
        for name, column in added.items():
            table = table.append_column(name, column)
        return table

    def map_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield each batch with the columns added, as Spark's `mapInArrow` and `mapInPandas` call it."""
        return map(self, batches)

    def _compute_columns(self, pairs: Any) -> dict[str, pa.Array]:
        with _OPENING:
            predictor = _open_once(self._run, self.run_digest, self._events)
        options = replace(predictor.options, **self._names)
        predictor = replace(predictor, options=options)
        require_plain_times(pairs, predictor)
        if self._features:
            table = predictor.compute_features(pairs, self._at).table
        else:
            table = predictor.score(pairs, self._at).table
        about = {"run_digest": self.run_digest, "known_until": self.known_until}
        return {
            name: pa.repeat(about[name], len(table)) if name in about else table[name].combine_chunks()
            for name in self.columns
        }


_OPENING = Lock()  # threads of a process open a run once


@lru_cache(OPEN_RUNS)
def _open_once(run: "Run", digest: str, events: str) -> Predictor:
    """Open a run in this process; raise FileError if it is no longer the one that the scorer was made of."""
    if run.address:
        run = replace(run, path=fetch_shared_run(run.address))
    predictor = run._predictor
    found = compute_run_digest(predictor.run.folder)[:DIGEST_LENGTH]
    if (found, predictor.dataset.digest) != (digest, events):
        raise FileError(
            f"{run.address or run.path} has changed since its scorer was made; make a new scorer, and score all parts "
            "with it",
            code="run-changed",
        )
    return predictor


def describe_last_time(dataset: Dataset) -> str:
    """Return the time of the last event as text, so that the column has the same type for every run."""
    last = float(dataset.store.time[-1])
    if dataset.origin.time_origin:
        return format_iso_time(last)
    return str(int(last) if last.is_integer() else last)


def require_plain_times(pairs: Any, predictor: Predictor) -> None:
    """Raise ConfigError for times whose meaning depends on the other rows, because a batch has not all of them."""
    options, origin = predictor.query_parser.options, predictor.dataset.origin
    raw = read_query_columns(pairs, options, origin, ())
    is_given = options.time_format is not None or options.time_unit != "auto"
    if is_given or "time" not in raw.roles or not raw.table.num_rows:
        return
    kind = raw.table.schema.field(raw.roles["time"]).type
    if is_text_type(kind) or (origin.guessed and not pa.types.is_temporal(kind)):
        raise ConfigError(
            f"column {raw.roles['time']!r} of the pairs holds times of type {kind}, whose format or unit is detected "
            "from all rows, which a batch does not have; cast it to timestamps, or open the run with `time_unit` or "
            "`time_format`",
            code="times-need-a-format",
        )
