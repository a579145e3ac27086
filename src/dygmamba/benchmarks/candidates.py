"""One against many: a batch of test events ranked among more and more candidates, in time and in peak memory.

The peak is that of a pass, however many candidates there are. A model that makes a vector of each node encodes each
once a pass, so that a candidate costs it less than one that reads pairs. The reference asks event by event.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dygmamba.benchmarks.verify import Row, device_peak, median_seconds, require, wait
from dygmamba.benchmarks.workload import SEED, find_stream, fit_of, require_same_scores
from dygmamba.engine.examine import place
from dygmamba.engine.fit import Fit
from dygmamba.tasks.base import Exam
from dygmamba.tasks.candidates import Candidates
from dygmamba.tasks.link import link_exam

MODELS = {"dyg-mamba": {"length": 32}, "graphmixer": {}, "tgn": {}}
COUNTS = {"cpu": (80, 160), "cuda": (100, 1_000)}  # each several passes
EVENTS = {"cpu": 8, "cuda": 200}
SMALL = 2_000  # tokens of a pass, for the check
MOVED = 0.1  # share of the ranks that rounding may move, where scores are all but level
PAIRS = 200


def run(device: str, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Scores and ranks checked, whatever the size of a pass; then times and peaks."""
    name, stream = find_stream(device)
    exam, rows = link_exam(stream.store, stream.split, "test"), []
    for model, settings in MODELS.items():
        say(f"checking {model} on {name}")
        require_same_scores(model, stream, settings, PAIRS)
        fit, few = fit_of(model, stream, settings), min(COUNTS[device])
        moved = float((ranks(fit, exam, few) != ranks(fit, exam, few, SMALL)).double().mean())
        require(moved <= MOVED, f"{model}'s ranks do not depend on the size of a pass")
        own: list[Row] = []
        for count in COUNTS[device]:
            say(f"ranking {EVENTS[device]} events among {count:,} with {model}")
            row = one(model, fit, exam, count, alone=count == few)
            grown = bool(own) and own[-1].peak_mb > 0
            own.append(replace(row, growth_mb=row.peak_mb / own[-1].peak_mb) if grown else row)
        rows += own
    return rows


def ranks(
    fit: Fit, exam: Exam, count: int, tokens: int | None = None, chosen: Tensor | None = None
) -> Tensor:
    """Where the first events of the test, or some, rank among so many candidates, each drawn for its event."""
    stream = fit.stream
    among = Candidates.of(stream.store, count, SEED)
    chosen = torch.arange(min(EVENTS[stream.device.type], len(exam.events))) if chosen is None else chosen
    found = place(fit.scorer, stream, exam, among, seed=SEED, chosen=chosen, tokens=tokens)
    wait(stream.device.type)
    return found


def one(model: str, fit: Fit, exam: Exam, count: int, alone: bool) -> Row:
    """Time and peak of a batch, and the time of asking event by event."""
    device = fit.stream.device.type
    with device_peak(device) as peak:
        seconds = median_seconds(lambda: ranks(fit, exam, count), repeats=1, warmup=0)
    events = EVENTS[device]

    def one_by_one() -> None:
        for event in range(events):
            ranks(fit, exam, count, chosen=torch.tensor([event]))

    slow = median_seconds(one_by_one, repeats=1, warmup=0) if alone and not fit.scorer.stateful else None
    return Row.of(f"{model}: {events} events among {count:,}", seconds, slow, peak[0])
