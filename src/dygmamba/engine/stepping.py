"""How one optimizer step is issued: call by call, or as one replay of a captured CUDA graph."""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

# one optimizer step on these event ids and negative destinations; returns the loss, left on the device
Step = Callable[[Int64[Tensor, "b"], Int64[Tensor, "b"]], Float32[Tensor, ""]]


class EagerSteps:
    """Every step issued operation by operation."""

    def __init__(self, step: Step, events: Int64[Tensor, "k"], size: int) -> None:
        self.step, self.events, self.size = step, events, size

    def __call__(self, number: int, negatives: Int64[Tensor, "k"]) -> Float32[Tensor, ""]:
        """The loss of step `number` of an epoch with these negatives."""
        rows = slice(number * self.size, (number + 1) * self.size)
        return self.step(self.events[rows], negatives[rows])


class GraphSteps(EagerSteps):
    """Full batches replay one captured graph: look-up, forward, backward and update in a single launch.

    Capturing needs a few steps to warm up; weights, optimizer and generator are put back in place afterwards,
    so a captured run computes what an eager one computes.
    """

    warmup = 3

    def __init__(
        self,
        step: Step,
        events: Int64[Tensor, "k"],
        size: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__(step, events, size)
        self.model, self.optimizer = model, optimizer
        self.position = torch.zeros((), dtype=torch.int64, device=events.device)
        self.negatives = torch.zeros_like(events)
        self.offset = torch.arange(size, device=events.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, number: int, negatives: Int64[Tensor, "k"]) -> Float32[Tensor, ""]:
        """As `EagerSteps`; the last, shorter batch of an epoch is issued call by call."""
        if (number + 1) * self.size > len(self.events):
            return super().__call__(number, negatives)
        self.negatives.copy_(negatives)
        self.position.fill_(number)
        if self.graph is None:
            self.graph = self._capture()
        self.graph.replay()
        return self.loss.clone()

    def _body(self) -> Tensor:
        rows = self.position * self.size + self.offset
        return self.step(self.events[rows], self.negatives[rows])

    def _capture(self) -> torch.cuda.CUDAGraph:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        moments = _moments(self.optimizer)
        random = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warmup):
                self._body()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self._body()
        self.model.load_state_dict(weights)
        _restore(self.optimizer, moments)
        torch.cuda.set_rng_state(random)
        return graph


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
