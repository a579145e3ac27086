"""DyG-Mamba (NeurIPS 2025, openreview ja2wA4UncJ; not arXiv 2408.04713), Fig. 2.

Where the paper's text and its released code differ, a setting chooses between them; decision 010 explains the defaults.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, d width.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.configs import DyGMambaConfig
from dygmamba.nn.encodings import ChannelConfig, Channels
from dygmamba.nn.history_features import HISTORY_CHANNELS, PAIR_FEATURES, HistoryConfig, SequencePairs
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.ssm import SSMConfig, Stack
from dygmamba.nn.tokens import QUERIES, Tokens, make_tokens
from dygmamba.sampling.decayed_counts import DecayedCountRequest
from dygmamba.sampling.view import NeighborRequest, PairView
from dygmamba.sampling.walks import WalkRequest


class SharedStack(nn.Module):
    """One stack for both sequences of a pair, in one call."""

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


class DyGMamba(Encoder):
    """Encode both histories, scan them with steps from time gaps, mix across the pair, pool."""

    elastic = True  # shorter look-ups give the same scores

    def __init__(self, config: DyGMambaConfig, facts: DatasetFacts) -> None:
        super().__init__()
        _, query_tokens = QUERIES[config.query]
        # walk_decay 0 means a decay of two over the training period
        history = HistoryConfig(
            DecayedCountRequest(facts.scales(config.scales)),
            WalkRequest(
                config.walk_layers,
                config.walk_dim,
                config.walk_decay or 2 / facts.period,
                config.walk_seed,
            ),
            config.width,
            config.table_dropout,
        )
        token_tables = [
            HISTORY_CHANNELS[name](history) for name in config.channels if name in HISTORY_CHANNELS
        ]
        pair_tables = [PAIR_FEATURES[name](history) for name in config.beside]
        self.tables, self.head_tables = nn.ModuleList(token_tables), nn.ModuleList(pair_tables)
        self.beside_dim = sum(table.out_dim for table in pair_tables)
        requests = dict.fromkeys(table.request for table in (*token_tables, *pair_tables))  # each one once
        self.requests = (NeighborRequest((config.length - query_tokens,)), *requests)
        self.query, self.span, self.out_dim = config.query, config.span, config.out
        self.channels = Channels(
            ChannelConfig(
                names=config.channels,
                node_dim=facts.node_dim,
                edge_dim=facts.edge_dim,
                time_dim=config.time_dim,
                width=config.width,
                trainable_time=config.time == "trainable",
                scales=facts.scales(config.scales),
            )
        )
        width = self.channels.out_dim + config.width * len(self.tables)
        ssm = SSMConfig(
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
        self.encoders = ENCODERS[config.encoders](lambda: Stack(ssm))
        self.mixer = PAIR_MIXERS[config.mixer](width, config.dropout)
        self.pool_src, self.pool_dst = POOLS[config.pool](width), POOLS[config.pool](width)
        self.out = nn.Linear(width, config.out)

    def forward(self, view: PairView) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
        states, tokens = self.states(view)
        p, mask = view.pairs.src_row.shape[0], tokens.mask
        src, dst = self.mixer(states, mask).chunk(2)
        pooled = torch.cat([self.pool_src(src, mask[:p]), self.pool_dst(dst, mask[p:])])
        src, dst = self.out(pooled).chunk(2)
        return src, dst

    def states(self, view: PairView) -> tuple[Float[Tensor, "r l d"], Tokens]:
        """Return the state of every token, sources first, then destinations, and the tokens."""
        ((recent,),) = view.neighbors
        both = torch.cat([view.pairs.src_row, view.pairs.dst_row])
        tokens = make_tokens(recent[both], self.query, self.span)  # [r l]
        x = self.channels(tokens, view.features)
        if self.tables:
            sequences = SequencePairs.from_view(view)
            x = torch.cat([x, *(table(tokens, sequences) for table in self.tables)], dim=-1)
        return self.encoders(x, tokens), tokens

    def beside(self, view: PairView) -> tuple[Float[Tensor, "p _"], ...]:
        return tuple(table(view) for table in self.head_tables)
