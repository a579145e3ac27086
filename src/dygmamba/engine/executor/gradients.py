"""The gradients of a step: of its parts, added where the last one's lie, and of several processes, in one call each."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from dygmamba.engine.ranks import Ranks


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


class OwnGradients:
    """One process: its gradients are all there are."""

    fresh = True  # each step's may be new tensors

    def sum(self, loss: Tensor) -> Tensor:
        """The batch's loss: this process's."""
        return loss


class Bucket(OwnGradients):
    """Every gradient and the loss in one piece of memory, which one all-reduce sums over the processes.

    A parameter that no pair of this process reached has the gradient zero, so that all have the same to sum.
    """

    fresh = False

    def __init__(self, trained: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self.ranks, self.pieces = ranks, []
        for kind, leaves in groupby(
            sorted(trained, key=lambda leaf: str(leaf.dtype)), lambda leaf: leaf.dtype
        ):
            self.pieces.append(_laid_out(list(leaves), kind))

    def sum(self, loss: Tensor) -> Tensor:
        """Gradients in place; the loss of all."""
        first = self.pieces[0]
        first[-1].copy_(loss)
        for piece in self.pieces:
            self.ranks.sum(piece)
        return first[-1].clone()


def _laid_out(leaves: list[nn.Parameter], kind: torch.dtype) -> Tensor:
    """Zeros that are the gradients of these parameters, one after another, and one number more."""
    piece = torch.zeros(sum(leaf.numel() for leaf in leaves) + 1, dtype=kind, device=leaves[0].device)
    start = 0
    for leaf in leaves:
        leaf.grad = piece[start : start + leaf.numel()].view_as(leaf)
        start += leaf.numel()
    return piece
