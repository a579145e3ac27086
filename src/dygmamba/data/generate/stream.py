"""Generate a synthetic stream with a known decay law: nodes return to partners they have not yet forgotten.

The process and all parameters are described in docs/reference/generated-stream.md.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import torch

from dygmamba.core.errors import ConfigError
from dygmamba.core.files.writing import make_folder
from dygmamba.core.memory_budget import DEFAULT_BUDGET, require_memory
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.generate.config import GeneratorConfig as GeneratorConfig
from dygmamba.data.generate.process import (
    BURST_WINDOW_DIVISOR,
    LAWS,
    CommunitySeats,
    NodeHistory,
    ProcessRates,
    ProcessState,
    RoamingState,
    Simulation,
    compile_simulation,
)
from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_slices

EVENTS_PER_BLOCK = 1 << 20


def forgetting_law(config: GeneratorConfig) -> Callable[[np.ndarray], np.ndarray]:
    """Return the decay law R(s): the share of an event that is remembered after time s; R(0) = 1."""
    law, half_life = LAWS[config.law], config.half_life
    return lambda span: law(np.asarray(span, dtype=np.float64), half_life)


class _TimestampGenerator:
    """Sorted timestamps in blocks: Lomax gaps of mean `gap`, rounded up to the grid; a tie has no gap.

    The definition of the stream draws all gaps first, then all ties, then everything else. To work in blocks, gaps and
    ties get copies of the random generator, each advanced to where its draws begin.
    """

    def __init__(self, rng: np.random.Generator, config: GeneratorConfig) -> None:
        self._config, self._steps = config, float(math.floor(config.origin / config.grid))
        self._gaps, self._first = deepcopy(rng), True
        rng.bit_generator.advance(config.events)  # type: ignore[attr-defined]
        self._ties = deepcopy(rng)
        for rows in iterate_slices(config.events, 4):
            rng.random(rows.stop - rows.start, dtype=np.float32)

    def next(self, count: int) -> np.ndarray:
        """Return the next `count` timestamps."""
        config = self._config
        steps = self._gaps.random(count)
        np.subtract(1.0, steps, out=steps)
        np.power(steps, -1.0 / config.tail, out=steps)
        steps -= 1.0
        steps *= config.gap * (config.tail - 1.0) / config.grid
        np.maximum(np.ceil(steps, out=steps), 1.0, out=steps)
        steps[self._ties.random(count, dtype=np.float32) < config.ties] = 0.0
        steps[0] = self._steps + (0.0 if self._first else steps[0])
        np.cumsum(steps, out=steps)  # exact: whole numbers
        self._steps, self._first = float(steps[-1]), False
        steps *= config.grid
        return steps


def _make_initial_state(rng: np.random.Generator, config: GeneratorConfig, begin: float) -> ProcessState:
    """Seat all nodes at random, with empty histories and roaming states drawn from their stationary law."""
    n, m, c = config.nodes, config.memory, config.communities
    node_at = rng.permutation(n).astype(np.int32)
    first = np.arange(c + 1) * n // c
    return ProcessState(
        busy=rng.permutation(n).astype(np.int32),
        seats=CommunitySeats(
            seat_of=np.argsort(node_at).astype(np.int32),
            node_at=node_at,
            home_of=np.repeat(np.arange(c, dtype=np.int32), np.diff(first)),
            first=first,
        ),
        history=NodeHistory(np.zeros((n, m), np.int32), np.zeros((n, m)), np.zeros(n, np.int64)),
        roaming=RoamingState(rng.random(n) < config.roam_share, np.full(n, begin)),
    )


def simulate_in_blocks(config: GeneratorConfig, size: int = EVENTS_PER_BLOCK) -> Iterator[Simulation]:
    """Run the process in blocks of `size` events; the result does not depend on the block size."""
    rng = np.random.Generator(np.random.PCG64(config.seed))
    clock = _TimestampGenerator(rng, config)
    rates = ProcessRates(
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
    simulate_block, state, swap_at = compile_simulation(LAWS[config.law]), None, 0.0
    before, change, start = _allocate_simulation(0), config.events_before_change, 0
    while start < config.events:
        if start == change:
            rates = rates._replace(
                half_life=float(config.changed_half_life), novelty=float(config.changed_novelty)
            )
        # the law is the same within a block
        end = min(start + size, config.events if start >= change else change)
        time = clock.next(end - start)
        start = end
        if state is None:
            # The first swap may happen at once, because the seats are random already.
            state, swap_at = _make_initial_state(rng, config, time[0]), time[0]
        begin = len(before.time)
        fresh = _allocate_simulation(len(time))._replace(time=time)
        out = Simulation(*map(np.concatenate, zip(before, fresh, strict=True)))
        swap_at = simulate_block(rng, state, rates, out, begin, swap_at)
        yield Simulation(*(column[begin:] for column in out))
        # A burst looks back over these events, so the next block needs them.
        window = min(len(out.time), max(1, config.nodes // BURST_WINDOW_DIVISOR))
        before = Simulation(*(column[len(column) - window :] for column in out))


def _allocate_simulation(events: int) -> Simulation:
    kinds = (np.int64, np.int64, np.float64, np.float32, np.int8, np.int32)
    return Simulation(*(np.empty(events, kind) for kind in kinds))


def simulate(config: GeneratorConfig) -> Simulation:
    """Run the process in memory and return all events."""
    require_memory(config.size, f"a stream of {config.events:,} events and {config.nodes:,} nodes")
    out, start = _allocate_simulation(config.events), 0
    for block in simulate_in_blocks(config):
        for column, part in zip(out, block, strict=True):
            column[start : start + len(part)] = part
        start += len(block.time)
    return out


def _create_feature_generator(config: GeneratorConfig) -> Callable[[np.ndarray], np.ndarray]:
    """Create a function that returns the edge features of the next events, given the communities of their sources.

    They are a random sign code of the community plus standard normal noise.
    """
    rng = np.random.Generator(np.random.PCG64([config.seed, 1]))
    code = rng.choice(np.array([-1.0, 1.0], np.float32), (config.communities, config.edge_dim))

    def draw_features(home: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal((len(home), config.edge_dim), dtype=np.float32)
        return np.add(noise, code[home], out=noise)

    return draw_features


def generate_stream(config: GeneratorConfig, scratch: Path | None = None) -> EventStore:
    """Generate a stream; the label of an event is the hidden state of its source, 1 while it roams.

    A stream too large for memory is generated in an anonymous file in `scratch`, or in the system's temporary folder.
    """
    if config.size <= DEFAULT_BUDGET:
        run = simulate(config)
        columns = [torch.from_numpy(column) for column in (run.src, run.dst, run.time, run.label)]
        edge = torch.from_numpy(_create_feature_generator(config)(run.home))
    else:
        columns, edge = _generate_on_disk(config, scratch or Path(gettempdir()))
    return EventStore.from_columns(
        *columns[:3],
        label=columns[3],
        num_nodes=config.nodes,
        features=FeatureTable(torch.zeros(config.nodes, 0), edge),
    )


def _generate_on_disk(config: GeneratorConfig, folder: Path) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return source, destination, time and label, and the edge features, as memory-mapped tensors."""
    require_memory(config.state, f"the histories of {config.nodes:,} nodes")
    make_folder(folder)
    free = shutil.disk_usage(folder).free
    if config.size - config.state > free:
        raise ConfigError(
            f"a stream of {config.events:,} events takes {(config.size - config.state) / 1e9:,.0f} GB in "
            f"{folder}, where {free / 1e9:,.0f} GB are free; generate fewer events",
            code="disk-too-small",
        )
    names, draw_features = ("src", "dst", "time", "label"), _create_feature_generator(config)
    columns = [ScratchColumn(folder, kind) for kind in (np.int64, np.int64, np.float64, np.float32)]
    edge = ScratchColumn(folder, np.float32, (config.edge_dim,))
    for block in simulate_in_blocks(config):
        for column, name in zip(columns, names, strict=True):
            column.append(getattr(block, name))
        edge.append(draw_features(block.home))
    return [column.mapped() for column in columns], edge.mapped()
