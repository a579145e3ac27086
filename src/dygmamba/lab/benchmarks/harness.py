"""What every benchmark shares: correctness first, then medians, ratios inside one run, and peak memory.

What the benchmarks of training share: a stream, a fit that is never written, its parts, and their check.

What others take, measured on one NVIDIA H200 (torch 2.11, CUDA 13.0): absolute times mean nothing elsewhere.
"""

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.config import build_config, find_preset
from dygmamba.core.errors import ConfigError, DygError, NotFoundError
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
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.ops.dispatch import use_reference
from dygmamba.runs.link_training import separate_settings
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.link import LinkTask


class WrongResultError(DygError):
    """A fast path that does not compute what its reference computes; its speed is of no interest."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One case: ours and the reference in seconds, reference / ours, and the peak of extra memory.

    What was not measured is None: a case that ran out of memory has no time, and says so in its note. An anchor is
    another implementation's figure from the one kind of GPU it was measured on; it is given on that GPU only.
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
    growth: float | None = None  # seconds / those of the case before it
    growth_mb: float | None = None  # the same of memory
    gflops: float | None = None  # billions of floating-point operations a second
    bound_share: float | None = None  # of what a plain matrix product reaches in the same run
    note: str | None = None

    @staticmethod
    def of(
        case: str,
        seconds: float,
        reference: float | None = None,
        peak_mb: float = float("nan"),
        anchor_seconds: float | None = None,
        anchor_mb: float | None = None,
        **more: Any,
    ) -> "BenchmarkRow":
        """A case with its ratios."""
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


def require(truth: bool, claim: str) -> None:
    """Stop the benchmark unless the claim holds."""
    if not truth:
        raise WrongResultError(
            f"{claim}: does not hold, so nothing was timed; run the tests and mend the fast path"
        )


def measure_median_seconds(run: Callable[[], Any], repeats: int, warmup: int = 2) -> float:
    """Median wall time of a call."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def read_resident_mb() -> float:
    """Memory this process holds now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


@contextmanager
def track_peak_memory(interval: float = 0.002) -> Iterator[list[float]]:
    """A one-item list that holds, after the block, the peak of extra resident memory in MB.

    A thread samples the resident size; Linux only, nan elsewhere.
    """
    peak = [float("nan")]
    if not Path("/proc/self/statm").exists():
        yield peak
        return
    base, done = read_resident_mb(), threading.Event()
    highest = base

    def watch() -> None:
        nonlocal highest
        while not done.wait(interval):
            highest = max(highest, read_resident_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        highest = max(highest, read_resident_mb())
        done.set()
        watcher.join()
        peak[0] = highest - base


def synchronize(device: str) -> None:
    """Return when the device has done all it was asked to."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def track_device_peak(device: str) -> Iterator[list[float]]:
    """As `peak_memory`: the allocator's peak on CUDA, the process's resident size on a CPU."""
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
    """Return freed memory to the system: what the allocator keeps of an earlier peak would hide this one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


UCI = "uci"
STAND_IN_STREAM = GeneratorConfig(nodes=1_899, events=59_835)  # as large as UCI
SEED = 0
TOLERANCE = 1e-4  # of a score, relative to the largest
OBSERVED_EVENTS = 1_000  # events a model with memory has seen before its scores are compared
STEP_PARTS = ("look-up", "forward", "backward", "update")

Ids = Int64[Tensor, "b"]


def open_benchmark_stream(device: str) -> tuple[str, Stream]:
    """UCI where it is, else a generated stream as large, and its name."""
    try:
        store, name = open_dataset(UCI).store, UCI
    except NotFoundError:
        store, name = generate_stream(STAND_IN_STREAM), "generated"
    return name, Stream(store, chronological_split(store), torch.device(device))


def build_fit(model: str, stream: Stream, settings: dict[str, Any], **loop: Any) -> Trainer:
    """A run with UCI's published settings, whose weights depend on the seed alone; nothing of it is ever saved."""
    spec = find_model(model)
    published, own = separate_settings(find_preset(model, UCI) | settings)
    torch.manual_seed(SEED)
    scorer = spec.build(build_config(spec.config, own), DatasetFacts.of(stream.store, stream.split.train))
    if not isinstance(scorer, EncoderScorer):
        raise ConfigError(f"model '{model}' is not trained; a benchmark of training needs one that is")
    config = build_config(FitConfig, published | {"save_every": 1e9} | loop)
    task = LinkTask.of(stream.store, stream.split, stream.device)
    run = RunDirectory(Path("never-written"))
    return Trainer(task, scorer.to(stream.device).train(), stream, config, run, SEED)


def require_same_scores(model: str, stream: Stream, settings: dict[str, Any], pairs: int = 200) -> None:
    """The same weights on a GPU and on a CPU, or on a CPU with kernels and by definition, score alike."""
    ours = score_pairs(build_fit(model, stream, settings), pairs)
    on_gpu = stream.device.type == "cuda"
    here = Stream(stream.store, stream.split, torch.device("cpu"))
    with nullcontext() if on_gpu else use_reference():
        truth = score_pairs(build_fit(model, here, settings), pairs)
    worst = float((ours - truth).abs().max() / truth.abs().max())
    other = "on the CPU" if on_gpu else "by definition"
    require(worst <= TOLERANCE, f"{model}'s scores of {pairs} test pairs are those {other} to {TOLERANCE:g}")


