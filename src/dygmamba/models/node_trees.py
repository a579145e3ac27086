"""Boosted trees that predict the label of a node: two states, classes or a number; trained on a CPU in seconds.

A query is a row of features: decayed counts of source and destination and of their common events
(`sampling/counts.py`), what follows the source's last destinations (`sampling/transitions.py`), new partners and means
of the edge features of earlier events (`sampling/node_values.py`), and the node features of both ends. There is no
memory and no backbone: a score is a function of the query and strictly earlier events. Each output has trees of its
own, one per round, in buffers (decision 025).

Legend: p queries, r rows, f features, k outputs.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor, nn

from dygmamba.core.errors import FileError
from dygmamba.data.events.event_store import EventBatch
from dygmamba.models.base import DatasetFacts, Offset, TargetFacts
from dygmamba.models.configs import NodeTreesConfig
from dygmamba.models.node_objectives import OBJECTIVES
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
from dygmamba.sampling.node_values import NodeValueRequest
from dygmamba.sampling.transitions import TransitionRequest
from dygmamba.sampling.view import LabelledView, PairView

VALUE_SCALES = 4  # time scales of edge features
COLUMN_TYPES = {
    "feature": torch.int32,
    "threshold": torch.float32,
    "left": torch.int32,
    "right": torch.int32,
    "value": torch.float64,
    "cover": torch.float64,
}


@dataclass(slots=True)
class NodeTable:
    """The training queries as a table of bins, their targets, and their scores by the trees grown so far."""

    edges: Float32[Tensor, "f b"]
    bins: UInt8[Tensor, "f r"]
    target: Float64[Tensor, "r"]
    score: Float64[Tensor, "r k"]
    known: int  # number of rounds in the score


class TreeBank(nn.Module):
    """The trees of one output, in buffers that grow with them."""

    feature: Tensor
    grown: Tensor
    key: Tensor

    def __init__(self, config: NodeTreesConfig, features: int) -> None:
        super().__init__()
        self.config, self.features = config, features
        self.growth = GrowthConfig(config.leaves, config.least, config.l2)
        for name, kind in COLUMN_TYPES.items():
            self.register_buffer(name, torch.zeros(0, 2 * config.leaves - 1, dtype=kind))
        self._resize(1)
        self.register_buffer("grown", torch.zeros((), dtype=torch.int64))
        self.register_buffer("key", torch.randint(2**62, ()))  # of the samples of rows and columns
        self._sums: dict[int, tuple[ref[Tensor], int, Tensor]] = {}  # by the id of a feature table

    def trees(self, first: int = 0, last: int | None = None) -> Trees:
        """Return the trees grown so far, or a range of them, on the CPU."""
        every = Trees(*(getattr(self, name).cpu() for name in COLUMN_TYPES))
        return every.part(first, int(self.grown) if last is None else last)

    def _resize(self, count: int) -> None:
        """Make room for `count` trees; new ones are leaves of value 0."""
        for name in COLUMN_TYPES:
            old = getattr(self, name)
            more = old.new_full((max(0, count - len(old)), old.shape[1]), -1 if name == "feature" else 0)
            setattr(self, name, torch.cat([old[:count], more]))

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make room for as many trees as these stored buffers have."""
        count = len(tensors["feature"]) if "feature" in tensors and tensors["feature"].ndim else 0
        if 0 < count <= self.config.trees:
            self._resize(count)
        self._sums.clear()  # other trees are loaded next

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **others: Any
    ) -> None:
        self.allocate(
            {name.removeprefix(prefix): state_dict[name] for name in state_dict if name.startswith(prefix)}
        )
        super()._load_from_state_dict(state_dict, prefix, *args, **others)

    def check_buffers(self) -> None:
        """Raise ValueError for trees that no training gives."""
        if not 0 <= int(self.grown) <= len(self.feature):
            raise ValueError("it has fewer trees than it counts")
        self.trees().check(self.features)

    def grow(self, table: NodeTable, slopes: Float64[Tensor, "r 2"]) -> None:
        """Grow one more tree from a sample of rows and columns, unless there are `trees` already."""
        at, config = int(self.grown), self.config
        if at >= config.trees:
            return
        if at == len(self.feature):  # room for the rest of the epoch
            self._resize(min(config.trees, at + config.rounds - at % config.rounds))
        draw = np.random.Generator(np.random.PCG64([int(self.key), at]))
        width, count = table.bins.shape
        rows = np.flatnonzero(draw.random(count) < min(config.rows, config.max_rows / max(count, 1)))
        columns = np.sort(draw.choice(width, max(1, round(config.columns * width)), replace=False))
        drawn = (torch.from_numpy(rows), torch.from_numpy(columns))
        tree = grow_tree(table.bins, slopes, *drawn, table.edges, self.growth)
        tree.value.mul_(config.rate)
        for name in COLUMN_TYPES:
            getattr(self, name)[at] = getattr(tree, name)[0].to(self.feature.device)
        self.grown += 1

    def add_round(self, number: int, table: NodeTable, score: Float64[Tensor, "r"]) -> Float64[Tensor, "r"]:
        """Return the scores of the training queries with the tree of one more round."""
        return sum_binned_leaves(self.trees(number, number + 1), table.bins, table.edges, score)

    def sums(self, features: Float32[Tensor, "p f"]) -> Float64[Tensor, "p"]:
        """Sum the trees for a feature table; a table that is used again, as in validation, only adds new trees."""
        key, cache = id(features), self._sums
        table, count, sums = cache.get(key, (None, 0, None))
        if table is None or table() is not features or count > int(self.grown):  # an id may be reused
            count, sums = 0, None
        sums = sum_leaves(self.trees(count), features.cpu(), sums)
        cache[key] = (ref(features, lambda _: cache.pop(key, None)), int(self.grown), sums)
        return sums


