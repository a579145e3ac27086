"""Steps as replays of captured CUDA graphs: nothing is issued operation by operation but what is shorter than a batch.

A step in one pass is one graph, of several processes two; in parts, one graph begins it, one ends it, and there is one
per length. What processes sum is issued between graphs. What a memory is told is a graph of its own. Graphs read a
step's number and an epoch's nodes and draws from fixed places.
"""

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.engine.executor.eager import Batch, BatchExecutor, BucketedExecutor, Epoch, TrainingContext
from dygmamba.engine.length_buckets import BucketShares
from dygmamba.sampling.view import PairView


class GraphRecorder:
    """Captured graphs by name.

    Capturing needs a few calls to warm up; weights, memory, optimizer and generator are put back in place afterwards,
    so a captured run computes what an issued one computes.
    """

    warmup = 3

    def __init__(self, work: TrainingContext) -> None:
        self.work = work
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, key: Hashable, body: Callable[[], None], keep_grads: bool = False) -> None:
        """Record what `body` issues, unless it was recorded before."""
        if key in self.graphs:
            return
        optimizer, scorer = self.work.optimizer, self.work.scorer
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
        """Issue what was recorded."""
        self.graphs[key].replay()


class GraphInputs:
    """Where graphs read what differs from step to step."""

    def __init__(self, work: TrainingContext) -> None:
        train, size = work.stream.train, work.config.batch
        self.train = train
        self.step, self.cell, self.first = torch.zeros(3, dtype=torch.int64, device=train.device)
        self.others = torch.zeros_like(train)
        self.offset = torch.arange(size, device=train.device)
        self.mine = self.offset[work.first : work.after]
        self.loss = torch.zeros((), device=train.device)

    def rows(self, number: Tensor) -> Tensor:
        """The training events' rows of a full cell."""
        return number * len(self.offset) + self.offset

    def own(self, number: Tensor) -> Tensor:
        """Those of a full step that this process asks about."""
        return number * len(self.offset) + self.mine


class GraphedBatchExecutor(BatchExecutor):
    """A full batch as one replay."""

    def __init__(self, work: TrainingContext) -> None:
        super().__init__(work)
        self.recorder, self.places = GraphRecorder(work), GraphInputs(work)

    def prepare(self, epoch: Epoch) -> None:
        """Also what the graphs read; at first, the graphs."""
        super().prepare(epoch)
        self.places.others.copy_(epoch.others)
        if self.work.full:
            self.record()
            record_memory_update(self.recorder, self.places)

    def record(self) -> None:
        """The graph of a step."""
        self.recorder.capture("step", self._step)

    def tell(self, cell: int) -> None:
        """A replay, but of a last, shorter cell."""
        if cell >= self.work.full:
            super().tell(cell)
        else:
            replay_memory_update(self.recorder, self.places, cell)

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """A replay, but of a last, shorter batch."""
        if batch.number >= self.work.full:
            return super().issue(batch)
        self.places.step.fill_(batch.number)
        self.recorder.replay("step")
        return self.places.loss.clone()

    def _step(self) -> None:
        self._gradients()
        self.optimizer.step()

    def _gradients(self) -> None:
        rows = self.places.own(self.places.step)
        self.places.loss.copy_(self.whole(self.places.train[rows], self.places.others[rows]))


class GraphedSplitExecutor(GraphedBatchExecutor):
    """A full batch as two replays, with what the processes sum between them."""

    def record(self) -> None:
        """The graphs of a step's gradients and of its update."""
        self.recorder.capture("step", self._gradients, keep_grads=True)
        self.recorder.capture("end", self.optimizer.step, keep_grads=True)

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """The replays, but of a last, shorter batch."""
        if batch.number >= self.work.full:
            return super().issue(batch)
        self.places.step.fill_(batch.number)
        self.recorder.replay("step")
        loss = self.work.bucket.sum(self.places.loss)
        self.recorder.replay("end")
        return loss


