"""Attention over a node's neighbors and over tokens; masked entries never get weight.

Legend: r queries, l keys, m query tokens, h heads, c key width, d width.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.nn.initialization import padded_width, scaled_linear, uniform_parameter
from dygmamba.ops.attention import masked_softmax
from dygmamba.ops.rows import gather_rows

Mask = Bool[Tensor, "r l"]


def lookup(
    table: Float[Tensor, "n c"], index: Int[Tensor, "*shape"], present: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape c"]:
    """Gather rows of a feature table, zeros where `present` is False; a table without columns gives no columns."""
    if not table.shape[1]:
        return table.new_zeros(*index.shape, 0)
    return torch.where(present[..., None], gather_rows(table, index), 0)


def lookup_edges(
    features: FeatureTable, event: Int[Tensor, "*shape"], present: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape de"]:
    """Gather the edge features of events, in the units of `edge_scale`; zeros where `present` is False."""
    rows = lookup(features.edge, event, present)
    return rows if features.edge_scale is None else rows * features.edge_scale


class Merge(nn.Module):
    """Two-layer perceptron on two concatenated vectors (MergeLayer of TGAT and TGN).

    The initial scale is that of a right vector padded to `out` columns, as in the original code.
    """

    def __init__(self, left: int, right: int, out: int) -> None:
        super().__init__()
        self.hidden = scaled_linear(left + right, out, fan_in=left + padded_width(right, out))
        self.out = nn.Linear(out, out)

    def forward(self, left: Float[Tensor, "r a"], right: Float[Tensor, "r b"]) -> Float[Tensor, "r d"]:
        return self.out(relu(self.hidden(torch.cat([left, right], dim=-1))))


class NeighborAttention(nn.Module):
    """Attention of one query to its neighbors, then a residual and a norm (TGAT, Xu et al., ICLR 2020, Eq. 6 to 8).

    With one query per sequence, q . (W_k x) = (W_k^T q) . x and sum_j w_j (W_v x_j) = W_v (sum_j w_j x_j). So the
    projections are applied to the query and to the sum instead of to every neighbor: the same function with a factor l
    less work. For a node without neighbors the original spreads the weights evenly over the padding; here such a node
    gets nothing. `fan_in` is the published width of the keys, which sets the initial scale.
    """

    def __init__(self, query_dim: int, key_dim: int, fan_in: int, heads: int, dropout: float) -> None:
        super().__init__()
        inner = -(-query_dim // heads)  # width of a head, rounded up
        self.query = nn.Linear(query_dim, heads * inner, bias=False)
        self.key, self.value = (uniform_parameter(fan_in, heads, inner, key_dim) for _ in range(2))
        self.out = nn.Linear(heads * inner, query_dim)
        self.norm = nn.LayerNorm(query_dim)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, query: Float[Tensor, "r d"], keys: Float[Tensor, "r l c"], mask: Mask
    ) -> Float[Tensor, "r d"]:
        heads, inner, _ = self.key.shape
        q = self.query(query).unflatten(-1, (heads, inner)) * inner**-0.5
        projected = torch.einsum("rhi,hic->rch", q, self.key)
        weight = self.drop(masked_softmax(keys @ projected, mask))  # [r l h]
        attended = torch.einsum("rhc,hic->rhi", weight.mT @ keys, self.value).flatten(1)
        return self.norm(query + self.drop(self.out(attended)))


class TokenAttention(nn.Module):
    """Multi-head attention of tokens to tokens with a key mask; every sequence needs at least one unmasked key.

    Initialised like torch's `MultiheadAttention`: Xavier for query, key and value as one map to 3 d, biases zero.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        for part in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(part.weight, gain=0.5**0.5)  # fan-in d, fan-out 3 d
        for part in (self.query, self.key, self.value, self.out):
            nn.init.zeros_(part.bias)

    def forward(
        self, x: Float[Tensor, "r m d"], keys: Float[Tensor, "r l d"], mask: Mask
    ) -> Float[Tensor, "r m d"]:
        q, k, v = (
            part(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [r h m d/h]
            for part, tokens in ((self.query, x), (self.key, keys), (self.value, keys))
        )
        dropout = self.dropout if self.training else 0.0
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], dropout_p=dropout)
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear maps with an activation between them and dropout after each."""

    def __init__(self, width: int, hidden: int, activation: type[nn.Module], dropout: float) -> None:
        super().__init__(
            nn.Linear(width, hidden),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )


class PostNormLayer(nn.Module):
    """Transformer layer with norms after the residuals and ReLU (TCL); x may attend to another sequence."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = TokenAttention(width, heads, dropout)
        self.feed = FeedForward(width, 4 * width, nn.ReLU, dropout)
        self.attended, self.fed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "r m d"], keys: Float[Tensor, "r l d"], mask: Mask
    ) -> Float[Tensor, "r m d"]:
        x = self.attended(x + self.drop(self.attend(x, keys, mask)))
        return self.fed(x + self.feed(x))


class PreNormLayer(nn.Module):
    """Transformer layer with norms before attention and feed-forward, and GELU (DyGFormer)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = TokenAttention(width, heads, dropout)
        self.feed = FeedForward(width, 4 * width, nn.GELU, dropout)
        self.before_attend, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "r l d"], mask: Mask) -> Float[Tensor, "r l d"]:
        normed = self.before_attend(x)
        x = x + self.drop(self.attend(normed, normed, mask))
        return x + self.feed(self.before_feed(x))
