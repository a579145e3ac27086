"""A stream whose forgetting law is known: people return to partners they have not yet forgotten.

The process and every parameter are written out in docs/generated-stream.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from dygmamba.data.events import EventStore, FeatureTable
from dygmamba.data.process import LAWS, Moods, Past, Rates, Seats, Simulation, World, compiled
from dygmamba.errors import ConfigError
from dygmamba.room import require_room
from dygmamba.settings import Bounds, Settings

GRID_BITS = 10  # times lie on a grid of about gap / 1024, so that sums of gaps are exact


@dataclass(frozen=True, slots=True)
class GeneratorConfig(Settings):
    """The parameters of a generated stream; docs/generated-stream.md explains each."""

    seed: Annotated[int, Bounds(0, 2**63 - 1)] = 0
    nodes: Annotated[int, Bounds(2, 2**31 - 1)] = 240
    events: Annotated[int, Bounds(1, 2**31 - 1)] = 12_000
    communities: Annotated[int, Bounds(1, 2**30)] = 6
    law: str = "exponential"
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

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.law not in LAWS:
            raise ConfigError(f"law is {self.law!r}; choose one of {', '.join(LAWS)}")
        if self.nodes < 2 * self.communities:
            raise ConfigError(
                f"{self.nodes} nodes cannot fill {self.communities} communities; give at least two to each"
            )
        if self.drift * self.pace > 1000:
            raise ConfigError(
                f"drift {self.drift} moves a node 1,000 times between two of its events; lower it"
            )
        if abs(self.origin) / self.grid > 2**51:
            raise ConfigError(
                f"origin {self.origin} leaves no digits for gaps of {self.gap:g}; move it towards 0"
            )

    @property
    def gap(self) -> float:
        """The mean span between two events of the whole stream."""
        return self.pace / self.nodes

    @property
    def size(self) -> int:
        """Bytes that are taken at least: the events' columns, what the nodes remember, the features' codes."""
        remembered = self.nodes * (12 * self.memory + 50)
        return self.events * (50 + 4 * self.edge_dim) + remembered + 4 * self.communities * self.edge_dim

    @property
    def grid(self) -> float:
        """The power of two that every time is a multiple of."""
        return 2.0 ** (math.frexp(self.gap)[1] - 1 - GRID_BITS)


def forgetting_law(config: GeneratorConfig) -> Callable[[np.ndarray], np.ndarray]:
    """The known law R(s): how much of an event is left after a span s; R(0) = 1."""
    law, half_life = LAWS[config.law], config.half_life
    return lambda span: law(np.asarray(span, dtype=np.float64), half_life)


def _clock(rng: np.random.Generator, config: GeneratorConfig) -> np.ndarray:
    """Sorted times: Lomax gaps of mean `gap`, rounded up to the grid; a tie has no gap."""
    steps = rng.random(config.events)
    np.subtract(1.0, steps, out=steps)
    np.power(steps, -1.0 / config.tail, out=steps)
    steps -= 1.0
    steps *= config.gap * (config.tail - 1.0) / config.grid
    np.maximum(np.ceil(steps, out=steps), 1.0, out=steps)
    steps[rng.random(config.events, dtype=np.float32) < config.ties] = 0.0
    steps[0] = math.floor(config.origin / config.grid)
    np.cumsum(steps, out=steps)
    steps *= config.grid
    return steps


def _start(rng: np.random.Generator, config: GeneratorConfig, begin: float) -> World:
    """Everyone in a seat, nothing remembered, the hidden states at their long-run shares."""
    n, m, c = config.nodes, config.memory, config.communities
    node_at = rng.permutation(n).astype(np.int32)
    first = np.arange(c + 1) * n // c
    return World(
        busy=rng.permutation(n).astype(np.int32),
        seats=Seats(
            seat_of=np.argsort(node_at).astype(np.int32),
            node_at=node_at,
            home_of=np.repeat(np.arange(c, dtype=np.int32), np.diff(first)),
            first=first,
        ),
        past=Past(np.zeros((n, m), np.int32), np.zeros((n, m)), np.zeros(n, np.int64)),
        moods=Moods(rng.random(n) < config.roam_share, np.full(n, begin)),
    )


def simulate(config: GeneratorConfig) -> Simulation:
    """Run the process; the same config gives the same bytes."""
    require_room(config.size, f"a stream of {config.events:,} events and {config.nodes:,} nodes")
    rng = np.random.Generator(np.random.PCG64(config.seed))
    e, time = config.events, _clock(rng, config)
    out = Simulation(
        src=np.empty(e, np.int64),
        dst=np.empty(e, np.int64),
        time=time,
        label=np.empty(e, np.float32),
        choice=np.empty(e, np.int8),
        home=np.empty(e, np.int32),
    )
    rates = Rates(
        half_life=float(config.half_life),
        novelty=float(config.novelty),
        noise=float(config.noise),
        roam_noise=float(config.roam_noise),
        roam_share=float(config.roam_share),
        roam_rate=1.0 / (config.roam_length * (1.0 - config.roam_share)),
        swap_rate=config.nodes * config.drift / 2.0,
        activity=float(config.activity),
        popularity=float(config.popularity),
        burst=float(config.burst),
    )
    compiled(LAWS[config.law])(rng, _start(rng, config, time[0]), rates, out)
    return out


def _edge_features(config: GeneratorConfig, home: np.ndarray) -> torch.Tensor:
    """A noisy sign code of the source's community: +-1 per column, plus a unit normal."""
    rng = np.random.Generator(np.random.PCG64([config.seed, 1]))
    code = rng.choice(np.array([-1.0, 1.0], np.float32), (config.communities, config.edge_dim))
    noise = rng.standard_normal((len(home), config.edge_dim), dtype=np.float32)
    return torch.from_numpy(np.add(noise, code[home], out=noise))


def generate_stream(config: GeneratorConfig) -> EventStore:
    """The stream of a config; its label is the source's hidden state, 1 while it roams."""
    run = simulate(config)
    return EventStore.of(
        torch.from_numpy(run.src),
        torch.from_numpy(run.dst),
        torch.from_numpy(run.time),
        label=torch.from_numpy(run.label),
        num_nodes=config.nodes,
        features=FeatureTable(torch.zeros(config.nodes, 0), _edge_features(config, run.home)),
    )


def generated_dataset_store(seed: int = 0) -> EventStore:
    """The embedded dataset `generated`: the default config."""
    return generate_stream(GeneratorConfig(seed=seed))
