"""Boosted trees on exact decayed counts, for links and for labels of nodes, trained on a CPU in seconds.

A query is a row of features. Those of a link (`BoostedTrees`) are decayed counts of both nodes' events and of their
common events on nine time scales, counts of one node with the other's neighbors, and the ages of the last events
(`history/counts.py`); the time scales are log-spaced from the median time gap of a node to the training period.
Further ones say how often the destination followed the source's last destinations, of any source
(`history/transitions.py`), and how likely it is after one of the last ten (`history/associations.py`), and summarise
the columns of earlier events, such as amounts and types (`history/columns.py`), and the named node features of both
ends (`history/node_features.py`). Those of a label (`NodeTrees`) are such counts, new partners and means of the edge
features of earlier events (`history/node_values.py`), and the node features of both ends.

There is no memory and no backbone: a score is a function of the pair, the time, strictly earlier events and node
features, and with `query_columns` of the columns that the query carries. The trees are stored in buffers, so a
checkpoint contains numbers and no code (decision 025). The buffers grow with the trees, so that it is no larger than
they are.

Legend: p pairs, r rows, f features, c features of every tree, k outputs, t trees, n nodes of a tree.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ref

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from torch import Tensor, nn

from dygmamba.core.errors import FileError
from dygmamba.history.counts import CountFeatures
from dygmamba.history.node_values import NodeValueFeatures
from dygmamba.history.table_request import FeatureRequest, FeatureUnit
from dygmamba.history.transitions import ASSOCIATIONS, TransitionFeatures
from dygmamba.history.view import LabelledView, PairView
from dygmamba.history.walks import WalkRequest
from dygmamba.models.base import DatasetFacts, Scorer, TargetFacts
from dygmamba.models.column_requests import request_columns, request_node_features
from dygmamba.models.configs import BoostingConfig, NodeTreesConfig, TreesConfig
from dygmamba.models.objectives import Objective, SoftmaxObjective, create_objective
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

VALUE_SCALES = 4  # time scales of the edge features that trees for nodes read
COLUMN_TYPES = {
    "feature": torch.int32,
    "threshold": torch.float32,
    "left": torch.int32,
    "right": torch.int32,
    "value": torch.float64,
    "cover": torch.float64,
}


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training queries: features, label and time."""

    features: Float32[Tensor, "r f"]
    label: Float64[Tensor, "r"]
    time: Float64[Tensor, "r"]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return self.features, self.label, self.time

    def __getitem__(self, chosen: Tensor) -> "TrainingRows":
        return TrainingRows(self.features.T[:, chosen].T, self.label[chosen], self.time[chosen])

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
    score: Float64[Tensor, "r k"]
    known: int  # number of rounds in the score
    kept: Int64[np.ndarray, "c"]  # features that every tree may split on


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


