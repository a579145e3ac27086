"""Executors that replay captured CUDA graphs; only a last, short batch is issued operation by operation.

A step in one pass is one graph, or two in distributed training. A step in buckets has one graph that begins it, one per
(size, length) of a bucket, and one that ends it. All-reduces are issued between graphs. A memory update is a graph of
its own. Graphs read the step's number, the epoch's events, negatives and draws from fixed tensors (`GraphInputs`).
"""

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.engine.executor.eager import Batch, BatchExecutor, BucketedExecutor, Epoch, TrainingContext
from dygmamba.engine.length_buckets import BucketShares
from dygmamba.history.view import LabelledView


class GraphRecorder:
    """Captured graphs by key.

    Capturing needs warm-up calls, which change state. Weights, memory, optimizer and generator are restored in place
    afterwards, so that a captured run computes what an eager run computes.
    """

    warmup = 3

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, key: Hashable, body: Callable[[], None], keep_grads: bool = False) -> None:
        """Capture what `body` issues, unless the key is known; `keep_grads` keeps the addresses of gradients."""
        if key in self.graphs:
            return
        optimizer, scorer = self.context.optimizer, self.context.scorer
        weights = {name: value.clone() for name, value in scorer.state_dict().items()}
        moments, random = _copy_optimizer_state(optimizer), torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(1 if self.graphs else self.warmup):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=not keep_grads)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            body()
        self.graphs[key] = graph
        scorer.load_state_dict(weights)
        _restore_optimizer_state(optimizer, moments)
        torch.cuda.set_rng_state(random)

    def replay(self, key: Hashable) -> None:
        self.graphs[key].replay()


class GraphInputs:
    """Fixed tensors from which graphs read what differs between steps, and the loss that they write."""

    def __init__(self, context: TrainingContext) -> None:
        train, size = context.stream.train, context.config.batch
        self.train, self.events = train, train.clone()  # in time order for a memory, and in that of the epoch
        self.step, self.memory_batch, self.first = torch.zeros(3, dtype=torch.int64, device=train.device)
        self.others = torch.zeros_like(train)
        self.offsets = torch.arange(size, device=train.device)
        self.own_offsets = self.offsets[context.own_start : context.own_end]
        self.loss = torch.zeros((), device=train.device)

    def copy_epoch(self, epoch: Epoch) -> None:
        """Copy the events of an epoch and their negatives."""
        self.events.copy_(epoch.events)
        self.others.copy_(epoch.others)

    def rows(self, number: Tensor) -> Tensor:
        """Return the indices of the training events in a full batch."""
        return number * len(self.offsets) + self.offsets

    def own_rows(self, number: Tensor) -> Tensor:
        """Return the indices of those training events of a full batch that this process computes."""
        return number * len(self.offsets) + self.own_offsets


class GraphedBatchExecutor(BatchExecutor):
    """Executor that replays a full batch as one graph."""

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context)
        self.recorder, self.inputs = GraphRecorder(context), GraphInputs(context)

    def prepare(self, epoch: Epoch) -> None:
        """Also copy the inputs of the epoch; in the first epoch capture the graphs."""
        super().prepare(epoch)
        self.inputs.copy_epoch(epoch)
        if self.context.full_batches:
            self.record_step()
            record_memory_update(self.recorder, self.inputs)

    def record_step(self) -> None:
        self.recorder.capture("step", self._step)

    def update_memory(self, number: int) -> None:
        if number >= self.context.full_batches:
            super().update_memory(number)
        else:
            replay_memory_update(self.recorder, self.inputs, number)

    def run(self, batch: Batch) -> Float32[Tensor, ""]:
        if batch.number >= self.context.full_batches:
            return super().run(batch)
        self.inputs.step.fill_(batch.number)
        self.recorder.replay("step")
        return self.inputs.loss.clone()

    def _step(self) -> None:
        self._gradients()
        self.optimizer.step()

    def _gradients(self) -> None:
        rows = self.inputs.own_rows(self.inputs.step)
        self.inputs.loss.copy_(self.compute_gradients(self.inputs.events[rows], self.inputs.others[rows]))


class GraphedSplitExecutor(GraphedBatchExecutor):
    """Executor that replays gradients and update as two graphs, with the all-reduce between them."""

    def record_step(self) -> None:
        self.recorder.capture("step", self._gradients, keep_grads=True)
        self.recorder.capture("end", self.optimizer.step, keep_grads=True)

    def run(self, batch: Batch) -> Float32[Tensor, ""]:
        if batch.number >= self.context.full_batches:
            return super().run(batch)
        self.inputs.step.fill_(batch.number)
        self.recorder.replay("step")
        loss = self.context.bucket.all_reduce(self.inputs.loss)
        self.recorder.replay("end")
        return loss


