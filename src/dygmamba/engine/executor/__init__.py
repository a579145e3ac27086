"""How a training step is issued: call by call or as captured graphs, as a whole or in parts by length, or as a round.

An executor has one method that learns, `step(batch)`; nothing above this folder knows which one it is.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dygmamba.engine.executor.asking import Asking
from dygmamba.engine.executor.cuts import COSTS, WHOLE, best_shares
from dygmamba.engine.executor.eager import Batch, Epoch, Parts, Whole, Work, history_lengths
from dygmamba.engine.executor.graphs import GraphedHalves, GraphedParts, GraphedWhole
from dygmamba.engine.executor.nothing import Nothing, has_nothing_to_learn
from dygmamba.engine.executor.rounds import Rounds
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.ranks import Ranks
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance
from dygmamba.errors import ConfigError
from dygmamba.models.base import RoundLearner
from dygmamba.process_wide import keep_freed_memory
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.base import Task

__all__ = ["Batch", "Epoch", "Executor", "Work", "executor_for", "require_shareable"]


class Executor(Protocol):
    """Follows the gradient of one batch after another, or learns round after round."""

    optimizer: torch.optim.Optimizer | None

    @property
    def steps(self) -> int:
        """How many make an epoch."""
        ...

    @property
    def unstudied(self) -> int:
        """Questions that `study` would look up now; none where nothing is made before the first step."""
        ...

    def study(self, advance: Advance) -> None:
        """Make what all steps need."""
        ...

    def catch_up(self, batch: Batch) -> None:
        """Let a memory take in what the batch may see."""
        ...

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """The batch's mean loss, left on the device; afterwards the weights are the next ones."""
        ...


def require_shareable(scorer: object, ranks: Ranks, batch: int) -> None:
    """Refuse what several processes cannot do together."""
    if not ranks.several:
        return
    if isinstance(scorer, RoundLearner):
        raise ConfigError(
            f"this model learns in rounds from one table, which {ranks.size} processes cannot share; train it with "
            "`processes=1`, which uses every core, or take another, such as `model='dyg-mamba'`"
        )
    if batch < ranks.size:
        raise ConfigError(
            f"a batch of {batch} events leaves some of {ranks.size} processes without any; take fewer processes, or "
            f"`batch={ranks.size}` or more"
        )


def executor_for(
    task: Task, scorer: nn.Module, stream: Stream, config: FitConfig, epoch: Callable[[int], Epoch]
) -> Whole | Parts | Rounds | Nothing:
    """The executor that suits device and model; how batches are cut is read off a run's first epoch.

    So a resumed run goes on as it began.
    """
    require_shareable(scorer, stream.ranks, config.batch)
    if isinstance(scorer, RoundLearner):
        return Rounds(Asking.of(task, stream, config.rule), scorer, stream, epoch)
    if has_nothing_to_learn(scorer):
        return Nothing()
    work, graphs = Work(task, scorer, stream, config), stream.device.type == "cuda" and config.graphs
    if stream.device.type == "cpu":
        keep_freed_memory()
    shares = WHOLE
    if work.scorer.elastic and work.full and not task.together:
        most = NeighborRequest.longest(work.scorer.requests)
        shares = best_shares(history_lengths(work, epoch(0)), most, COSTS[stream.device.type])
    if shares == WHOLE:
        graphed = GraphedHalves if stream.ranks.several else GraphedWhole
        return graphed(work) if graphs else Whole(work)
    return GraphedParts(work, shares) if graphs else Parts(work, shares)
