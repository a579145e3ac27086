"""CAWN (Wang et al., ICLR 2021): walks into the past; nodes are identified by their positions in the pair's walks.

Walks have one step, as DyGLib publishes it: (root, neighbor), drawn with replacement. The original's transformer over
the walks has no mask, and its counts exclude the padding id explicitly. Here padding is masked in the counts, in
attention and in the mean. A node without neighbors has one walk, the root alone; the original has several copies of it,
which gives the same attention and mean.

Legend: p pairs, q rows, r = 2 p rows (sources, then destinations), l tokens (the root first), h hidden, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import CAWNConfig
from dygmamba.nn.attention import PostNormLayer, lookup, lookup_edges
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.initialization import uniform_parameter
from dygmamba.nn.mixers import MeanPool
from dygmamba.nn.tokens import Tokens, make_tokens
from dygmamba.ops.tokens import count_pair_tokens


def walk_positions(tokens: Tokens) -> Float[Tensor, "r l 2 2"]:
    """Return the share of u's and of v's walks in which each token's node is the root, and the neighbor.

    Rows are the pairs' sources, then their destinations. One count of tokens serves both positions, as a root occurs
    once in its own sequence.
    """
    p, mask = tokens.node.shape[0] // 2, tokens.mask
    counts = count_pair_tokens(tokens.node, mask)  # [r l 2]
    roots, walks = (  # of u and v, for either row of their pair: [r 1 2]
        torch.stack([x[:p], x[p:]], dim=-1).repeat(2, 1)[:, None]
        for x in (tokens.node[:, 0], tokens.length - 1)
    )
    own = (tokens.node[..., None] == roots) & mask[..., None]
    return torch.stack([own.float(), (counts - own.int()) / walks.clamp(min=1)], dim=-1)


class PositionEncoding(nn.Module):
    """A two-layer perceptron on a node's shares in u's walks, plus the same on its shares in v's walks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2, width), nn.Linear(width, width)

    def forward(self, shares: Float[Tensor, "r l 2 2"]) -> Float[Tensor, "r l d"]:
        # the last layer is linear, so it is applied to the sum
        return linear(relu(self.hidden(shares)).sum(dim=2), self.out.weight, 2 * self.out.bias)


def first_lstm_step(
    gates: Float[Tensor, "*shape h3"],
) -> tuple[Float[Tensor, "*shape h"], Float[Tensor, "*shape h"]]:
    """Return state and cell of an LSTM after one token; the forget gate has no effect yet."""
    i, g, o = gates.chunk(3, dim=-1)
    cell = i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


class WalkLSTM(nn.Module):
    """A bidirectional LSTM, its output at the last step of each walk: the root alone, then (root, neighbor).

    At the last step the backward direction has read one token only, so its recurrent weights and its forget gate have
    no effect and are left out. All walks of a row begin at the root, which is read once for all of them. torch's LSTM
    has two biases that add up; the one here starts as their sum.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.ahead = nn.Linear(width, 4 * hidden)  # gates in the order i, g, o, f
        self.again = nn.Linear(hidden, 4 * hidden, bias=False)
        self.back = nn.Linear(width, 3 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
        with torch.no_grad():
            for part in (self.ahead, self.back):
                part.bias.add_(uniform_parameter(hidden, len(part.bias)))

    def forward(self, x: Float[Tensor, "r l d"]) -> Float[Tensor, "r l h2"]:
        gates = self.ahead(x)
        state, cell = first_lstm_step(gates[:, :1, : 3 * self.again.in_features])  # the root: [r 1 h]
        i, g, o, f = (gates[:, 1:] + self.again(state)).chunk(4, dim=-1)
        end = o.sigmoid() * (f.sigmoid() * cell + i.sigmoid() * g.tanh()).tanh()
        return torch.cat([torch.cat([state, end], dim=1), first_lstm_step(self.back(x))[0]], dim=-1)


class CAWN(Encoder):
    """Two LSTMs encode tokens and positions along each walk, a transformer layer the walks of a node, then a mean."""

    def __init__(self, config: CAWNConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.sampled = NeighborRequest((config.walks,), config.sampling, 1e-6)
        self.requests = (self.sampled,)
        self.out_dim = config.out
        self.time = TimeEncoding(config.time_dim, trainable=True)
        self.position = PositionEncoding(config.out)
        width = facts.node_dim + config.time_dim + facts.edge_dim + config.out
        self.walk, self.path = WalkLSTM(width, config.hidden), WalkLSTM(config.out, config.out // 2)
        self.join = nn.Linear(2 * config.hidden + 2 * (config.out // 2), config.attention)
        self.layer = PostNormLayer(config.attention, config.heads, config.dropout)
        self.pool = MeanPool(config.attention)
        self.out = nn.Linear(config.attention, config.out)

    def encode_tokens(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l d"]:
        """Encode the part of a token that does not depend on the pair."""
        node = lookup(features.node, tokens.node, tokens.mask)
        edge = lookup_edges(features, tokens.event, tokens.is_event)
        return torch.cat([node, self.time(tokens.age), edge], dim=-1)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        (drawn,) = view[self.sampled]
        pairs, p = view.pairs, view.pairs.src_row.shape[0]
        tokens = make_tokens(drawn, "first")
        both = torch.cat([pairs.src_row, pairs.dst_row])
        paired = tokens[both]
        position = self.position(walk_positions(paired))
        x = torch.cat([self.encode_tokens(tokens, view.features)[both], position], dim=-1)
        walks = self.join(torch.cat([self.walk(x), self.path(position)], dim=-1))  # [r l d]
        # the walk that is the root alone counts only without other walks, so attention always has a key
        real = torch.cat([paired.length[:, None] == 1, paired.mask[:, 1:]], dim=1)
        z = self.out(self.pool(self.layer(walks, walks, real), real))
        return z[:p], z[p:]
