"""Settings of the training loop; the defaults are those of the published protocol."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from dygmamba.core.choices import BestMetric, LossName, StoredNegativesName, Visibility
from dygmamba.core.settings import Bounds, Settings

if TYPE_CHECKING:  # this module is imported without torch, to check options
    from dygmamba.engine.visibility import VisibilityRule
    from dygmamba.tasks.losses import Loss


@dataclass(frozen=True, slots=True)
class FitConfig(Settings):
    """Settings of training that do not depend on task and model.

    The comment beside a setting is its description in `dygmamba models`.
    """

    epochs: Annotated[int, Bounds(1, 1_000_000)] = 100  # maximum number of epochs
    batch: Annotated[int, Bounds(1, 100_000_000)] = 200  # events per step
    order: Literal["time", "random"] = (
        "time"  # order of the batches of an epoch; random needs a model without memory
    )
    lr: Annotated[float, Bounds(0, 1e6, above=True)] = 1e-4  # learning rate
    patience: Annotated[int, Bounds(1, 1_000_000)] = (
        20  # epochs without better validation before training stops
    )
    visible: Visibility = (
        "strict"  # events a memory or table sees: strictly earlier ones, or all earlier batches
    )
    precision: Literal["float32", "tf32", "bf16"] = "tf32"  # precision of training; evaluation is in float32
    graphs: bool = True  # replay steps as captured CUDA graphs (GPU only)
    save_every: Annotated[float, Bounds(0, 1e9)] = 30.0  # seconds between checkpoints within an epoch

    @property
    def training_rule(self) -> "VisibilityRule":
        """Visibility in training; a memory observes one batch at once."""
        from dygmamba.engine.visibility import VisibilityRule

        return VisibilityRule(self.visible, self.batch)

    @property
    def rule(self) -> "VisibilityRule":
        """Visibility in evaluation and prediction."""
        return self.training_rule


@dataclass(frozen=True, slots=True)
class LinkFitConfig(FitConfig):
    """Settings of link prediction: negatives, activity rate and loss."""

    train_negatives: StoredNegativesName = "random"  # random destinations, historical pairs, or both
    activity: bool = (
        False  # add the source's log activity rate to the score where negatives replace the source
    )
    loss: LossName = "pairwise"  # loss of each pair, or of each event among candidates of its source
    train_candidates: Annotated[int, Bounds(1, 1_000_000)] = 20  # candidates per event of the ranking loss
    best_metric: BestMetric = "ap"  # the best epoch has the best validation AP and AUC, or MRR
    evaluation_batch: Annotated[int, Bounds(0, 100_000_000)] = (
        0  # events that a memory observes at once in evaluation; 0: as many as in training
    )

    @property
    def rule(self) -> "VisibilityRule":
        """Visibility in evaluation and prediction; AP is averaged over batches of 200 whatever a memory observes."""
        return replace(self.training_rule, batch_size=self.evaluation_batch or self.batch)

    @property
    def loss_function(self) -> "Loss":
        from dygmamba.tasks.losses import LOSSES

        return LOSSES[self.loss].create(self.train_candidates)


@dataclass(frozen=True, slots=True)
class NodeFitConfig(FitConfig):
    """Settings of node tasks."""

    finetune: bool = False  # train the backbone too
    balance: bool = False  # weight classes so that all count the same
    target: Literal["auto", "binary", "classes", "regression"] = (
        "auto"  # what a label is: one of two states, a class or a number; auto finds it from the labels
    )
