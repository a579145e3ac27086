"""Boosted trees on exact fading counts: what a laptop learns from a stream in seconds.

Each pair is a row of numbers (`sampling/counts.py`): how often both nodes have acted and met, fading on nine time
scales, how their neighbours know the other one, and how long ago all that was. The scales are log-spaced from the
typical gap of a node to the length of the training period. Nothing is remembered: a score is a function of the pair,
the time and strictly earlier events. The trees lie in buffers, so a checkpoint is numbers and no code (decision 025).

Legend: p pairs, r rows, f numbers per row, t trees, n nodes of a tree.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import ref

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.errors import FileError
from dygmamba.core.settings import Bounds, Count, Settings
from dygmamba.data.events.event_store import EventBatch
from dygmamba.models.base import DatasetFacts, ModelSpec, Offset
from dygmamba.nn.history_features import pair_overlaps
from dygmamba.ops.trees import (
    GrowthConfig,
    Trees,
    bin_columns,
    bin_edges,
    grow_tree,
    sum_binned_leaves,
    sum_leaves,
)
from dygmamba.sampling.counts import CountRequest
from dygmamba.sampling.view import PairBatch, PairView
from dygmamba.sampling.walks import WalkRequest

BISECTIONS = 50  # after which an interval is as small as a number of 64 bits tells
Fraction = Annotated[float, Bounds(1e-6, 1)]


@dataclass(frozen=True, slots=True)
class TreesConfig(Settings):
    """How many trees, how large, and what they are grown from."""

    trees: Annotated[int, Bounds(1, 100_000)] = 400  # trees at most
    rounds: Annotated[int, Bounds(1, 100_000)] = 10  # trees of an epoch, between two validations
    rate: Fraction = 0.05  # how much of what a tree says is added
    leaves: Annotated[int, Bounds(2, 4096)] = 31  # leaves of a tree at most
    least: Annotated[int, Bounds(1, 1_000_000)] = 20  # rows of a leaf at least
    l2: Annotated[float, Bounds(1e-6, 1e6)] = 1.0  # how strongly leaves are pulled towards 0
    rows: Fraction = 0.6  # share of the rows that a tree is grown from
    columns: Fraction = 0.3  # share of the numbers that it may ask about
    skip: Annotated[float, Bounds(0, 1, below=True)] = 0.15  # share of the questions left out: the first ones
    others: Count = 2  # pairs that were not, beside each training event
    scales: Count = 9  # scales of time on which what fades is counted
    neighbors: Annotated[int, Bounds(0, 10_000)] = 32  # neighbours of either end that are looked at
    walks: Annotated[int, Bounds(0, 5)] = (
        0  # events of the longest walks whose overlaps are numbers too; 0: none
    )


@dataclass(slots=True)
class TrainingTable:
    """The training questions as a table in bins, their answers, and what the trees grown so far say of them."""

    edges: Float32[Tensor, "f b"]
    bins: UInt8[Tensor, "f r"]
    label: Float64[Tensor, "r"]
    score: Float64[Tensor, "r"]
    known: int  # trees that are in the score


@dataclass(frozen=True, slots=True)
class CachedSums:
    """What some trees said of a table that somebody else keeps."""

    table: ref[Tensor]
    trees: Trees
    sums: Float64[Tensor, "p"]

    @property
    def count(self) -> int:
        """How many trees."""
        return len(self.trees.feature)

    def goes_on(self, trees: Trees) -> bool:
        """Whether these are the same trees, and perhaps more."""
        first = trees.part(0, self.count)
        return all(map(torch.equal, first.columns, self.trees.columns))


class BoostedTrees(nn.Module):
    """A sum of trees that say, of a row of counts, how likely the pair is."""

    stateful = False
    elastic = False

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    cover: Tensor
    grown: Tensor
    base: Tensor
    asked: Tensor
    key: Tensor

    def __init__(self, config: TreesConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.config, self.growth = config, GrowthConfig(config.leaves, config.least, config.l2)
        self.rounds, self.negatives = config.rounds, config.others
        shortest = min(facts.node_gap, facts.period)
        scales = np.geomspace(shortest, facts.period, config.scales).tolist()
        self.request = CountRequest(tuple(scales), config.neighbors)
        self.requests = (self.request,)
        self.names, self.overlaps = self.request.names, torch.zeros(0, dtype=torch.int64)
        if config.walks:
            walks = WalkRequest(config.walks, decay=2 / facts.period)
            self.requests = (self.request, walks)
            self.overlaps = torch.tensor([place for place, _ in walks.kinds])
            self.names = [*self.names, *(name for _, name in walks.kinds)]
        shape = (config.trees, 2 * config.leaves - 1)
        kinds = {
            "feature": torch.int32, "threshold": torch.float32, "left": torch.int32, "right": torch.int32,
            "value": torch.float64, "cover": torch.float64,
        }  # fmt: skip
        for name, kind in kinds.items():
            self.register_buffer(name, torch.zeros(shape, dtype=kind))
        self.feature.fill_(-1)
        self.register_buffer("grown", torch.zeros((), dtype=torch.int64))
        self.register_buffer("base", torch.zeros((), dtype=torch.float64))
        self.layout = zlib.crc32("\n".join(self.names).encode())
        self.register_buffer(
            "asked", torch.tensor(self.layout)
        )  # which numbers the trees ask about, in which order
        self.register_buffer("key", torch.randint(2**62, ()))  # of what each tree draws
        self._said: dict[int, CachedSums] = {}  # by the table's identity, as long as it is kept

    def trees(self, first: int = 0, last: int | None = None) -> Trees:
        """Those grown so far, or some of them."""
        every = Trees(*(getattr(self, name) for name in Trees.__dataclass_fields__))
        return every.part(first, int(self.grown) if last is None else last)

    def forward(self, view: PairView) -> Float64[Tensor, "p"]:
        """A logit per pair, summed on the host, where the counts are made."""
        if int(self.asked) != self.layout:
            raise FileError(
                "these trees ask about other numbers than this version counts; train the run again"
            )
        numbers = self.numbers(view)
        return self.base + self._sums(numbers).to(numbers.device)

    def numbers(self, view: PairView) -> Float32[Tensor, "p f"]:
        """All that is known of each pair, in the order of `names`."""
        ends, chosen = (
            (view.pairs.src, view.pairs.dst, view.pairs.known),
            self.overlaps.to(view.pairs.node.device),
        )
        walked = [pair_overlaps(walks, *ends)[:, chosen] for walks in view.walks]
        return torch.cat([*view.counts, *walked], dim=1) if walked else view.counts[0]

    def _sums(self, numbers: Float32[Tensor, "p f"]) -> Float64[Tensor, "p"]:
        """What the trees say of a table; of one that is kept, as validation's, new trees go on where old ones stood."""
        trees, said = _on_host(self.trees()), self._said.get(id(numbers))
        if said is None or said.table() is not numbers or not said.goes_on(trees):
            sums = sum_leaves(trees, numbers.cpu())
        else:
            sums = sum_leaves(trees.part(said.count, None), numbers.cpu(), said.sums)
        place, kept = id(numbers), self._said
        alive = ref(numbers, lambda _: kept.pop(place, None))
        self._said[place] = CachedSums(alive, trees.clone(), sums)
        return sums

    def study(self, views: Iterable[PairView], offset: Offset | None = None) -> TrainingTable:
        """All questions as one table in bins; the trees go on from their offsets and hold none of them."""
        parts = [
            (
                self.numbers(view).cpu(),
                *(column.cpu() for column in _labels_offsets_times(view.pairs, offset)),
            )
            for view in views
        ]
        x, label, start, time = (torch.cat(column) for column in zip(*parts, strict=True))
        late = time >= time.sort().values[int(self.config.skip * len(time))]
        x, label, start = x[late], label[late], start[late]
        self.base.copy_(fit_base_logit(label, start))
        edges = bin_edges(x)
        return TrainingTable(edges, bin_columns(x, edges), label, self.base.cpu() + start, 0)

    def learn(self, lesson: TrainingTable) -> Float[Tensor, ""]:
        """One more tree along the gradient of the logistic loss; none beyond the most there may be."""
        while lesson.known < int(self.grown):  # one after another, so that a resumed run adds up as it did
            tree = self.trees(lesson.known, lesson.known + 1)
            lesson.score = sum_binned_leaves(_on_host(tree), lesson.bins, lesson.edges, lesson.score)
            lesson.known += 1
        loss = binary_cross_entropy_with_logits(lesson.score, lesson.label).float()
        at = int(self.grown)
        if at < self.config.trees:
            tree = self._next(lesson, np.random.Generator(np.random.PCG64([int(self.key), at])))
            for name in Trees.__dataclass_fields__:
                getattr(self, name)[at] = getattr(tree, name)[0].to(self.value.device)
            self.grown += 1
        return loss

    def _next(self, lesson: TrainingTable, draw: np.random.Generator) -> Trees:
        share = torch.sigmoid(lesson.score)
        slopes = torch.stack([share - lesson.label, share * (1 - share)], dim=1)
        width, count = lesson.bins.shape
        rows = np.flatnonzero(draw.random(count) < self.config.rows)
        columns = np.sort(draw.choice(width, max(1, round(self.config.columns * width)), replace=False))
        drawn = (torch.from_numpy(rows), torch.from_numpy(columns))
        tree = grow_tree(lesson.bins, slopes, *drawn, lesson.edges, self.growth)
        tree.value.mul_(self.config.rate)
        return tree

    def observe(self, events: EventBatch) -> None:
        """Nothing: what has happened is counted when it is asked for."""

    def reset(self) -> None:
        """Nothing to forget."""

    def snapshot(self, events: EventBatch) -> Any:
        """Observing changes nothing."""

    def restore(self, kept: Any) -> None:
        """Be as before."""


