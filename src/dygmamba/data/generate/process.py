"""The random process behind a generated stream, as plain functions that Numba compiles.

docs/reference/generated-stream.md derives it. The laws are in the same file as the loop because Numba recompiles the
loop when its own file changes, not when another one does (`ops/numba_kernels.py`).

Shapes and symbols: e events, n nodes, c communities, m remembered events, u source, v destination, t time.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, no_type_check

import numpy as np

RETURN, FRESH, NOISE = 0, 1, 2  # how a destination was chosen
BURST_WINDOW_DIVISOR = 16  # a burst looks back over n / 16 events, about the same time whatever n is


@no_type_check
def exponential(span, half_life):
    """R(s) = 2^(-s/h): Ebbinghaus's curve exp(-s/S) with S = h / ln 2 (DyG-Mamba, above Eq. 11)."""
    return np.exp2(-span / half_life)


@no_type_check
def power(span, half_life):
    """R(s) = (1 + (sqrt 2 - 1) s/h)^-2: a long tail."""
    return (1.0 + (math.sqrt(2.0) - 1.0) * span / half_life) ** -2.0


@no_type_check
def stretched(span, half_life):
    """R(s) = 2^(-sqrt(s/h)): steep at first, then slower than the exponential."""
    return np.exp2(-np.sqrt(span / half_life))


@no_type_check
def never(span, half_life):
    """R(s) = 1: nothing is forgotten, the control."""
    return np.exp2(-0.0 * span / half_life)


Law = Callable[[Any, float], Any]
LAWS: dict[str, Law] = {"exponential": exponential, "power": power, "stretched": stretched, "never": never}


class CommunitySeats(NamedTuple):
    """Communities as ranges of seats; a node's position in its range is its popularity rank."""

    seat_of: np.ndarray  # int32 [n]
    node_at: np.ndarray  # int32 [n]
    home_of: np.ndarray  # int32 [n], the community of a seat
    first: np.ndarray  # int64 [c + 1], the first seat of a community


class NodeHistory(NamedTuple):
    """The last m events of each node, as ring buffers."""

    partner: np.ndarray  # int32 [n m]
    when: np.ndarray  # float64 [n m]
    seen: np.ndarray  # int64 [n], number of events so far


class RoamingState(NamedTuple):
    """Hidden state of each node (roaming or not) and when it was last updated."""

    roams: np.ndarray  # bool [n]
    updated: np.ndarray  # float64 [n]


class ProcessState(NamedTuple):
    """The state of the process."""

    busy: np.ndarray  # int32 [n], nodes from the most to the least active
    seats: CommunitySeats
    history: NodeHistory
    roaming: RoamingState


class ProcessRates(NamedTuple):
    """Parameters of the loop."""

    half_life: float
    novelty: float
    noise: float
    roam_noise: float
    roam_share: float
    roam_rate: float
    swap_rate: float
    activity: float
    popularity: float
    burst: float


class Simulation(NamedTuple):
    """Events and their hidden causes, which the stream does not contain."""

    src: np.ndarray  # int64 [e]
    dst: np.ndarray  # int64 [e]
    time: np.ndarray  # float64 [e]
    label: np.ndarray  # float32 [e], 1 where the source roamed
    choice: np.ndarray  # int8 [e], RETURN, FRESH or NOISE
    home: np.ndarray  # int32 [e], the source's community at that time


@no_type_check
def _draw_rank(rng, n, skew):
    """Draw a rank i below n with P(i) ~ (i + 1)^-skew, by inverting the integral of (1 + x)^-skew."""
    x = rng.random()
    if skew == 1.0:
        return min(n - 1, int((n + 1.0) ** x - 1.0))
    d = 1.0 - skew
    return min(n - 1, int((1.0 + x * ((n + 1.0) ** d - 1.0)) ** (1.0 / d) - 1.0))


@no_type_check
def _swap_seats(rng, seats):
    """Swap the nodes of two random seats."""
    n = seats.node_at.size
    a, b = int(rng.random() * n), int(rng.random() * n)
    u, v = seats.node_at[a], seats.node_at[b]
    seats.node_at[a], seats.node_at[b] = v, u
    seats.seat_of[u], seats.seat_of[v] = b, a


