"""DyG-Mamba (NeurIPS 2025, openreview ja2wA4UncJ; not arXiv 2408.04713), Fig. 2: the paper's model and nothing else.

Where the paper's text and its released code differ, a setting chooses between them; decision 010 explains the defaults,
and docs/explanation/model.md lists what no setting reaches. Below, each step names the equations that it computes:

    tokens    the last events of a node before the query time, and the query node           nn/tokens.py
    Eq. 5     co-occurrence counts of each token, encoded by a perceptron                   nn/encodings.py
    Eq. 6     encodings of node, edge, time and counts, each mapped to the same width       nn/encodings.py
    Eq. 7     linear map, causal convolution, SiLU                                          nn/ssm.py
    Eq. 8, 9  the scan: the state decays, reads a token and is read out                     ops/scan/reference.py
    Eq. 10    gate, output map, residual connection                                         nn/ssm.py
    Eq. 11    step sizes from the time gaps                                                 nn/steps.py
    Eq. 13    B and C from the input, with spectral norms of at most 1                      nn/selection.py
    Eq. 15    link head, which every encoder of the package gets                            models/base.py

Eq. 12 and 14 are theorems about the scan; tests/ops/test_scan_laws.py and tests/nn/test_theorem3.py check them. Eq. 16
is the loss, in tasks/losses.py.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, d width of the stack, o columns of an
embedding.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import DyGMambaConfig
from dygmamba.nn.encodings import ChannelConfig, Channels
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.ssm import SSMConfig, Stack
from dygmamba.nn.tokens import QUERIES, Tokens, make_tokens


class SharedStack(nn.Module):
    """One stack for both sequences of a pair, in one call (the released code)."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stack = build()

    def forward(self, x: Tensor, tokens: Tokens) -> Float[Tensor, "r l d"]:
        return self.stack(x, tokens)


class IndependentStacks(nn.Module):
    """A stack for sources and one for destinations (the paper's text)."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.src, self.dst = build(), build()

    def forward(self, x: Tensor, tokens: Tokens) -> Float[Tensor, "r l d"]:
        p = x.shape[0] // 2
        return torch.cat([self.src(x[:p], tokens[:p]), self.dst(x[p:], tokens[p:])])


ENCODERS: dict[str, Callable[[Callable[[], nn.Module]], nn.Module]] = {
    "shared": SharedStack,
    "independent": IndependentStacks,
}


def list_channel_sizes(config: DyGMambaConfig, facts: DatasetFacts) -> ChannelConfig:
    """Return the encodings of a token and their sizes."""
    return ChannelConfig(
        names=config.channels,
        node_dim=facts.node_dim,
        edge_dim=facts.edge_dim,
        time_dim=config.time_dim,
        width=config.width,
        trainable_time=config.time == "trainable",
    )


def list_stack_sizes(config: DyGMambaConfig, facts: DatasetFacts, width: int) -> SSMConfig:
    """Return the parts and sizes of a stack that reads tokens of `width` columns."""
    return SSMConfig(
        width=width,
        blocks=config.blocks,
        expand=config.expand,
        states=config.states,
        taps=config.taps,
        step=config.step,
        selection=config.selection,
        direction=config.direction,
        skip=config.skip,
        rule=config.rule,
        floor=config.floor,
        gap_scale=facts.gap_mean,
    )


class DyGMamba(Encoder):
    """Encode both histories, scan them with steps from time gaps, mix across the pair, pool."""

    elastic = True  # shorter look-ups give the same scores

    def __init__(self, config: DyGMambaConfig, facts: DatasetFacts) -> None:
        super().__init__()
        self.recent = NeighborRequest((config.length - QUERIES[config.query],))
        self.requests = (self.recent,)
        self.query, self.span, self.out_dim = config.query, config.span, config.out
        width = self.build_encodings(config, facts)
        stack = list_stack_sizes(config, facts, width)
        self.encoders = ENCODERS[config.encoders](lambda: Stack(stack))
        self.mixer = PAIR_MIXERS[config.mixer](width, config.dropout)
        self.pool_src, self.pool_dst = POOLS[config.pool](width), POOLS[config.pool](width)
        self.out = nn.Linear(width, config.out)

    def build_encodings(self, config: DyGMambaConfig, facts: DatasetFacts) -> int:
        """Build the encodings of a token; return their columns, 4 d with the paper's four channels."""
        self.channels = Channels(list_channel_sizes(config, facts))
        return self.channels.out_dim

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p o"], Float[Tensor, "p o"]]:
        states, tokens = self.states(view)
        p, mask = view.pairs.src_row.shape[0], tokens.mask
        # cross-attention between the sequences: in the paper's configuration table and the release, not in the text
        src, dst = self.mixer(states, mask).chunk(2)
        # the readout before Eq. 15: MEAN in the text, a learned gate in the release
        pooled = torch.cat([self.pool_src(src, mask[:p]), self.pool_dst(dst, mask[p:])])
        src, dst = self.out(pooled).chunk(2)
        return src, dst  # z_u and z_v, which the link head reads (Eq. 15)

    def states(self, view: PairView) -> tuple[Float[Tensor, "r l d"], Tokens]:
        """Return the state of every token, sources first, then destinations, and the tokens."""
        (recent,) = view[self.recent]
        both = torch.cat([view.pairs.src_row, view.pairs.dst_row])
        tokens = make_tokens(recent, self.query, self.span, both)  # S_u and S_v, [r l]
        z = self.encode(tokens, view)  # Eq. 5, 6
        return self.encoders(z, tokens), tokens  # Eq. 7 to 11 and 13, in each block

    def encode(self, tokens: Tokens, view: PairView) -> Float[Tensor, "r l d"]:
        """Return Z of the paper: the encodings of each token side by side."""
        return self.channels(tokens, view.features)
