"""What is built on an encoder's view of single nodes: embeddings, and classifiers on a frozen or trained backbone.

Legend: p pairs, e events, d width.
"""

from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.models.base import Encoder, EncoderWrapper, MemorySavingWrapper
from dygmamba.sampling.view import PairView


class SourceEmbedding(MemorySavingWrapper):
    """What an encoder makes of the first node of each pair."""

    def forward(self, view: PairView) -> Float[Tensor, "p d"]:
        """The sources' vectors."""
        return self.encoder(view)[0]


class NodeHead(nn.Module):
    """One logit per embedding: d -> 80 -> 10 -> 1 with ReLU and dropout (DyGLib)."""

    def __init__(self, dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(dim, 80), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(80, 10), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(10, 1),
        )

    def forward(self, embedding: Float[Tensor, "p d"]) -> Float[Tensor, "p"]:
        """The logits."""
        return self.layers(embedding).squeeze(-1)


class NodeClassifier(EncoderWrapper):
    """A backbone with a head that reads its source embeddings, both trained."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.head = NodeHead(encoder.out_dim)

    def forward(self, view: PairView) -> Float[Tensor, "p"]:
        """A logit per pair, of its source."""
        return self.head(self.encoder(view)[0])


class FrozenClassifier(NodeClassifier):
    """The same on a backbone that does not change: an event's embedding is looked up in a table, by the pair's group.

    Until a table is given it answers as its parent does.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.requires_grad_(False))
        self.table: Tensor | None = None

    def use(self, table: Float[Tensor, "e d"]) -> None:
        """Read embeddings from this table: no neighbours are asked for any more, nothing is observed."""
        self.table, self.requests, self.stateful, self.elastic = table, (), False, False

    def train(self, mode: bool = True) -> "FrozenClassifier":
        """Only the head ever trains: the backbone answers as it was validated."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, view: PairView) -> Float[Tensor, "p"]:
        """A logit per event."""
        return super().forward(view) if self.table is None else self.head(self.table[view.pairs.group])
