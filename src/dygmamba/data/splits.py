"""Who trains, who validates, who tests: DyGLib's chronological split with held-out new nodes."""

import hashlib
import random
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.data.events import EventStore
from dygmamba.errors import EventError

NEW_NODE_SEED = 2020
NEW_NODE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Event ids of three disjoint, consecutive periods, and the nodes training never sees.

    `train` leaves out every event of its period that touches a held-out node.
    """

    train: Int64[Tensor, "a"]
    val: Int64[Tensor, "b"]
    test: Int64[Tensor, "c"]
    new_nodes: Bool[Tensor, "n"]

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        return Split(*(part.to(device) for part in (self.train, self.val, self.test, self.new_nodes)))

    def touching_new_nodes(self, store: EventStore, events: Int64[Tensor, "k"]) -> Int64[Tensor, "m"]:
        """Those of `events` with at least one new end: the inductive setting."""
        return events[self.new_nodes[store.src[events]] | self.new_nodes[store.dst[events]]]

    @property
    def digest(self) -> str:
        """A content hash: two runs with one digest saw the same split."""
        sha = hashlib.sha256()
        for part in (self.train, self.val, self.test, self.new_nodes):
            sha.update(part.cpu().numpy().tobytes())
        return sha.hexdigest()


def chronological_split(
    store: EventStore,
    val_share: float = 0.15,
    test_share: float = 0.15,
    new_node_share: float = NEW_NODE_SHARE,
) -> Split:
    """DyGLib's split: quantiles of all times, then a tenth of the nodes held out of training.

    The sample depends on the iteration order of a Python set of 1-based integer ids, so the set is built
    exactly as the published code builds it; sorting it first would draw other nodes.
    """
    time = store.unchanged().time.cpu().numpy()
    if not len(time):
        raise EventError("the stream has no events; a split needs at least one in each period")
    val_time, test_time = np.quantile(time, [1 - val_share - test_share, 1 - test_share])
    held_out = _held_out_nodes(store, time > val_time, new_node_share)
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    train = np.flatnonzero((time <= val_time) & ~held_out[src] & ~held_out[dst])
    new_nodes = np.ones(store.num_nodes, dtype=bool)
    new_nodes[src[train]] = new_nodes[dst[train]] = False
    present = np.zeros(store.num_nodes, dtype=bool)
    present[src] = present[dst] = True
    return Split(
        train=torch.from_numpy(train),
        val=torch.from_numpy(np.flatnonzero((time > val_time) & (time <= test_time))),
        test=torch.from_numpy(np.flatnonzero(time > test_time)),
        new_nodes=torch.from_numpy(new_nodes & present),
    )


def _held_out_nodes(store: EventStore, later: np.ndarray, share: float) -> np.ndarray:
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    population = tuple(set((src[later] + 1).tolist()).union(set((dst[later] + 1).tolist())))
    count = int(share * len(np.union1d(src, dst)))
    sampled = random.Random(NEW_NODE_SEED).sample(population, min(count, len(population)))
    held_out = np.zeros(store.num_nodes, dtype=bool)
    held_out[np.asarray(sampled, dtype=np.int64) - 1] = True
    return held_out