@no_type_check
def _update_roaming(rng, roaming, rates, u, t):
    """Advance u's hidden two-state Markov chain to time t by its exact transition probability."""
    decay = math.exp(-rates.roam_rate * (t - roaming.updated[u]))
    share = rates.roam_share * (1.0 - decay) + (decay if roaming.roams[u] else 0.0)
    roaming.roams[u], roaming.updated[u] = rng.random() < share, t
    return roaming.roams[u]


@no_type_check
def _draw_source(rng, busy, rates, src, e):
    """Draw the source of event e: in a burst one of the last few sources, else any node by activity."""
    if e > 0 and rng.random() < rates.burst:
        return src[e - 1 - int(rng.random() * min(e, max(1, busy.size // BURST_WINDOW_DIVISOR)))]
    return np.int64(busy[_draw_rank(rng, busy.size, rates.activity)])


@no_type_check
def _draw_stranger(rng, n, u):
    """Draw any node but u."""
    v = int(rng.random() * (n - 1))
    return v + 1 if v >= u else v


@no_type_check
def _draw_community_member(rng, seats, skew, u):
    """Draw another member of u's community by popularity."""
    home = seats.home_of[seats.seat_of[u]]
    start = seats.first[home]
    v = u
    while v == u:
        v = np.int64(seats.node_at[start + _draw_rank(rng, seats.first[home + 1] - start, skew)])
    return v


@no_type_check
def _remember(history, u, v, t):
    """Write the event into u's ring buffer, over the oldest."""
    place = history.seen[u] % history.partner.shape[1]
    history.partner[u, place], history.when[u, place] = v, t
    history.seen[u] += 1


@no_type_check
def _draw_remembered(rng, novelty, left):
    """Draw index j with probability left[j] / (novelty + sum left), or -1 for none."""
    total = novelty
    for weight in left:
        total += weight
    x = rng.random() * total
    for j in range(left.size):
        x -= left[j]
        if x < 0.0:
            return j
    return -1


JITTED_HELPERS = (
    *(_draw_rank, _swap_seats, _update_roaming, _draw_source, _draw_stranger, _draw_community_member),
    *(_remember, _draw_remembered),
)


@lru_cache
def compile_simulation(law: Law) -> Any:
    """Compile the loop for one law; it closes over plain functions only, so that Numba can cache it on disk."""
    from numba.extending import register_jitable

    from dygmamba.ops.numba_kernels import kernel

    for part in (law, *JITTED_HELPERS):
        register_jitable(part)

    @no_type_check
    def simulate_block(rng, state, rates, out, begin, swap_at):
        """Simulate the events of `out` from `begin` on and return the time of the next swap."""
        busy, seats, history, roaming = state
        left = np.zeros(history.partner.shape[1])
        for e in range(begin, out.time.size):
            t = out.time[e]
            while rates.swap_rate > 0.0 and swap_at <= t:
                _swap_seats(rng, seats)
                swap_at -= math.log1p(-rng.random()) / rates.swap_rate
            u = _draw_source(rng, busy, rates, out.src, e)
            roams = _update_roaming(rng, roaming, rates, u, t)
            if rng.random() < (rates.roam_noise if roams else rates.noise):
                v, choice = _draw_stranger(rng, busy.size, u), NOISE
            else:
                known = min(history.seen[u], left.size)
                for j in range(known):
                    # Strictly earlier events only: those of the same time are not remembered yet.
                    s = t - history.when[u, j]
                    left[j] = law(s, rates.half_life) if s > 0.0 else 0.0
                j = _draw_remembered(rng, rates.novelty, left[:known])
                if j >= 0:
                    v, choice = np.int64(history.partner[u, j]), RETURN
                else:
                    v, choice = _draw_community_member(rng, seats, rates.popularity, u), FRESH
            _remember(history, u, v, t)
            _remember(history, v, u, t)
            out.src[e], out.dst[e], out.label[e], out.choice[e] = u, v, roams, choice
            out.home[e] = seats.home_of[seats.seat_of[u]]
        return swap_at

    return kernel()(simulate_block)
