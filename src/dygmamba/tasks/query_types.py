"""Query types: repeated pairs, new pairs of known nodes, and pairs with a new node, for metrics of each.

The type of an event depends on strictly earlier events of the whole stream, of any split:

    repeated_pair   its two nodes had an event with each other, in either direction
    new_pair        both nodes had events, but none with each other
    new_node        at least one of them had no event at all

The negatives or candidates of an event belong to its type, whatever they are themselves.

Legend: e events, k events of an evaluation set, n nodes.
"""

import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.block_lists import pair_key
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS

QUERY_TYPES = tuple(QUERY_TYPE_LABELS)
REPEATED_PAIR, NEW_PAIR, NEW_NODE = range(len(QUERY_TYPES))
EVENTS_PER_PASS = 1 << 22  # events read at once, so that a stream on disk is not copied into memory


def find_query_types(store: EventStore, events: Int64[Tensor, "k"]) -> Int8[Tensor, "k"]:
    """Return the type of each of these events of a stream, as an index into `QUERY_TYPES`."""
    key, time = pair_key(store.src[events], store.dst[events], torch), store.time[events]
    pairs, pair = torch.unique(key, return_inverse=True)
    node_time = torch.full((store.num_nodes,), torch.inf, dtype=torch.float64)
    pair_time = torch.full((len(pairs),), torch.inf, dtype=torch.float64)
    for part in torch.arange(len(store)).split(EVENTS_PER_PASS) if len(events) else ():
        src, dst, when = store.src[part], store.dst[part], store.time[part]
        _keep_first(node_time, src, when)
        _keep_first(node_time, dst, when)
        own = pair_key(src, dst, torch)
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
