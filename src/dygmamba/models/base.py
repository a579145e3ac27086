"""What the engine knows of a model, whatever it is inside."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from dygmamba.data.events import EventBatch, EventStore
from dygmamba.sampling.view import NeighborRequest, PairView


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """All a builder may know of the data."""

    num_nodes: int
    node_dim: int
    edge_dim: int

    @staticmethod
    def of(store: EventStore) -> "DatasetFacts":
        """The facts of a stream."""
        return DatasetFacts(store.num_nodes, store.features.node.shape[1], store.features.edge.shape[1])


class Scorer(Protocol):
    """A model as the engine drives it; streaming state changes only in `observe`."""

    @property
    def requests(self) -> tuple[NeighborRequest, ...]:
        """The neighbour sequences the model wants for each query."""
        ...

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """A score per pair: the higher, the likelier."""
        ...

    def observe(self, events: EventBatch) -> None:
        """Take in what has happened; stateless models ignore it."""
        ...

    def reset(self) -> None:
        """Forget everything observed."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the registry: how a model is configured and built, and what it looks at."""

    config: type
    build: Callable[[Any, DatasetFacts], Scorer]
    trainable: bool
    title: str
    looks_at: str
