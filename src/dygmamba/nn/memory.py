"""Node memory: the state of each node between batches, in dense buffers that checkpoints contain, and attention to it.

Legend: n nodes, u nodes that a batch touches, q queries, l neighbors, k stored neighbors, d memory width, c columns of
features.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.core.settings import MAX_LENGTH
from dygmamba.data.events.event_store import EventBatch, FeatureTable
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.nn.attention import Merge, NeighborAttention, lookup_edges
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width, uniform_parameter
from dygmamba.ops.rows import gather_rows

CELLS: dict[str, type[nn.RNNCell | nn.GRUCell]] = {"rnn": nn.RNNCell, "gru": nn.GRUCell}


@dataclass(frozen=True, slots=True)
class EventEnds:
    """Ends of events: a node, the node at the other end, and the id and time of the event."""

    node: Int64[Tensor, "u"]
    other: Int64[Tensor, "u"]
    event: Int64[Tensor, "u"]
    time: Float64[Tensor, "u"]

    @staticmethod
    def by_time(events: EventBatch) -> "EventEnds":
        """Sort both ends of each event by node, then by time; the source of a self-loop comes first.

        The sort is stable, so the order is the same on every device.
        """
        node = torch.stack([events.src, events.dst], dim=1).flatten()
        other = torch.stack([events.dst, events.src], dim=1).flatten()
        order = torch.argsort(node, stable=True)
        row = order // 2
        return EventEnds(node[order], other[order], events.event[row], events.time[row])

    @staticmethod
    def by_role(events: EventBatch) -> "EventEnds":
        """Sort both ends of each event by node; a node's events as a source come before those as a destination."""
        node, other = torch.cat([events.src, events.dst]), torch.cat([events.dst, events.src])
        order = torch.argsort(node, stable=True)
        row = order % len(events)
        return EventEnds(node[order], other[order], events.event[row], events.time[row])

    def last(self, null_node: int) -> "EventEnds":
        """Assign the rows that are not their node's last one to `null_node`.

        Selecting the last rows instead would make a GPU wait for their number.
        """
        earlier = pad(self.node[1:] == self.node[:-1], (0, 1))
        return replace(self, node=torch.where(earlier, null_node, self.node))


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Sizes of a node memory; `start` is the time of the last update for nodes without events.

    `shared_time`: attention uses the time encoding φ too and trains it. `saves_memory`: the memory after training is
    saved with the weights.
    """

    num_nodes: int
    edge_dim: int
    dim: int
    time_dim: int
    cell: str
    start: float
    shared_time: bool = False
    saves_memory: bool = False


class NodeMemory(nn.Module):
    """A state vector per node, and the node's last message, not yet applied (TGN, Rossi et al. 2020, section 3).

    A message is [own memory ‖ partner ‖ φ(t - last update) ‖ edge features]; a recurrent cell applies it to the state.
    The message is stored raw (partner, time, event) and encoded when it is applied, with φ of that step; DyGLib encodes
    it when it is stored. As published (DyGLib), no gradient flows from it to φ: spans are in seconds, so one step of
    the learning rate would turn the phase of long spans by many rounds and the memory of idle nodes would become noise.
    Own memory and last update do not change while a message is pending, so they are not stored with it. The last row
    belongs to the null node and is always reset.
    """

    state: Tensor
    updated: Tensor
    waiting: Tensor
    partner: Tensor
    when: Tensor
    event: Tensor

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__()
        n, d = config.num_nodes + 1, config.dim
        self.start, self.null_node = config.start, config.num_nodes
        self.time = TimeEncoding(config.time_dim, trainable=config.shared_time)
        self.cell = CELLS[config.cell](2 * d + config.time_dim + config.edge_dim, d)
        self.register_buffer("state", torch.zeros(n, d))
        self.register_buffer("updated", torch.full((n,), config.start, dtype=torch.float64))
        self.register_buffer("waiting", torch.zeros(n, dtype=torch.bool))
        self.register_buffer("partner", torch.zeros(n, d))
        self.register_buffer("when", torch.zeros(n, dtype=torch.float64))
        self.register_buffer("event", torch.zeros(n, dtype=torch.int64))

    def reset(self) -> None:
        for buffer in (self.state, self.waiting, self.partner, self.when, self.event):
            buffer.zero_()
        self.updated.fill_(self.start)

    def read(
        self, node: Int64[Tensor, "*shape"], features: FeatureTable
    ) -> tuple[Float32[Tensor, "*shape d"], Float64[Tensor, "*shape"]]:
        """Return each node's memory with its pending message applied, and the time of that update; changes nothing."""
        rows, place = self._rows(node)
        state, updated, waiting = self.state[rows], self.updated[rows], self.waiting[rows]
        when = torch.where(waiting, self.when[rows], updated)
        parts = (
            state,
            self.partner[rows],
            self.time((when - updated).float()).detach(),
            lookup_edges(features, self.event[rows], waiting),
        )
        fresh = self.cell(torch.cat(parts, dim=-1), state).to(state.dtype)
        return gather_rows(torch.where(waiting[:, None], fresh, state), place), when[place]

    def _rows(self, node: Int64[Tensor, "*shape"]) -> tuple[Int64[Tensor, "u"], Int64[Tensor, "*shape"]]:
        """Return the rows to update and the position of each query among them.

        Only the CPU removes duplicates; a GPU would have to wait for the number of distinct nodes.
        """
        if node.device.type == "cpu":
            rows, place = torch.unique(node, return_inverse=True)
            return rows, place
        if node.numel() < len(self.state):
            return node.flatten(), torch.arange(node.numel(), device=node.device).view(node.shape)
        return torch.arange(len(self.state), device=node.device), node

    def apply_messages(self, node: Int64[Tensor, "u"], features: FeatureTable) -> None:
        """Apply the pending messages of these nodes, which are distinct except for the null node."""
        self.state[node], self.updated[node] = self.read(node, features)
        self.waiting.index_fill_(0, node, False)
        self.state[-1:].zero_()
        self.updated[-1:].fill_(self.start)

    def store_messages(self, ends: EventEnds, partner: Float32[Tensor, "u d"]) -> None:
        """Store a new message for each of these nodes, which are distinct except for the null node."""
        self.partner[ends.node] = partner.to(self.partner.dtype)
        self.when[ends.node] = ends.time
        self.event[ends.node] = ends.event
        self.waiting.index_fill_(0, ends.node, True)
        for buffer in (self.partner, self.when, self.event, self.waiting):
            buffer[-1:].zero_()


