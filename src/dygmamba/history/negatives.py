"""Negative samplers for evaluation: random, historical and inductive, one negative per positive.

The three samplers of DyGLib on sorted integer keys: the pool of pairs is a range of positions in the order of first
occurrence, minus the few pairs of the batch's own window, so that sampling never builds a set.

Legend: k positives, m known events.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.core.files.writing import make_folder
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.tensor_file import read_sealed_tensors, write_sealed_tensors

# One seed per evaluation set, as in DyGLib, so that every run and epoch is evaluated on the same negatives.
PUBLISHED_SEEDS = {
    ("val", "transductive"): 0,
    ("val", "inductive"): 1,
    ("test", "transductive"): 2,
    ("test", "inductive"): 3,
}

PairArrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class NegativePairs:
    """One negative pair per positive, in the order of the positives."""

    src: Int64[Tensor, "k"]
    dst: Int64[Tensor, "k"]

    def __len__(self) -> int:
        return self.src.shape[0]


@dataclass(frozen=True, slots=True)
class NegativeRequest:
    """Everything that the negatives of an evaluation set depend on.

    Attributes:
        strategy: Name of the sampler in `SAMPLERS`.
        events: Positives.
        known: Events to sample from: the whole stream, or the new-node events of one split.
        observed_until: The inductive strategy excludes pairs that first occur at or before this time.
        seed: Seed of the sampler.
        batch_size: Positives per published batch.
        earlier_only: Sample only nodes that had an event of the stream strictly before the query, which later events
            cannot change. The published samplers also draw nodes that occur later.
    """

    strategy: str
    events: Int64[Tensor, "k"]
    known: Int64[Tensor, "m"]
    observed_until: float
    seed: int
    batch_size: int = 200
    earlier_only: bool = False

    def digest(self, store: EventStore) -> str:
        """Return a short digest of the request and of the events, the name of the stored negatives."""
        name = f"{self.strategy} {self.observed_until} {self.seed} {self.batch_size}"
        sha = hashlib.sha256((name + " earlier" * self.earlier_only).encode())
        for column in (store.src, store.dst, store.time, self.events, self.known):
            sha.update(column.cpu().numpy().tobytes())
        return sha.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class FirstEvents:
    """Nodes of a stream in the order of their first events, and the times of these."""

    node: np.ndarray
    time: np.ndarray

    @staticmethod
    def find(node: Tensor, time: Tensor) -> "FirstEvents":
        """Find the first events, given one end of each event and its time."""
        _, row = np.unique(node.numpy(), return_index=True)
        row.sort()
        return FirstEvents(node.numpy()[row], time.numpy()[row])

    def count_before(self, time: np.ndarray) -> np.ndarray:
        """Count the nodes with an event strictly before each time, at least the first node of the stream."""
        return np.maximum(np.searchsorted(self.time, time), min(1, len(self.node)))

    def take_before(self, time: float) -> np.ndarray:
        """Return the nodes that `count_before` counts."""
        return self.node[: int(self.count_before(np.array([time]))[0])]


def sample_negatives(store: EventStore, request: NegativeRequest) -> NegativePairs:
    """Sample all negatives of an evaluation set; the same request always gives the same pairs.

    Raises:
        ConfigError: The strategy is unknown.
        EventError: There are no events, or no pairs, to sample from.
    """
    if request.strategy not in SAMPLERS:
        raise ConfigError(
            f"unknown negatives '{request.strategy}'; choose from {', '.join(SAMPLERS)}",
            code="unknown-negatives",
        )
    if not len(request.known):
        raise EventError(
            "there are no events to sample negative pairs from; use a stream that is long enough for this split",
            code="no-events",
        )
    batches = list(SAMPLERS[request.strategy].sample(store, request))
    parts = zip(*batches, strict=True) if batches else ((), ())
    src, dst = (np.concatenate([np.zeros(0, np.int64), *part]) for part in parts)
    return NegativePairs(torch.from_numpy(src), torch.from_numpy(dst))


def load_or_sample_negatives(store: EventStore, request: NegativeRequest, folder: Path) -> NegativePairs:
    """Load the negatives of a request from its file in `folder`; sample and store them if there is none."""
    digest = request.digest(store)
    path = folder / f"negatives-{request.strategy}-{digest}.safetensors"
    if path.exists():
        try:
            columns, metadata = read_sealed_tensors(path)
            if metadata.get("request") != digest:
                raise FileError("they belong to another request", code="damaged-negatives")
            return NegativePairs(columns["src"], columns["dst"])
        except (FileError, KeyError) as error:
            raise FileError(
                f"{path} does not hold the negatives of this evaluation ({error}); delete it to sample them again",
                code="damaged-negatives",
            ) from error
    negatives = sample_negatives(store, request)
    make_folder(folder)
    write_sealed_tensors(path, {"src": negatives.src, "dst": negatives.dst}, {"request": digest})
    return negatives


def _sample_random(store: EventStore, request: NegativeRequest) -> Iterator[PairArrays]:
    """Keep the source and sample any destination; as in DyGLib, collisions with positives are not avoided."""
    positive_src, _, positive_time = _event_columns(store, request.events)
    if request.earlier_only:
        first = FirstEvents.find(store.dst, store.time)
        rng = np.random.Generator(np.random.PCG64(request.seed))
        yield positive_src, first.node[rng.integers(first.count_before(positive_time))]
        return
    src, dst, _ = _event_columns(store, request.known)
    sources, destinations = np.unique(src), np.unique(dst)
    state = np.random.RandomState(request.seed)
    for start in range(0, len(positive_src), request.batch_size):
        own = positive_src[start : start + request.batch_size]
        state.randint(0, len(sources), len(own))  # the published sampler draws sources and drops them
        yield own, destinations[state.randint(0, len(destinations), len(own))]


def _sample_historical(store: EventStore, request: NegativeRequest) -> Iterator[PairArrays]:
    """Sample pairs that occurred by the batch's first time and do not occur in the batch's time window."""
    yield from _sample_from_pool(store, request, first_new=-np.inf)


def _sample_inductive(store: EventStore, request: NegativeRequest) -> Iterator[PairArrays]:
    """Sample as `_sample_historical`, among pairs that first occur after `observed_until`."""
    yield from _sample_from_pool(store, request, first_new=request.observed_until)


@dataclass(frozen=True, slots=True)
class NegativeSampler:
    """Sampler of negatives: `sample` yields the pairs of each batch, in the order of the positives.

    `keeps_source` says whether a negative has the source of its event; the activity of the source is then no help.
    """

    sample: Callable[[EventStore, NegativeRequest], Iterator[PairArrays]]
    keeps_source: bool = False


# the names are those of `core/choices.py`
SAMPLERS = {
    "random": NegativeSampler(_sample_random, keeps_source=True),
    "historical": NegativeSampler(_sample_historical),
    "inductive": NegativeSampler(_sample_inductive),
}


def _sample_from_pool(store: EventStore, request: NegativeRequest, first_new: float) -> Iterator[PairArrays]:
    src, dst, time = _event_columns(store, request.known)
    key = src * store.num_nodes + dst
    distinct, first_row, pair = np.unique(key, return_index=True, return_inverse=True)
    by_age = np.argsort(first_row)  # pairs in the order of their first occurrence
    age_of = np.empty_like(by_age)
    age_of[by_age] = np.arange(len(by_age))
    first_time = time[first_row[by_age]]
    low = int(np.searchsorted(first_time, first_new, side="right"))
    grid = (np.unique(src), np.unique(dst))
    first = [FirstEvents.find(ends, store.time) for ends in (store.src, store.dst) if request.earlier_only]
    rng = np.random.Generator(np.random.PCG64(request.seed))
    positive_src, positive_dst, positive_time = _event_columns(store, request.events)
    positive_key = positive_src * store.num_nodes + positive_dst
    for start in range(0, len(positive_time), request.batch_size):
        batch = slice(start, start + request.batch_size)
        begin, end = positive_time[batch][0], positive_time[batch][-1]
        high = int(np.searchsorted(first_time, begin, side="right"))
        window = slice(np.searchsorted(time, begin, side="left"), np.searchsorted(time, end, side="right"))
        present = age_of[np.unique(pair[window])]
        chosen = _sample_excluding(rng, low, max(low, high), present, len(positive_time[batch]))
        known = distinct[by_age[chosen]]
        # a pool smaller than the batch is filled up with random pairs, as in DyGLib
        missing = len(positive_time[batch]) - len(known)
        if request.earlier_only and missing:
            grid = tuple(np.sort(ends.take_before(begin)) for ends in first)
        fill = _sample_grid_pairs(rng, grid, positive_key[batch], store.num_nodes, missing)
        both = np.concatenate([fill, known])
        yield both // store.num_nodes, both % store.num_nodes


def _sample_excluding(
    rng: np.random.Generator, low: int, high: int, banned: np.ndarray, size: int
) -> np.ndarray:
    """Sample up to `size` distinct integers of [low, high) that are not banned; return all if there are fewer."""
    banned = np.unique(banned[(banned >= low) & (banned < high)])
    free = high - low - len(banned)
    rank = rng.choice(free, size, replace=False) if free >= size else np.arange(free)
    return low + _skip_banned(rank, banned - low)


def _sample_grid_pairs(
    rng: np.random.Generator, grid: tuple[np.ndarray, ...], banned_keys: np.ndarray, num_nodes: int, size: int
) -> np.ndarray:
    """Sample `size` pairs of a known source and a known destination, none of them banned."""
    sources, destinations = grid
    src, dst = banned_keys // num_nodes, banned_keys % num_nodes
    is_inside = np.isin(src, sources) & np.isin(dst, destinations)
    src, dst = src[is_inside], dst[is_inside]
    cell = np.searchsorted(sources, src) * len(destinations) + np.searchsorted(destinations, dst)
    banned = np.unique(cell)
    free = len(sources) * len(destinations) - len(banned)
    if not size:
        return np.zeros(0, np.int64)
    if not free:
        raise EventError(
            "every possible pair occurs in one batch, so there is no negative pair to sample; use a larger stream",
            code="no-negative-pair",
        )
    rank = rng.choice(free, size, replace=free < size)
    cell = _skip_banned(rank, banned)
    return sources[cell // len(destinations)] * num_nodes + destinations[cell % len(destinations)]


def _skip_banned(rank: np.ndarray, banned: np.ndarray) -> np.ndarray:
    """Return the rank-th non-negative integers that are not in the sorted array `banned`."""
    return rank + np.searchsorted(banned - np.arange(len(banned)), rank, side="right")


def _event_columns(store: EventStore, events: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return store.src[events].numpy(), store.dst[events].numpy(), store.time[events].numpy()
