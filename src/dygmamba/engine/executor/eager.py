"""Steps issued operation by operation: a batch as a whole, or in parts by the length of histories.

Legend: s steps of an epoch, b events of a step, r pairs of a step.
"""

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.engine.executor.cuts import Plan, Shares, arrange
from dygmamba.engine.executor.gradients import PartGradients
from dygmamba.engine.executor.work import Batch, Epoch, Work
from dygmamba.sampling.view import NeighborRequest, PairView


class Whole:
    """A step in one pass."""

    fresh_gradients = True  # each step's gradients are new tensors; else they stay where they lie

    def __init__(self, work: Work) -> None:
        self.work = work
        self.optimizer = work.optimizer
        self.prepared = -1  # the epoch that the next steps are of

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """Tell the memory what the batch may see, follow its gradient; the mean loss, left on the device."""
        if batch.epoch.number != self.prepared:
            self.prepare(batch.epoch)
            self.prepared = batch.epoch.number
        for cell in batch.told:
            self.tell(cell)
        return self.issue(batch)

    def prepare(self, epoch: Epoch) -> None:
        """What all steps of an epoch have in common."""
        self.work.draws.key.copy_(epoch.draws.key)

    def tell(self, cell: int) -> None:
        """Let the memory take in a cell."""
        self.work.tell(self.work.stream.train[self.work.rows(cell)])

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """Gradients of a whole batch, and the update."""
        rows = self.work.rows(batch.number)
        return self.whole(self.work.stream.train[rows], batch.epoch.others[rows])

    def whole(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> Float32[Tensor, ""]:
        """The same for these events."""
        work = self.work
        work.optimizer.zero_grad(set_to_none=self.fresh_gradients)
        view = work.view(events, others)
        with work.precision():
            loss = work.loss(view) / len(view.pairs)
            loss.backward()
        work.optimizer.step()
        return loss.detach()


class Parts(Whole):
    """A full batch part by part, each with its own look-up length; a last, shorter one is a whole."""

    fresh_gradients = False

    def __init__(self, work: Work, shares: Shares) -> None:
        super().__init__(work)
        self.shares, self.gradients = shares, PartGradients(work.scorer)
        self.plan: Plan | None = None

    def prepare(self, epoch: Epoch) -> None:
        """Also how each batch is cut."""
        super().prepare(epoch)
        most = NeighborRequest.longest(self.work.scorer.requests)
        self.plan = arrange(history_lengths(self.work, epoch), self.shares, most)

    def issue(self, batch: Batch) -> Float32[Tensor, ""]:
        """Gradients of the parts, added up, and the update."""
        if batch.number >= self.work.full or self.plan is None:
            return super().issue(batch)
        rows = self.work.rows(batch.number)
        view = self.work.view(self.work.stream.train[rows], batch.epoch.others[rows])
        parts = zip(
            self.plan.order[batch.number].split(self.plan.sizes), self.plan.lengths[batch.number], strict=True
        )
        self.gradients.begin()
        losses = [self.part(view, chosen, length) for chosen, length in parts]
        self.gradients.end()
        self.work.optimizer.step()
        return torch.stack(losses).sum()

    def part(self, view: PairView, chosen: Int64[Tensor, "p"], length: int | None = None) -> Tensor:
        """Add the gradients of some pairs of a step, none with a history beyond `length`; their part of the loss."""
        with self.work.precision(), self.gradients.derived.in_use():
            loss = self.work.loss(view.part(chosen, length)) / len(view.pairs)
            self.gradients.add(loss)
        return loss.detach()


def history_lengths(work: Work, epoch: Epoch) -> Int64[Tensor, "s r"]:
    """The longer history of each pair of the full batches, at most as long as is ever looked up."""
    steps, size = work.full, work.config.batch
    events = work.stream.train[: steps * size]
    pairs = work.task.questions(work.stream.events.select(events), epoch.others[: steps * size])
    most = NeighborRequest.longest(work.scorer.requests)
    past = work.stream.training_index.past(pairs.node, pairs.when)[1].clamp(max=most)
    lengths = torch.maximum(past[pairs.src_row], past[pairs.dst_row])
    # a task asks of all events once, then once more: a step's questions stand `steps * size` apart
    return lengths.view(-1, steps, size).transpose(0, 1).reshape(steps, -1)
