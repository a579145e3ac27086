"""JODIE, DyRep and TGN: three models on one node memory, which observes events in groups (engine/visibility.py).

Of a node's messages in a group, the last one as a destination is used, or else the last one as a source, as in the
released code of TGN and in DyGLib. A node's first time gap is counted from the start of the training events, not from
time 0.

A training step first commits the events that became visible since the previous step, so with the weights after that
step's update; DyGLib and TGN's release commit a batch in its own forward pass, before the update. In the first step of
an epoch no message is pending: the recurrent cell has a gradient of zero there, and none in DyGLib (decision 023).

Legend: q rows, p pairs, u nodes that a batch touches, l neighbors, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.data.events.event_store import EventBatch, FeatureTable
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import DyRepConfig, JODIEConfig, TGNConfig
from dygmamba.nn.memory import (
    AttentionConfig,
    EventEnds,
    MemoryAttention,
    MemoryConfig,
    Neighborhood,
    NodeMemory,
    RecentNeighbors,
    SavedMemory,
    check_memory_tables,
)
from dygmamba.ops.rows import gather_rows

Embeddings = tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]


class ProjectedEmbedding(nn.Module):
    """memory (1 + W Δt), Δt the standardised time since the last update of a source or destination (JODIE)."""

    requests: tuple[NeighborRequest, ...] = ()

    def __init__(self, config: JODIEConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.gaps = (facts.src_gap, facts.dst_gap)
        self.drift = nn.Linear(1, config.out)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        state, updated = memory.read(view.pairs.node, view.features)
        idle = view.pairs.when - updated
        src, dst = (
            self.drop(gather_rows(state, row) * (1 + self.drift(((idle[row] - mean) / std).float()[:, None])))
            for row, (mean, std) in zip((view.pairs.src_row, view.pairs.dst_row), self.gaps, strict=True)
        )
        return src, dst


class MemoryEmbedding(nn.Module):
    """The memory itself (DyRep)."""

    requests: tuple[NeighborRequest, ...] = ()

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        state, _ = memory.read(view.pairs.node, view.features)
        return gather_rows(state, view.pairs.src_row), gather_rows(state, view.pairs.dst_row)


def _build_attention(config: DyRepConfig, facts: DatasetFacts) -> MemoryAttention:
    sizes = (facts.node_dim, facts.edge_dim, config.out, config.time_dim)
    return MemoryAttention(AttentionConfig(*sizes, config.heads, config.dropout))


class AttentionEmbedding(nn.Module):
    """Attention of the node's memory to the memories of its neighbors (TGN)."""

    def __init__(self, config: TGNConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.sampled = NeighborRequest((config.neighbors,), config.sampling)
        self.requests = (self.sampled,)
        self.attention = _build_attention(config, facts)

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        (near,) = view[self.sampled]
        neighborhood = Neighborhood(view.pairs.node, near.node.long(), near.event.long(), near.age, near.mask)
        rows = self.attention(neighborhood, memory, view.features)  # each row once, whatever its pairs
        return gather_rows(rows, view.pairs.src_row), gather_rows(rows, view.pairs.dst_row)


class MemoryMessage(nn.Module):
    """The partner's memory as the partner's part of a message (JODIE, TGN)."""

    def forward(self, ends: EventEnds, memory: NodeMemory, features: FeatureTable) -> Float[Tensor, "u d"]:
        return memory.state[ends.other]

    def observe(self, events: EventBatch) -> None:
        """Do nothing: there is no state but the memory."""

    def reset(self) -> None:
        """Do nothing."""


class AttentionMessage(nn.Module):
    """The partner's embedding, by attention over its last neighbors, as the partner's part of a message (DyRep).

    Messages are detached, so no gradient ever reaches this attention. It keeps its initial weights, as in the released
    code, and does not require gradients. Its neighbors are the most recent ones of earlier batches; the released code
    also sees earlier events of the same batch, and samples uniformly on CanParl.
    """

    def __init__(self, config: DyRepConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.attention = _build_attention(config, facts).requires_grad_(False)
        self.recent = RecentNeighbors(facts.num_nodes, config.neighbors)

    def forward(self, ends: EventEnds, memory: NodeMemory, features: FeatureTable) -> Float[Tensor, "u d"]:
        node, mask = ends.other, self.recent.mask(ends.other)
        age = ((ends.time[:, None] - self.recent.time[node]) * mask).float()
        neighborhood = Neighborhood(node, self.recent.node[node], self.recent.event[node], age, mask)
        return self.attention(neighborhood, memory, features)

    def observe(self, events: EventBatch) -> None:
        self.recent.add(EventEnds.by_time(events))

    def reset(self) -> None:
        self.recent.reset()


class MemoryEncoder(Encoder):
    """A node memory, the embedding of pairs with it, and the partner's part of a message."""

    stateful = True

    def __init__(
        self,
        config: MemoryConfig,
        embed: ProjectedEmbedding | MemoryEmbedding | AttentionEmbedding,
        partner: MemoryMessage | AttentionMessage,
    ) -> None:
        super().__init__()
        self.requests, self.out_dim = embed.requests, config.dim
        self.memory, self.embed, self.partner = NodeMemory(config), embed, partner
        self.saves_memory = config.saves_memory
        # `kept` and its `mark` are keys of saved files
        self.kept = SavedMemory(self._tables()) if config.saves_memory else None

    def forward(self, view: PairView) -> Embeddings:
        # the recurrent cell of the memory gets its gradient here, not in `observe`
        return self.embed(view, self.memory)

    @torch.no_grad()
    def observe(self, events: EventBatch) -> None:
        """Apply the pending messages of the batch's nodes, then store a new message for each."""
        if len(events):
            last = EventEnds.by_role(events).last(self.memory.null_node)
            self.memory.apply_messages(last.node, events.features)
            self.memory.store_messages(last, self.partner(last, self.memory, events.features))
            self.partner.observe(events)

    def reset(self) -> None:
        self.memory.reset()
        self.partner.reset()

    def snapshot(self, events: EventBatch) -> tuple[Tensor, list[Tensor]]:
        """Copy the rows of both ends in every table of the memory."""
        nodes = torch.unique(torch.cat([events.src, events.dst]))
        return nodes, [table[nodes] for table in self._tables()]

    def restore(self, snapshot: tuple[Tensor, list[Tensor]]) -> None:
        nodes, rows = snapshot
        for table, row in zip(self._tables(), rows, strict=True):
            table[nodes] = row

    def check_buffers(self) -> None:
        """Raise ValueError for a saved memory with values that none has."""
        if self.saved_prefix is not None and self.kept is not None:  # else its tables are not used
            names = [name for part in (self.memory, self.partner) for name, _ in part.named_buffers()]
            events, _ = self.kept.mark.tolist()
            check_memory_tables(dict(zip(names, self.kept.list_tables(), strict=True)), events)

    @property
    def saved_prefix(self) -> StreamPrefix | None:
        return None if self.kept is None else self.kept.events

    def save_memory(self, prefix: StreamPrefix) -> None:
        if self.kept is not None:
            self.kept.save(self._tables(), prefix)

    def load_saved_memory(self) -> None:
        if self.kept is not None:
            self.kept.restore(self._tables())

    def delete_saved_memory(self) -> None:
        if self.kept is not None:
            self.kept.clear()

    def _tables(self) -> list[Tensor]:
        """Return the tables of the memory, each with one row per node."""
        return [*self.memory.buffers(), *self.partner.buffers()]


def _memory_config(
    config: JODIEConfig, facts: DatasetFacts, cell: str, shared_time: bool = False
) -> MemoryConfig:
    sizes = (facts.num_nodes, facts.edge_dim, config.out, config.time_dim)
    return MemoryConfig(*sizes, cell, facts.start, shared_time, config.memory == "carried")


def build_jodie(config: JODIEConfig, facts: DatasetFacts) -> MemoryEncoder:
    return MemoryEncoder(
        _memory_config(config, facts, "rnn"), ProjectedEmbedding(config, facts), MemoryMessage()
    )


def build_dyrep(config: DyRepConfig, facts: DatasetFacts) -> MemoryEncoder:
    return MemoryEncoder(
        _memory_config(config, facts, "rnn"), MemoryEmbedding(), AttentionMessage(config, facts)
    )


def build_tgn(config: TGNConfig, facts: DatasetFacts) -> MemoryEncoder:
    return MemoryEncoder(
        _memory_config(config, facts, "gru", shared_time=True),
        AttentionEmbedding(config, facts),
        MemoryMessage(),
    )
