"""JODIE, DyRep and TGN: three builds of one memory, which takes in cells of events at once (engine/visibility.py).

Of a node's messages in a cell the last one as a destination is kept, else the last one as a source, as in the released
code of TGN and in DyGLib. A node's first span is counted from the start of the training events, not from time 0.

Legend: q rows, p pairs, u nodes that a batch touches, l neighbours, d width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.settings import Count, Length, Rate, Settings, Width
from dygmamba.data.events.event_store import EventBatch, FeatureTable
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.memory import (
    AttentionConfig,
    EventEnds,
    MemoryAttention,
    MemoryConfig,
    Neighborhood,
    NodeMemory,
    RecentNeighbors,
    SavedMemory,
)
from dygmamba.sampling.view import NeighborRequest, PairView, Strategy

MemoryAfterTraining = Literal["carried", "replayed"]
Embeddings = tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]


@dataclass(frozen=True, slots=True)
class JODIEConfig(Settings):
    """Published settings; dropout was chosen per dataset."""

    out: Width = 172  # columns of the memory and of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations left out in training
    memory: MemoryAfterTraining = (
        "carried"  # after training: what it left, or told again from the first event
    )


@dataclass(frozen=True, slots=True)
class DyRepConfig(JODIEConfig):
    """Published settings; dropout was chosen per dataset."""

    neighbors: Length = 10  # neighbours looked up
    heads: Count = 2  # heads of the attention


@dataclass(frozen=True, slots=True)
class TGNConfig(DyRepConfig):
    """Published settings; dropout and sampling were chosen per dataset."""

    sampling: Strategy = "recent"  # which neighbours: the latest, any, or more likely the later ones


class ProjectedEmbedding(nn.Module):
    """mem (1 + W Δt), Δt since the last update in standard units of the node's role (JODIE)."""

    requests: tuple[NeighborRequest, ...] = ()

    def __init__(self, config: JODIEConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.gaps = (facts.src_gap, facts.dst_gap)
        self.drift = nn.Linear(1, config.out)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        """Both ends of each pair, each in its role."""
        state, updated = memory.read(view.pairs.node, view.features.edge)
        idle = view.pairs.when - updated
        src, dst = (
            self.drop(state[row] * (1 + self.drift(((idle[row] - mean) / std).float()[:, None])))
            for row, (mean, std) in zip((view.pairs.src_row, view.pairs.dst_row), self.gaps, strict=True)
        )
        return src, dst


class MemoryEmbedding(nn.Module):
    """The memory itself (DyRep)."""

    requests: tuple[NeighborRequest, ...] = ()

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        """Both ends of each pair."""
        state, _ = memory.read(view.pairs.node, view.features.edge)
        return state[view.pairs.src_row], state[view.pairs.dst_row]


def _build_attention(config: DyRepConfig, facts: DatasetFacts) -> MemoryAttention:
    sizes = (facts.node_dim, facts.edge_dim, config.out, config.time_dim)
    return MemoryAttention(AttentionConfig(*sizes, config.heads, config.dropout))


class AttentionEmbedding(nn.Module):
    """Memory of the node and of its neighbours, through one attention layer (TGN)."""

    def __init__(self, config: TGNConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.requests = (NeighborRequest((config.neighbors,), config.sampling),)
        self.attention = _build_attention(config, facts)

    def forward(self, view: PairView, memory: NodeMemory) -> Embeddings:
        """Both ends of each pair; a row is encoded once."""
        ((near,),) = view.neighbors
        asked = Neighborhood(view.pairs.node, near.node.long(), near.event.long(), near.age, near.mask)
        rows = self.attention(asked, memory, view.features)
        return rows[view.pairs.src_row], rows[view.pairs.dst_row]


class MemoryMessage(nn.Module):
    """A message carries the partner's memory (JODIE, TGN)."""

    def forward(self, ends: EventEnds, memory: NodeMemory, features: FeatureTable) -> Float[Tensor, "u d"]:
        """What each message says of the node at the other end."""
        return memory.state[ends.other]

    def observe(self, events: EventBatch) -> None:
        """Nothing but the memory is remembered."""

    def reset(self) -> None:
        """Nothing to forget."""


class AttentionMessage(nn.Module):
    """A message carries the partner's embedding by attention over its last neighbours (DyRep).

    Messages are detached, so no gradient ever reaches this attention: it keeps its initial weights, as in the
    released code, and is marked so. Its neighbours are the most recent ones of earlier batches; the released
    code also sees earlier events of the same batch, and samples uniformly on CanParl.
    """

    def __init__(self, config: DyRepConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.attention = _build_attention(config, facts).requires_grad_(False)
        self.recent = RecentNeighbors(facts.num_nodes, config.neighbors)

    def forward(self, ends: EventEnds, memory: NodeMemory, features: FeatureTable) -> Float[Tensor, "u d"]:
        """What each message says of the node at the other end."""
        node, mask = ends.other, self.recent.mask(ends.other)
        age = ((ends.time[:, None] - self.recent.time[node]) * mask).float()
        asked = Neighborhood(node, self.recent.node[node], self.recent.event[node], age, mask)
        return self.attention(asked, memory, features)

    def observe(self, events: EventBatch) -> None:
        """These events are part of the neighbourhoods from now on."""
        self.recent.add(EventEnds.by_time(events))

    def reset(self) -> None:
        """Forget all neighbours."""
        self.recent.reset()


class MemoryEncoder(Encoder):
    """A memory, how pairs are embedded with it, and what a message says of the partner."""

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
        self.carries = config.carries
        self.kept = SavedMemory(self._tables()) if config.carries else None

    def forward(self, view: PairView) -> Embeddings:
        """Source and destination embedding of each pair; the memory's cell gets its gradient here."""
        return self.embed(view, self.memory)

    @torch.no_grad()
    def observe(self, events: EventBatch) -> None:
        """Take in the waiting messages of the batch's nodes, then leave each its new one."""
        if len(events):
            last = EventEnds.by_role(events).last(self.memory.null_node)
            self.memory.apply_messages(last.node, events.features.edge)
            self.memory.store_messages(last, self.partner(last, self.memory, events.features))
            self.partner.observe(events)

    def reset(self) -> None:
        """Forget everything observed."""
        self.memory.reset()
        self.partner.reset()

    def snapshot(self, events: EventBatch) -> tuple[Tensor, list[Tensor]]:
        """The rows of both ends in every table of the memory."""
        nodes = torch.unique(torch.cat([events.src, events.dst]))
        return nodes, [table[nodes] for table in self._tables()]

    def restore(self, kept: tuple[Tensor, list[Tensor]]) -> None:
        """Put these rows back."""
        nodes, rows = kept
        for table, row in zip(self._tables(), rows, strict=True):
            table[nodes] = row

    @property
    def carried(self) -> StreamPrefix | None:
        """The events that are in it."""
        return None if self.kept is None else self.kept.events

    def carry(self, mark: StreamPrefix) -> None:
        """Keep the memory as it is."""
        if self.kept is not None:
            self.kept.save(self._tables(), mark)

    def recall(self) -> None:
        """Make the memory what was kept."""
        if self.kept is not None:
            self.kept.restore(self._tables())

    def let_go(self) -> None:
        """Keep nothing any more."""
        if self.kept is not None:
            self.kept.clear()

    def _tables(self) -> list[Tensor]:
        """What is remembered, one row per node."""
        return [*self.memory.buffers(), *self.partner.buffers()]


def _memory_config(
    config: JODIEConfig, facts: DatasetFacts, cell: str, shared_time: bool = False
) -> MemoryConfig:
    sizes = (facts.num_nodes, facts.edge_dim, config.out, config.time_dim)
    return MemoryConfig(*sizes, cell, facts.start, shared_time, config.memory == "carried")


def jodie(config: JODIEConfig, facts: DatasetFacts) -> MemoryEncoder:
    """JODIE without a head."""
    return MemoryEncoder(
        _memory_config(config, facts, "rnn"), ProjectedEmbedding(config, facts), MemoryMessage()
    )


def dyrep(config: DyRepConfig, facts: DatasetFacts) -> MemoryEncoder:
    """DyRep without a head."""
    return MemoryEncoder(
        _memory_config(config, facts, "rnn"), MemoryEmbedding(), AttentionMessage(config, facts)
    )


def tgn(config: TGNConfig, facts: DatasetFacts) -> MemoryEncoder:
    """TGN without a head."""
    return MemoryEncoder(
        _memory_config(config, facts, "gru", shared_time=True),
        AttentionEmbedding(config, facts),
        MemoryMessage(),
    )


JODIE = ModelSpec(
    config=JODIEConfig,
    build=with_link_head(jodie),
    trainable=True,
    title="JODIE (Kumar et al. 2019)",
    looks_at="each node's memory, and how long it was idle",
    cost="one memory update per node",
)

DYREP = ModelSpec(
    config=DyRepConfig,
    build=with_link_head(dyrep),
    trainable=True,
    title="DyRep (Trivedi et al. 2019)",
    looks_at="each node's memory of partners' surroundings",
    cost="one memory update per node; linear in the neighbours when observing",
)

TGN = ModelSpec(
    config=TGNConfig,
    build=with_link_head(tgn),
    trainable=True,
    title="TGN (Rossi et al. 2020)",
    looks_at="each node's memory and its recent neighbours'",
    cost="one memory update per node, linear in the neighbours",
)
