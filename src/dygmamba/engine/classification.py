"""Training a node classifier: binary cross-entropy, validation AUC decides; the backbone frozen or fine-tuned.

Legend: k events, b of a batch, d width.
"""

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from dygmamba.engine.embedding import Advance, Embeddings, FineTuned, Frozen, LabelledStream
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.training import Interrupted, Reporter
from dygmamba.engine.work import LoopConfig
from dygmamba.errors import DygError
from dygmamba.models.base import NodeClassifier
from dygmamba.tasks.node import NodeMetrics, node_metrics, positive_weight


@dataclass(frozen=True, slots=True)
class NodeTrainConfig(LoopConfig):
    """How the classifier is trained."""

    finetune: bool = False  # also train the backbone
    balance: bool = False  # weigh positives by negatives per positive


class NodeTraining:
    """A classifier under training: head, backbone and the folder that keeps the best of them."""

    def __init__(
        self, model: NodeClassifier, data: LabelledStream, config: NodeTrainConfig, run: RunFolder, seed: int
    ) -> None:
        self.model, self.data, self.config, self.run, self.seed = model, data, config, run, seed
        trained = model if config.finetune else model.head
        parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=config.lr)
        label = data.label[data.split.train]
        self.weight = label.new_tensor(positive_weight(label) if config.balance else 1.0)
        self.progress = Progress()
        self._source: Embeddings | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last one perhaps shorter."""
        return -(-len(self.data.split.train) // self.config.batch)

    def embeddings(self, advance: Advance = lambda count: None) -> Embeddings:
        """The head's input; a frozen backbone computes all of it at the first call."""
        if self._source is None:
            encoder, batch = self.model.encoder, self.config.batch
            if self.config.finetune:
                self._source = FineTuned(encoder, self.data, batch)
            else:
                self._source = Frozen(encoder, self.data, batch, advance)
        return self._source

    def fit(self, report: Reporter | None = None, embedded: Advance = lambda count: None) -> None:
        """Train until the epochs are used up or validation AUC stops improving; then load the best weights."""
        report = report or Reporter()
        torch.manual_seed(self.seed)

        def advance(count: int) -> None:
            embedded(count)
            self._stop_if_asked(report)

        self.embeddings(advance)
        while not self.progress.finished:
            start = time.monotonic()
            loss = self.train_epoch(report)
            if not math.isfinite(loss):
                raise DygError(
                    f"the loss of epoch {self.progress.epoch} is {loss}; lower it with --set lr=1e-5"
                )
            found = self.evaluate(self.data.split.val)
            entry = {
                "epoch": self.progress.epoch,
                "loss": loss,
                "val_auc": found.auc,
                "val_ap": found.ap,
                "seconds": time.monotonic() - start,
            }
            self.run.write_metrics([*self.run.metrics(), entry])
            self._finish_epoch(found)
            report.epoch(entry | {"best_epoch": self.progress.best_epoch})
        load_checkpoint(self.run.best, self.model)

    def train_epoch(self, report: Reporter) -> float:
        """One pass over the training events; the mean loss of its batches."""
        losses = []  # device scalars, read once
        self.model.head.train()
        for step, (events, embedding) in enumerate(self.embeddings().train(self.config.batch)):
            losses.append(self.train_step(events, embedding))
            report.step(self.progress.epoch, step)
            self._stop_if_asked(report)
        return float(torch.stack(losses).mean())

    def train_step(self, events: Int64[Tensor, "b"], embedding: Float32[Tensor, "b d"]) -> Tensor:
        """One optimizer step; the loss stays on the device."""
        logits, label = self.model.head(embedding), self.data.label[events]
        loss = binary_cross_entropy_with_logits(logits, label, pos_weight=self.weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, events: Int64[Tensor, "k"]) -> NodeMetrics:
        """AUC and AP of consecutive events under the current weights."""
        return node_metrics(self.score(events), self.data.label[events])

    @torch.no_grad()
    def score(self, events: Int64[Tensor, "k"]) -> Float32[Tensor, "k"]:
        """A logit per event."""
        self.model.head.eval()
        return self.model.head(self.embeddings().of(events))

    def _finish_epoch(self, found: NodeMetrics) -> None:
        """Validation AUC alone decides; the test period plays no part."""
        better = found.auc >= self.progress.best_auc
        self.progress.end_epoch(found.ap, found.auc, better, self.config.epochs, self.config.patience)
        if better:
            save_checkpoint(self.run.best, self.model, None, self.progress)

    def _stop_if_asked(self, report: Reporter) -> None:
        if report.stop():
            kept = (
                f"the best weights so far are in {self.run.best}" if self.run.best.exists() else "none kept"
            )
            raise Interrupted(f"stopped, {kept}; a classifier is not resumed, train it again")
