"""Train, validation and test split of a stream: chronological, with nodes held out of training as in DyGLib."""

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
    """Event ids of the three consecutive periods, and the nodes that do not occur in training.

    `train` leaves out every event of its period that touches a held-out node.
    """

    train: Int64[Tensor, "a"]
    val: Int64[Tensor, "b"]
    test: Int64[Tensor, "c"]
    new_nodes: Bool[Tensor, "n"]

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(part.to(device) for part in (self.train, self.val, self.test, self.new_nodes)))

    def touching_new_nodes(self, store: EventStore, events: Int64[Tensor, "k"]) -> Int64[Tensor, "m"]:
        """Return those of `events` with at least one new node: the inductive setting."""
        return events[self.new_nodes[store.src[events]] | self.new_nodes[store.dst[events]]]

    @property
    def digest(self) -> str:
        """SHA-256 of the split: runs with the same digest used the same split."""
        sha = hashlib.sha256()
        for part in (self.train, self.val, self.test, self.new_nodes):
            sha.update(f"{len(part)} ".encode() + part.cpu().numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How to split a stream: by shares, at two timestamps, by numbers of events, or not at all.

    Shares and timestamps also hold a tenth of the nodes out of training, as in DyGLib. Numbers of events, which
    leaderboards use, do not.
    """

    numbers: tuple[
        float, ...
    ]  # three shares or sizes, the timestamps of validation and test, or () for no split
    description: str  # as the user wrote it
    counted: bool = False  # whether `numbers` are sizes

    @property
    def stamp(self) -> dict[str, Any]:
        """Entries for a result row; empty for the published split."""
        return {} if self == PUBLISHED_SPLIT else {"split_by": self.description}

    @property
    def section(self) -> dict[str, Any]:
        """Entries for a config file, which `read` parses; empty for the published split."""
        if self == PUBLISHED_SPLIT:
            return {}
        counted = {"split_counted": True} if self.counted else {}
        return {"split_by": self.description, "split_at": list(self.numbers)} | counted

    @staticmethod
    def read(section: dict[str, Any]) -> "SplitRule":
        """Parse what `section` wrote; a config without an entry has the published split."""
        if "split_by" not in section:
            return PUBLISHED_SPLIT
        numbers = tuple(float(number) for number in section["split_at"])
        return SplitRule(numbers, section["split_by"], bool(section.get("split_counted", False)))

    def split(self, store: EventStore, new_node_share: float = NEW_NODE_SHARE) -> Split:
        """Split a stream by this rule."""
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
    """Split at quantiles of the timestamps and hold a tenth of the nodes out of training, as DyGLib does."""
    time = _get_times(store)
    val_time, test_time = np.quantile(time, [1 - val_share - test_share, 1 - test_share])
    return _split_by_masks(store, time > val_time, time > test_time, new_node_share)


def _split_by_counts(store: EventStore, train: int, val: int, test: int) -> Split:
    row = np.arange(len(_get_times(store)))
    if train + val + test != len(row):
        raise EventError(
            f"the split has {train + val + test:,} events but the stream has {len(row):,}; "
            "import the dataset again",
            code="split-size-mismatch",
        )
    return _split_by_masks(store, row >= train, row >= train + val, 0.0)


def split_all_for_training(store: EventStore) -> Split:
    """Train on every event; validation and test are empty, so nothing measures the result."""
    no_events = torch.zeros(0, dtype=torch.int64)
    no_nodes = torch.zeros(store.num_nodes, dtype=torch.bool)
    return Split(torch.arange(len(_get_times(store))), no_events, no_events, no_nodes)


def _get_times(store: EventStore) -> np.ndarray:
    time = store.check_unchanged().time.cpu().numpy()
    if not len(time):
        raise EventError(
            "the stream has no events; a split needs at least one in each period", code="no-events"
        )
    return time


def _split_by_masks(store: EventStore, later: np.ndarray, last: np.ndarray, new_node_share: float) -> Split:
    """Split into train (not `later`), validation (`later` but not `last`) and test (`last`)."""
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
    # The sample depends on the iteration order of a Python set of 1-based ids. The set is built exactly as the
    # published code builds it; sorting it first would draw other nodes.
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    population = tuple(set(_unique_in_order(src[later] + 1)).union(set(_unique_in_order(dst[later] + 1))))
    count = int(share * np.count_nonzero(_find_present_nodes(src, dst, store.num_nodes)))
    sampled = random.Random(NEW_NODE_SEED).sample(population, min(count, len(population)))
    held_out = np.zeros(store.num_nodes, dtype=bool)
    held_out[np.asarray(sampled, dtype=np.int64) - 1] = True
    return held_out


def _find_present_nodes(src: np.ndarray, dst: np.ndarray, nodes: int) -> np.ndarray:
    present = np.zeros(nodes, dtype=bool)
    present[src] = present[dst] = True
    return present


def _unique_in_order(ids: np.ndarray) -> list[int]:
    """Return each id once, in order of first occurrence.

    A set built from them has the same iteration order as one built from all ids.
    """
    return pc.unique(pa.array(ids)).to_pylist()
