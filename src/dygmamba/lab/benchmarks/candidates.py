"""One against many: a batch of test events ranked among more and more candidates, in time and in peak memory.

The peak is that of a pass, however many candidates there are. A model that makes a vector of each node encodes each
once a pass, so that a candidate costs it less than one that reads pairs. The reference asks event by event.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dygmamba.engine.evaluation import rank_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.lab.benchmarks.harness import (
    SEED,
    BenchmarkRow,
    build_fit,
    measure_median_seconds,
    open_benchmark_stream,
    require,
    require_same_scores,
    synchronize,
    track_device_peak,
)
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import build_link_set

MODELS = {"dyg-mamba": {"length": 32}, "graphmixer": {}, "tgn": {}}
COUNTS = {"cpu": (80, 160), "cuda": (100, 1_000)}  # each several passes
EVENTS = {"cpu": 8, "cuda": 200}
SMALL_PASS_TOKENS = 2_000  # tokens of a pass, for the check
MAX_MOVED_RANKS = 0.1  # share of the ranks that rounding may move, where scores are all but level
PAIRS = 200


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[BenchmarkRow]:
    """Scores and ranks checked, whatever the size of a pass; then times and peaks."""
    name, stream = open_benchmark_stream(device)
    evaluation_set, rows = build_link_set(stream.store, stream.split, "test"), []
    for model, settings in MODELS.items():
        say(f"checking {model} on {name}")
        require_same_scores(model, stream, settings, PAIRS)
        fit, few = build_fit(model, stream, settings), min(COUNTS[device])
        moved = float(
            (
                rank_events(fit, evaluation_set, few)
                != rank_events(fit, evaluation_set, few, SMALL_PASS_TOKENS)
            )
            .double()
            .mean()
        )
        require(moved <= MAX_MOVED_RANKS, f"{model}'s ranks do not depend on the size of a pass")
        own: list[BenchmarkRow] = []
        for count in COUNTS[device]:
            say(f"ranking {EVENTS[device]} events among {count:,} with {model}")
            row = measure_ranking(model, fit, evaluation_set, count, alone=count == few)
            grown = bool(own) and own[-1].peak_mb > 0
            own.append(replace(row, growth_mb=row.peak_mb / own[-1].peak_mb) if grown else row)
        rows += own
    return rows


def rank_events(
    fit: Trainer,
    evaluation_set: EvaluationSet,
    count: int,
    tokens: int | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """Where the first events of the test, or some, rank among so many candidates, each drawn for its event."""
    stream = fit.stream
    among = SampledCandidates.of(stream.store, count, SEED)
    chosen = (
        torch.arange(min(EVENTS[stream.device.type], len(evaluation_set.events)))
        if chosen is None
        else chosen
    )
    found = rank_evaluation_set(
        fit.scorer, stream, evaluation_set, among, seed=SEED, chosen=chosen, tokens=tokens
    )
    synchronize(stream.device.type)
    return found


def measure_ranking(
    model: str, fit: Trainer, evaluation_set: EvaluationSet, count: int, alone: bool
) -> BenchmarkRow:
    """Time and peak of a batch, and the time of asking event by event."""
    device = fit.stream.device.type
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(lambda: rank_events(fit, evaluation_set, count), repeats=1, warmup=0)
    events = EVENTS[device]

    def one_by_one() -> None:
        for event in range(events):
            rank_events(fit, evaluation_set, count, chosen=torch.tensor([event]))

    slow = (
        measure_median_seconds(one_by_one, repeats=1, warmup=0) if alone and not fit.scorer.stateful else None
    )
    return BenchmarkRow.of(f"{model}: {events} events among {count:,}", seconds, slow, peak[0])
