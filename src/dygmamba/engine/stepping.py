"""How one optimizer step is issued: in one part or several, call by call or as replays of captured CUDA graphs."""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.engine.buckets import Epoch
from dygmamba.engine.work import LinkWork


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
        loss = self.work.accumulate(events, negatives)
        self.work.update(events)
        return loss

    def parts(self, number: int, epoch: Epoch) -> Float32[Tensor, ""]:
        """A step part by part, each with its own look-up length."""
        events, negatives = self.batch(number)
        self.work.optimizer.zero_grad(set_to_none=False)
        chosen = epoch.order[number].split(epoch.sizes)
        losses = [
            self.work.accumulate(events, negatives, pairs, length)
            for pairs, length in zip(chosen, epoch.lengths[number], strict=True)
        ]
        self.work.update(events)
        return torch.stack(losses).sum()


class GraphSteps(EagerSteps):
    """Full batches replay captured graphs: one for a step in one part, else one per length and one for the update.

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
        self.graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def begin(self, negatives: Int64[Tensor, "k"]) -> None:
        """Prepare an epoch, and capture what it needs and was not captured before."""
        super().begin(negatives)
        self.given.copy_(negatives)
        if len(self.events) < self.size:
            return
        if self.epoch is None:
            self._capture((), self._whole)
            return
        self.order.copy_(self.epoch.order.flatten())
        shapes = {shape for row in self.epoch.lengths for shape in zip(self.epoch.sizes, row, strict=True)}
        for shape in sorted(shapes, reverse=True):
            self._capture(shape, lambda shape=shape: self._part(*shape))
        self._capture((), self._finish)

    def whole(self, number: int) -> Float32[Tensor, ""]:
        """A full batch as one replay."""
        if (number + 1) * self.size > len(self.events):
            return super().whole(number)
        self.position.fill_(number)
        self.graphs[()].replay()
        return self.loss.clone()

    def parts(self, number: int, epoch: Epoch) -> Float32[Tensor, ""]:
        """A replay per part, then the update."""
        self.position.fill_(number)
        self.work.optimizer.zero_grad(set_to_none=False)
        self.loss.zero_()
        first = 0
        for size, length in zip(epoch.sizes, epoch.lengths[number], strict=True):
            self.first.fill_(first)
            self.graphs[size, length].replay()
            first += size
        self.graphs[()].replay()
        return self.loss.clone()

    def _rows(self) -> Tensor:
        return self.position * self.size + self.offset

    def _whole(self) -> None:
        rows = self._rows()
        self.loss.copy_(self.step(self.events[rows], self.given[rows]))

    def _part(self, size: int, length: int) -> None:
        rows = self._rows()
        place = self.position * (2 * self.size) + self.first + torch.arange(size, device=rows.device)
        self.loss += self.work.accumulate(self.events[rows], self.given[rows], self.order[place], length)

    def _finish(self) -> None:
        self.work.update(self.events[self._rows()])

    def _capture(self, key: tuple[int, ...], body: Callable[[], None]) -> None:
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
