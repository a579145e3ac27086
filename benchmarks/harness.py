"""Common parts of the benchmarks: result rows, correctness checks, timing, peak memory, a stream and a trainer.

Every benchmark checks a fast path against its reference before it times anything, and reports ratios measured in the
same run, which mean the same on every machine. Anchors are absolute times of other implementations, measured on one
NVIDIA H200 (torch 2.11, CUDA 13.0). They are compared only on that kind of GPU.
"""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import NotFoundError
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.executor.eager import BatchExecutor, BucketedExecutor, TrainingContext
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import SINGLE_BUCKET
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.view import PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.ops.dispatch import use_reference
from dygmamba.runs.link_training import separate_settings
from dygmamba.tasks.link import LinkTask

UCI = "uci"
STAND_IN_STREAM = GeneratorConfig(nodes=1_899, events=59_835)  # as large as UCI
SEED = 0
TOLERANCE = 1e-4  # error of a score, relative to the largest score
OBSERVED_EVENTS = 1_000  # events that a model with a memory has observed before its scores are compared
STEP_PARTS = ("look-up", "forward", "backward", "update")

Ids = Int64[Tensor, "b"]


def log(message: str) -> None:
    """Print what is being done on stderr."""
    sys.stderr.write(f"{message}\n")


class WrongResultError(Exception):
    """A fast path differs from its reference, so its speed is not measured."""


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One measured case: time of the fast path and of the reference, and the peak of additional memory.

    Values that were not measured are None. A case that ran out of memory has no time and a note that says so. The
    fields are the columns of the JSON output.
    """

    case: str
    seconds: float | None
    reference_seconds: float | None
    ratio: float | None
    peak_mb: float
    reference_mb: float | None = None
    anchor_seconds: float | None = None
    anchor_ratio: float | None = None  # anchor / ours, in seconds
    anchor_mb: float | None = None
    anchor_mb_share: float | None = None  # ours / anchor
    growth: float | None = None  # seconds / seconds of the previous case
    growth_mb: float | None = None  # the same for memory
    gflops: float | None = None  # billions of floating-point operations per second
    gigabytes_per_second: float | None = None  # read and written in the memory of a GPU
    bound_share: float | None = None  # gflops / those of a plain matrix product in the same run
    note: str | None = None

    @staticmethod
    def from_times(
        case: str,
        seconds: float,
        reference: float | None = None,
        peak_mb: float = float("nan"),
        anchor_seconds: float | None = None,
        anchor_mb: float | None = None,
        **more: Any,
    ) -> "BenchmarkRow":
        """Return a row with its ratios computed."""
        return BenchmarkRow(
            case=case,
            seconds=seconds,
            reference_seconds=reference,
            ratio=reference and reference / seconds,
            peak_mb=peak_mb,
            anchor_seconds=anchor_seconds,
            anchor_ratio=anchor_seconds and anchor_seconds / seconds,
            anchor_mb=anchor_mb,
            anchor_mb_share=anchor_mb and peak_mb / anchor_mb,
            **more,
        )

    def compare_growth(self, before: "BenchmarkRow | None") -> "BenchmarkRow":
        """Return the row with its growth over the same measurement at the previous size."""
        if before is None or not before.seconds or not self.seconds:
            return self
        memory = self.peak_mb / before.peak_mb if before.peak_mb > 0 else None
        return replace(self, growth=self.seconds / before.seconds, growth_mb=memory)


def require(truth: bool, claim: str) -> None:
    """Raise WrongResultError unless the claim holds."""
    if not truth:
        raise WrongResultError(
            f"expected: {claim}. This is not the case, so nothing was timed; run the tests and fix the fast path"
        )


def measure_median_seconds(run: Callable[[], Any], repeats: int, warmup: int = 2) -> float:
    """Return the median wall time of a call."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def read_resident_mb() -> float:
    """Return the resident memory of this process (Linux)."""
    fields = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return int(fields[1]) * 4096 / 2**20


