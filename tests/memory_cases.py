"""A ten-event stream, small models with memory, and their definition event by event."""

import math
from typing import Any

import torch
from torch.nn.functional import layer_norm

from dygmamba.config import build_config
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

TINY = {"out": 4, "time_dim": 3, "dropout": 0.0}
ATTENTIVE = TINY | {"neighbors": 2, "heads": 2}
SETTINGS = {"jodie": TINY, "dyrep": ATTENTIVE, "tgn": ATTENTIVE}
NAMES = list(SETTINGS)


def ten_events(edge_dim=2, node_dim=3):
    """Repeats, a self-loop, a node in both roles, ties within and across batches of three; node 5 is idle."""
    src = torch.tensor([0, 1, 0, 2, 3, 1, 0, 4, 2, 0])
    dst = torch.tensor([1, 2, 1, 0, 3, 0, 4, 1, 1, 2])
    time = 1e9 + torch.tensor([0.0, 1.0, 1.0, 2.5, 3.0, 3.0, 3.0, 7.0, 8.0, 9.5], dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    features = FeatureTable(torch.randn(6, node_dim, generator=rng), torch.randn(10, edge_dim, generator=rng))
    return EventStore.from_columns(src, dst, time, num_nodes=6, features=features)


def build(name, store, seed=0):
    torch.manual_seed(seed)
    spec = MODELS[name]
    model: Any = spec.build(build_config(spec.config, SETTINGS[name]), DatasetFacts.of(store))
    return model.eval()


def view_of(model, store, pairs):
    return gather_view(Index(store), store.features, pairs, model.requests)


def all_pairs(store, time=1e9 + 11):
    src, dst = torch.cartesian_prod(torch.arange(store.num_nodes), torch.arange(store.num_nodes)).T
    return PairBatch.from_pairs(src, dst, torch.full((len(src),), time, dtype=torch.float64))


def replay(model, store, size=3, count=None):
    model.reset()
    for events in store.batches(torch.arange(len(store) if count is None else count), size):
        model.observe(events)


class Reference:
    """The definition, one event and one node at a time, in float64."""

    def __init__(self, model, store, name):
        self.name, self.store = name, store
        self.w = {key: value.detach().double() for key, value in model.encoder.named_parameters()}
        self.memory = {n: torch.zeros(4, dtype=torch.float64) for n in range(store.num_nodes)}
        self.updated = dict.fromkeys(range(store.num_nodes), float(store.time[0]))
        self.message, self.seen = {}, []

    def phi(self, span):
        return torch.cos(span * self.w["memory.time.omega"] + self.w["memory.time.phase"])

    def cell(self, x, h):
        a = self.w["memory.cell.weight_ih"] @ x + self.w["memory.cell.bias_ih"]
        b = self.w["memory.cell.weight_hh"] @ h + self.w["memory.cell.bias_hh"]
        if self.name != "tgn":
            return torch.tanh(a + b)
        (r, z, n), (r_, z_, n_) = a.chunk(3), b.chunk(3)
        r, z = torch.sigmoid(r + r_), torch.sigmoid(z + z_)
        return (1 - z) * torch.tanh(n + r * n_) + z * h

    def current(self, n):
        """Memory and time of last update of a node, its message taken in."""
        if n not in self.message:
            return self.memory[n], self.updated[n]
        partner, time, event = self.message[n]
        edge = self.store.features.edge[event].double()
        x = torch.cat([self.memory[n], partner, self.phi(time - self.updated[n]), edge])
        return self.cell(x, self.memory[n]), time

    def attention(self, n, time, entries, part):
        """TGAT's layer with the projections applied to every neighbour; entries are (node, time, event)."""
        w = {key.removeprefix(part): value for key, value in self.w.items() if key.startswith(part)}

        def h(m):
            return self.current(m)[0] + self.store.features.node[m].double() @ w["lift"]

        query = torch.cat([h(n), self.phi(0.0)])
        q = (w["attend.query.weight"] @ query).view(2, -1)
        found = torch.zeros_like(q)
        if entries:
            x = torch.stack(
                [
                    torch.cat([h(m), self.store.features.edge[e].double(), self.phi(time - t)])
                    for m, t, e in entries
                ]
            )
            for head in range(2):
                keys, values = x @ w["attend.key"][head].T, x @ w["attend.value"][head].T
                weight = torch.softmax(keys @ q[head] / math.sqrt(q.shape[1]), dim=0)
                found[head] = weight @ values
        out = w["attend.out.weight"] @ found.flatten() + w["attend.out.bias"] + query
        out = layer_norm(out, (7,), w["attend.norm.weight"], w["attend.norm.bias"])
        hidden = w["merge.hidden.weight"] @ torch.cat([out, h(n)]) + w["merge.hidden.bias"]
        return w["merge.out.weight"] @ hidden.relu() + w["merge.out.bias"]

    def neighbors(self, n, events, before=math.inf):
        """The last two neighbours of a node among these events, those strictly before a time."""
        found = []
        for s, d, t, e in events:
            found += [(d, t, e)] * (s == n and t < before) + [(s, t, e)] * (d == n and t < before)
        return found[-2:]

    def observe(self, batch):
        """Commit the batch's nodes, then leave the messages, to destinations after all sources: the last one stays."""
        events = list(
            zip(
                batch.src.tolist(), batch.dst.tolist(), batch.time.tolist(), batch.event.tolist(), strict=True
            )
        )
        nodes = {n for s, d, _, _ in events for n in (s, d)}
        fresh = {n: self.current(n) for n in nodes}
        for n, (memory, updated) in fresh.items():
            self.memory[n], self.updated[n] = memory, updated
            self.message.pop(n, None)
        new = {s: (self.partner(d, t), t, e) for s, d, t, e in events}
        new |= {d: (self.partner(s, t), t, e) for s, d, t, e in events}
        self.message.update(new)
        self.seen += events

    def partner(self, n, time):
        if self.name != "dyrep":
            return self.memory[n]
        return self.attention(n, time, self.neighbors(n, self.seen), "partner.attention.")

    def embed(self, n, time, gap):
        memory, updated = self.current(n)
        if self.name == "dyrep":
            return memory
        if self.name == "jodie":
            idle = (time - updated - gap[0]) / gap[1]
            drift = self.w["embed.drift.weight"][:, 0] * idle + self.w["embed.drift.bias"]
            return memory * (1 + drift)
        store = self.store
        events = list(
            zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), range(len(store)), strict=True)
        )
        return self.attention(n, time, self.neighbors(n, events, time), "embed.attention.")
