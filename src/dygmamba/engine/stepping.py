"""How one optimizer step is issued: in one part or several, call by call or as replays of captured CUDA graphs."""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.engine.buckets import Epoch
from dygmamba.engine.work import LinkWork
from dygmamba.sampling.view import PairView


class EagerSteps:
    """Every step issued operation by operation."""

    def __init__(self, work: LinkWork, events: Int64[Tensor, "k"], size: int) -> None:
        self.work, self.events, self.size = work, events, size
        self.negatives: Tensor | None = None
        self.epoch: Epoch | None = None

    def __call__(self, number: int, negatives: Int64[Tensor, "k"]) -> Float32[Tensor, ""]:
        """The loss of step `number` of an epoch with these negatives; a last, shorter batch is one part."""
        if negatives is not self.negatives:
            self.begin(negatives)
        if (number + 1) * self.size > len(self.events):
            return self.whole(number)
        return self.whole(number) if self.epoch is None else self.parts(number, self.epoch)

    def begin(self, negatives: Int64[Tensor, "k"]) -> None:
        """Prepare an epoch."""
        self.negatives, self.epoch = negatives, self.work.arrange(negatives)

    def batch(self, number: int) -> tuple[Int64[Tensor, "b"], Int64[Tensor, "b"]]:
        """Events and negatives of a step."""
        assert self.negatives is not None
        rows = slice(number * self.size, (number + 1) * self.size)
        return self.events[rows], self.negatives[rows]

    def whole(self, number: int) -> Float32[Tensor, ""]:
        """A step in one part."""
        return self.step(*self.batch(number))

    def step(self, events: Int64[Tensor, "b"], negatives: Int64[Tensor, "b"]) -> Float32[Tensor, ""]:
        """Gradients of a whole batch and the update."""
        self.work.optimizer.zero_grad(set_to_none=self.epoch is None)
        loss = self.work.whole(self.work.view(events, negatives))
        self.work.update(events)
        return loss

    def parts(self, number: int, epoch: Epoch) -> Float32[Tensor, ""]:
        """A step part by part, each with its own look-up length."""
        events, negatives = self.batch(number)
        view, parts = self.work.view(events, negatives), epoch.order[number].split(epoch.sizes)
        self.work.gradients.begin()
        losses = [
            self.work.part(view, chosen, length)
            for chosen, length in zip(parts, epoch.lengths[number], strict=True)
        ]
        self.work.gradients.end()
        self.work.update(events)
        return torch.stack(losses).sum()


class GraphSteps(EagerSteps):
    """Full batches replay captured graphs: a step in one part is one; else one begins it, one ends it, one per length.

    Capturing needs a few calls to warm up; weights, optimizer and generator are put back in place afterwards, so
    a captured run computes what an eager one computes.
    """

    warmup = 3

    def __init__(self, work: LinkWork, events: Int64[Tensor, "k"], size: int) -> None:
        super().__init__(work, events, size)
        self.position, self.first = torch.zeros(2, dtype=torch.int64, device=events.device)
        self.given = torch.zeros_like(events)
        self.offset = torch.arange(size, device=events.device)
        self.order = torch.zeros(len(events) // size * 2 * size, dtype=torch.int64, device=events.device)
        self.loss = torch.zeros((), device=events.device)
        self.view: PairView | None = None  # of the step that is replayed
        self.graphs: dict[str | tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def begin(self, negatives: Int64[Tensor, "k"]) -> None:
        """Prepare an epoch, and capture what it needs and was not captured before."""
        super().begin(negatives)
        self.given.copy_(negatives)
        if len(self.events) < self.size:
            return
        if self.epoch is None:
            self._capture("whole", self._whole)
            return
        self.order.copy_(self.epoch.order.flatten())
        if self.view is None:
            self.view = self.work.view(*self.batch(0))
        shapes = {shape for row in self.epoch.lengths for shape in zip(self.epoch.sizes, row, strict=True)}
        for shape in sorted(shapes, reverse=True):
            self._capture(shape, lambda shape=shape: self._part(*shape))
        self._capture("end", self._end)
        self._capture("begin", self._begin)  # last: by now every gradient that it clears has its place

    def whole(self, number: int) -> Float32[Tensor, ""]:
        """A full batch as one replay."""
        if (number + 1) * self.size > len(self.events):
            return super().whole(number)
        self.position.fill_(number)
        self.graphs["whole"].replay()
        return self.loss.clone()

    def parts(self, number: int, epoch: Epoch) -> Float32[Tensor, ""]:
        """A replay per part, and one before and after them."""
        self.position.fill_(number)
        self.graphs["begin"].replay()
        first = 0
        for size, length in zip(epoch.sizes, epoch.lengths[number], strict=True):
            self.first.fill_(first)
            self.graphs[size, length].replay()
            first += size
        self.graphs["end"].replay()
        return self.loss.clone()

    def _rows(self) -> Tensor:
        return self.position * self.size + self.offset

    def _whole(self) -> None:
        rows = self._rows()
        self.loss.copy_(self.step(self.events[rows], self.given[rows]))

    def _begin(self) -> None:
        assert self.view is not None
        rows = self._rows()
        view = self.work.view(self.events[rows], self.given[rows])
        for column, new in zip(self.view.columns, view.columns, strict=True):
            column.copy_(new)
        self.loss.zero_()
        self.work.gradients.begin()

    def _part(self, size: int, length: int) -> None:
        place = self.position * (2 * self.size) + self.first + torch.arange(size, device=self.order.device)
        assert self.view is not None
        self.loss += self.work.part(self.view, self.order[place], length)

    def _end(self) -> None:
        self.work.gradients.end()
        self.work.update(self.events[self._rows()])

    def _capture(self, key: str | tuple[int, int], body: Callable[[], None]) -> None:
        if key in self.graphs:
            return
        optimizer = self.work.optimizer
        weights = {name: value.clone() for name, value in self.work.scorer.state_dict().items()}
        moments, random = _moments(optimizer), torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(1 if self.graphs else self.warmup):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=self.epoch is None)
        self.graphs[key] = graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            body()
        self.work.scorer.load_state_dict(weights)
        _restore(optimizer, moments)
        torch.cuda.set_rng_state(random)


def _moments(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    tensors = {}
    for number, state in enumerate(optimizer.state.values()):
        tensors |= {(number, key): value.clone() for key, value in state.items() if isinstance(value, Tensor)}
    return tensors


def _restore(optimizer: torch.optim.Optimizer, moments: dict[tuple[int, str], Tensor]) -> None:
    """Write the moments back in place; an optimizer that had none yet starts from zero."""
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.copy_(moments[number, key]) if moments else value.zero_()
