"""TCL (Wang et al., 2021): a transformer over both histories, with attention within and across the pair.

Padded keys are masked, as in the original. Depth counts back from the newest event, which is the effect of the
original's left padding.

Legend: p pairs, q rows, l tokens (the query node first), d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import TCLConfig
from dygmamba.nn.attention import PostNormLayer
from dygmamba.nn.encodings import ChannelConfig
from dygmamba.nn.tokens import Tokens, make_tokens


class DepthTokens(nn.Module):
    """Sum of node, edge and time encodings and an embedding of the token's depth."""

    def __init__(self, config: TCLConfig, facts: DatasetFacts) -> None:
        super().__init__()
        dims = (facts.node_dim, facts.edge_dim, config.time_dim, config.out)
        sizes = ChannelConfig(*dims, trainable_time=True, min_fan_in=config.out)
        self.channels = sizes.build_channels()
        self.depth = nn.Embedding(config.neighbors + 1, config.out)

    def depths(self, tokens: Tokens) -> Tensor:
        """Return the depth of each token: 0 for the query node, the largest depth for the newest neighbor."""
        deepest = self.depth.num_embeddings - 1
        place = torch.arange(tokens.node.shape[1], device=tokens.node.device)
        return torch.where(place == 0, 0, place + deepest + 1 - tokens.length[:, None]).clamp(max=deepest)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l d"]:
        x = self.depth(self.depths(tokens))
        for channel in self.channels:
            x = x + channel(tokens, features)
        return x


class TCL(Encoder):
    """Each layer is applied twice with the same weights: to u and v themselves, then from u to v and v to u."""

    def __init__(self, config: TCLConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.recent = NeighborRequest((config.neighbors,), config.sampling)
        self.requests = (self.recent,)
        self.out_dim = config.out
        self.tokens = DepthTokens(config, facts)
        self.layers = nn.ModuleList(
            PostNormLayer(config.out, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.out = nn.Linear(config.out, config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        # the embeddings are the states of the query tokens
        (recent,) = view[self.recent]
        pairs, p = view.pairs, view.pairs.src_row.shape[0]
        tokens = make_tokens(recent, "first")
        both = torch.cat([pairs.src_row, pairs.dst_row])
        x, mask = self.tokens(tokens, view.features)[both], tokens.mask[both]
        other = mask.roll(p, 0)  # rolled by p, each sequence gets the other one of its pair
        for layer in self.layers:
            x = layer(x, x, mask)
            x = layer(x, x.roll(p, 0), other)
        z = self.out(x[:, 0])
        return z[:p], z[p:]
