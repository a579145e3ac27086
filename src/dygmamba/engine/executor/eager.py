"""Eager executors: training steps issued operation by operation, as a whole batch or in buckets by history length.

Also what every executor is built from: the queries of a step (`QueryBuilder`), accumulated and all-reduced gradients,
and the `TrainingContext` with data, model and optimizer.

Legend: e events, k training events, s steps of an epoch, b events of a step, r pairs of a step, p some pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.process_settings import use_matmul_precision
from dygmamba.core.progress import Advance
from dygmamba.engine.distributed import ProcessGroup
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import BucketPlan, BucketShares, plan_buckets
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.history.draws import Draws
from dygmamba.history.view import LabelledPairs, LabelledView, NeighborRequest, PairView, Request
from dygmamba.models.base import Scorer
from dygmamba.tasks.base import Task

SAMPLED_BATCHES = 100  # from whose queries the statistics of inputs are fitted


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """Builder of the queries of training events, with the lag of tables under batch visibility."""

    task: Task
    stream: Stream
    table_time: Float64[Tensor, "e"] | None  # by event, the time of its batch's first event; on the device

    @staticmethod
    def create(task: Task, stream: Stream, rule: VisibilityRule) -> "QueryBuilder":
        train = stream.split.train
        schedule = MemorySchedule.from_periods(stream.store, (train,), rule.batch_size)
        times = schedule.table_times(rule.visible, torch.arange(len(train)), schedule.time)
        if times is None:
            return QueryBuilder(task, stream, None)
        table_time = torch.zeros(len(stream.store), dtype=torch.float64)
        table_time[train] = times
        return QueryBuilder(task, stream, table_time.to(stream.device))

    def __call__(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> LabelledPairs:
        pairs = self.task.build_queries(self.stream.events.select(events), others)
        if self.table_time is None:
            return pairs
        # tasks return all events once, then their negatives in the same order, so the times repeat
        return pairs.with_table_time(self.table_time[events].repeat(len(pairs) // max(1, len(events))))


class GradientAccumulator:
    """Sum of the gradients of a step's parts in the parameters' `grad`: call `zero`, then `add` for each part."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def zero(self) -> None:
        """Set all gradients to zero in place: captured graphs rely on the address of every `grad`."""
        grads = [leaf.grad for leaf in self.trained if leaf.grad is not None]
        if grads:
            torch.ops.aten._foreach_zero_.default(grads)

    def add(self, loss: Tensor) -> None:
        """Add the gradients of one part; a parameter that the loss does not reach keeps its gradient."""
        grads = torch.autograd.grad(loss, self.trained, allow_unused=True)
        reached = [(leaf, grad) for leaf, grad in zip(self.trained, grads, strict=True) if grad is not None]
        for leaf, _ in reached:
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        torch.ops.aten._foreach_add_.List([leaf.grad for leaf, _ in reached], [grad for _, grad in reached])


class LocalGradients:
    """Gradients of a single process, which need no reduction."""

    allows_new_tensors = True  # whether each step may allocate new gradients

    def all_reduce(self, loss: Tensor) -> Tensor:
        """Return the loss of the batch."""
        return loss


class GradientBucket(LocalGradients):
    """All gradients and the loss in one flat tensor per dtype, which one all-reduce sums over the processes.

    A parameter that no pair of this process reaches has a zero gradient, so that every process sums the same tensors.
    """

    allows_new_tensors = False

    def __init__(self, trained: Sequence[nn.Parameter], processes: ProcessGroup) -> None:
        self.processes, self.pieces = processes, []
        for dtype, leaves in groupby(
            sorted(trained, key=lambda leaf: str(leaf.dtype)), lambda leaf: leaf.dtype
        ):
            self.pieces.append(_allocate_gradients(list(leaves), dtype))

    def all_reduce(self, loss: Tensor) -> Tensor:
        """Sum the gradients of all processes in place; return the sum of their losses."""
        first = self.pieces[0]
        first[-1].copy_(loss)
        for piece in self.pieces:
            self.processes.all_reduce(piece)
        return first[-1].clone()


def _allocate_gradients(leaves: list[nn.Parameter], dtype: torch.dtype) -> Tensor:
    """Make the gradients of the parameters views of one flat tensor, with one more element for the loss."""
    piece = torch.zeros(sum(leaf.numel() for leaf in leaves) + 1, dtype=dtype, device=leaves[0].device)
    start = 0
    for leaf in leaves:
        leaf.grad = piece[start : start + leaf.numel()].view_as(leaf)
        start += leaf.numel()
    return piece