class SavedMemory(nn.Module):
    """Copy of a memory's tables after training, saved with the weights, with the events that are in it."""

    mark: Tensor

    def __init__(self, tables: Iterable[Tensor]) -> None:
        super().__init__()
        self.register_buffer("mark", torch.zeros(2, dtype=torch.int64))
        for number, table in enumerate(tables):
            self.register_buffer(f"table{number}", torch.zeros_like(table))

    @property
    def events(self) -> StreamPrefix | None:
        """The events in the saved memory; None if no memory is saved."""
        rows, seal = self.mark.tolist()
        return StreamPrefix(rows, seal) if rows else None

    def save(self, tables: Iterable[Tensor], mark: StreamPrefix) -> None:
        for own, table in zip(self.list_tables(), tables, strict=True):
            own.copy_(table)
        self.mark.copy_(torch.tensor(mark))

    def restore(self, tables: Iterable[Tensor]) -> None:
        """Copy the saved memory back into the tables."""
        for own, table in zip(self.list_tables(), tables, strict=True):
            table.copy_(own)

    def clear(self) -> None:
        self.mark.zero_()

    def list_tables(self) -> list[Tensor]:
        return [buffer for name, buffer in self.named_buffers() if name != "mark"]


def check_memory_tables(tables: Mapping[str, Tensor], events: int) -> None:
    """Raise ValueError if a table of a memory has a value that no memory of so many events has.

    Args:
        tables: Buffers of `NodeMemory` and `RecentNeighbors`; the last part of a name says what is in it.
        events: Number of events that the memory may refer to.
    """
    for name, table in tables.items():
        stops = {"event": max(events, 1), "node": len(table), "count": MAX_LENGTH}
        kind = name.rpartition(".")[2]
        if table.is_floating_point() and not bool(torch.isfinite(table).all()):
            raise ValueError("its memory has numbers that are not finite")
        if kind in stops and table.numel() and not 0 <= int(table.min()) <= int(table.max()) < stops[kind]:
            raise ValueError(f"its memory has a {kind} that does not exist")


