"""How a model is fitted; the defaults are the published protocol's."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dygmamba.core.settings import Bounds, Settings
from dygmamba.engine.visibility import Visibility, VisibilityRule
from dygmamba.tasks.losses import LOSSES, Loss, LossName
from dygmamba.tasks.training_negatives import TrainNegativesName


@dataclass(frozen=True, slots=True)
class FitConfig(Settings):
    """What the training loop goes by, whatever the task and the model."""

    epochs: Annotated[int, Bounds(1, 1_000_000)] = 100  # epochs at most
    batch: Annotated[int, Bounds(1, 100_000_000)] = 200  # events of a step
    lr: Annotated[float, Bounds(0, 1e6, above=True)] = 1e-4  # learning rate
    patience: Annotated[int, Bounds(1, 1_000_000)] = (
        20  # epochs without a better validation after which training ends
    )
    visible: Visibility = "strict"  # what a memory, or a table of the past, may know of when it is asked
    precision: Literal["float32", "tf32", "bf16"] = "tf32"  # of training; evaluation is in float32
    graphs: bool = True  # on a GPU, replay the step as captured graphs
    save_every: Annotated[float, Bounds(0, 1e9)] = 30.0  # seconds between checkpoints inside an epoch

    @property
    def rule(self) -> VisibilityRule:
        """What a memory is told in training, and so in evaluation: a batch at once."""
        return VisibilityRule(self.visible, self.batch)


@dataclass(frozen=True, slots=True)
class LinkFitConfig(FitConfig):
    """The same of link prediction: what events are told from, and whether it counts how active a source is."""

    train_negatives: TrainNegativesName = (
        "random"  # pairs that were not: any destination, one seen before, both, or both at known odds
    )
    activity: bool = False  # where negatives replace the source, add its log rate to the score
    loss: LossName = "pairwise"  # of every pair alone, or of each event among candidates of its source
    train_candidates: Annotated[int, Bounds(1, 1_000_000)] = 20  # of each event, for the ranking loss

    @property
    def judge(self) -> Loss:
        """What a step is judged by."""
        return LOSSES[self.loss].of(self.train_candidates)


@dataclass(frozen=True, slots=True)
class NodeFitConfig(FitConfig):
    """The same of a node classifier, and what it is."""

    finetune: bool = False  # also train the backbone
    balance: bool = False  # weigh positives by negatives per positive
