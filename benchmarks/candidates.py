"""Time and peak memory of ranking a batch of test events among more and more candidates.

Candidates are scored in passes of limited size, so the peak should not grow with their number. A model that encodes
each node on its own encodes it once per pass; one that encodes pairs must encode every candidate. The reference ranks
one event at a time.
"""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.harness import (
    SEED,
    BenchmarkRow,
    build_trainer,
    log,
    measure_median_seconds,
    open_benchmark_stream,
    require,
    require_same_scores,
    synchronize,
    track_device_peak,
)
from dygmamba.engine.evaluation import rank_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import build_link_set

MODELS = {"dyg-mamba": {"length": 32}, "graphmixer": {}, "tgn": {}}
COUNTS = {"cpu": (80, 160), "cuda": (100, 1_000)}  # each needs several passes
EVENTS = {"cpu": 8, "cuda": 200}
SMALL_PASS_TOKENS = 2_000  # of the check that ranks do not depend on the size of a pass
MAX_MOVED_RANKS = 0.1  # share of the ranks that may differ: rounding reorders nearly equal scores
PAIRS = 200


def run(device: str) -> list[BenchmarkRow]:
    """Check scores and ranks, then measure time and peak memory per model and number of candidates."""
    name, stream = open_benchmark_stream(device)
    evaluation_set, rows = build_link_set(stream.store, stream.split, "test"), []
    for model, settings in MODELS.items():
        log(f"checking {model} on {name}")
        require_same_scores(model, stream, settings, PAIRS)
        trainer, few = build_trainer(model, stream, settings), min(COUNTS[device])
        one_pass = rank_events(trainer, evaluation_set, few)
        many_passes = rank_events(trainer, evaluation_set, few, SMALL_PASS_TOKENS)
        moved = float((one_pass != many_passes).double().mean())
        require(moved <= MAX_MOVED_RANKS, f"the ranks of {model} do not depend on the size of a pass")
        own: list[BenchmarkRow] = []
        for count in COUNTS[device]:
            log(f"ranking {EVENTS[device]} events among {count:,} with {model}")
            row = measure_ranking(model, trainer, evaluation_set, count, with_reference=count == few)
            has_previous = bool(own) and own[-1].peak_mb > 0
            own.append(replace(row, growth_mb=row.peak_mb / own[-1].peak_mb) if has_previous else row)
        rows += own
    return rows


def rank_events(
    trainer: Trainer,
    evaluation_set: EvaluationSet,
    count: int,
    tokens: int | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """Rank the first test events, or the `chosen` ones, among `count` candidates drawn for each event."""
    stream = trainer.stream
    candidates = SampledCandidates.create(stream.store, count, SEED)
    chosen = (
        torch.arange(min(EVENTS[stream.device.type], len(evaluation_set.events)))
        if chosen is None
        else chosen
    )
    ranks = rank_evaluation_set(
        trainer.scorer, stream, evaluation_set, candidates, seed=SEED, chosen=chosen, tokens=tokens
    )
    synchronize(stream.device.type)
    return ranks


def measure_ranking(
    model: str, trainer: Trainer, evaluation_set: EvaluationSet, count: int, with_reference: bool
) -> BenchmarkRow:
    """Measure time and peak of ranking a batch, and the time of ranking one event at a time."""
    device = trainer.stream.device.type
    with track_device_peak(device) as peak:
        seconds = measure_median_seconds(
            lambda: rank_events(trainer, evaluation_set, count), repeats=1, warmup=0
        )
    events = EVENTS[device]

    def rank_one_by_one() -> None:
        for event in range(events):
            rank_events(trainer, evaluation_set, count, chosen=torch.tensor([event]))

    slow = (
        measure_median_seconds(rank_one_by_one, repeats=1, warmup=0)
        # with a node memory, ranking one by one would replay the stream for every event
        if with_reference and not trainer.scorer.stateful
        else None
    )
    return BenchmarkRow.from_times(f"{model}: {events} events among {count:,}", seconds, slow, peak[0])
