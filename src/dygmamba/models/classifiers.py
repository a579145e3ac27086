"""Source embeddings of an encoder, and node classifiers on a frozen or trained backbone.

Legend: p pairs, d width, c outputs if there are several.
"""

from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.history.view import PairView
from dygmamba.models.base import Encoder, EncoderWrapper


class SourceEmbedding(EncoderWrapper):
    """The source embedding of each pair."""

    def forward(self, view: PairView) -> Float[Tensor, "p d"]:
        return self.embed_pairs(view)[0]


class NodeHead(nn.Module):
    """One output per embedding, or several: d -> 80 -> 10 -> outputs with ReLU and dropout (DyGLib)."""

    def __init__(self, dim: int, dropout: float = 0.1, outputs: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(dim, 80), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(80, 10), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(10, outputs),
        )

    def forward(self, embedding: Float[Tensor, "p d"]) -> Float[Tensor, "p *c"]:
        return self.layers(embedding).squeeze(-1)


class NodeClassifier(EncoderWrapper):
    """A trained backbone with a node head on its source embeddings; its memory is not saved, but always replayed."""

    def __init__(self, encoder: Encoder, outputs: int = 1) -> None:
        super().__init__(encoder)
        self.saves_memory = False
        self.head = NodeHead(encoder.out_dim, outputs=outputs)

    @property
    def saved_prefix(self) -> None:
        return None

    def forward(self, view: PairView) -> Float[Tensor, "p *c"]:
        return self.head(self.embed_pairs(view)[0])


class FrozenClassifier(NodeClassifier):
    """A node head on a frozen backbone, which computes the embeddings unless queries carry them."""

    def __init__(self, encoder: Encoder, outputs: int = 1) -> None:
        super().__init__(encoder.requires_grad_(False), outputs)
        self.reads_columns = False

    def read_columns(self) -> None:
        """Read the embeddings that queries carry from now on; no look-ups and no memory are needed any more."""
        self.reads_columns, self.requests, self.stateful, self.elastic = True, (), False, False

    def train(self, mode: bool = True) -> "FrozenClassifier":
        """Set the mode of the head; the backbone always stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, view: PairView) -> Float[Tensor, "p *c"]:
        if not self.reads_columns:
            return super().forward(view)
        assert view.pairs.columns is not None
        return self.head(view.pairs.columns.edge[view.pairs.columns.row])