def score_pairs(fit: Trainer, pairs: int) -> Float[Tensor, "p"]:
    """Logits of so many pairs, half of them test events, under the weights as they are."""
    store, split = fit.stream.store, fit.stream.split
    events = split.test[: pairs // 2]
    src, dst, time = store.src[events], store.dst[events], store.time[events]
    asked = PairBatch.of(src.repeat(2), torch.cat([dst, dst.flip(0)]), time.repeat(2))
    clock = MemorySchedule.of(store, (split.train[:OBSERVED_EVENTS],))
    return StreamScorer(fit.scorer, fit.stream, SEED, clock)(asked, clock.earlier_cells(asked.time))


def find_last_full_batch(fit: Trainer) -> int:
    """The number of the epoch's last full batch, whose nodes have a past."""
    return len(fit.stream.train) // fit.config.batch - 1


def make_last_step(fit: Trainer) -> Callable[[], Tensor]:
    """A call that issues this step as training does and waits for the device; it returns the loss."""
    batch = fit.batch(fit.epoch(0), find_last_full_batch(fit))
    fit.scorer.train()

    def step() -> Tensor:
        loss = fit.executor.step(batch)
        synchronize(fit.stream.device.type)
        return loss

    return step


def select_last_batch(fit: Trainer, size: int | None = None) -> tuple[Ids, Ids]:
    """Events and other nodes of this step, or the first `size` of them."""
    first = find_last_full_batch(fit) * fit.config.batch
    rows = slice(first, first + (size or fit.config.batch))
    return fit.stream.train[rows], fit.epoch(0).others[rows]


def get_step_work(fit: Trainer) -> TrainingContext:
    """What a step that follows a gradient is made of."""
    if not isinstance(fit.executor, BatchExecutor):
        raise ConfigError("this model learns in rounds; a step of it has no parts to time")
    return fit.executor.work


def accumulate_gradients(fit: Trainer, events: Ids, others: Ids, size: int) -> float:
    """The loss and gradients of a batch, `size` pairs at a time: the sums are the same, the memory is not."""
    parts = BucketedExecutor(get_step_work(fit), SINGLE_BUCKET)
    view = parts.work.view(events, others)
    parts.gradients.begin()
    chunks = torch.arange(len(view.pairs), device=events.device).split(size)
    loss = sum(float(parts.part(view, chosen)) for chosen in chunks)
    return loss


def measure_step_parts(
    fit: Trainer, events: Ids, others: Ids, repeats: int, warmup: int = 1
) -> dict[str, float]:
    """Median time of each part of a step issued call by call, the device waited for after each."""
    laps = [_time_step_parts(fit, events, others) for _ in range(warmup + repeats)][warmup:]
    return {part: median(lap[number] for lap in laps) for number, part in enumerate(STEP_PARTS)}


def _time_step_parts(fit: Trainer, events: Ids, others: Ids) -> list[float]:
    work, marks = get_step_work(fit), []

    def mark() -> None:
        synchronize(work.device)
        marks.append(time.perf_counter())

    mark()
    with work.precision():
        view = work.view(events, others)
        mark()
        loss = work.loss(view) / len(view.pairs)
        mark()
        work.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark()
    work.optimizer.step()
    work.tell(events)
    mark()
    return [after - before for before, after in pairwise(marks)]


ANCHOR_CHANNELS, ANCHOR_STATES = 400, 16  # of every scan below


@dataclass(frozen=True, slots=True)
class ScanAnchor:
    """mamba_ssm 2.3.2: ms forward, ms forward + backward, MiB beyond the inputs; bf16 last."""

    q: int
    length: int
    forward: float
    both: float
    mib: float
    forward16: float
    both16: float


# the three shapes that a plan is chosen by come first
SCAN_ANCHORS = (
    ScanAnchor(400, 256, 1.116, 4.826, 1070, 0.699, 4.157),
    ScanAnchor(400, 1024, 6.200, 25.291, 3456, 2.969, 19.099),
    ScanAnchor(64, 8192, 7.707, 25.851, 4333, 4.320, 20.134),
    ScanAnchor(400, 2048, 14.827, 55.587, 6626, 7.790, 44.489),
    ScanAnchor(400, 512, 2.993, 11.179, 1864, 1.287, 6.749),
    ScanAnchor(400, 64, 0.720, 2.649, 477, 0.727, 2.669),
    ScanAnchor(400, 32, 0.704, 2.603, 378, 0.709, 2.607),
)


@dataclass(frozen=True, slots=True)
class EpochAnchor:
    """Seconds of one training epoch on UCI: 34,352 events, batch 200, one negative each; the best of its runs."""

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
    """Whether this device is of the kind the anchors were measured on."""
    return device == "cuda" and "H200" in torch.cuda.get_device_name()
