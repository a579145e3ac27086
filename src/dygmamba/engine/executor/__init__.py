"""Executors of training steps: eager or as captured CUDA graphs, whole batches or buckets by length, or rounds.

The training loop calls `step(batch)` and does not know which executor it has.
"""

from collections.abc import Callable

from torch import nn

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
from dygmamba.engine.executor.gradient_free import RoundExecutor
from dygmamba.engine.executor.graphs import (
    GraphedBatchExecutor,
    GraphedBucketedExecutor,
    GraphedSplitExecutor,
)
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import DEVICE_COSTS, SINGLE_BUCKET, choose_shares
from dygmamba.engine.stream import Stream
from dygmamba.history.view import NeighborRequest
from dygmamba.models.base import Scorer
from dygmamba.tasks.base import Task

__all__ = ["Batch", "Epoch", "TrainingContext", "check_distributable", "choose_executor"]


def check_distributable(scorer: Scorer, processes: ProcessGroup, batch: int) -> None:
    """Raise ConfigError if several processes cannot share the training of this scorer."""
    if processes.size == 1:  # torchrun may start a single one
        return
    if scorer.rounds_per_epoch:
        raise ConfigError(
            "models that learn in rounds, such as trees, train in one process, which uses every core; got "
            f"{processes.size}. Train without torchrun and with `processes=1`, or choose another model such as "
            "`model='dyg-mamba'`",
            code="not-distributable",
        )
    if batch < processes.size:
        raise ConfigError(
            f"a batch of {batch} events leaves some of {processes.size} processes without any; use fewer processes, or "
            f"`batch={processes.size}` or more",
            code="batch-too-small",
        )


def choose_executor(
    task: Task, scorer: nn.Module, stream: Stream, config: FitConfig, epoch: Callable[[int], Epoch]
) -> BatchExecutor | BucketedExecutor | RoundExecutor:
    """Choose the executor that suits device and model.

    On a GPU a model whose look-ups are all on the device runs as captured graphs, any other model step by step. The
    buckets depend on the first epoch of the run (`epoch(0)`), so that a resumed run continues with the same ones.
    """
    assert isinstance(scorer, Scorer)
    check_distributable(scorer, stream.processes, config.batch)
    if scorer.rounds_per_epoch or not any(parameter.requires_grad for parameter in scorer.parameters()):
        return RoundExecutor(QueryBuilder.create(task, stream, config.training_rule), scorer, stream, epoch)
    context = TrainingContext(task, scorer, stream, config)
    if stream.device.type == "cpu":
        keep_freed_memory()
    shares = SINGLE_BUCKET
    if context.scorer.elastic and context.full_batches and not task.needs_joint_pairs:
        most = NeighborRequest.longest(context.scorer.requests)
        shares = choose_shares(history_lengths(context, epoch(0)), most, DEVICE_COSTS[stream.device.type])
    if shares == SINGLE_BUCKET:
        graphed = GraphedSplitExecutor if stream.processes.is_distributed else GraphedBatchExecutor
        return graphed(context) if context.uses_graphs else BatchExecutor(context)
    return (GraphedBucketedExecutor if context.uses_graphs else BucketedExecutor)(context, shares)