PRECISIONS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "float32": lambda device: nullcontext(),
    "tf32": lambda device: use_matmul_precision("high") if device == "cuda" else nullcontext(),
    "bf16": lambda device: torch.autocast(device, dtype=torch.bfloat16),
}


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch's number, its training events in their order, what was drawn for their negatives, and neighbor draws."""

    number: int
    events: Int64[Tensor, "k"]
    others: Int64[Tensor, "k"]
    draws: Draws


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of an epoch, and the numbers of the training batches that a memory observes before it."""

    epoch: Epoch
    number: int
    memory_batches: range


def can_capture(device: str, requests: tuple[Request, ...]) -> bool:
    """Return whether a training step can be captured as a CUDA graph: all it looks up is on the device.

    A graph replays what was issued on the device, so it would repeat the look-ups on the host of one batch.
    """
    return device == "cuda" and not any(request.on_host for request in requests)


class TrainingContext:
    """A model in training with its data and optimizer, and the parts of a step that all executors share."""

    def __init__(self, task: Task, scorer: nn.Module, stream: Stream, config: FitConfig) -> None:
        assert isinstance(scorer, Scorer)
        self.task, self.scorer, self.stream, self.config = task, scorer, stream, config
        self.device = stream.device.type
        self.build_queries = QueryBuilder.create(task, stream, config.training_rule)
        self.parameters = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        on_gpu = self.device == "cuda"
        self.uses_graphs = config.graphs and can_capture(self.device, scorer.requests)
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=config.lr, capturable=self.uses_graphs, fused=on_gpu or None
        )
        self.processes = stream.processes
        is_alone = not self.processes.is_distributed
        self.bucket = LocalGradients() if is_alone else GradientBucket(self.parameters, self.processes)
        # events of a full batch that this process computes
        self.own_start, self.own_end = self.processes.share(config.batch)
        # captured graphs read this key, so the key of an epoch is copied into it
        self.draws = Draws.from_seed(0, 0, stream.device)

    @property
    def full_batches(self) -> int:
        """Number of full batches of an epoch."""
        return len(self.stream.train) // self.config.batch

    @property
    def own_size(self) -> int:
        """Number of events of a full batch that this process computes."""
        return self.own_end - self.own_start

    def rows(self, number: int) -> slice:
        """Return the range of training events of a batch."""
        start = number * self.config.batch
        return slice(start, min(start + self.config.batch, len(self.stream.train)))

    def own_rows(self, number: int) -> slice:
        """Return the rows of a batch that this process computes; they may be empty if the last batch is short."""
        batch = self.rows(number)
        first, end = self.processes.share(batch.stop - batch.start)
        return slice(batch.start + first, batch.start + end)

    def count_pairs(self, pairs: int, number: int) -> int:
        """Return the number of pairs of a batch in all processes, given the number in this process."""
        batch, own = self.rows(number), self.own_rows(number)
        return pairs * (batch.stop - batch.start) // (own.stop - own.start)

    def look_up(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> LabelledView:
        """Return the queries of these events with what the model requested."""
        pairs = self.build_queries(events, others)
        return LabelledView(self.stream.training_view(pairs, self.scorer.requests, self.draws), pairs)

    def loss(self, queries: LabelledView) -> Tensor:
        """Return the sum of the losses of the queries."""
        view, pairs = queries
        return self.task.loss(self.scorer(view).float(), pairs.label)

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context manager in which matrix products have the run's precision."""
        return PRECISIONS[self.config.precision](self.device)

    def update_memory(self, events: Int64[Tensor, "b"]) -> None:
        self.scorer.observe(self.stream.events.select(events))


