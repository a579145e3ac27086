"""Queries of a live run on one consistent state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.progress import SILENT, Progress
from dygmamba.explain.explanation import Explanation
from dygmamba.explain.pairs import DEFAULT_ORDERS, explain_pair
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import Predictions, TimeLike
from dygmamba.runs.query_inputs import as_id_column, as_pairs, as_sources, require_positive


@dataclass(frozen=True, slots=True)
class LiveView:
    """Queries on one state: all answers are as of the event `sequence` of the log."""

    predictor: Predictor
    sequence: int

    def score(self, pairs: Any, at: TimeLike | None = None) -> pa.Table:
        """Score pairs as `Run.score` does; also a list of dicts."""
        return self.predictor.score(as_pairs(pairs), at).table

    def rank(
        self,
        sources: Any,
        k: int = 10,
        at: TimeLike | None = None,
        candidates: Iterable[str | int] | Path | None = None,
        only_new: bool = False,
    ) -> pa.Table:
        """Rank destinations as `Run.rank` does."""
        return self.find_top(sources, k, at, candidates, only_new).table

    def find_top(
        self,
        sources: Any,
        k: int = 10,
        at: TimeLike | None = None,
        candidates: Iterable[str | int] | Path | None = None,
        only_new: bool = False,
        progress: Progress = SILENT,
    ) -> Predictions:
        """Rank destinations; return what a user should know about the ranking too."""
        require_positive(k)
        among = candidates
        if among is not None and not isinstance(among, Path):
            among = as_id_column("candidates", among)
        queries = as_sources("sources", as_pairs(sources))
        return self.predictor.top(queries, k, at, progress, among, only_new)

    def classify(
        self,
        nodes: Any = None,
        at: TimeLike | None = None,
        k: int | None = None,
        progress: Progress = SILENT,
    ) -> pa.Table:
        """Classify nodes as `Run.classify` does."""
        if k is not None:
            require_positive(k)
        queries = None if nodes is None else as_sources("nodes", as_pairs(nodes))
        return self.predictor.classify(queries, at, k, progress).table

    def embed(self, nodes: Any, at: TimeLike | None = None) -> pa.Table:
        """Embed nodes as `Run.embed` does."""
        return self.predictor.embed(as_sources("nodes", as_pairs(nodes)), at).table

    def explain(
        self,
        pair: tuple[str | int, str | int] | str | int,
        at: TimeLike | None = None,
        *,
        orders: int = DEFAULT_ORDERS,
        columns: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """Explain a score as `Run.explain` does."""
        return explain_pair(self.predictor, pair, at, orders, columns)
