"""A model that has nothing to learn, such as a sum of grown trees: an epoch of it has no step."""

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dygmamba.engine.executor.eager import Batch
from dygmamba.engine.walk import Advance
from dygmamba.errors import ConfigError


class Nothing:
    """No weights, no optimizer, no steps."""

    optimizer: torch.optim.Optimizer | None = None
    steps = 0
    unstudied = 0

    def study(self, advance: Advance) -> None:
        """There is nothing to look up."""

    def catch_up(self, batch: Batch) -> None:
        """There is no memory."""

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """No batch is ever asked for."""
        raise ConfigError(
            f"a model without weights cannot learn from step {batch.number}; train a model that has some"
        )


def has_nothing_to_learn(scorer: nn.Module) -> bool:
    """Whether no weight of it follows a gradient."""
    return not any(parameter.requires_grad for parameter in scorer.parameters())
