"""What is remembered of each node between batches, in dense tensors that a checkpoint holds.

Legend: n nodes, u nodes that a batch touches, d memory width, k remembered neighbours, c columns of features.

Attention over the memories of a node's neighbours.

Legend: q queries, l neighbours, d width.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from dygmamba.data.events.event_store import EventBatch, FeatureTable
from dygmamba.data.events.stream_prefix import StreamPrefix
from dygmamba.nn.attention import Merge, NeighborAttention, lookup
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import padded_width, uniform_parameter

CELLS: dict[str, type[nn.RNNCell | nn.GRUCell]] = {"rnn": nn.RNNCell, "gru": nn.GRUCell}


@dataclass(frozen=True, slots=True)
class EventEnds:
    """Nodes with the event each took part in: its id, its time, and who was at the other end."""

    node: Int64[Tensor, "u"]
    other: Int64[Tensor, "u"]
    event: Int64[Tensor, "u"]
    time: Float64[Tensor, "u"]

    @staticmethod
    def of(events: EventBatch) -> "EventEnds":
        """Both ends of each event by node, in time order within a node; of a self-loop the source comes first.

        The sort is stable, so the order is the same on every device.
        """
        node = torch.stack([events.src, events.dst], dim=1).flatten()
        other = torch.stack([events.dst, events.src], dim=1).flatten()
        order = torch.argsort(node, stable=True)
        row = order // 2
        return EventEnds(node[order], other[order], events.event[row], events.time[row])

    @staticmethod
    def by_role(events: EventBatch) -> "EventEnds":
        """The same ends by node, but all a node's events as a source before all those as a destination."""
        node, other = torch.cat([events.src, events.dst]), torch.cat([events.dst, events.src])
        order = torch.argsort(node, stable=True)
        row = order % len(events)
        return EventEnds(node[order], other[order], events.event[row], events.time[row])

    def last(self, nobody: int) -> "EventEnds":
        """As many rows; those that are not their node's last are given to `nobody`.

        Picking them out would make a GPU wait for their number.
        """
        earlier = pad(self.node[1:] == self.node[:-1], (0, 1))
        return replace(self, node=torch.where(earlier, nobody, self.node))


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """What a memory is built from; `start` is the time at which nodes that did nothing yet stand.

    `shared_time`: an attention reads φ too, and trains it. `carries`: what training leaves is kept.
    """

    num_nodes: int
    edge_dim: int
    dim: int
    time_dim: int
    cell: str
    start: float
    shared_time: bool = False
    carries: bool = False


class NodeMemory(nn.Module):
    """A vector per node, and the last message it has not taken in yet (TGN, Rossi et al. 2020, section 3).

    A node's message is [own memory ‖ partner ‖ φ(t - last update) ‖ edge features] and a recurrent cell takes it
    in. The message is stored raw (partner, time, event) and encoded when it is taken in. No gradient goes from it
    to φ, as published (DyGLib): spans are in seconds, so a step of the learning rate turns the slow frequencies by
    many rounds, and the memory of whoever was idle becomes noise (docs/results.md). Own memory and last update do
    not change while a message waits, so they are not stored with it. The last row is nobody's: what is written
    there is wiped out.
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
        self.start, self.nobody = config.start, config.num_nodes
        self.time = TimeEncoding(config.time_dim, trainable=config.shared_time)
        self.cell = CELLS[config.cell](2 * d + config.time_dim + config.edge_dim, d)
        self.register_buffer("state", torch.zeros(n, d))
        self.register_buffer("updated", torch.full((n,), config.start, dtype=torch.float64))
        self.register_buffer("waiting", torch.zeros(n, dtype=torch.bool))
        self.register_buffer("partner", torch.zeros(n, d))
        self.register_buffer("when", torch.zeros(n, dtype=torch.float64))
        self.register_buffer("event", torch.zeros(n, dtype=torch.int64))

    def reset(self) -> None:
        """Forget everything."""
        for buffer in (self.state, self.waiting, self.partner, self.when, self.event):
            buffer.zero_()
        self.updated.fill_(self.start)

    def read(
        self, node: Int64[Tensor, "*shape"], edge: Float32[Tensor, "e c"]
    ) -> tuple[Float32[Tensor, "*shape d"], Float64[Tensor, "*shape"]]:
        """Each node's memory with its waiting message taken in, and the time of that update; changes nothing."""
        asked, place = self._rows(node)
        state, updated, waiting = self.state[asked], self.updated[asked], self.waiting[asked]
        when = torch.where(waiting, self.when[asked], updated)
        parts = (
            state,
            self.partner[asked],
            self.time((when - updated).float()).detach(),
            lookup(edge, self.event[asked], waiting),
        )
        fresh = self.cell(torch.cat(parts, dim=-1), state).to(state.dtype)
        return torch.where(waiting[:, None], fresh, state)[place], when[place]

    def _rows(self, node: Int64[Tensor, "*shape"]) -> tuple[Int64[Tensor, "u"], Int64[Tensor, "*shape"]]:
        """The rows to update and where each query finds its own, on a GPU without waiting for their number."""
        if node.device.type == "cpu":
            asked, place = torch.unique(node, return_inverse=True)
            return asked, place
        if node.numel() < len(self.state):
            return node.flatten(), torch.arange(node.numel(), device=node.device).view(node.shape)
        return torch.arange(len(self.state), device=node.device), node

    def take_in(self, node: Int64[Tensor, "u"], edge: Float32[Tensor, "e c"]) -> None:
        """Commit the waiting messages of these nodes, distinct but for nobody."""
        self.state[node], self.updated[node] = self.read(node, edge)
        self.waiting.index_fill_(0, node, False)
        self.state[-1:].zero_()
        self.updated[-1:].fill_(self.start)

    def leave(self, ends: EventEnds, partner: Float32[Tensor, "u d"]) -> None:
        """Store a new message for each of these nodes, distinct but for nobody."""
        self.partner[ends.node] = partner.to(self.partner.dtype)
        self.when[ends.node] = ends.time
        self.event[ends.node] = ends.event
        self.waiting.index_fill_(0, ends.node, True)
        for buffer in (self.partner, self.when, self.event, self.waiting):
            buffer[-1:].zero_()