class NodeTrees(nn.Module):
    """Sums of trees on the features of a query, one sum per output."""

    stateful = False
    elastic = False
    negatives = 0  # a query per event and nothing else

    base: Tensor
    layout: Tensor

    def __init__(self, config: NodeTreesConfig, facts: DatasetFacts, target: TargetFacts) -> None:
        super().__init__()
        self.config, self.rounds = config, config.rounds
        self.objective = OBJECTIVES[target.kind](target.outputs, target.weights)
        counts = CountRequest(facts.scales(config.scales), config.neighbors)
        # the labels of earlier events, if they may be read, are columns behind the edge features
        labels = range(facts.edge_dim, facts.edge_dim + target.label_columns)
        columns = (*range(min(facts.edge_dim, config.values)), *labels)
        values = NodeValueRequest(facts.scales(VALUE_SCALES), columns)
        self.requests = (counts, values)
        if config.transitions:
            self.requests = (
                *self.requests,
                TransitionRequest(facts.transition_scales, config.transitions),
            )
        self.node_columns = min(facts.node_dim, config.values)
        self.names = [name for request in self.requests for name in request.names]
        self.names += [
            f"feature {column} of the {end}"
            for end in ("source", "destination")
            for column in range(self.node_columns)
        ]
        self.banks = nn.ModuleList(TreeBank(config, len(self.names)) for _ in range(target.outputs))
        self.register_buffer("base", torch.zeros(target.outputs, dtype=torch.float64))
        # checksum of the features' names and order
        self.register_buffer("layout", torch.tensor(zlib.crc32("\n".join(self.names).encode())))
        self._joined: dict[tuple[int, ...], tuple[tuple[ref[Tensor], ...], Tensor]] = {}

    def check_buffers(self) -> None:
        """Raise ValueError for initial outputs that are not finite; the trees are checked by their banks."""
        if not bool(torch.isfinite(self.base).all()):
            raise ValueError("its initial outputs are not finite")
        if len({int(bank.grown) for bank in self.output_banks}) > 1:
            raise ValueError("its outputs have different numbers of trees")

    @property
    def output_banks(self) -> list[TreeBank]:
        return [bank for bank in self.banks if isinstance(bank, TreeBank)]

    def forward(self, view: PairView) -> Float64[Tensor, "p *k"]:
        """Return the outputs of each query, summed on the CPU, where the features are computed."""
        if int(self.layout) != zlib.crc32("\n".join(self.names).encode()):
            raise FileError(
                "the trees of this run use other features than this version computes; train the run again",
                code="tree-features-changed",
            )
        features = self.features(view)
        sums = torch.stack([bank.sums(features) for bank in self.output_banks], dim=1)
        score = self.base.cpu() + sums
        return (score[:, 0] if len(self.banks) == 1 else score).to(view.pairs.node.device)

    def features(self, view: PairView) -> Float32[Tensor, "p f"]:
        """Return the features of each query, in the order of `names`."""
        tables = [*view.counts, *view.node_values, *view.transitions]
        key, joined = tuple(map(id, tables)), self._joined
        found = joined.get(key)
        # the tables of validation are the same in every epoch; an id may be reused by another table
        if found is None or any(part() is not own for part, own in zip(found[0], tables, strict=True)):
            node = view.features.node[:, : self.node_columns]
            ends = (node[view.pairs.src], node[view.pairs.dst]) if self.node_columns else ()
            refs = tuple(ref(table, lambda _: joined.pop(key, None)) for table in tables)
            found = joined[key] = (refs, torch.cat([*tables, *ends], dim=1))
        return found[1]

    def study(self, queries: Iterable[LabelledView], offset: Offset | None = None) -> NodeTable:
        """Put all training queries into one table of bins."""
        parts = [
            (self.features(view).cpu(), pairs.label.double().cpu(), pairs.time.cpu())
            for view, pairs in queries
        ]
        x, target, time = (torch.cat(column) for column in zip(*parts, strict=True))
        late = time >= time.sort().values[int(self.config.skip * len(time))]
        x, target = x[late], target[late]
        self.base.copy_(self.objective.fit_base(target))
        edges = bin_edges(x)
        return NodeTable(edges, bin_columns(x, edges), target, self.base.cpu().repeat(len(x), 1), 0)

    def learn(self, table: NodeTable) -> Float[Tensor, ""]:
        """Grow one more tree per output on the derivatives of the loss, unless there are `trees` rounds already."""
        banks = self.output_banks
        # one round after another, so that a resumed run adds up in the same order
        while table.known < int(banks[0].grown):
            columns = [
                bank.add_round(table.known, table, table.score[:, k].contiguous())
                for k, bank in enumerate(banks)
            ]
            table.score, table.known = torch.stack(columns, dim=1), table.known + 1
        loss = self.objective.loss(table.score, table.target)
        slopes = self.objective.derivatives(table.score, table.target)
        for k, bank in enumerate(banks):
            bank.grow(table, slopes[:, k].contiguous())
        return loss.float()

    def observe(self, events: EventBatch) -> None:
        """Do nothing: events are counted for each query."""

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def snapshot(self, events: EventBatch) -> Any:
        """Return None: observing changes nothing."""

    def restore(self, snapshot: Any) -> None:
        """Do nothing."""
