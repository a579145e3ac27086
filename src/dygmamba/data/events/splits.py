"""Train, validation and test split of a stream by time, without or with nodes held out of training as in DyGLib."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import hashlib
import random
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.split_spec import Protocol

NEW_NODE_SEED = 2020
NEW_NODE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Event ids of the three consecutive periods, and the nodes that do not occur in training.

    Under the benchmark protocol `train` leaves out every event of its period that touches a held-out node, and
    negatives are drawn as in DyGLib, also among nodes that occur later. Under the protocol "time" they are nodes of
    earlier events.
    """

    train: Int64[Tensor, "a"]
    val: Int64[Tensor, "b"]
    test: Int64[Tensor, "c"]
    new_nodes: Bool[Tensor, "n"]
    protocol: Protocol = "benchmark"

    def to(self, device: torch.device | str) -> "Split":
        names = ("train", "val", "test", "new_nodes")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def touching_new_nodes(self, store: EventStore, events: Int64[Tensor, "k"]) -> Int64[Tensor, "m"]:
        """Return those of `events` with at least one new node: the inductive setting."""
        return events[self.new_nodes[store.src[events]] | self.new_nodes[store.dst[events]]]

    def count(self, store: EventStore) -> "SplitCounts":
        """Count the events of each period, the removed ones, and those with new nodes."""
        rest = len(self.val) + len(self.test)
        return SplitCounts(
            train=len(self.train),
            val=len(self.val),
            test=len(self.test),
            removed=len(store) - len(self.train) - rest,
            new_nodes=int(self.new_nodes.sum()),
            val_new=len(self.touching_new_nodes(store, self.val)),
            test_new=len(self.touching_new_nodes(store, self.test)),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the split: runs with the same digest used the same split."""
        sha = hashlib.sha256()
        for part in (self.train, self.val, self.test, self.new_nodes):
            sha.update(f"{len(part)} ".encode() + part.cpu().numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """Numbers of events and nodes of a split."""

    train: int
    val: int
    test: int
    removed: int  # events of the training period that are not trained on, because they touch a held-out node
    new_nodes: int  # nodes that occur in no training event
    val_new: int  # validation events with a new node
    test_new: int  # test events with a new node

    def describe_events(self) -> str:
        """Describe the sizes of the periods, and how many training events were removed."""
        period, removed = self.train + self.removed, "none removed"
        if self.removed:
            share = f"{100 * self.removed / period:.0f} %"
            removed = (
                f"{self.removed:,} of {period:,} training events removed ({share}), those of held-out nodes"
            )
        return f"train {self.train:,}, validation {self.val:,}, test {self.test:,} events; {removed}"

    def describe_new_nodes(self) -> str:
        """Describe how many nodes are new, and how many events of validation and test they touch."""
        if not self.new_nodes:
            return "none: every node has a training event"
        return (
            f"{self.new_nodes:,} without a training event, in {self.val_new:,} validation and {self.test_new:,} test "
            "events"
        )

    def __str__(self) -> str:
        return f"{self.describe_events()}; new nodes: {self.describe_new_nodes()}"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Rule that splits a stream: by shares, at two timestamps, by numbers of events, or not at all.

    The protocol "benchmark" samples a tenth of the nodes and removes their events from training, as DyGLib does. The
    protocol "time" removes nothing. Numbers of events, which leaderboards use, have the protocol "time".
    """

    # three shares or sizes, the timestamps of validation and test, or () for no split
    numbers: tuple[float, ...]
    description: str  # as the user wrote it
    counted: bool = False  # whether `numbers` are sizes
    protocol: Protocol = "benchmark"

    @property
    def has_published_shares(self) -> bool:
        return self.numbers == PUBLISHED_SPLIT.numbers and not self.counted

    @property
    def stamp(self) -> dict[str, Any]:
        """Entries for a result row; empty for the published split."""
        split_by = {} if self.has_published_shares else {"split_by": self.description}
        return split_by | ({} if self._has_implied_protocol else {"protocol": self.protocol})

    @property
    def label(self) -> str:
        """The rule in a few words, with its protocol where that is not implied."""
        return self.description + ("" if self._has_implied_protocol else f", protocol {self.protocol}")

    @property
    def _has_implied_protocol(self) -> bool:
        return self.protocol == _get_implied_protocol(self.numbers, self.counted)

    @property
    def section(self) -> dict[str, Any]:
        """Entries for a config file, which `read` parses."""
        counted = {"split_counted": True} if self.counted else {}
        rule = {"split_by": self.description, "split_at": list(self.numbers), **counted}
        return rule | {"protocol": self.protocol}

    @staticmethod
    def read(section: dict[str, Any]) -> "SplitRule":
        """Parse what `section` wrote.

        A config without `protocol` is of a version that knew only the benchmark protocol, and wrote no entry for the
        published split.
        """
        if "split_by" not in section:
            return PUBLISHED_SPLIT
        numbers, counted = tuple(map(float, section["split_at"])), bool(section.get("split_counted", False))
        protocol = section.get("protocol", _get_implied_protocol(numbers, counted))
        if protocol not in get_args(Protocol):
            raise ValueError(f"unknown protocol {protocol!r}")
        return SplitRule(numbers, section["split_by"], counted, protocol)

    def split(self, store: EventStore, new_node_share: float = NEW_NODE_SHARE) -> Split:
        """Split a stream by this rule; `new_node_share` applies to the benchmark protocol."""
        new_node_share = new_node_share if self.protocol == "benchmark" else 0.0
        return replace(self._split_periods(store, new_node_share), protocol=self.protocol)

    def _split_periods(self, store: EventStore, new_node_share: float) -> Split:
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
TIME_SPLIT = SplitRule(PUBLISHED_SPLIT.numbers, PUBLISHED_SPLIT.description, protocol="time")
TRAIN_ON_ALL = SplitRule((), "all", protocol="time")


def _get_implied_protocol(numbers: tuple[float, ...], counted: bool) -> Protocol:
    """Return the protocol of a rule that names none: before there was a choice, shares and times held nodes out."""
    return "time" if counted or not numbers else "benchmark"


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
    held_out = np.zeros(store.num_nodes, dtype=bool)
    if not share:
        return held_out
    # The sample depends on the iteration order of a Python set of 1-based ids. The set is built exactly as the
    # published code builds it; sorting it first would draw other nodes.
    src, dst = store.src.cpu().numpy(), store.dst.cpu().numpy()
    population = tuple(set(_unique_in_order(src[later] + 1)).union(set(_unique_in_order(dst[later] + 1))))
    count = int(share * np.count_nonzero(_find_present_nodes(src, dst, store.num_nodes)))
    sampled = random.Random(NEW_NODE_SEED).sample(population, min(count, len(population)))
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
