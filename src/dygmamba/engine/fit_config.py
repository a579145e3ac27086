"""How a model is fitted; the defaults are the published protocol's."""

from dataclasses import dataclass
from typing import Literal

from dygmamba.engine.clock import Visible
from dygmamba.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FitConfig:
    """What the training loop goes by, whatever the task and the model."""

    epochs: int = 100
    batch: int = 200
    lr: float = 1e-4
    patience: int = 20
    visible: Visible = "strict"  # what a memory may have been told of when it is asked
    precision: Literal["float32", "tf32", "bf16"] = "tf32"  # of training; evaluation is in float32
    graphs: bool = True  # on a GPU, replay the step as captured graphs
    save_every: float = 30.0  # seconds between checkpoints inside an epoch

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.patience) < 1:
            raise ConfigError("epochs, batch and patience must be at least 1")
        if not self.lr > 0:
            raise ConfigError(f"lr must be above 0, got {self.lr}")
        if self.save_every < 0:
            raise ConfigError(f"save_every must be at least 0, got {self.save_every}")


@dataclass(frozen=True, slots=True)
class NodeFitConfig(FitConfig):
    """The same of a node classifier, and what it is."""

    finetune: bool = False  # also train the backbone
    balance: bool = False  # weigh positives by negatives per positive