class TreeBank(nn.Module):
    """The trees of one output, in buffers that grow with them; the buffers' names are keys of saved files."""

    feature: Tensor
    grown: Tensor
    key: Tensor
    carried: Tensor | None

    def __init__(self, config: BoostingConfig) -> None:
        super().__init__()
        self.config, self.growth = config, GrowthConfig(config.leaves, config.least, config.l2)
        for name, kind in COLUMN_TYPES.items():
            self.register_buffer(name, torch.zeros(0, 2 * config.leaves - 1, dtype=kind))
        self._resize(1)
        self.register_buffer("grown", torch.zeros((), dtype=torch.int64))
        self.register_buffer("key", torch.randint(2**62, ()))  # of the samples of rows and columns
        # number of first trees that an earlier run grew; a run that starts anew has no such buffer
        self.register_buffer("carried", None)
        self._cache: dict[int, CachedSums] = {}  # by the id of the feature table, while that is alive

    def trees(self, first: int = 0, last: int | None = None) -> Trees:
        """Return the trees grown so far, or a range of them, on the CPU."""
        every = Trees(*(getattr(self, name).cpu() for name in COLUMN_TYPES))
        return every.part(first, int(self.grown) if last is None else last)

    @property
    def num_carried(self) -> int:
        """Number of first trees that an earlier run grew, on another table."""
        return 0 if self.carried is None else int(self.carried)

    def _resize(self, count: int) -> None:
        """Make room for `count` trees; new ones are leaves of value 0."""
        for name in COLUMN_TYPES:
            old = getattr(self, name)
            more = old.new_full((max(0, count - len(old)), old.shape[1]), -1 if name == "feature" else 0)
            setattr(self, name, torch.cat([old[:count], more]))

    def fit_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for as many trees as these stored buffers have."""
        count = len(tensors["feature"]) if "feature" in tensors and tensors["feature"].ndim else 0
        carried = tensors.get("carried")
        is_count = carried is not None and carried.dtype == torch.int64 and not carried.ndim
        self.carried = torch.zeros_like(self.grown) if is_count else None
        if 0 < count <= self.config.trees + (int(carried) if is_count and carried is not None else 0):
            self._resize(count)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **others: Any
    ) -> None:
        self.fit_stored(_select_prefix(state_dict, prefix))
        super()._load_from_state_dict(state_dict, prefix, *args, **others)

    def check_trees(self, num_features: int) -> None:
        """Raise ValueError for trees that no training gives."""
        if not 0 <= self.num_carried <= int(self.grown) <= len(self.feature):
            raise ValueError("it has fewer trees than it counts")
        self.trees().check(num_features)

    def grow(self, table: TrainingTable, slopes: Float64[Tensor, "r 2"]) -> None:
        """Grow one more tree from a sample of rows and features, unless this run has grown `trees` already."""
        at, config = int(self.grown), self.config
        most = self.num_carried + config.trees
        if at >= most:
            return
        if at == len(self.feature):  # room for the rest of the epoch
            self._resize(min(most, at + config.rounds - (at - self.num_carried) % config.rounds))
        draw = np.random.Generator(np.random.PCG64([int(self.key), at]))
        width, count = table.bins.shape
        rows = np.flatnonzero(draw.random(count) < min(config.rows, config.max_rows / max(count, 1)))
        columns = draw.choice(width, max(1, round(config.columns * width)), replace=False)
        drawn = (torch.from_numpy(rows), torch.from_numpy(np.union1d(columns, table.kept)))
        tree = grow_tree(table.bins, slopes, *drawn, table.edges, self.growth)
        tree.value.mul_(config.rate)
        for name in COLUMN_TYPES:
            getattr(self, name)[at] = getattr(tree, name)[0].to(self.feature.device)
        self.grown += 1

    def sums(self, features: Float32[Tensor, "p f"]) -> Float64[Tensor, "p"]:
        """Sum the trees for a feature table; a table that is used again, as in validation, only adds new trees."""
        trees, key, cache = self.trees(), id(features), self._cache
        cached = cache.get(key)
        # an id may be reused by another table, and the trees may have been replaced: check both
        if cached is None or cached.table() is not features or not cached.is_prefix_of(trees):
            sums = sum_leaves(trees, features.cpu())
        else:
            sums = sum_leaves(trees.part(cached.count, None), features.cpu(), cached.sums)
        cache[key] = CachedSums(ref(features, lambda _: cache.pop(key, None)), trees.clone(), sums)
        return sums


class TreeScorer(nn.Module, Scorer):
    """Sums of trees on the features of a query, one sum per output; the trees are in its `TreeBank` modules."""

    checksum_name: ClassVar[
        str
    ]  # buffer with the checksum of the features' names and order; a key of saved files
    base: Tensor

    def _set_features(
        self,
        config: BoostingConfig,
        requests: Sequence[FeatureRequest | WalkRequest],
        target: TargetFacts,
        node_columns: int = 0,
    ) -> None:
        """Set what is read of a query: `requests`, and as many first columns of the node features of both ends."""
        self.config, self.requests, self.target = config, tuple(requests), target
        self.node_columns, self.rounds_per_epoch = node_columns, config.rounds
        kinds = [request.kinds for request in requests if isinstance(request, WalkRequest)]
        self.overlaps = torch.tensor([place for walks in kinds for place, _ in walks], dtype=torch.int64)
        self.units = [unit for request in requests for unit in request.units]
        self.units += [
            FeatureUnit(f"feature {column} of the {end}")
            for end in ("source", "destination")
            for column in range(node_columns)
        ]
        self.names = [unit.name for unit in self.units]
        # others come on several time scales, so that a sample has some of each kind; these come once
        self._kept = np.flatnonzero([unit.group == ASSOCIATIONS for unit in self.units])
        self._checksum = zlib.crc32("\n".join(self.names).encode())
        self.register_buffer(self.checksum_name, torch.tensor(self._checksum))
        # by the ids of the tables that are joined, while these are alive
        self._joined: dict[tuple[int, ...], tuple[tuple[ref[Tensor], ...], Tensor]] = {}

    @property
    def output_banks(self) -> list[TreeBank]:
        """The trees of each output."""
        return [module for module in self.modules() if isinstance(module, TreeBank)]

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for as many trees as these stored buffers have."""
        for name, module in self.named_modules():
            if isinstance(module, TreeBank):
                module.fit_stored(_select_prefix(tensors, f"{name}." if name else ""))

    def check_buffers(self) -> None:
        """Raise ValueError for trees and initial outputs that no training gives."""
        if not bool(torch.isfinite(self.base).all()):
            raise ValueError("its initial outputs are not finite")
        if len({int(bank.grown) for bank in self.output_banks}) > 1:
            raise ValueError("its outputs have different numbers of trees")
        for bank in self.output_banks:
            bank.check_trees(len(self.names))

    def forward(self, view: PairView) -> Float64[Tensor, "p *k"]:
        """Return the outputs of each query, summed on the CPU, where the features are computed."""
        features = self.features(view)
        sums = torch.stack([bank.sums(features) for bank in self.output_banks], dim=1)
        return (self.base.cpu() + sums).squeeze(-1).to(view.pairs.node.device)

    def features(self, view: PairView) -> Float32[Tensor, "p f"]:
        """Return the features of each query, in the order of `names`.

        Tables that are used again, as in validation, give the same table again.
        """
        if int(getattr(self, self.checksum_name)) != self._checksum:
            raise FileError(
                "the trees of this run use other features than this version computes; train the run again",
                code="tree-features-changed",
            )
        pairs, tables = view.pairs, [view[request] for request in self.requests]
        for number, request in enumerate(self.requests):
            if isinstance(request, WalkRequest):
                overlaps = pair_overlaps(tables[number], pairs.src, pairs.dst, pairs.table_time)
                tables[number] = overlaps[:, self.overlaps.to(pairs.node.device)]
        if len(tables) == 1 and not self.node_columns:
            return tables[0]
        key, joined = tuple(map(id, tables)), self._joined
        found = joined.get(key)
        # an id may be reused by another table
        if found is None or any(part() is not own for part, own in zip(found[0], tables, strict=True)):
            node = view.features.node[:, : self.node_columns]
            ends = (node[pairs.src], node[pairs.dst]) if self.node_columns else ()
            refs = tuple(ref(table, lambda _: joined.pop(key, None)) for table in tables)
            # the values of a feature lie side by side, as trees read them
            found = joined[key] = (refs, torch.cat([table.T for table in (*tables, *ends)]).T)
        return found[1]

    def study(self, queries: Iterable[LabelledView]) -> TrainingTable:
        """Put all training queries into one table of bins."""
        rows = self._join_rows(map(self._read_rows, queries))
        return self._build_table(rows, create_objective(rows.label, self.target))

    def _read_rows(self, queries: LabelledView) -> TrainingRows:
        pairs = queries.pairs
        columns = (self.features(queries.view), pairs.label.double(), pairs.time)
        return TrainingRows(*(column.cpu() for column in columns))

    def _join_rows(self, parts: Iterable[TrainingRows]) -> TrainingRows:
        """Join the rows of all views and leave out the earliest ones."""
        features, *columns = zip(*(part.columns for part in parts), strict=True)
        rows = TrainingRows(torch.cat([part.T for part in features], dim=1).T, *map(torch.cat, columns))
        return rows[rows.time >= rows.time.sort().values[int(self.config.skip * len(rows.time))]]

    def _build_table(self, rows: TrainingRows, objective: Objective) -> TrainingTable:
        known = self.output_banks[0].num_carried
        if not known:
            self.base.copy_(objective.fit_base().view_as(self.base))
        edges = bin_edges(rows.features)
        bins = bin_columns(rows.features, edges)
        score = self.base.cpu() + torch.zeros_like(rows.label)[:, None]
        if known:  # their thresholds are not among the edges of this table
            columns = zip(self.output_banks, score.unbind(1), strict=True)
            sums = [
                sum_leaves(bank.trees(0, known), rows.features, own.contiguous()) for bank, own in columns
            ]
            score = torch.stack(sums, dim=1)
        return TrainingTable(edges, bins, objective, score, known, self._kept)

    def learn(self, table: TrainingTable) -> Float[Tensor, ""]:
        """Grow one more tree per output on the derivatives of the loss, unless this run has grown `trees` already."""
        banks = self.output_banks
        # one round after another, so that a resumed run adds up in the same order
        while table.known < int(banks[0].grown):
            given, columns = (table.bins, table.edges), zip(banks, table.score.unbind(1), strict=True)
            sums = [
                sum_binned_leaves(bank.trees(table.known, table.known + 1), *given, own.contiguous())
                for bank, own in columns
            ]
            table.score, table.known = torch.stack(sums, dim=1), table.known + 1
        loss = table.objective.loss(table.score)
        slopes = table.objective.derivatives(table.score)
        for k, bank in enumerate(banks):
            bank.grow(table, slopes[:, k].contiguous())
        return loss.float()


