"""What is asked of training events, whichever way a step is issued: the task's questions, by the run's rule.

Legend: e events, b of a step or a pass.

The gradients of a step: of its parts, added where the last one's lie, and of several processes, in one call each.

What a training step is made of, and steps issued operation by operation: as a whole, or in parts by length.

Legend: k training events, s steps of an epoch, b events of a step, r pairs of a step, p some of them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.process_settings import use_matmul_precision
from dygmamba.engine.distributed import ProcessGroup
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import BucketPlan, BucketShares, plan_buckets
from dygmamba.engine.scoring import Advance
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.models.base import Scorer
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView
from dygmamba.tasks.base import Task


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """The questions of any training events; by the rule `batch` tables know of nothing since the batch began."""

    task: Task
    stream: Stream
    known: Float64[Tensor, "e"] | None  # by event, when its batch began; on the device

    @staticmethod
    def of(task: Task, stream: Stream, rule: VisibilityRule) -> "QueryBuilder":
        """By a rule: training is cut into batches from its beginning."""
        train = stream.split.train
        clock = MemorySchedule.of(stream.store, (train,), rule.cell)
        began = clock.known(rule.visible, torch.arange(len(train)), clock.time)
        if began is None:
            return QueryBuilder(task, stream, None)
        known = torch.zeros(len(stream.store), dtype=torch.float64)
        known[train] = began
        return QueryBuilder(task, stream, known.to(stream.device))

    def __call__(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> PairBatch:
        """A task asks of all events once, then perhaps again, beside the same events in the same order."""
        asked = self.task.questions(self.stream.events.select(events), others)
        if self.known is None:
            return asked
        return asked.as_of(self.known[events].repeat(len(asked) // max(1, len(events))))


class GradientAccumulator:
    """The sum over parts of the gradients of a model's parameters, in their `grad`: `begin` a step, `add` each part."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def begin(self) -> None:
        """No gradient yet; a `grad` that exists stays where it is, as captured graphs want it."""
        grads = [leaf.grad for leaf in self.trained if leaf.grad is not None]
        if grads:
            torch.ops.aten._foreach_zero_.default(grads)

    def add(self, loss: Tensor) -> None:
        """The gradients of one part; a parameter that has no part in the loss keeps what it has."""
        grads = torch.autograd.grad(loss, self.trained, allow_unused=True)
        found = [(leaf, grad) for leaf, grad in zip(self.trained, grads, strict=True) if grad is not None]
        for leaf, _ in found:
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        torch.ops.aten._foreach_add_.List([leaf.grad for leaf, _ in found], [grad for _, grad in found])


class LocalGradients:
    """One process: its gradients are all there are."""

    fresh = True  # each step's may be new tensors

    def sum(self, loss: Tensor) -> Tensor:
        """The batch's loss: this process's."""
        return loss


class GradientBucket(LocalGradients):
    """Every gradient and the loss in one piece of memory, which one all-reduce sums over the processes.

    A parameter that no pair of this process reached has the gradient zero, so that all have the same to sum.
    """

    fresh = False

    def __init__(self, trained: Sequence[nn.Parameter], ranks: ProcessGroup) -> None:
        self.ranks, self.pieces = ranks, []
        for kind, leaves in groupby(
            sorted(trained, key=lambda leaf: str(leaf.dtype)), lambda leaf: leaf.dtype
        ):
            self.pieces.append(_allocate_gradients(list(leaves), kind))

    def sum(self, loss: Tensor) -> Tensor:
        """Gradients in place; the loss of all."""
        first = self.pieces[0]
        first[-1].copy_(loss)
        for piece in self.pieces:
            self.ranks.sum(piece)
        return first[-1].clone()