class BatchExecutor:
    """Executor that computes a batch in one pass."""

    new_gradients = True  # whether each step allocates new gradients instead of keeping their addresses
    pending_queries = 0

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.optimizer = context.optimizer
        self.prepared_epoch = -1
        self.seed_key = 0  # seed of the epoch's dropout masks in distributed training

    @property
    def steps(self) -> int:
        """Number of batches of an epoch; the last one may be shorter."""
        return -(-len(self.context.stream.train) // self.context.config.batch)

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """Update the memory, then the weights; return the mean loss, left on the device."""
        self.catch_up(batch)
        self.context.processes.reseed(self.seed_key, batch.number, alike=False)
        return self.run(batch)

    def catch_up(self, batch: Batch) -> None:
        """Update the memory with the batches that became visible since the previous step."""
        if batch.epoch.number != self.prepared_epoch:
            self.prepare(batch.epoch)
            self.prepared_epoch = batch.epoch.number
        # every process has the same memory
        self.context.processes.reseed(self.seed_key, batch.number, alike=True)
        for number in batch.memory_batches:
            self.update_memory(number)

    def build_table(self, advance: Advance) -> None:
        """Do nothing: each step looks up its own queries."""

    def prepare(self, epoch: Epoch) -> None:
        """Set up what all steps of an epoch have in common; before the first one fit the statistics of inputs."""
        self.context.draws.key.copy_(epoch.draws.key)
        self.seed_key = int(epoch.draws.key)
        scorer = self.context.scorer
        if not scorer.is_fitted:
            scorer.fit_inputs(self._sample_views(epoch))

    def _sample_views(self, epoch: Epoch) -> Iterator[PairView]:
        """Yield the queries of some batches, evenly spaced over the epoch; the same ones in every process."""
        for number in torch.linspace(0, self.steps - 1, min(self.steps, SAMPLED_BATCHES)).long().tolist():
            rows = self.context.rows(number)
            yield self.context.look_up(epoch.events[rows], epoch.others[rows]).view

    def update_memory(self, number: int) -> None:
        """Let the memory observe a training batch."""
        self.context.update_memory(self.context.stream.train[self.context.rows(number)])

    def run(self, batch: Batch) -> Float32[Tensor, ""]:
        """Compute the gradients of a batch and update the weights; return the mean loss."""
        rows = self.context.own_rows(batch.number)
        events, others = batch.epoch.events[rows], batch.epoch.others[rows]
        return self.update(self.compute_gradients(events, others, batch.number))

    def compute_gradients(
        self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"], number: int = 0
    ) -> Float32[Tensor, ""]:
        """Compute the gradients of these events of a batch; return their part of the mean loss."""
        context = self.context
        context.optimizer.zero_grad(set_to_none=self.new_gradients and context.bucket.allows_new_tensors)
        if not len(events):  # other processes compute this short batch
            return context.draws.key.new_zeros((), dtype=torch.float32)
        queries = context.look_up(events, others)
        with context.precision():
            loss = context.loss(queries) / context.count_pairs(len(queries.pairs), number)
            loss.backward()
        return loss.detach()

    def update(self, loss: Float32[Tensor, ""]) -> Float32[Tensor, ""]:
        """Sum the gradients over the processes and step the optimizer; return the summed loss."""
        loss = self.context.bucket.all_reduce(loss)
        self.optimizer.step()
        return loss


class BucketedExecutor(BatchExecutor):
    """Executor that computes a full batch in buckets by history length; a short last batch is one pass."""

    new_gradients = False

    def __init__(self, context: TrainingContext, shares: BucketShares) -> None:
        super().__init__(context)
        self.shares, self.gradients = shares, GradientAccumulator(context.scorer)
        self.plan: BucketPlan | None = None

    def prepare(self, epoch: Epoch) -> None:
        super().prepare(epoch)
        most = NeighborRequest.longest(self.context.scorer.requests)
        self.plan = plan_buckets(history_lengths(self.context, epoch), self.shares, most)

    def run(self, batch: Batch) -> Float32[Tensor, ""]:
        if batch.number >= self.context.full_batches or self.plan is None:
            return super().run(batch)
        rows = self.context.own_rows(batch.number)
        queries = self.context.look_up(batch.epoch.events[rows], batch.epoch.others[rows])
        parts = zip(
            self.plan.order[batch.number].split(self.plan.sizes), self.plan.lengths[batch.number], strict=True
        )
        self.gradients.zero()
        losses = [self.accumulate_part(queries, chosen, length) for chosen, length in parts]
        return self.update(torch.stack(losses).sum())

    def accumulate_part(
        self, queries: LabelledView, chosen: Int64[Tensor, "p"], length: int | None = None
    ) -> Tensor:
        """Add the gradients of some pairs of a step; return their part of the mean loss.

        No history of these pairs may be longer than `length`.
        """
        with self.context.precision():
            total = self.context.count_pairs(len(queries.pairs), 0)
            loss = self.context.loss(queries.select_part(chosen, length)) / total
            self.gradients.add(loss)
        return loss.detach()


def history_lengths(context: TrainingContext, epoch: Epoch) -> Int64[Tensor, "s r"]:
    """Return the longer history of each own pair of the full batches, at most the requested length."""
    steps, size = context.full_batches, context.own_size
    rows = torch.arange(steps * context.config.batch, device=epoch.events.device).view(steps, -1)
    rows = rows[:, context.own_start : context.own_end].flatten()
    pairs = context.task.build_queries(context.stream.events.select(epoch.events[rows]), epoch.others[rows])
    most = NeighborRequest.longest(context.scorer.requests)
    past = context.stream.training_index.past(pairs.node, pairs.when)[1].clamp(max=most)
    lengths = torch.maximum(past[pairs.src_row], past[pairs.dst_row])
    # tasks return all events first, then their negatives: an event and its negative are `steps * size` apart
    return lengths.view(-1, steps, size).transpose(0, 1).reshape(steps, -1)
