"""The gradients of a step in parts: what all parts have in common is done once, and each is added in one call."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dygmamba.nn.derived import DerivedWeights


class PartGradients:
    """The sum over parts of the gradients of a model's parameters, in their `grad`.

    `begin` a step, add each part's loss inside `derived.in_use()`, and `end` it: a weight derived from others is
    computed once a step, and so is the way of its gradient to the parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.derived = DerivedWeights(model)

    def begin(self) -> None:
        """No gradient yet; a `grad` that exists stays where it is, as captured graphs want it."""
        grads = [leaf.grad for leaf in (*self.trained, *self.derived.leaves) if leaf.grad is not None]
        if grads:
            torch.ops.aten._foreach_zero_.default(grads)
        self.derived.refresh()

    def add(self, loss: Tensor) -> None:
        """The gradients of one part."""
        leaves = [*self.trained, *self.derived.leaves]
        _add(leaves, torch.autograd.grad(loss, leaves, allow_unused=True))

    def end(self) -> None:
        """What the parts left at the derived weights, taken on to the parameters."""
        pairs = zip(self.derived.values(), self.derived.leaves, strict=True)
        reached = [(value, leaf.grad) for value, leaf in pairs if leaf.grad is not None]
        if reached:
            values, grads = zip(*reached, strict=True)
            _add(self.trained, torch.autograd.grad(values, self.trained, grads, allow_unused=True))


def _add(leaves: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """Add to each leaf's `grad`, all at once; a leaf that had no part in the result keeps what it has."""
    found = [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
    for leaf, _ in found:
        if leaf.grad is None:
            leaf.grad = torch.zeros_like(leaf)
    torch.ops.aten._foreach_add_.List([leaf.grad for leaf, _ in found], [grad for _, grad in found])