def _allocate_gradients(leaves: list[nn.Parameter], kind: torch.dtype) -> Tensor:
    """Zeros that are the gradients of these parameters, one after another, and one number more."""
    piece = torch.zeros(sum(leaf.numel() for leaf in leaves) + 1, dtype=kind, device=leaves[0].device)
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
    """An epoch's number, the other node asked about beside each training event, and its draws of neighbours."""

    number: int
    others: Int64[Tensor, "k"]
    draws: Draws


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of an epoch, and the cells of training events that a memory is told of before it."""

    epoch: Epoch
    number: int
    told: range


class TrainingContext:
    """A model under training: its data, its optimizer, and the pieces that every way of issuing a step is made of."""

    def __init__(self, task: Task, scorer: nn.Module, stream: Stream, config: FitConfig) -> None:
        assert isinstance(scorer, Scorer)
        self.task, self.scorer, self.stream, self.config = task, scorer, stream, config
        self.device, self.asking = stream.device.type, QueryBuilder.of(task, stream, config.rule)
        self.trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        on_gpu = self.device == "cuda"
        self.optimizer = torch.optim.Adam(
            self.trained, lr=config.lr, capturable=on_gpu and config.graphs, fused=on_gpu or None
        )
        self.ranks = stream.ranks
        self.bucket = GradientBucket(self.trained, self.ranks) if self.ranks.several else LocalGradients()
        self.first, self.after = self.ranks.share(
            config.batch
        )  # of a full batch, which events are asked here
        self.draws = Draws.of(
            0, 0, stream.device
        )  # captured graphs read its key, so an epoch's is copied into it

    @property
    def full(self) -> int:
        """Full batches of an epoch."""
        return len(self.stream.train) // self.config.batch

    @property
    def size(self) -> int:
        """Events of a full batch that this process asks about: all, unless there are others."""
        return self.after - self.first

    def rows(self, number: int) -> slice:
        """Which of the training events a step, or a cell, takes."""
        start = number * self.config.batch
        return slice(start, min(start + self.config.batch, len(self.stream.train)))

    def own(self, number: int) -> slice:
        """Which of a step's events this process asks about; of a last, short one perhaps none."""
        whole = self.rows(number)
        first, after = self.ranks.share(whole.stop - whole.start)
        return slice(whole.start + first, whole.start + after)

    def asked(self, pairs: int, number: int) -> int:
        """How many pairs a step asks about in all processes, given how many in this one."""
        whole, own = self.rows(number), self.own(number)
        return pairs * (whole.stop - whole.start) // (own.stop - own.start)

    def view(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> PairView:
        """What a step asks, and what the model may see for it."""
        return self.stream.training_view(self.asking(events, others), self.scorer.requests, self.draws)

    def loss(self, view: PairView) -> Tensor:
        """The sum over the pairs of a view."""
        logits, offset = self.scorer(view).float(), self.task.offset(view.pairs)
        return self.task.loss(logits if offset is None else logits + offset, view.pairs.label)

    def precision(self) -> AbstractContextManager[Any]:
        """Inside, products are computed as the run wants them."""
        return PRECISIONS[self.config.precision](self.device)

    def tell(self, events: Int64[Tensor, "b"]) -> None:
        """Let the memory take in these events."""
        self.scorer.observe(self.stream.events.select(events))


class BatchExecutor:
    """A step in one pass."""

    fresh_gradients = True  # each step's gradients are new tensors; else they stay where they lie
    unstudied = 0

    def __init__(self, work: TrainingContext) -> None:
        self.work = work
        self.optimizer = work.optimizer
        self.prepared = -1  # the epoch that the next steps are of
        self.key = 0  # what its chance is a function of

    @property
    def steps(self) -> int:
        """Batches of an epoch, the last one perhaps shorter."""
        return -(-len(self.work.stream.train) // self.work.config.batch)

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """Tell the memory what the batch may see, follow its gradient; the mean loss, left on the device."""
        self.catch_up(batch)
        self.work.ranks.reseed(self.key, batch.number, alike=False)
        return self.issue(batch)

    def catch_up(self, batch: Batch) -> None:
        """Tell the memory what the batch may see."""
        if batch.epoch.number != self.prepared:
            self.prepare(batch.epoch)
            self.prepared = batch.epoch.number
        self.work.ranks.reseed(self.key, batch.number, alike=True)  # every process has the same memory
        for cell in batch.told:
            self.tell(cell)

    def study(self, advance: Advance) -> None:
        """Nothing: each step looks up its own."""

    def prepare(self, epoch: Epoch) -> None:
        """What all steps of an epoch have in common."""
        self.work.draws.key.copy_(epoch.draws.key)
        self.key = int(epoch.draws.key)

    def tell(self, cell: int) -> None:
        """Let the memory take in a cell."""
        self.work.tell(self.work.stream.train[self.work.rows(cell)])

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """Gradients of a whole batch, and the update."""
        rows = self.work.own(batch.number)
        return self.update(self.whole(self.work.stream.train[rows], batch.epoch.others[rows], batch.number))

    def whole(
        self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"], number: int = 0
    ) -> Float32[Tensor, ""]:
        """The gradients of these events of a step, and their part of its mean loss."""
        work = self.work
        work.optimizer.zero_grad(set_to_none=self.fresh_gradients and work.bucket.fresh)
        if not len(events):  # the others have this short batch
            return work.draws.key.new_zeros((), dtype=torch.float32)
        view = work.view(events, others)
        with work.precision():
            loss = work.loss(view) / work.asked(len(view.pairs), number)
            loss.backward()
        return loss.detach()

    def update(self, loss: Float32[Tensor, ""]) -> Float32[Tensor, ""]:
        """Follow the gradient of all processes; their loss."""
        loss = self.work.bucket.sum(loss)
        self.optimizer.step()
        return loss


class BucketedExecutor(BatchExecutor):
    """A full batch part by part, each with its own look-up length; a last, shorter one is a whole."""

    fresh_gradients = False

    def __init__(self, work: TrainingContext, shares: BucketShares) -> None:
        super().__init__(work)
        self.shares, self.gradients = shares, GradientAccumulator(work.scorer)
        self.plan: BucketPlan | None = None

    def prepare(self, epoch: Epoch) -> None:
        """Also how each batch is cut."""
        super().prepare(epoch)
        most = NeighborRequest.longest(self.work.scorer.requests)
        self.plan = plan_buckets(history_lengths(self.work, epoch), self.shares, most)

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """Gradients of the parts, added up, and the update."""
        if batch.number >= self.work.full or self.plan is None:
            return super().issue(batch)
        rows = self.work.own(batch.number)
        view = self.work.view(self.work.stream.train[rows], batch.epoch.others[rows])
        parts = zip(
            self.plan.order[batch.number].split(self.plan.sizes), self.plan.lengths[batch.number], strict=True
        )
        self.gradients.begin()
        losses = [self.part(view, chosen, length) for chosen, length in parts]
        return self.update(torch.stack(losses).sum())

    def part(self, view: PairView, chosen: Int64[Tensor, "p"], length: int | None = None) -> Tensor:
        """Add the gradients of some pairs of a step, none with a history beyond `length`; their part of the loss."""
        with self.work.precision():
            loss = self.work.loss(view.part(chosen, length)) / self.work.asked(len(view.pairs), 0)
            self.gradients.add(loss)
        return loss.detach()


def history_lengths(work: TrainingContext, epoch: Epoch) -> Int64[Tensor, "s r"]:
    """The longer history of each own pair of the full batches, at most as long as is ever looked up."""
    steps, size, train = work.full, work.size, work.stream.train
    rows = torch.arange(steps * work.config.batch, device=train.device).view(steps, -1)
    rows = rows[:, work.first : work.after].flatten()
    pairs = work.task.questions(work.stream.events.select(train[rows]), epoch.others[rows])
    most = NeighborRequest.longest(work.scorer.requests)
    past = work.stream.training_index.past(pairs.node, pairs.when)[1].clamp(max=most)
    lengths = torch.maximum(past[pairs.src_row], past[pairs.dst_row])
    # a task asks of all events once, then once more: a step's questions stand `steps * size` apart
    return lengths.view(-1, steps, size).transpose(0, 1).reshape(steps, -1)
