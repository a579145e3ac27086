"""Evaluate scores of any program by the published protocol: list the queries of a split, then hand in their scores."""

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.api.datasets import Source, open_data
from dygmamba.api.evaluation import rows_to_table
from dygmamba.api.requests.evaluation import parse_candidates
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.choices import NEGATIVES, SCOPES, SPLITS, check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.split_spec import AUTO_PROTOCOL
from dygmamba.data.storage.conversion import make_time_column
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.stream import Stream
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.evaluation import PAIR_METRICS, RANK_COLUMNS, RANK_METRICS, Queries, Ranking, Scored
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import count_ranked_above

if TYPE_CHECKING:
    from collections.abc import Sequence

    Scores = Sequence[float] | np.ndarray | Tensor | pa.Table
else:
    Scores = Any

SCORE_COLUMN, OWN_NAME = "score", "own scores"


@check_arguments
def list_queries(
    data: "Dataset | Source",
    *,
    split: str = "test",
    setting: str = "transductive",
    negatives: str = "random",
    candidates: int | str | None = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
) -> pa.Table:
    """List the queries that evaluate a split: its events, then as many negatives; columns src, dst, time, event, label.

    Score them with any program that sees strictly earlier events only, and give the scores to `evaluate_scores`.
    `event` is the row of the event in the dataset that a query is made of. The arguments are those of `evaluate`. With
    `candidates` the destinations that each event is ranked among follow, and a column `candidate` says which they are.

    >>> import dygmamba as dm
    >>> dm.list_queries(dm.generate(nodes=40, events=600, communities=4)).column_names
    ['src', 'dst', 'time', 'event', 'label']
    """
    dataset, _, queries = _build_queries(data, split, setting, negatives, candidates, protocol, data_dir)
    pairs, events, store = queries.pairs.pairs, queries.pairs.events, dataset.store
    event, dst = events[queries.pairs.event_index], pairs.dst
    src, label = pairs.src, pairs.label
    if queries.candidates is not None:
        node, mask = queries.candidates.for_events(events)
        own = events.repeat_interleave(mask.sum(dim=1))
        event, dst = torch.cat([event, own]), torch.cat([dst, node[mask]])
        src, label = torch.cat([src, store.src[own]]), torch.cat([label, torch.zeros(len(own))])
    table = pa.table(
        {
            "src": dataset.ids.to_user(src.numpy()),
            "dst": dataset.ids.to_user(dst.numpy()),
            "time": make_time_column(dataset).take(pa.array(event.numpy())),
            "event": pa.array(event.numpy()),
            "label": pa.array(label.numpy().astype(np.int8)),
        }
    )
    if queries.candidates is None:
        return table
    return table.append_column("candidate", pa.array(np.arange(len(event)) >= len(pairs)))


@check_arguments
def evaluate_scores(
    scores: "Scores",
    data: "Dataset | Source",
    *,
    split: str = "test",
    setting: str = "transductive",
    negatives: str = "random",
    candidates: int | str | None = None,
    protocol: str = AUTO_PROTOCOL,
    data_dir: Path | str | None = None,
) -> pa.Table:
    """Evaluate your scores of the queries of `list_queries`: a row for them, and one for each baseline.

    Args:
        scores: One number per query, in their order, or a table with a column `score`; higher means likelier.
        data: The dataset, its name, or anything that `read` takes.
        split: "val" or "test".
        setting: "transductive" (all nodes) or "inductive" (new nodes).
        negatives: "random", "historical" or "inductive".
        candidates: That of `list_queries`, if it was given: adds MRR and Hits@10.
        protocol: As in `evaluate`.
        data_dir: Where datasets are.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> table = dm.evaluate_scores(dm.list_queries(data)["label"], data)
    >>> table["model"][0].as_py(), table["ap"][0].as_py()
    ('own scores', 1.0)
    """
    dataset, baselines, queries = _build_queries(
        data, split, setting, negatives, candidates, protocol, data_dir
    )
    own = _evaluate(scores, queries, baselines.stream)
    shared = {"dataset": dataset.name, **queries.pairs.about, **baselines.visibility.about}
    shared |= get_default_split(dataset, protocol).stamp
    metrics = PAIR_METRICS if candidates is None else (*PAIR_METRICS, *RANK_COLUMNS)
    rows = [
        {**shared, "model": model, **scored.row(metrics)}
        for model, scored in {OWN_NAME: own, **baselines.score(queries)}.items()
    ]
    return rows_to_table([rows[0], *sorted(rows[1:], key=lambda row: row["ap"], reverse=True)])


def _build_queries(
    data: Any,
    split: str,
    setting: str,
    negatives: str,
    candidates: int | str | None,
    protocol: str,
    data_dir: Path | str | None,
) -> tuple[Dataset, Baselines, Queries]:
    check_choice("split", split, SPLITS)
    check_choice("setting", setting, SCOPES)
    check_choice("negatives", negatives, NEGATIVES)
    dataset = open_data(data, None if data_dir is None else Path(data_dir))
    baselines = Baselines.from_dataset(dataset, split_rule=get_default_split(dataset, protocol))
    stream = baselines.stream
    queries = Queries(build_link_set(stream.store, stream.split, split, setting, negatives))
    if candidates is not None:
        ranking = Ranking(RANK_METRICS, parse_candidates(candidates)).with_board(dataset)
        queries = ranking.add_candidates(queries, stream)
    return dataset, baselines, queries


def _evaluate(scores: Any, queries: Queries, stream: Stream) -> Scored:
    """Return the given scores of the pairs, and the ranks that those of the candidates give."""
    count, events, rank = len(queries.pairs.pairs), queries.pairs.events, None
    if queries.candidates is None:
        score = _parse_scores(scores, count)
    else:
        node, mask = queries.candidates.for_events(events)
        every = _parse_scores(scores, count + int(mask.sum()))
        score, true = every[:count], every[: len(events), None]
        others = torch.full(node.shape, -inf, dtype=torch.float64).masked_scatter(mask, every[count:])
        # a list of candidates may contain the true destination, which then ties
        others = torch.where(mask & (node == stream.store.dst[events, None]), true, others)
        rank = 1 + count_ranked_above(true[:, 0], others)
    return Scored(queries, score, rank=rank, stream=stream)


def _parse_scores(scores: Any, count: int) -> Tensor:
    """Return scores as numbers; raise ConfigError unless there is one finite number per query."""
    names = getattr(scores, "column_names", None) or list(getattr(scores, "columns", []))
    if names:
        if SCORE_COLUMN not in names:
            raise ConfigError(
                f"the table of `scores` has no column '{SCORE_COLUMN}', it has {', '.join(map(str, names))}",
                code="unknown-column",
            )
        scores = scores[SCORE_COLUMN]
    try:
        values = np.asarray(scores, np.float64)
    except (TypeError, ValueError, RuntimeError):
        values = np.full(0, np.nan)
    if values.ndim != 1 or len(values) != count or not np.isfinite(values).all():
        raise ConfigError(
            f"`scores` takes one finite number for each of the {count:,} rows of `list_queries`, in their order; got "
            f"{len(values) if values.ndim else 0:,}",
            code="scores-do-not-fit",
        )
    return torch.from_numpy(values.copy())
