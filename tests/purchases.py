"""Purchases: generated streams in which columns of events or changing node features decide who meets whom.

Each shop has a price level and a category, each customer a wanted level and a wanted category that change now and then.
A customer chooses a shop of about that level and that category. In a stream of purchases, the amount of an event shows
the shop's level, its type the shop's category. In a stream of residents, events have no columns: level and category are
node features of shops and customers, and those of customers change. Identities say little: there are many shops, and
customers move on.

Shapes: e events, s shops, m changes of customers, r rows of node features.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.node_rows import STATIC_TIME, NodeRows
from dygmamba.data.events.origin import Origin
from dygmamba.data.storage.dataset import Dataset

LOG_RANGE = 4.0  # the amounts of the most expensive shop are e^4 times those of the cheapest
AMOUNT_NOISE = 0.1  # standard deviation of log amounts at one shop


@dataclass(frozen=True, slots=True)
class PurchaseConfig:
    """Parameters of a stream.

    Attributes:
        width: How exactly customers meet their level.
        match: Weight of shops of the wanted category; the others have 1 - match.
        change: Probability that a customer wants something else at its next event.
        pace: Mean time between two events of a customer.
    """

    seed: int = 0
    customers: int = 300
    shops: int = 1_000
    events: int = 9_000
    categories: int = 5
    width: float = 0.08
    match: float = 0.9
    change: float = 0.2
    pace: float = 86_400.0
    origin: float = 1.7e9

    @property
    def nodes(self) -> int:
        return self.customers + self.shops


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of customers, levels of shops, and changes of customers; the first changes are before all events.

    Attributes:
        src: Customer of each event.
        shop: Shop of each event.
        time: Time of each event, from 0.
        price: Level of each shop.
        category: Category of each shop.
        changes: Customer, event before which it changed (-1: before all), level and category, of each change.
    """

    src: np.ndarray
    shop: np.ndarray
    time: np.ndarray
    price: np.ndarray
    category: np.ndarray
    changes: list[tuple[int, int, float, int]]


def choose_shops(config: PurchaseConfig, rng: np.random.Generator) -> Choices:
    """Let customers choose shops, event by event."""
    price = rng.random(config.shops)
    category = np.arange(config.shops) % config.categories
    level, wanted = rng.random(config.customers), rng.integers(config.categories, size=config.customers)
    history = [(customer, -1, level[customer], wanted[customer]) for customer in range(config.customers)]
    src = rng.integers(config.customers, size=config.events)
    time = np.cumsum(rng.exponential(config.pace / config.customers, config.events))
    shop = np.empty(config.events, np.int64)
    draws, changes = rng.random(config.events), rng.random(config.events) < config.change
    for event, customer in enumerate(src):
        if changes[event]:
            level[customer], wanted[customer] = rng.random(), rng.integers(config.categories)
            history.append((customer, event, level[customer], wanted[customer]))
        weight = np.exp(-(((price - level[customer]) / config.width) ** 2) / 2)
        weight *= np.where(category == wanted[customer], config.match, 1 - config.match)
        total = np.cumsum(weight + 1e-12)
        shop[event] = np.searchsorted(total, draws[event] * total[-1])
    return Choices(src, shop, time, price, category, history)


def generate_purchases(**settings) -> Dataset:
    """Generate a bipartite stream with the column `amount` and the categorical column `type`."""
    config = PurchaseConfig(**settings)
    rng = np.random.Generator(np.random.PCG64(config.seed))
    chosen = choose_shops(config, rng)
    noise = AMOUNT_NOISE * rng.standard_normal(config.events)
    amount = np.exp(LOG_RANGE * chosen.price[chosen.shop] + noise)
    names = tuple(f"type{number:03d}" for number in range(config.categories))
    features = FeatureTable(
        torch.zeros(config.nodes, 0),
        torch.from_numpy(amount.astype(np.float32))[:, None],
        torch.from_numpy(chosen.category[chosen.shop].astype(np.int32))[:, None],
        ("amount",),
        (Category("type", names),),
    )
    return _build_dataset(
        config, chosen, features, Origin(format="generated", features=("amount",), types=("type",))
    )


def generate_residents(**settings) -> Dataset:
    """Generate a bipartite stream with the node features `level` and `region`.

    A customer changes half way between its last event and the one before which it changes, so that the change is known
    in time.
    """
    config = PurchaseConfig(**settings)
    chosen = choose_shops(config, np.random.Generator(np.random.PCG64(config.seed)))
    last, when = {}, {}
    for event, customer in enumerate(chosen.src.tolist()):
        when[event] = (last.get(customer, 0.0) + chosen.time[event]) / 2
        last[customer] = chosen.time[event]
    customer, event, level, region = (np.array(column) for column in zip(*chosen.changes, strict=True))
    since = [STATIC_TIME if row < 0 else config.origin + when[row] for row in event.tolist()]
    shops = np.arange(config.shops)
    rows = NodeRows.from_unsorted(
        torch.from_numpy(np.concatenate([customer, config.customers + shops])),
        torch.tensor([*since, *[STATIC_TIME] * config.shops], dtype=torch.float64),
        torch.from_numpy(np.concatenate([level, chosen.price]).astype(np.float32))[:, None],
        torch.ones(len(customer) + config.shops, 1, dtype=torch.bool),
        torch.from_numpy(np.concatenate([region, chosen.category]).astype(np.int32))[:, None],
        ("level",),
        (Category("region", tuple(f"region{number:03d}" for number in range(config.categories))),),
    )
    empty = FeatureTable.empty(config.nodes, config.events)
    return _build_dataset(config, chosen, replace(empty, node_rows=rows), Origin(format="generated"))


def _build_dataset(
    config: PurchaseConfig, chosen: Choices, features: FeatureTable, origin: Origin
) -> Dataset:
    store = EventStore.from_columns(
        torch.from_numpy(chosen.src),
        torch.from_numpy(config.customers + chosen.shop),
        torch.from_numpy(config.origin + chosen.time),
        features=features,
        num_nodes=config.nodes,
        bipartite=True,
    )
    return Dataset.from_events("generated", store, NodeIds.identity(config.nodes, config.customers), origin)
