"""How a training step is issued: call by call or as captured graphs, as a whole or in parts by length, or as a round.

An executor has one method that learns, `step(batch)`; nothing above this folder knows which one it is.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.core.process_settings import keep_freed_memory
from dygmamba.engine.distributed import ProcessGroup
from dygmamba.engine.executor.eager import (
    Batch,
    BatchExecutor,
    BucketedExecutor,
    Epoch,
    QueryBuilder,
    TrainingContext,
    history_lengths,
)
from dygmamba.engine.executor.gradient_free import NoOpExecutor, RoundExecutor, has_no_trainable_parameters
from dygmamba.engine.executor.graphs import (
    GraphedBatchExecutor,
    GraphedBucketedExecutor,
    GraphedSplitExecutor,
)
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import DEVICE_COSTS, SINGLE_BUCKET, choose_shares
from dygmamba.engine.scoring import Advance
from dygmamba.engine.stream import Stream
from dygmamba.models.base import RoundLearner
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


def check_distributable(scorer: object, ranks: ProcessGroup, batch: int) -> None:
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


def choose_executor(
    task: Task, scorer: nn.Module, stream: Stream, config: FitConfig, epoch: Callable[[int], Epoch]
) -> BatchExecutor | BucketedExecutor | RoundExecutor | NoOpExecutor:
    """The executor that suits device and model; how batches are cut is read off a run's first epoch.

    So a resumed run goes on as it began.
    """
    check_distributable(scorer, stream.ranks, config.batch)
    if isinstance(scorer, RoundLearner):
        return RoundExecutor(QueryBuilder.of(task, stream, config.rule), scorer, stream, epoch)
    if has_no_trainable_parameters(scorer):
        return NoOpExecutor()
    work, graphs = (
        TrainingContext(task, scorer, stream, config),
        stream.device.type == "cuda" and config.graphs,
    )
    if stream.device.type == "cpu":
        keep_freed_memory()
    shares = SINGLE_BUCKET
    if work.scorer.elastic and work.full and not task.together:
        most = NeighborRequest.longest(work.scorer.requests)
        shares = choose_shares(history_lengths(work, epoch(0)), most, DEVICE_COSTS[stream.device.type])
    if shares == SINGLE_BUCKET:
        graphed = GraphedSplitExecutor if stream.ranks.several else GraphedBatchExecutor
        return graphed(work) if graphs else BatchExecutor(work)
    return GraphedBucketedExecutor(work, shares) if graphs else BucketedExecutor(work, shares)
