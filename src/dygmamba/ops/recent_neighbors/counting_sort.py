"""Sort the entries of all nodes by counting: at once or, if they do not fit into memory, in several passes.

Each pass reads all events and keeps the entries of a range of nodes. The passes produce the entries in order, so they
can be written to a file sequentially.

Legend: n nodes, s events of the index, m entries.
"""

from collections.abc import Callable, Iterator

import numpy as np

from dygmamba.ops.numba_kernels import kernel

# source, destination, time and row of events in time order
EventBlocks = Callable[[], Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]]
Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # neighbor, event and time
ENTRY_BYTES = 16


def count_entries(blocks: EventBlocks, num_nodes: int) -> np.ndarray:
    """Return where each node's entries begin, and as the last item where the last node's end."""
    start = np.zeros(num_nodes + 1, np.int64)
    for src, dst, _, _ in blocks():
        _count(src, dst, start)
    return np.cumsum(start, out=start)


def split_nodes(start: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Split the nodes into ranges of at most `most` entries; a node with more is a range of its own."""
    low = 0
    while low < len(start) - 1:
        high = int(np.searchsorted(start, start[low] + most, side="right")) - 1
        high = max(low + 1, high)
        yield low, high
        low = high


def sort_entries(blocks: EventBlocks, start: np.ndarray, low: int, high: int) -> Entries:
    """Return the entries of nodes `low` to `high - 1`, sorted by (node, event)."""
    fill, size = start[low:high] - start[low], int(start[high] - start[low])
    neighbor, entry, time = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float64)
    for events in blocks():
        put_entries(*events, low, high, fill, neighbor, entry, time)
    return neighbor, entry, time


@kernel()
def _count(src, dst, start):
    for i in range(src.shape[0]):
        start[src[i] + 1] += 1
        start[dst[i] + 1] += 1


@kernel()
def put_entries(src, dst, event_time, event, low, high, fill, neighbor, entry, time):
    """Write the entries of nodes `low` to `high - 1`; `fill` is where the next entry of each of them belongs."""
    for i in range(src.shape[0]):
        for side in range(2):
            v, w = (src[i], dst[i]) if side == 0 else (dst[i], src[i])
            if low <= v < high:
                at = fill[v - low]
                fill[v - low] = at + 1
                neighbor[at] = w
                entry[at] = event[i]
                time[at] = event_time[i]
