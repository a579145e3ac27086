"""Who trains, who validates, who tests: DyGLib's chronological split with held-out new nodes."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore

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
            sha.update(f"{len(part)} ".encode() + part.cpu().numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a stream is cut: into shares of its events, at the two times when validation and test begin, or not at all.

    Whatever cuts it, a tenth of the nodes is held out of training, as published, unless nothing is cut or the events of
    each period are counted, as scoreboards do.
    """

    numbers: tuple[float, ...]  # three shares, two times, or none: everything is trained on
    said: str  # in the user's words
    counted: bool = False  # whether the three are numbers of events

    @property
    def stamp(self) -> dict[str, Any]:
        """What a result row says of it; nothing where it is the published one."""
        return {} if self == PUBLISHED_SPLIT else {"split_by": self.said}

    @property
    def section(self) -> dict[str, Any]:
        """What a configuration says of it, for `read`."""
        if self == PUBLISHED_SPLIT:
            return {}
        how = {"split_counted": True} if self.counted else {}
        return {"split_by": self.said, "split_at": list(self.numbers)} | how

    @staticmethod
    def read(about: dict[str, Any]) -> "SplitRule":
        """What `section` wrote; runs that say nothing have the published one."""
        if "split_by" not in about:
            return PUBLISHED_SPLIT
        numbers = tuple(float(number) for number in about["split_at"])
        return SplitRule(numbers, about["split_by"], bool(about.get("split_counted", False)))

    def split(self, store: EventStore, new_node_share: float = NEW_NODE_SHARE) -> Split:
        """The three periods of a stream."""
        if not self.numbers:
            return split_all_for_training(store)
        if self.counted:
            return _split_by_counts(store, *(int(number) for number in self.numbers))
        if len(self.numbers) == 3:
            return chronological_split(store, self.numbers[1], self.numbers[2], new_node_share)
        time = _get_times(store)
        val_begins, test_begins = self.numbers
        return _split_by_masks(store, time >= val_begins, time >= test_begins, new_node_share)


PUBLISHED_SPLIT = SplitRule((0.7, 0.15, 0.15), "0.7,0.15,0.15")
TRAIN_ON_ALL = SplitRule((), "all")


def chronological_split(
    store: EventStore,
    val_share: float = 0.15,
    test_share: float = 0.15,
    new_node_share: float = NEW_NODE_SHARE,
) -> Split:
    """DyGLib's split: quantiles of all times, then a tenth of the nodes held out of training."""
    time = _get_times(store)
    val_time, test_time = np.quantile(time, [1 - val_share - test_share, 1 - test_share])
    return _split_by_masks(store, time > val_time, time > test_time, new_node_share)


def _split_by_counts(store: EventStore, train: int, val: int, test: int) -> Split:
    """So many events each; no node is held out."""
    place = np.arange(len(_get_times(store)))
    if train + val + test != len(place):
        raise EventError(f"the split is of {train + val + test:,} events and the stream has {len(place):,}")
    return _split_by_masks(store, place >= train, place >= train + val, 0.0)


def split_all_for_training(store: EventStore) -> Split:
    """Every event is trained on: nothing is left to choose weights by, or to say how good they are."""
    nothing = torch.zeros(0, dtype=torch.int64)
    nobody = torch.zeros(store.num_nodes, dtype=torch.bool)
    return Split(torch.arange(len(_get_times(store))), nothing, nothing, nobody)


def _get_times(store: EventStore) -> np.ndarray:
    time = store.check_unchanged().time.cpu().numpy()
    if not len(time):
        raise EventError("the stream has no events; a split needs at least one in each period")
    return time


def _split_by_masks(store: EventStore, later: np.ndarray, last: np.ndarray, new_node_share: float) -> Split:
    """Training before `later`, the test in `last`, validation between.

    The sample depends on the iteration order of a Python set of 1-based integer ids, so the set is built
    exactly as the published code builds it; sorting it first would draw other nodes.
    """
    held_out = _sample_held_out_nodes(store, later, new_node_share)
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    train = np.flatnonzero(~later & ~held_out[src] & ~held_out[dst])
    new_nodes = np.ones(store.num_nodes, dtype=bool)
    new_nodes[src[train]] = new_nodes[dst[train]] = False
    present = _find_present_nodes(src, dst, store.num_nodes)
    return Split(
        train=torch.from_numpy(train),
        val=torch.from_numpy(np.flatnonzero(later & ~last)),
        test=torch.from_numpy(np.flatnonzero(last)),
        new_nodes=torch.from_numpy(new_nodes & present),
    )


def _sample_held_out_nodes(store: EventStore, later: np.ndarray, share: float) -> np.ndarray:
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    population = tuple(set(_unique_in_order(src[later] + 1)).union(set(_unique_in_order(dst[later] + 1))))
    count = int(share * np.count_nonzero(_find_present_nodes(src, dst, store.num_nodes)))
    sampled = random.Random(NEW_NODE_SEED).sample(population, min(count, len(population)))
    held_out = np.zeros(store.num_nodes, dtype=bool)
    held_out[np.asarray(sampled, dtype=np.int64) - 1] = True
    return held_out


def _find_present_nodes(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    """Which nodes have an event."""
    found = np.zeros(nodes, dtype=bool)
    found[src] = found[dst] = True
    return found


def _unique_in_order(ids: np.ndarray) -> list[int]:
    """Each id once, where it first occurs: a set that is made of these is iterated as one that is made of all."""
    return pc.unique(pa.array(ids)).to_pylist()
