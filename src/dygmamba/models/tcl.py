"""TCL (Wang et al., 2021): a transformer over both pasts that looks within and across the pair.

Keys that do not exist are masked, in the original too; there the encoding of time stays in the padding, here
the padding is never read. Depth counts back from the newest event, as the original's left padding makes it.

Legend: p pairs, q rows, l tokens (the query node first), d width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Count, Length, Rate, Settings, Width
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.attention import PostNormLayer
from dygmamba.nn.encodings import ChannelConfig
from dygmamba.nn.tokens import Tokens, make_tokens
from dygmamba.sampling.view import NeighborRequest, PairView, Strategy


@dataclass(frozen=True, slots=True)
class TCLConfig(Settings):
    """Published settings; dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbours looked up
    sampling: Strategy = "recent"  # which neighbours: the latest, any, or more likely the later ones
    layers: Count = 2  # layers of the transformer
    heads: Count = 2  # heads of the attention
    out: Width = 172  # columns of the vector of a node
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations left out in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.out % self.heads:
            raise ConfigError(f"out must be a multiple of heads; got {self.out} and {self.heads}")


class DepthTokens(nn.Module):
    """Aligned node, edge and time encodings and the token's depth, summed."""

    def __init__(self, config: TCLConfig, facts: DatasetFacts) -> None:
        super().__init__()
        dims = (facts.node_dim, facts.edge_dim, config.time_dim, config.out)
        sizes = ChannelConfig(*dims, trainable_time=True, fill=config.out)
        self.channels = sizes.channels()
        self.depth = nn.Embedding(config.neighbors + 1, config.out)

    def places(self, tokens: Tokens) -> Tensor:
        """0 for the query node; the newest neighbour at the last place, whatever the length."""
        deepest = self.depth.num_embeddings - 1
        place = torch.arange(tokens.node.shape[1], device=tokens.node.device)
        return torch.where(place == 0, 0, place + deepest + 1 - tokens.length[:, None]).clamp(max=deepest)

    def forward(self, tokens: Tokens, features: FeatureTable) -> Float[Tensor, "q l d"]:
        """The tokens of each row."""
        x = self.depth(self.places(tokens))
        for channel in self.channels:
            x = x + channel(tokens, features)
        return x


class TCL(Encoder):
    """In each layer one set of weights serves four times: u to u, v to v, then u to v and v to u at once."""

    def __init__(self, config: TCLConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.requests = (NeighborRequest((config.neighbors,), config.sampling),)
        self.out_dim = config.out
        self.tokens = DepthTokens(config, facts)
        self.layers = nn.ModuleList(
            PostNormLayer(config.out, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.out = nn.Linear(config.out, config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        """Source and destination embedding of each pair, read off the query tokens."""
        ((recent,),) = view.neighbors
        pairs, p = view.pairs, view.pairs.src_row.shape[0]
        tokens = make_tokens(recent, "first")
        both = torch.cat([pairs.src_row, pairs.dst_row])
        x, mask = self.tokens(tokens, view.features)[both], tokens.mask[both]
        other = mask.roll(p, 0)  # rolled by p, each sequence meets the other one of its pair
        for layer in self.layers:
            x = layer(x, x, mask)
            x = layer(x, x.roll(p, 0), other)
        z = self.out(x[:, 0])
        return z[:p], z[p:]


SPEC = ModelSpec(
    config=TCLConfig,
    build=with_link_head(TCL),
    trainable=True,
    title="TCL (Wang et al. 2021)",
    looks_at="both nodes' recent events, each attending to its own and the other's",
    cost="quadratic in the neighbours",
)