@contextmanager
def track_peak_memory(interval: float = 0.002) -> Iterator[list[float]]:
    """Yield a list of one item: after the block, the peak of additional resident memory in MB.

    A thread samples the resident size. Linux only; nan elsewhere.
    """
    peak = [float("nan")]
    if not Path("/proc/self/statm").exists():
        yield peak
        return
    base, done = read_resident_mb(), threading.Event()
    highest = base

    def sample() -> None:
        nonlocal highest
        while not done.wait(interval):
            highest = max(highest, read_resident_mb())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        highest = max(highest, read_resident_mb())
        done.set()
        sampler.join()
        peak[0] = highest - base


def synchronize(device: str) -> None:
    """Wait until the device has finished all work that was submitted to it."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def track_device_peak(device: str) -> Iterator[list[float]]:
    """Like `track_peak_memory`: the peak of the allocator on CUDA, of the resident memory on a CPU."""
    gc.collect()
    if device != "cuda":
        _trim_allocator()
        with track_peak_memory() as peak:
            yield peak
        return
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base, peak = torch.cuda.memory_allocated(), [float("nan")]
    yield peak
    torch.cuda.synchronize()
    peak[0] = (torch.cuda.max_memory_allocated() - base) / 2**20


def _trim_allocator() -> None:
    """Return freed memory to the system; otherwise the memory of an earlier peak would hide the next one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def open_benchmark_stream(device: str) -> tuple[str, Stream]:
    """Return the name and the stream of UCI if it is installed, else of a generated stream of the same size."""
    try:
        store, name = open_dataset(UCI).store, UCI
    except NotFoundError:
        store, name = generate_stream(STAND_IN_STREAM), "generated"
    return name, Stream(store, chronological_split(store), torch.device(device))


def build_trainer(model: str, stream: Stream, settings: dict[str, Any], **loop: Any) -> Trainer:
    """Return a trainer with UCI's published settings; its weights depend on the seed alone, and it saves nothing."""
    spec = find_model(model)
    published, own = separate_settings(find_preset(model, UCI) | settings)
    torch.manual_seed(SEED)
    scorer = spec.build(build_config(spec.config, own), DatasetFacts.of(stream.store, stream.split.train))
    assert isinstance(scorer, EncoderScorer)
    config = build_config(FitConfig, published | {"save_every": 1e9} | loop)
    task = LinkTask.create(stream.store, stream.split, stream.device)
    run = RunDirectory(Path("never-written"))
    return Trainer(task, scorer.to(stream.device).train(), stream, config, run, SEED)


def require_same_scores(model: str, stream: Stream, settings: dict[str, Any], pairs: int = 200) -> None:
    """Require equal scores of the same weights: on a GPU and a CPU, or on a CPU with kernels and with references."""
    ours = score_pairs(build_trainer(model, stream, settings), pairs)
    on_gpu = stream.device.type == "cuda"
    on_cpu = Stream(stream.store, stream.split, torch.device("cpu"))
    with nullcontext() if on_gpu else use_reference():
        truth = score_pairs(build_trainer(model, on_cpu, settings), pairs)
    worst = float((ours - truth).abs().max() / truth.abs().max())
    other = "the CPU" if on_gpu else "the reference implementation"
    require(worst <= TOLERANCE, f"{model} gives {pairs} test pairs the scores of {other} up to {TOLERANCE:g}")