class SavedMemory(nn.Module):
    """Tables of a memory as training left them, kept with the weights, and up to which event of which stream."""

    mark: Tensor

    def __init__(self, tables: Iterable[Tensor]) -> None:
        super().__init__()
        self.register_buffer("mark", torch.zeros(2, dtype=torch.int64))
        for number, table in enumerate(tables):
            self.register_buffer(f"table{number}", torch.zeros_like(table))

    @property
    def told(self) -> StreamPrefix | None:
        """The events that are in them; None where nothing is kept."""
        rows, seal = self.mark.tolist()
        return StreamPrefix(rows, seal) if rows else None

    def keep(self, tables: Iterable[Tensor], mark: StreamPrefix) -> None:
        """Copy the tables."""
        for own, table in zip(self._tables(), tables, strict=True):
            own.copy_(table)
        self.mark.copy_(torch.tensor(mark))

    def put_back(self, tables: Iterable[Tensor]) -> None:
        """Make the tables what they were."""
        for own, table in zip(self._tables(), tables, strict=True):
            table.copy_(own)

    def let_go(self) -> None:
        """Nothing is kept any more."""
        self.mark.zero_()

    def _tables(self) -> list[Tensor]:
        return [buffer for name, buffer in self.named_buffers() if name != "mark"]


class RecentNeighbors(nn.Module):
    """The last k neighbours of each node among the events observed, the newest at the right; a row for nobody."""

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
        """Forget everything."""
        for buffer in (self.node, self.event, self.time, self.count):
            buffer.zero_()

    def mask(self, node: Int64[Tensor, "u"]) -> Bool[Tensor, "u k"]:
        """True where a neighbour is real."""
        k = self.node.shape[1]
        return torch.arange(k, device=node.device) >= k - self.count[node][:, None]

    def add(self, ends: EventEnds) -> None:
        """Move each node's neighbours to the left and put its new ones behind them."""
        k, place = self.node.shape[1], torch.arange(len(ends.node), device=ends.node.device)
        first = torch.searchsorted(ends.node, ends.node)
        fresh = place + 1 - first  # ends of the same node up to this one
        node = ends.last(len(self.node) - 1).node
        newer = torch.arange(k - 1, -1, -1, device=place.device)  # columns by age, the newest is 0
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
    """Nodes with the entries they attend to; an entry's `age` is the span from it to the query."""

    node: Int64[Tensor, "q"]
    neighbor: Int64[Tensor, "q l"]
    event: Int64[Tensor, "q l"]
    age: Float32[Tensor, "q l"]
    mask: Bool[Tensor, "q l"]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """What a layer is built from; `dim` is the memory's width and the output's."""

    node_dim: int
    edge_dim: int
    dim: int
    time_dim: int
    heads: int
    dropout: float


class MemoryAttention(nn.Module):
    """One layer of TGAT on h = memory + node features (TGN, Rossi et al. 2020, section 3.1).

    φ is the memory's own. Published node features are as wide as the memory; here a linear map without bias
    brings them to its width, and where there are none h is the memory.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        query_dim = config.dim + config.time_dim
        key_dim, fan_in = query_dim + config.edge_dim, query_dim + padded_width(config.edge_dim, config.dim)
        self.lift = uniform_parameter(max(config.node_dim, 1), config.node_dim, config.dim)
        self.attend = NeighborAttention(query_dim, key_dim, fan_in, config.heads, config.dropout)
        self.merge = Merge(query_dim, config.dim, config.dim)

    def forward(
        self, asked: Neighborhood, memory: NodeMemory, features: FeatureTable
    ) -> Float32[Tensor, "q d"]:
        """The embedding of each node."""
        own = asked.node[:, None]
        node = torch.cat([own, torch.where(asked.mask, asked.neighbor, own)], dim=1)  # [q 1+l]
        h, _ = memory.read(node, features.edge)
        if features.node.shape[1]:
            h = h + features.node[node] @ self.lift
        now = memory.time(asked.age.new_zeros(1)).expand(len(h), -1)
        edge = lookup(features.edge, asked.event, asked.mask)
        keys = torch.cat([h[:, 1:], edge, memory.time(asked.age)], dim=-1)
        return self.merge(self.attend(torch.cat([h[:, 0], now], dim=-1), keys, asked.mask), h[:, 0])