class RecentNeighbors(nn.Module):
    """The last k neighbors of each node among the observed events, the newest in the last column.

    The last row belongs to the null node.
    """

    node: Tensor
    event: Tensor
    time: Tensor
    count: Tensor

    def __init__(self, num_nodes: int, k: int) -> None:
        super().__init__()
        self.register_buffer("node", torch.zeros(num_nodes + 1, k, dtype=torch.int64))
        self.register_buffer("event", torch.zeros(num_nodes + 1, k, dtype=torch.int64))
        self.register_buffer("time", torch.zeros(num_nodes + 1, k, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(num_nodes + 1, dtype=torch.int64))

    def reset(self) -> None:
        for buffer in (self.node, self.event, self.time, self.count):
            buffer.zero_()

    def mask(self, node: Int64[Tensor, "u"]) -> Bool[Tensor, "u k"]:
        """Return the mask of real neighbors."""
        k = self.node.shape[1]
        return torch.arange(k, device=node.device) >= k - self.count[node][:, None]

    def add(self, ends: EventEnds) -> None:
        """Shift each node's neighbors to the left and append its new ones."""
        k, place = self.node.shape[1], torch.arange(len(ends.node), device=ends.node.device)
        first = torch.searchsorted(ends.node, ends.node)
        fresh = place + 1 - first  # number of ends of the same node up to this one
        node = ends.last(len(self.node) - 1).node
        newer = torch.arange(k - 1, -1, -1, device=place.device)  # age rank of each column; the newest is 0
        is_new = newer < fresh[:, None]
        row = (place[:, None] - newer).clamp(min=0)
        column = (k - 1 - newer + fresh[:, None]).clamp(max=k - 1)
        for buffer, value in ((self.node, ends.other), (self.event, ends.event), (self.time, ends.time)):
            buffer[node] = torch.where(is_new, value[row], buffer[node].gather(1, column))
            buffer[-1:].zero_()
        self.count[node] = (self.count[node] + fresh).clamp(max=k)
        self.count[-1:].zero_()


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """Nodes with the neighbor entries they attend to; `age` is the time from the entry to the query."""

    node: Int64[Tensor, "q"]
    neighbor: Int64[Tensor, "q l"]
    event: Int64[Tensor, "q l"]
    age: Float32[Tensor, "q l"]
    mask: Bool[Tensor, "q l"]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Sizes of an attention layer; `dim` is the width of the memory and of the output."""

    node_dim: int
    edge_dim: int
    dim: int
    time_dim: int
    heads: int
    dropout: float


class MemoryAttention(nn.Module):
    """One layer of TGAT on h = memory + node features (TGN, Rossi et al. 2020, section 3.1).

    φ is the time encoding of the memory. In the original, node features are as wide as the memory; here a linear map
    without bias projects them to its width. Without node features h is the memory.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        query_dim = config.dim + config.time_dim
        key_dim, fan_in = query_dim + config.edge_dim, query_dim + padded_width(config.edge_dim, config.dim)
        self.lift = uniform_parameter(max(config.node_dim, 1), config.node_dim, config.dim)
        self.attend = NeighborAttention(query_dim, key_dim, fan_in, config.heads, config.dropout)
        self.merge = Merge(query_dim, config.dim, config.dim)

    def forward(
        self, query: Neighborhood, memory: NodeMemory, features: FeatureTable
    ) -> Float32[Tensor, "q d"]:
        own = query.node[:, None]
        node = torch.cat([own, torch.where(query.mask, query.neighbor, own)], dim=1)  # [q 1+l]
        h, _ = memory.read(node, features)
        if features.node.shape[1]:
            h = h + features.node[node] @ self.lift
        now = memory.time(query.age.new_zeros(1)).expand(len(h), -1)
        edge = lookup_edges(features, query.event, query.mask)
        keys = torch.cat([h[:, 1:], edge, memory.time(query.age)], dim=-1)
        return self.merge(self.attend(torch.cat([h[:, 0], now], dim=-1), keys, query.mask), h[:, 0])