class GraphedBucketedExecutor(BucketedExecutor):
    """Executor that replays one CUDA graph per bucket, and one CUDA graph before and one after all buckets."""

    def __init__(self, context: TrainingContext, shares: BucketShares) -> None:
        super().__init__(context, shares)
        self.recorder, self.inputs = GraphRecorder(context), GraphInputs(context)
        self.order: Tensor | None = None
        self.queries: LabelledView | None = None  # of the current step; graphs read and write it in place

    def prepare(self, epoch: Epoch) -> None:
        """Also copy the inputs of the epoch, and capture graphs of bucket shapes that are new."""
        super().prepare(epoch)
        assert self.plan is not None
        self.inputs.copy_epoch(epoch)
        if not self.context.full_batches:
            return
        if self.queries is None:
            first = self.context.own_rows(0)
            self.queries = self.context.look_up(epoch.events[first], epoch.others[first])
            self.order = torch.zeros_like(self.plan.order.flatten())
        assert self.order is not None
        self.order.copy_(self.plan.order.flatten())
        shapes = {shape for row in self.plan.lengths for shape in zip(self.plan.sizes, row, strict=True)}
        for shape in sorted(shapes, reverse=True):
            self.recorder.capture(shape, lambda shape=shape: self._part(*shape), keep_grads=True)
        self.recorder.capture("end", self.context.optimizer.step, keep_grads=True)
        # captured last, because by now every gradient that it clears is allocated
        self.recorder.capture("begin", self._begin, keep_grads=True)
        record_memory_update(self.recorder, self.inputs)

    def update_memory(self, number: int) -> None:
        if number >= self.context.full_batches:
            super().update_memory(number)
        else:
            replay_memory_update(self.recorder, self.inputs, number)

    def run(self, batch: Batch) -> Float32[Tensor, ""]:
        if batch.number >= self.context.full_batches or self.plan is None:
            return super().run(batch)
        self.inputs.step.fill_(batch.number)
        self.recorder.replay("begin")
        first = 0
        for shape in zip(self.plan.sizes, self.plan.lengths[batch.number], strict=True):
            self.inputs.first.fill_(first)
            self.recorder.replay(shape)
            first += shape[0]
        loss = self.context.bucket.all_reduce(self.inputs.loss)
        self.recorder.replay("end")
        return loss.clone()

    def _begin(self) -> None:
        assert self.queries is not None
        rows = self.inputs.own_rows(self.inputs.step)
        new_queries = self.context.look_up(self.inputs.events[rows], self.inputs.others[rows])
        # labels are the same in every step, and the pairs of the task are those of the view
        for column, new in zip(self.queries.view.columns, new_queries.view.columns, strict=True):
            column.copy_(new)
        self.inputs.loss.zero_()
        self.gradients.zero()

    def _part(self, size: int, length: int) -> None:
        assert self.queries is not None
        assert self.order is not None
        start = self.inputs.step * len(self.queries.pairs) + self.inputs.first
        chosen = self.order[start + torch.arange(size, device=self.order.device)]
        self.inputs.loss += self.accumulate_part(self.queries, chosen, length)


def record_memory_update(recorder: GraphRecorder, inputs: GraphInputs) -> None:
    """Capture the memory update with a full training batch, if the scorer has a memory."""
    if recorder.context.scorer.stateful:
        recorder.capture(
            "memory",
            lambda: recorder.context.update_memory(inputs.train[inputs.rows(inputs.memory_batch)]),
            keep_grads=True,
        )


def replay_memory_update(recorder: GraphRecorder, inputs: GraphInputs, number: int) -> None:
    """Let the memory observe a full training batch."""
    inputs.memory_batch.fill_(number)
    recorder.replay("memory")


def _copy_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    tensors = {}
    for number, state in enumerate(optimizer.state.values()):
        tensors |= {(number, key): value.clone() for key, value in state.items() if isinstance(value, Tensor)}
    return tensors


def _restore_optimizer_state(
    optimizer: torch.optim.Optimizer, moments: dict[tuple[int, str], Tensor]
) -> None:
    """Write the moments back in place; if there were none before the capture, set them to zero."""
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.copy_(moments[number, key]) if moments else value.zero_()