def _labels_offsets_times(pairs: PairBatch, offset: Offset | None) -> tuple[Tensor, Tensor, Tensor]:
    """Label, offset and time of each question."""
    start = None if offset is None else offset(pairs)
    start = torch.zeros_like(pairs.label) if start is None else start
    return pairs.label.double(), start.double(), pairs.time


def fit_base_logit(label: Float64[Tensor, "r"], start: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
    """The constant that, added to where rows start from, is right on average; found by halves, as it only rises."""
    share = label.mean().clamp(1e-6, 1 - 1e-6)
    low, high = torch.logit(share) - start.max(), torch.logit(share) - start.min()
    for _ in range(BISECTIONS if low < high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if torch.sigmoid(middle + start).mean() < share else (low, middle)
    return (low + high) / 2


def _on_host(trees: Trees) -> Trees:
    return Trees(*(column.cpu() for column in trees.columns))


SPEC = ModelSpec(
    config=TreesConfig,
    build=BoostedTrees,
    trainable=True,
    title="boosted trees on fading counts",
    looks_at="how often both nodes and their neighbours acted and met before, fading on nine time scales",
    cost="linear in the neighbours, logarithmic in the events",
)


@dataclass(frozen=True, slots=True)
class WalkTreesConfig(TreesConfig):
    """The same, and what walks of up to three events between the two nodes say."""

    walks: Annotated[int, Bounds(0, 5)] = 3


WALK_TREES = ModelSpec(
    config=WalkTreesConfig,
    build=BoostedTrees,
    trainable=True,
    title="boosted trees on fading counts and temporal walks",
    looks_at="fading counts of both nodes, the pair and their neighbours, and fading walks of up to three events",
    cost="linear in the neighbours, logarithmic in the events",
)