class BoostedTrees(TreeScorer, TreeBank):
    """A sum of trees on the features of a pair; the sum is the logit. The module itself is its only bank of trees."""

    checksum_name = "asked"
    ranks_candidates = continues_rounds = True

    def __init__(self, config: TreesConfig, facts: DatasetFacts) -> None:
        types = facts.columns.first(0, int(config.association_types), config.event_types).types
        column = types[0] if types and config.transitions and config.associations else None
        config = config.resolve(facts.num_events, column is not None)
        TreeBank.__init__(self, config)
        self.negatives = config.others
        scales = np.geomspace(min(facts.node_gap, facts.period), facts.period, config.scales).tolist()
        requests: list[FeatureRequest | WalkRequest] = [CountFeatures(tuple(scales), config.neighbors)]
        if config.walks:
            decays = facts.walk_decays(config.walk_decays)
            requests.append(WalkRequest(config.walks, config.walk_dim, decays, config.walk_seed))
        if config.transitions:
            scales = facts.transition_scales
            requests.append(TransitionFeatures(scales, config.transitions, config.associations, column))
        requests += request_columns(facts, config.query_columns, config.numeric_columns, config.event_types)
        if config.node_columns:
            requests += request_node_features(facts, config.node_columns)
        self._set_features(config, requests, TargetFacts())
        self.register_buffer("base", torch.zeros((), dtype=torch.float64))

    def keep_rounds(self) -> None:
        """Take the trees grown so far as those of an earlier run; `trees` more may follow."""
        self.carried = self.grown.clone()

    def study_groups(self, queries: Iterable[LabelledView]) -> TrainingTable:
        """Put all training queries into one table of bins, in which each event competes with its candidates."""
        rows = self._join_rows(self._read_rows(part).sort_by_event(part.pairs.group) for part in queries)
        return self._build_table(rows, SoftmaxObjective(len(rows.label) // int(rows.label.sum())))


class FeatureTable(Scorer):
    """The features that trees read of each pair, instead of a score."""

    def __init__(self, trees: TreeScorer) -> None:
        self.requests, self._trees = trees.requests, trees

    def __call__(self, view: PairView) -> Float32[Tensor, "p f"]:
        return self._trees.features(view)


class NodeTrees(TreeScorer):
    """Sums of trees that predict the label of a node: two states, classes or a number. Each output has its own bank."""

    checksum_name = "layout"
    negatives = 0  # a query per event and nothing else

    def __init__(self, config: NodeTreesConfig, facts: DatasetFacts, target: TargetFacts) -> None:
        super().__init__()
        # the labels of earlier events, if they may be read, are columns behind the edge features
        labels = range(facts.edge_dim, facts.edge_dim + target.label_columns)
        columns = (*range(min(facts.edge_dim, config.values)), *labels)
        requests: list[FeatureRequest | WalkRequest] = [
            CountFeatures(facts.scales(config.scales), config.neighbors),
            NodeValueFeatures(facts.scales(VALUE_SCALES), columns),
        ]
        if config.transitions:
            requests.append(TransitionFeatures(facts.transition_scales, config.transitions))
        self._set_features(config, requests, target, min(facts.node_dim, config.values))
        self.banks = nn.ModuleList(TreeBank(config) for _ in range(target.outputs))
        self.register_buffer("base", torch.zeros(target.outputs, dtype=torch.float64))


def _select_prefix(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
