"""Weights as they are applied, where these are functions of the parameters alone.

A module computes such a weight where it uses it. For several passes under the same parameters, `DerivedWeights`
computes it once, and takes its gradient to the parameters once: the passes see a leaf in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

Compute = Callable[[Any], Tensor]
_DERIVED, _LEAVES = "derived", "_derived_leaves"


def derived(method: Compute) -> Compute:
    """Marks a method that makes one tensor of its module's parameters and of nothing else."""

    @wraps(method)
    def weight(self: nn.Module) -> Tensor:
        leaves = self.__dict__.get(_LEAVES, {})
        return leaves[method.__name__] if method.__name__ in leaves else method(self)

    weight.__dict__[_DERIVED] = True
    return weight


class DerivedWeights:
    """All derived weights of a model, as leaves of which it can be made to compute."""

    def __init__(self, model: nn.Module) -> None:
        self.places = [(module, name) for module in model.modules() for name in _names(type(module))]
        with torch.no_grad():
            self.leaves = [value.clone().requires_grad_() for value in self.values()]

    def values(self) -> list[Tensor]:
        """The weights of the present parameters, differentiable in these."""
        return [getattr(module, name)() for module, name in self.places]

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the leaves have the values of the present parameters, in place."""
        if self.leaves:
            torch.ops.aten._foreach_copy_.default(self.leaves, self.values())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the model computes with the leaves."""
        for (module, name), leaf in zip(self.places, self.leaves, strict=True):
            module.__dict__.setdefault(_LEAVES, {})[name] = leaf
        try:
            yield
        finally:
            for module, _ in self.places:
                module.__dict__.pop(_LEAVES, None)


def _names(kind: type) -> list[str]:
    return [name for name in dir(kind) if _DERIVED in getattr(getattr(kind, name), "__dict__", {})]
