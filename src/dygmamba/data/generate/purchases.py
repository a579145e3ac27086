"""Generate purchases: a synthetic stream in which amounts and types of events decide who meets whom.

Each shop has a price level and a category, each customer a wanted level and a wanted category that change now and then.
A customer chooses a shop of about that level and that category. The amount of a purchase shows the shop's level, its
type the shop's category. Identities say little: there are many shops, and customers move on. docs/reference/
generated-stream.md describes the process.
"""

import numpy as np
import torch

from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.generate.config import PurchaseConfig

LOG_RANGE = 4.0  # the amounts of the most expensive shop are e^4 times those of the cheapest
AMOUNT_NOISE = 0.1  # standard deviation of log amounts at one shop
BYTES_PER_EVENT = 60


def generate_purchases(config: PurchaseConfig) -> EventStore:
    """Generate the stream: a bipartite one with the column `amount` and the categorical column `type`."""
    require_memory(
        config.events * BYTES_PER_EVENT + config.nodes * 100, f"a stream of {config.events:,} purchases"
    )
    rng = np.random.Generator(np.random.PCG64(config.seed))
    price = rng.random(config.shops)
    category = np.arange(config.shops) % config.categories
    level, wanted = rng.random(config.customers), rng.integers(config.categories, size=config.customers)
    src = rng.integers(config.customers, size=config.events)
    time = np.cumsum(rng.exponential(config.pace / config.customers, config.events))
    shop = np.empty(config.events, np.int64)
    draws, changes = rng.random(config.events), rng.random(config.events) < config.change
    for event, customer in enumerate(src):
        if changes[event]:
            level[customer], wanted[customer] = rng.random(), rng.integers(config.categories)
        weight = np.exp(-(((price - level[customer]) / config.width) ** 2) / 2)
        weight *= np.where(category == wanted[customer], config.match, 1 - config.match)
        total = np.cumsum(weight + 1e-12)
        shop[event] = np.searchsorted(total, draws[event] * total[-1])
    amount = np.exp(LOG_RANGE * price[shop] + AMOUNT_NOISE * rng.standard_normal(config.events))
    names = tuple(f"type{number:03d}" for number in range(config.categories))
    return EventStore.from_columns(
        torch.from_numpy(src),
        torch.from_numpy(config.customers + shop),
        torch.from_numpy(config.origin + time),
        features=FeatureTable(
            torch.zeros(config.nodes, 0),
            torch.from_numpy(amount.astype(np.float32))[:, None],
            torch.from_numpy(category[shop].astype(np.int32))[:, None],
            ("amount",),
            (Category("type", names),),
        ),
        num_nodes=config.nodes,
        bipartite=True,
    )
