"""Columns of events beside source, destination and time: names, vocabularies, and which of them a model reads.

Shapes: e events, k chosen (training) events, c numeric columns.
"""

from math import log2, sqrt
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.data.events.categories import Category
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn

if TYPE_CHECKING:
    from dygmamba.data.events.event_store import EventStore

# more numeric columns are one vector, such as a text embedding, not separate quantities
MAX_SEPARATE_COLUMNS = 32
MAX_CODE_COLUMNS = 2  # categorical columns that a model reads
MAX_EXAMINED_EVENTS = 1_000_000  # the last training events, which decide which columns are read
MAX_SCALED_EVENTS = 100_000  # the last training events, whose values set the scale of a column
MAX_UNSCALED_RMS = 4.0  # columns with a root mean square from 1/4 to 4 keep their unit
MAX_EXPONENT = 126  # of a factor: its inverse is a normal number of 32 bits too
ROWS_AT_ONCE = 8192
NUMBERS_PER_THREAD = 32_768  # torch adds up so many by one thread


def rank_columns(store: "EventStore", events: Int64[Tensor, "k"] | None = None) -> ColumnFacts:
    """Rank the columns of a stream by the given (training) events; constant columns are left out.

    A numeric column comes first if source or destination explain much of its variance (adjusted R^2 of the mean per
    node), because then the past of a node says something about its values. More than `MAX_SEPARATE_COLUMNS` of them are
    one vector and left out. A categorical column comes first if its eight most frequent values cover most events.
    """
    chosen = torch.arange(len(store)) if events is None else events.cpu()
    chosen = chosen[-MAX_EXAMINED_EVENTS:]
    codes = store.features.codes
    types = () if codes is None else rank_types(codes[chosen], store.features.categories)
    return ColumnFacts(_rank_numeric(store, chosen), types)


def _rank_numeric(store: "EventStore", events: Int64[Tensor, "k"]) -> tuple[NumericColumn, ...]:
    edge = store.features.edge
    if not 0 < edge.shape[1] <= MAX_SEPARATE_COLUMNS or len(events) < 2:
        return ()
    events = events.to(edge.device)
    ends = [torch.unique(node[events].cpu(), return_inverse=True)[1] for node in (store.src, store.dst)]
    ranked = []
    for index, name in enumerate(store.features.edge_names):
        value = edge[events, index].cpu().double()
        mean, deviation = compute_moments(value)
        if deviation > 0:
            share = max(_explained_variance(value - mean, node) for node in ends)
            ranked.append((-round(share, 6), NumericColumn(index, name, mean, deviation)))
    return tuple(column for _, column in sorted(ranked, key=lambda entry: entry[0]))


def compute_moments(value: Float64[Tensor, "k"]) -> tuple[float, float]:
    """Return mean and standard deviation (0 and 0 of nothing), which have the same bits with any number of threads."""
    parts = [(len(part) / len(value), part) for part in value.split(NUMBERS_PER_THREAD) if len(part)]
    mean = sum((share * float(part.mean()) for share, part in parts), 0.0)
    spread = [part.var(correction=0) + (part.mean() - mean) ** 2 for _, part in parts]
    return mean, sqrt(sum(share * float(own) for (share, _), own in zip(parts, spread, strict=True)))


def compute_edge_scale(store: "EventStore", events: Int64[Tensor, "k"] | None = None) -> tuple[float, ...]:
    """Return the factor of each edge feature that brings its root mean square in training near 1; () if all are 1.

    A network learns little from columns of large or tiny numbers, and the unit of a column should not matter. Factors
    are powers of two, so that products are exact. A column whose root mean square is between 1/4 and 4 keeps its
    unit.
    """
    edge = store.features.edge
    chosen = torch.arange(len(store)) if events is None else events.cpu()
    chosen = chosen[-MAX_SCALED_EVENTS:].to(edge.device)
    if not edge.shape[1] or not len(chosen):
        return ()
    squares = torch.zeros(edge.shape[1], dtype=torch.float64, device=edge.device)
    for rows in chosen.split(ROWS_AT_ONCE):
        squares += edge[rows].double().square().sum(dim=0)
    factors = tuple(map(_choose_factor, (squares / len(chosen)).sqrt().tolist()))
    return () if all(factor == 1 for factor in factors) else factors


def _choose_factor(rms: float) -> float:
    """Return the power of two that brings a root mean square nearest to 1; 1 if it is near enough, or 0."""
    if rms == 0 or 1 / MAX_UNSCALED_RMS <= rms <= MAX_UNSCALED_RMS:
        return 1.0
    return 2.0 ** max(-MAX_EXPONENT, min(-round(log2(rms)), MAX_EXPONENT))


def _explained_variance(value: Float64[Tensor, "k"], node: Int64[Tensor, "k"]) -> float:
    """Return the adjusted R^2 of the mean of each node's values, which are centered."""
    count = torch.bincount(node)
    mean = torch.bincount(node, weights=value) / count
    within, total = float(((value - mean[node]) ** 2).sum()), float((value**2).sum())
    free = len(value) - len(count)
    return 0.0 if free <= 0 else 1 - within / total * (len(value) - 1) / free


def rank_types(codes: Int32[Tensor, "k dc"], categories: tuple[Category, ...]) -> tuple[TypeColumn, ...]:
    """Rank categorical columns by these (training) rows: best first whose eight most frequent values cover most."""
    ranked = []
    if not len(codes):
        return ()
    for index, category in enumerate(categories):
        count = torch.bincount(codes[:, index].long(), minlength=len(category.values))
        order = torch.argsort(count, descending=True, stable=True)
        used = order[: int((count > 0).sum())].tolist()
        if len(used) > 1:
            covered = float(count[order[:8]].sum()) / len(codes)
            values = tuple(category.values[code] for code in used)
            ranked.append((-covered, TypeColumn(index, category.name, tuple(used), values)))
    return tuple(column for _, column in sorted(ranked, key=lambda entry: entry[0]))
