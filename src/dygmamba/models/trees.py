"""Boosted trees on exact decayed counts, trained on a CPU in seconds.

Each pair is a row of features (`sampling/counts.py`): decayed counts of both nodes' events and of their common events
on nine time scales, counts of one node with the other's neighbors, and the ages of the last events. The time scales are
log-spaced from the median time gap of a node to the training period. Further features say how often the destination
followed the source's last destinations, of any source (`sampling/transitions.py`), and summarise the columns of earlier
events, such as amounts and types (`sampling/columns.py`), and the named node features of both ends
(`sampling/node_features.py`). There is no memory: a score is a function of the pair, the time, strictly earlier events
and node features, and with `query_columns` of the columns that the query carries. The trees are stored
in buffers, so a checkpoint contains numbers and no code (decision 025). The buffers grow with the trees, so that it is
no larger than they are.

Legend: p pairs, r rows, f features, t trees, n nodes of a tree.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from torch import Tensor, nn

from dygmamba.core.errors import FileError
from dygmamba.data.events.event_store import EventBatch
from dygmamba.models.base import DatasetFacts, Offset
from dygmamba.models.column_requests import request_columns, request_node_features
from dygmamba.models.configs import TreesConfig
from dygmamba.models.objectives import LogisticObjective, Objective, SoftmaxObjective
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
from dygmamba.sampling.transitions import TransitionRequest
from dygmamba.sampling.view import LabelledPairs, LabelledView, PairView
from dygmamba.sampling.walks import WalkRequest


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training queries: features, label, offset and time."""

    features: Float32[Tensor, "r f"]
    label: Float64[Tensor, "r"]
    start: Float64[Tensor, "r"]
    time: Float64[Tensor, "r"]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return self.features, self.label, self.start, self.time

    def __getitem__(self, chosen: Tensor) -> "TrainingRows":
        return TrainingRows(*(column[chosen] for column in self.columns))

    def sort_by_event(self, group: Int64[Tensor, "r"]) -> "TrainingRows":
        """Return the rows of each event, numbered by `group`, side by side, the event itself first."""
        first = torch.argsort(-self.label, stable=True)
        return self[first[torch.argsort(group.cpu()[first], stable=True)]]


@dataclass(slots=True)
class TrainingTable:
    """The training queries as a table of bins, their loss, and their scores by the trees grown so far."""

    edges: Float32[Tensor, "f b"]
    bins: UInt8[Tensor, "f r"]
    objective: Objective
    score: Float64[Tensor, "r"]
    known: int  # number of trees in the score


@dataclass(frozen=True, slots=True)
class CachedSums:
    """Sums of trees for a feature table that another object owns."""

    table: ref[Tensor]
    trees: Trees
    sums: Float64[Tensor, "p"]

    @property
    def count(self) -> int:
        return len(self.trees.feature)

    def is_prefix_of(self, trees: Trees) -> bool:
        """Return whether the trees that are already added to these sums are the first ones of `trees`."""
        first = trees.part(0, self.count)
        return all(map(torch.equal, first.columns, self.trees.columns))


@dataclass(frozen=True, slots=True)
class JoinedTables:
    """Feature tables that other objects own, side by side in one table."""

    parts: tuple[ref[Tensor], ...]
    table: Float32[Tensor, "p f"]


