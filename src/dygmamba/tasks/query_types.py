"""Metrics by query type: how well a model predicts repeated pairs, new pairs of known nodes, and pairs with a new node.

The type of an event depends on strictly earlier events of the whole stream, of any split:

    repeated_pair   its two nodes had an event with each other, in either direction
    new_pair        both nodes had events, but none with each other
    new_node        at least one of them had no event at all

The negatives or candidates of an event belong to its type, whatever they are themselves.

Legend: e events, k events of an evaluation set, p pairs, g ranked events.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int8, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.sampling.counts import pair_key
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS
from dygmamba.tasks.metrics import average_precision, rank_metrics

QUERY_TYPES = tuple(QUERY_TYPE_LABELS)
REPEATED_PAIR, NEW_PAIR, NEW_NODE = range(len(QUERY_TYPES))
EVENTS_PER_PASS = 1 << 22  # events read at once, so that a stream on disk is not copied into memory


def find_query_types(store: EventStore, events: Int64[Tensor, "k"]) -> Int8[Tensor, "k"]:
    """Return the type of each of these events of a stream, as an index into `QUERY_TYPES`."""
    key, time = pair_key(store.src[events], store.dst[events], store.num_nodes), store.time[events]
    pairs, pair = torch.unique(key, return_inverse=True)
    node_time = torch.full((store.num_nodes,), torch.inf, dtype=torch.float64)
    pair_time = torch.full((len(pairs),), torch.inf, dtype=torch.float64)
    for part in torch.arange(len(store)).split(EVENTS_PER_PASS) if len(events) else ():
        src, dst, when = store.src[part], store.dst[part], store.time[part]
        _keep_first(node_time, src, when)
        _keep_first(node_time, dst, when)
        own = pair_key(src, dst, store.num_nodes)
        index = torch.searchsorted(pairs, own).clamp(max=len(pairs) - 1)
        wanted = pairs[index] == own
        _keep_first(pair_time, index[wanted], when[wanted])
    is_new = (node_time[store.src[events]] >= time) | (node_time[store.dst[events]] >= time)
    types = torch.full(events.shape, NEW_PAIR, dtype=torch.int8)
    types[pair_time[pair] < time] = REPEATED_PAIR
    types[is_new] = NEW_NODE
    return types


def _keep_first(
    first: Float64[Tensor, "_n"], index: Int64[Tensor, "_e"], time: Float64[Tensor, "_e"]
) -> None:
    first.scatter_reduce_(0, index, time, "amin")


def compute_ap_by_type(
    types: Int8[Tensor, "k"], score: Float[Tensor, "p"], evaluation_set: EvaluationSet
) -> dict[str, dict[str, Any]]:
    """Return number and AP of the events of each type, all at once, each with its own negatives; None without events.

    Args:
        types: Type of each event of the set.
        score: Scores of its pairs.
        evaluation_set: The pairs.
    """
    own_type, label = types[evaluation_set.event_index], evaluation_set.pairs.label
    values = {}
    for number, name in enumerate(QUERY_TYPES):
        chosen = own_type == number
        count = int((types == number).sum())
        ap = average_precision(score[chosen], label[chosen]) if count else None
        values[name] = {"n": count, "ap": ap}
    return values


def compute_ranks_by_type(
    types: Int8[Tensor, "g"], rank: Float[Tensor, "g"], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the number of ranked events of each type and their rank metrics; None without events."""
    values = {}
    for number, name in enumerate(QUERY_TYPES):
        own = rank[types == number]
        metrics = rank_metrics(own, names) if len(own) else dict.fromkeys(names)
        values[name] = {"ranked": len(own), **metrics}
    return values


def merge_by_type(*parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Join the values of each type."""
    return {
        name: {key: value for part in parts for key, value in part.get(name, {}).items()}
        for name in QUERY_TYPES
    }
