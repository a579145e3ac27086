"""What an optimizer step of link prediction is made of: the data it reads, the gradients, the update.

Legend: s steps of an epoch, b events of a step, r = 2 b pairs, p some of them, k training events.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.data.events import EventStore
from dygmamba.data.splits import Split
from dygmamba.engine.buckets import CUTS, Cut, Epoch, arrange, best_cut, pair_lengths
from dygmamba.engine.gradients import PartGradients
from dygmamba.engine.host_memory import keep_freed_memory
from dygmamba.errors import ConfigError, EventError
from dygmamba.models.base import EncoderScorer
from dygmamba.ops.precision import float32_products
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import NeighborRequest, PairView
from dygmamba.tasks.link import positives_and_negatives


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """What every training loop has; the defaults are the published protocol's."""

    epochs: int = 100
    batch: int = 200
    lr: float = 1e-4
    patience: int = 20

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch, self.patience) < 1:
            raise ConfigError("epochs, batch and patience must be at least 1")
        if not self.lr > 0:
            raise ConfigError(f"lr must be above 0, got {self.lr}")


@dataclass(frozen=True, slots=True)
class TrainConfig(LoopConfig):
    """How a model is trained on link prediction."""

    precision: Literal["float32", "tf32", "bf16"] = "tf32"  # of training on a GPU; evaluation is in float32
    graphs: bool = True  # on a GPU, replay the step as one captured graph
    save_every: float = 30.0  # seconds between checkpoints inside an epoch

    def __post_init__(self) -> None:
        LoopConfig.__post_init__(self)
        if self.save_every < 0:
            raise ConfigError(f"save_every must be at least 0, got {self.save_every}")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A stream and its split on one device, with the index training may see and the one evaluation sees."""

    store: EventStore
    split: Split
    past: NeighborIndex
    full: NeighborIndex
    destinations: Int64[Tensor, "k"]

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device) -> "TrainingData":
        """Everything training looks things up in, moved to the device once."""
        if not len(split.train):
            raise EventError("no training events are left after holding out new nodes; use a longer stream")
        on = store.to(device)
        return TrainingData(
            store=on,
            split=split.to(device),
            past=NeighborIndex.build(store, split.train).to(device),
            full=NeighborIndex.build(store).to(device),
            destinations=torch.unique(store.dst[split.train]).to(device),
        )

    def negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """One random training destination per training event, the same on every device."""
        rng = torch.Generator().manual_seed((seed << 20) + epoch)
        draw = torch.randint(len(self.destinations), (len(self.split.train),), generator=rng)
        return self.destinations[draw.to(self.destinations.device)]


PRECISIONS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "float32": lambda device: nullcontext(),
    "tf32": lambda device: float32_products("high") if device == "cuda" else nullcontext(),
    "bf16": lambda device: torch.autocast(device, dtype=torch.bfloat16),
}


class LinkWork:
    """A model, its optimizer and the training events: gradients of pairs, and the update."""

    def __init__(self, scorer: EncoderScorer, data: TrainingData, config: TrainConfig, seed: int) -> None:
        self.scorer, self.data, self.config, self.seed = scorer, data, config, seed
        on_gpu = data.store.time.device.type == "cuda"
        self.graphed = on_gpu and config.graphs
        if not on_gpu:
            keep_freed_memory()
        self.gradients = PartGradients(scorer)
        self.optimizer = torch.optim.Adam(
            self.gradients.trained, lr=config.lr, capturable=self.graphed, fused=on_gpu or None
        )
        self.longest = NeighborRequest.longest(scorer.requests)
        self.cut = self._best_cut()

    def view(self, events: Int64[Tensor, "b"], negatives: Int64[Tensor, "b"]) -> PairView:
        """What a step asks, and what the model may see for it."""
        batch = self.data.store.select(events)
        pairs = positives_and_negatives(batch, batch.src, negatives)
        return gather_view(self.data.past, self.data.store.features, pairs, self.scorer.requests)

    def whole(self, view: PairView) -> Tensor:
        """Add the gradients of all pairs of a step; the loss."""
        with PRECISIONS[self.config.precision](view.pairs.node.device.type):
            loss = self._loss(view) / len(view.pairs)
            loss.backward()
        return loss.detach()

    def part(self, view: PairView, chosen: Int64[Tensor, "p"], length: int | None = None) -> Tensor:
        """Add the gradients of some pairs of a step, none with a history beyond `length`; their part of the loss.

        `gradients.begin` comes before a step's first part, `gradients.end` after its last.
        """
        with PRECISIONS[self.config.precision](chosen.device.type), self.gradients.derived.in_use():
            loss = self._loss(view.part(chosen, length)) / len(view.pairs)
            self.gradients.add(loss)
        return loss.detach()

    def _loss(self, view: PairView) -> Tensor:
        """The sum over these pairs."""
        logits = self.scorer(view).float()
        return binary_cross_entropy_with_logits(logits, view.pairs.label, reduction="sum")

    def update(self, events: Int64[Tensor, "b"]) -> None:
        """Change the weights, and let the model observe the batch."""
        self.optimizer.step()
        self.scorer.observe(self.data.store.select(events))

    def arrange(self, negatives: Int64[Tensor, "k"]) -> Epoch | None:
        """How the full batches of an epoch are cut by length; None: each is one part."""
        return arrange(self._lengths(negatives), self.cut, self.longest) if len(self.cut) > 1 else None

    def _lengths(self, negatives: Int64[Tensor, "k"]) -> Int64[Tensor, "s r"]:
        store, train = self.data.store, self.data.split.train
        ends = store.src[train], store.dst[train], store.time[train]
        return pair_lengths(self.data.past, ends, negatives, self.config.batch, self.longest)

    def _best_cut(self) -> Cut:
        """Chosen by the first epoch, so that a resumed run goes on as it began."""
        if not self.scorer.elastic:
            return CUTS[0]
        return best_cut(self._lengths(self.data.negatives(self.seed, 0)), self.longest)
