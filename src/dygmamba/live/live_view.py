"""Queries of a live run: each on the state of its moment, or several on one consistent state."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import FileError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.explain.explanation import Explanation
from dygmamba.explain.pairs import DEFAULT_ORDERS, explain_pair
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import TimeLike
from dygmamba.runs.query_inputs import as_pairs, as_sources, require_positive

TIMEOUT = 5.0  # seconds that a query waits for `min_sequence`


def make_unreached_error(sequence: int, last: int) -> FileError:
    """Return the error of a query that needs a later event than the last one that is applied."""
    return FileError(
        f"event {sequence} is not visible yet, the last one is {last}; ask again", code="sequence-not-reached"
    )


class LiveQueries(ABC):
    """The queries of `Run` with all events that are applied.

    `min_sequence` waits, at most `timeout` seconds, until that event of the log is applied.
    """

    @abstractmethod
    def read(
        self, min_sequence: int | None = None, timeout: float = TIMEOUT
    ) -> "AbstractContextManager[LiveView]":
        """Context manager: a view in which all queries see one state."""

    @check_arguments
    def score(
        self,
        pairs: Any,
        at: TimeLike | None = None,
        *,
        min_sequence: int | None = None,
        timeout: float = TIMEOUT,
    ) -> pa.Table:
        """Score pairs as `Run.score` does; also a list of dicts."""
        with self.read(min_sequence, timeout) as view:
            return view.predictor.score(as_pairs(pairs), at).table

    @check_arguments
    def rank(
        self,
        sources: Any = None,
        k: int = 10,
        at: TimeLike | None = None,
        candidates: Iterable[str | int] | Path | None = None,
        only_new: bool = False,
        *,
        destinations: Any = None,
        min_sequence: int | None = None,
        timeout: float = TIMEOUT,
    ) -> pa.Table:
        """Rank destinations of sources, or sources of `destinations`, as `Run.rank` does."""
        with self.read(min_sequence, timeout) as view:
            return view.predictor.rank(
                as_pairs(sources), as_pairs(destinations), k, at, candidates, only_new
            ).table

    @check_arguments
    def classify(
        self,
        nodes: Any = None,
        at: TimeLike | None = None,
        k: int | None = None,
        *,
        min_sequence: int | None = None,
        timeout: float = TIMEOUT,
        progress: Progress = SILENT,
    ) -> pa.Table:
        """Predict the label of each node as `Run.classify` does."""
        if k is not None:
            require_positive(k)
        queries = None if nodes is None else as_sources("nodes", as_pairs(nodes))
        with self.read(min_sequence, timeout) as view:
            return view.predictor.classify(queries, at, k, progress).table

    @check_arguments
    def embed(
        self,
        nodes: Any,
        at: TimeLike | None = None,
        *,
        min_sequence: int | None = None,
        timeout: float = TIMEOUT,
    ) -> pa.Table:
        """Embed each node as a source as `Run.embed` does."""
        with self.read(min_sequence, timeout) as view:
            return view.predictor.embed(as_sources("nodes", as_pairs(nodes)), at).table

    @check_arguments
    def explain(
        self,
        pair: tuple[str | int, str | int] | str | int,
        at: TimeLike | None = None,
        *,
        orders: int = DEFAULT_ORDERS,
        columns: Mapping[str, Any] | None = None,
        min_sequence: int | None = None,
        timeout: float = TIMEOUT,
    ) -> Explanation:
        """Explain which past events moved the score of a pair as `Run.explain` does."""
        with self.read(min_sequence, timeout) as view:
            return explain_pair(view.predictor, pair, at, orders, columns)


@dataclass(frozen=True, slots=True)
class LiveView(LiveQueries):
    """Queries on one state: all answers are as of the event `sequence` of the log."""

    predictor: Predictor
    sequence: int

    @contextmanager
    def read(self, min_sequence: int | None = None, timeout: float = TIMEOUT) -> Iterator["LiveView"]:
        """Context manager: this view, whose state does not change; raise FileError if it lacks `min_sequence`."""
        if min_sequence is not None and min_sequence > self.sequence:
            raise make_unreached_error(min_sequence, self.sequence)
        yield self
