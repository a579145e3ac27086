"""The gradients of a step in parts: each part's are added where the last one's lie, in one call."""

import torch
from torch import Tensor, nn


class PartGradients:
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