class GraphedBucketedExecutor(BucketedExecutor):
    """A replay per part, and one before and after them."""

    def __init__(self, work: TrainingContext, shares: BucketShares) -> None:
        super().__init__(work, shares)
        self.recorder, self.places = GraphRecorder(work), GraphInputs(work)
        self.order: Tensor | None = None
        self.view: PairView | None = None  # of the step that is replayed

    def prepare(self, epoch: Epoch) -> None:
        """Also what the graphs read, and the graphs of lengths that did not occur before."""
        super().prepare(epoch)
        assert self.plan is not None
        self.places.others.copy_(epoch.others)
        if not self.work.full:
            return
        if self.view is None:
            first = self.work.own(0)
            self.view = self.work.view(self.places.train[first], epoch.others[first])
            self.order = torch.zeros_like(self.plan.order.flatten())
        assert self.order is not None
        self.order.copy_(self.plan.order.flatten())
        shapes = {shape for row in self.plan.lengths for shape in zip(self.plan.sizes, row, strict=True)}
        for shape in sorted(shapes, reverse=True):
            self.recorder.capture(shape, lambda shape=shape: self._part(*shape), keep_grads=True)
        self.recorder.capture("end", self.work.optimizer.step, keep_grads=True)
        # last: by now every gradient that it clears has its place
        self.recorder.capture("begin", self._begin, keep_grads=True)
        record_memory_update(self.recorder, self.places)

    def tell(self, cell: int) -> None:
        """A replay, but of a last, shorter cell."""
        if cell >= self.work.full:
            super().tell(cell)
        else:
            replay_memory_update(self.recorder, self.places, cell)

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """The replays of a full batch; a last, shorter one is issued as a whole, its gradients where they lie."""
        if batch.number >= self.work.full or self.plan is None:
            return super().issue(batch)
        self.places.step.fill_(batch.number)
        self.recorder.replay("begin")
        first = 0
        for shape in zip(self.plan.sizes, self.plan.lengths[batch.number], strict=True):
            self.places.first.fill_(first)
            self.recorder.replay(shape)
            first += shape[0]
        loss = self.work.bucket.sum(self.places.loss)
        self.recorder.replay("end")
        return loss.clone()

    def _begin(self) -> None:
        assert self.view is not None
        rows = self.places.own(self.places.step)
        view = self.work.view(self.places.train[rows], self.places.others[rows])
        for column, new in zip(self.view.columns, view.columns, strict=True):
            column.copy_(new)
        self.places.loss.zero_()
        self.gradients.begin()

    def _part(self, size: int, length: int) -> None:
        assert self.view is not None
        assert self.order is not None
        start = self.places.step * len(self.view.pairs) + self.places.first
        chosen = self.order[start + torch.arange(size, device=self.order.device)]
        self.places.loss += self.part(self.view, chosen, length)


def record_memory_update(recorder: GraphRecorder, places: GraphInputs) -> None:
    """Record what a memory does with a full cell; a model without memory is told nothing."""
    if recorder.work.scorer.stateful:
        recorder.capture(
            "tell", lambda: recorder.work.tell(places.train[places.rows(places.cell)]), keep_grads=True
        )


def replay_memory_update(recorder: GraphRecorder, places: GraphInputs, cell: int) -> None:
    """Let the memory take in a full cell."""
    places.cell.fill_(cell)
    recorder.replay("tell")


def _copy_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    tensors = {}
    for number, state in enumerate(optimizer.state.values()):
        tensors |= {(number, key): value.clone() for key, value in state.items() if isinstance(value, Tensor)}
    return tensors


def _restore_optimizer_state(
    optimizer: torch.optim.Optimizer, moments: dict[tuple[int, str], Tensor]
) -> None:
    """Write the moments back in place; an optimizer that had none yet starts from zero."""
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.copy_(moments[number, key]) if moments else value.zero_()