def score_pairs(trainer: Trainer, pairs: int) -> Float[Tensor, "p"]:
    """Return the logits of `pairs` pairs, half of them test events, with the current weights."""
    store, split = trainer.stream.store, trainer.stream.split
    events = split.test[: pairs // 2]
    src, dst, time = store.src[events], store.dst[events], store.time[events]
    queries = PairBatch.from_pairs(src.repeat(2), torch.cat([dst, dst.flip(0)]), time.repeat(2))
    schedule = MemorySchedule.from_periods(store, (split.train[:OBSERVED_EVENTS],))
    return StreamScorer(trainer.scorer, trainer.stream, SEED, schedule)(
        queries, schedule.count_in_earlier_batches(queries.time)
    )


def find_last_full_batch(trainer: Trainer) -> int:
    """Return the number of the last full batch of an epoch: its nodes have long histories."""
    return len(trainer.stream.train) // trainer.config.batch - 1


def make_last_step(trainer: Trainer) -> Callable[[], Tensor]:
    """Return a function that runs the step on the last full batch as training does, and waits for the device."""
    batch = trainer.batch(trainer.epoch(0), find_last_full_batch(trainer))
    trainer.scorer.train()

    def step() -> Tensor:
        loss = trainer.executor.step(batch)
        synchronize(trainer.stream.device.type)
        return loss

    return step


def select_last_batch(trainer: Trainer, size: int | None = None) -> tuple[Ids, Ids]:
    """Return events and negative nodes of the last full batch, or the first `size` of them."""
    first = find_last_full_batch(trainer) * trainer.config.batch
    rows = slice(first, first + (size or trainer.config.batch))
    epoch = trainer.epoch(0)
    return epoch.events[rows], epoch.others[rows]


def get_training_context(trainer: Trainer) -> TrainingContext:
    """Return the parts of a gradient step: view, loss, optimizer."""
    assert isinstance(trainer.executor, BatchExecutor)
    return trainer.executor.context


def accumulate_gradients(trainer: Trainer, events: Ids, others: Ids, size: int) -> float:
    """Compute loss and gradients of a batch, `size` pairs at a time to save memory, and return the loss."""
    executor = BucketedExecutor(get_training_context(trainer), SINGLE_BUCKET)
    queries = executor.context.look_up(events, others)
    executor.gradients.zero()
    chunks = torch.arange(len(queries.pairs), device=events.device).split(size)
    return sum(float(executor.accumulate_part(queries, rows)) for rows in chunks)


def measure_step_parts(
    trainer: Trainer, events: Ids, others: Ids, repeats: int, warmup: int = 1
) -> dict[str, float]:
    """Return the median time of each part of a step, run without CUDA graphs, waiting for the device after each."""
    laps = [_time_step_parts(trainer, events, others) for _ in range(warmup + repeats)][warmup:]
    return {part: median(lap[number] for lap in laps) for number, part in enumerate(STEP_PARTS)}


def _time_step_parts(trainer: Trainer, events: Ids, others: Ids) -> list[float]:
    context, marks = get_training_context(trainer), []

    def mark() -> None:
        synchronize(context.device)
        marks.append(time.perf_counter())

    mark()
    with context.precision():
        queries = context.look_up(events, others)
        mark()
        loss = context.loss(queries) / len(queries.pairs)
        mark()
        context.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark()
    context.optimizer.step()
    context.update_memory(events)
    mark()
    return [after - before for before, after in pairwise(marks)]


ANCHOR_CHANNELS, ANCHOR_STATES = 400, 16  # of every scan anchor


@dataclass(frozen=True, slots=True)
class ScanAnchor:
    """A shape and what mamba_ssm 2.3.2 needs for it: ms of forward + backward, MiB beyond the inputs."""

    q: int
    length: int
    both: float
    mib: float


SCAN_ANCHORS = (
    ScanAnchor(400, 256, 4.826, 1070),
    ScanAnchor(400, 1024, 25.291, 3456),
    ScanAnchor(64, 8192, 25.851, 4333),
    ScanAnchor(400, 2048, 55.587, 6626),
    ScanAnchor(400, 512, 11.179, 1864),
    ScanAnchor(400, 64, 2.649, 477),
    ScanAnchor(400, 32, 2.603, 378),
)


@dataclass(frozen=True, slots=True)
class EpochAnchor:
    """Seconds of a training epoch on UCI (34,352 events, batch 200, one negative each), the best of several runs."""

    model: str
    length: int | None
    by: str
    seconds: float


EPOCH_ANCHORS = (
    EpochAnchor("dyg-mamba", 32, "the authors' release", 23.9),
    EpochAnchor("dyg-mamba", 1024, "the authors' release", 73.7),
    EpochAnchor("dygformer", 32, "the authors' release", 21.9),
    EpochAnchor("dygformer", 32, "TGM 0.1.0b1", 8.1),
    EpochAnchor("tgn", None, "TGM 0.1.0b1", 6.1),
)


def anchors_apply(device: str) -> bool:
    """Return whether the device is of the kind that the anchors were measured on."""
    return device == "cuda" and "H200" in torch.cuda.get_device_name()