class BoostedTrees(nn.Module):
    """A sum of trees on the features of a pair; the sum is the logit."""

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
    carried: Tensor | None

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
            decays = facts.walk_decays(config.walk_decays)
            walks = WalkRequest(config.walks, config.walk_dim, decays, config.walk_seed)
            self.requests = (self.request, walks)
            self.overlaps = torch.tensor([place for place, _ in walks.kinds])
            self.names = [*self.names, *(name for _, name in walks.kinds)]
        if config.transitions:
            steps = TransitionRequest(facts.transition_scales, config.transitions)
            self.requests = (*self.requests, steps)
            self.names = [*self.names, *steps.names]
        columns = [
            *request_columns(facts, config.query_columns, config.numeric_columns, config.event_types),
            *(request_node_features(facts, config.node_columns) if config.node_columns else ()),
        ]
        self.requests = (*self.requests, *columns)
        self.names = [*self.names, *(name for request in columns for name in request.names)]
        kinds = {
            "feature": torch.int32, "threshold": torch.float32, "left": torch.int32, "right": torch.int32,
            "value": torch.float64, "cover": torch.float64,
        }  # fmt: skip
        for name, kind in kinds.items():
            self.register_buffer(name, torch.zeros(0, 2 * config.leaves - 1, dtype=kind))
        self._resize(1)
        self.register_buffer("grown", torch.zeros((), dtype=torch.int64))
        self.register_buffer("base", torch.zeros((), dtype=torch.float64))
        self.layout = zlib.crc32("\n".join(self.names).encode())
        # checksum of the features' names and order; buffer names are keys of saved files
        self.register_buffer("asked", torch.tensor(self.layout))
        self.register_buffer(
            "key", torch.randint(2**62, ())
        )  # random key of the trees' samples of rows and columns
        # number of first trees that an earlier run grew; a run that starts anew has no such buffer
        self.register_buffer("carried", None)
        self._joined: dict[
            tuple[int, ...], JoinedTables
        ] = {}  # by the ids of the parts, while they are alive
        self._cache: dict[int, CachedSums] = {}  # by the id of the feature table, while that is alive

    def trees(self, first: int = 0, last: int | None = None) -> Trees:
        """Return the trees grown so far, or a range of them."""
        every = Trees(*(getattr(self, name) for name in Trees.__dataclass_fields__))
        return every.part(first, int(self.grown) if last is None else last)

    def _resize(self, count: int) -> None:
        """Make room for `count` trees; new ones are leaves of value 0."""
        for name in Trees.__dataclass_fields__:
            old = getattr(self, name)
            more = old.new_full((max(0, count - len(old)), old.shape[1]), -1 if name == "feature" else 0)
            setattr(self, name, torch.cat([old[:count], more]))

    @property
    def num_carried(self) -> int:
        """Number of first trees that an earlier run grew, on another table."""
        return 0 if self.carried is None else int(self.carried)

    def keep_rounds(self) -> None:
        """Take the trees grown so far as those of an earlier run; `trees` more may follow."""
        self.carried = self.grown.clone()

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for as many trees as these stored buffers have."""
        count = len(tensors["feature"]) if "feature" in tensors and tensors["feature"].ndim else 0
        carried = tensors.get("carried")
        is_count = carried is not None and carried.dtype == torch.int64 and not carried.ndim
        self.carried = torch.zeros_like(self.grown) if is_count else None
        if 0 < count <= self.config.trees + (int(carried) if is_count and carried is not None else 0):
            self._resize(count)

    def check_buffers(self) -> None:
        """Raise ValueError for trees that no training gives."""
        if not 0 <= self.num_carried <= int(self.grown) <= len(self.feature):
            raise ValueError("it has fewer trees than it counts")
        if not bool(torch.isfinite(self.base)):
            raise ValueError("its trees have numbers that are not finite")
        self.trees().check(len(self.names))

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **others: Any
    ) -> None:
        self.allocate(
            {name.removeprefix(prefix): state_dict[name] for name in state_dict if name.startswith(prefix)}
        )
        super()._load_from_state_dict(state_dict, prefix, *args, **others)

    def forward(self, view: PairView) -> Float64[Tensor, "p"]:
        """Return a logit per pair, summed on the CPU, where the features are computed."""
        if int(self.asked) != self.layout:
            raise FileError(
                "the trees of this run use other features than this version computes; train the run again",
                code="tree-features-changed",
            )
        features = self.features(view)
        return self.base + self._sums(features).to(features.device)

    def features(self, view: PairView) -> Float32[Tensor, "p f"]:
        """Return the features of each pair, in the order of `names`."""
        ends, chosen = (
            (view.pairs.src, view.pairs.dst, view.pairs.known),
            self.overlaps.to(view.pairs.node.device),
        )
        walked = [pair_overlaps(walks, *ends)[:, chosen] for walks in view.walks]
        parts = [*view.counts, *walked, *view.transitions, *view.column_features, *view.node_features]
        return self._join(parts)

    def _join(self, parts: list[Tensor]) -> Float32[Tensor, "p f"]:
        """Put feature tables side by side; tables that are used again, as in validation, give the same table again."""
        if len(parts) == 1:
            return parts[0]
        key, joined = tuple(map(id, parts)), self._joined
        found = joined.get(key)
        # an id may be reused by another table
        if found is None or any(part() is not own for part, own in zip(found.parts, parts, strict=True)):
            refs = tuple(ref(part, lambda _: joined.pop(key, None)) for part in parts)
            found = joined[key] = JoinedTables(refs, torch.cat(parts, dim=1))
        return found.table

    def _sums(self, features: Float32[Tensor, "p f"]) -> Float64[Tensor, "p"]:
        """Sum the trees for a feature table; a table that is used again, as in validation, only adds new trees."""
        trees, cached = _to_cpu(self.trees()), self._cache.get(id(features))
        # an id may be reused by another table, and the trees may have been replaced: check both
        if cached is None or cached.table() is not features or not cached.is_prefix_of(trees):
            sums = sum_leaves(trees, features.cpu())
        else:
            sums = sum_leaves(trees.part(cached.count, None), features.cpu(), cached.sums)
        key, cache = id(features), self._cache
        table = ref(features, lambda _: cache.pop(key, None))
        self._cache[key] = CachedSums(table, trees.clone(), sums)
        return sums

    def study(self, queries: Iterable[LabelledView], offset: Offset | None = None) -> TrainingTable:
        """Put all training queries into one table of bins; the trees are fitted on top of the offsets."""
        rows = self._join_rows(self._read_rows(part, offset) for part in queries)
        return self._build_table(rows, LogisticObjective(rows.label))

    def study_groups(self, queries: Iterable[LabelledView], offset: Offset | None = None) -> TrainingTable:
        """Put all training queries into one table of bins, in which each event competes with its candidates."""
        rows = self._join_rows(
            self._read_rows(part, offset).sort_by_event(part.pairs.group) for part in queries
        )
        return self._build_table(rows, SoftmaxObjective(len(rows.label) // int(rows.label.sum())))

    def _read_rows(self, queries: LabelledView, offset: Offset | None) -> TrainingRows:
        columns = _labels_offsets_times(queries.pairs, offset)
        return TrainingRows(self.features(queries.view).cpu(), *(column.cpu() for column in columns))

    def _join_rows(self, parts: Iterable[TrainingRows]) -> TrainingRows:
        """Join the rows of all views and leave out the earliest ones."""
        columns = zip(*(part.columns for part in parts), strict=True)
        rows = TrainingRows(*map(torch.cat, columns))
        return rows[rows.time >= rows.time.sort().values[int(self.config.skip * len(rows.time))]]

    def _build_table(self, rows: TrainingRows, objective: Objective) -> TrainingTable:
        known = self.num_carried
        if not known:
            self.base.copy_(objective.fit_base(rows.start))
        edges = bin_edges(rows.features)
        bins = bin_columns(rows.features, edges)
        score = self.base.cpu() + rows.start
        if known:  # their thresholds are not among the edges of this table
            score = sum_leaves(_to_cpu(self.trees(0, known)), rows.features, score)
        return TrainingTable(edges, bins, objective, score, known)

    def learn(self, table: TrainingTable) -> Float[Tensor, ""]:
        """Grow one more tree on the derivatives of the loss, unless this run has grown `trees` already."""
        # one tree after another, so that a resumed run adds up in the same order
        while table.known < int(self.grown):
            tree = self.trees(table.known, table.known + 1)
            table.score = sum_binned_leaves(_to_cpu(tree), table.bins, table.edges, table.score)
            table.known += 1
        loss = table.objective.loss(table.score)
        at, most = int(self.grown), self.num_carried + self.config.trees
        if at < most:
            if at == len(self.feature):  # room for the rest of the epoch
                rest = self.config.rounds - (at - self.num_carried) % self.config.rounds
                self._resize(min(most, at + rest))
            tree = self._next(table, np.random.Generator(np.random.PCG64([int(self.key), at])))
            for name in Trees.__dataclass_fields__:
                getattr(self, name)[at] = getattr(tree, name)[0].to(self.value.device)
            self.grown += 1
        return loss

    def _next(self, table: TrainingTable, draw: np.random.Generator) -> Trees:
        slopes = table.objective.derivatives(table.score)
        width, count = table.bins.shape
        share = min(self.config.rows, self.config.max_rows / max(count, 1))
        rows = np.flatnonzero(draw.random(count) < share)
        columns = np.sort(draw.choice(width, max(1, round(self.config.columns * width)), replace=False))
        drawn = (torch.from_numpy(rows), torch.from_numpy(columns))
        tree = grow_tree(table.bins, slopes, *drawn, table.edges, self.growth)
        tree.value.mul_(self.config.rate)
        return tree

    def observe(self, events: EventBatch) -> None:
        """Do nothing: events are counted for each query."""

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def snapshot(self, events: EventBatch) -> Any:
        """Return None: observing changes nothing."""

    def restore(self, snapshot: Any) -> None:
        """Do nothing."""


def _labels_offsets_times(pairs: LabelledPairs, offset: Offset | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return label, offset and time of each query."""
    start = None if offset is None else offset(pairs)
    start = torch.zeros_like(pairs.label) if start is None else start
    return pairs.label.double(), start.double(), pairs.time


def _to_cpu(trees: Trees) -> Trees:
    return Trees(*(column.cpu() for column in trees.columns))
