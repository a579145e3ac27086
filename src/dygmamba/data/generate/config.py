"""Parameters of the synthetic stream, readable without torch."""

import math
from dataclasses import dataclass
from typing import Annotated

from dygmamba.core.choices import LawName
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Bounds, Settings

GRID_BITS = 10  # timestamps are multiples of about gap / 1024, so that sums of gaps are exact


@dataclass(frozen=True, slots=True)
class GeneratorConfig(Settings):
    """Parameters of a synthetic stream; docs/reference/generated-stream.md explains each."""

    seed: Annotated[int, Bounds(0, 2**63 - 1)] = 0
    nodes: Annotated[int, Bounds(2, 2**31 - 1)] = 240
    events: Annotated[int, Bounds(1, 2**31 - 1)] = 12_000
    communities: Annotated[int, Bounds(1, 2**30)] = 6
    law: LawName = "exponential"
    half_life: Annotated[float, Bounds(1e-9, 1e15)] = 7_200.0
    novelty: Annotated[float, Bounds(1e-9, 1e9)] = 0.5
    noise: Annotated[float, Bounds(0, 1)] = 0.02
    drift: Annotated[float, Bounds(0, 1e9)] = 5e-6
    roam_share: Annotated[float, Bounds(0, 0.99)] = 0.15
    roam_length: Annotated[float, Bounds(1e-9, 1e15)] = 172_800.0
    roam_noise: Annotated[float, Bounds(0, 1)] = 0.7
    activity: Annotated[float, Bounds(0, 3)] = 0.6
    popularity: Annotated[float, Bounds(0, 3)] = 0.6
    memory: Annotated[int, Bounds(1, 4096)] = 64
    pace: Annotated[float, Bounds(1e-6, 1e12)] = 14_400.0
    tail: Annotated[float, Bounds(1.01, 1e6)] = 1.8
    burst: Annotated[float, Bounds(0, 0.99)] = 0.3
    ties: Annotated[float, Bounds(0, 0.99)] = 0.02
    origin: Annotated[float, Bounds(-1e15, 1e15)] = 1.7e9
    edge_dim: Annotated[int, Bounds(0, 4096)] = 0
    change_at: Annotated[float, Bounds(0, 1)] = 0.0
    changed_half_life: Annotated[float, Bounds(1e-9, 1e15)] = 864_000.0
    changed_novelty: Annotated[float, Bounds(1e-9, 1e9)] = 0.05

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.nodes < 2 * self.communities:
            raise ConfigError(
                f"{self.nodes} nodes cannot fill {self.communities} communities; give at least two to each",
                code="too-few-nodes",
            )
        if self.drift * self.pace > 1000:
            raise ConfigError(
                f"drift {self.drift} moves a node more than 1,000 times between two of its events; lower it",
                code="drift-too-large",
            )
        if abs(self.origin) / self.grid > 2**51:
            raise ConfigError(
                f"origin {self.origin} leaves no digits for time gaps of {self.gap:g}; choose one closer to 0",
                code="origin-too-large",
            )

    @property
    def gap(self) -> float:
        """Mean time gap between consecutive events of the stream."""
        return self.pace / self.nodes

    @property
    def events_before_change(self) -> int:
        """Number of events before the law changes; all of them if it does not."""
        return int(self.change_at * self.events) if self.change_at else self.events

    @property
    def size(self) -> int:
        """Memory needed at least, in bytes: the event columns and `state`."""
        return self.events * (50 + 4 * self.edge_dim) + self.state

    @property
    def state(self) -> int:
        """Bytes needed whatever the number of events: node histories and feature codes."""
        return self.nodes * (12 * self.memory + 50) + 4 * self.communities * self.edge_dim

    @property
    def grid(self) -> float:
        """Power of two that all timestamps are multiples of."""
        return 2.0 ** (math.frexp(self.gap)[1] - 1 - GRID_BITS)
