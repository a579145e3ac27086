"""DyG-Mamba (NeurIPS 2025, openreview ja2wA4UncJ; not arXiv 2408.04713), Fig. 2.

Where the paper's text and its released code differ, a setting chooses between them; decision 010 explains the defaults.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, d width.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.models.base import DatasetFacts, Encoder
from dygmamba.models.column_requests import request_column_sums, request_columns, request_node_features
from dygmamba.models.configs import STACK_CHANNELS, DyGMambaConfig
from dygmamba.nn.column_features import COLUMN_FEATURES, TableEncoding
from dygmamba.nn.encodings import CHANNELS, PAIR_CHANNELS, ChannelConfig, Channels, count_columns
from dygmamba.nn.history_features import (
    HISTORY_CHANNELS,
    HistoryConfig,
    PairDecayedCounts,
    PairTransitions,
    PairWalks,
    SequencePairs,
    SharedPairWalks,
    TokenWalks,
)
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.pair_history import PAIR_FEATURES, PairHistory
from dygmamba.nn.ssm import SSMConfig, Stack
from dygmamba.nn.tokens import QUERIES, Tokens, make_tokens
from dygmamba.sampling.decayed_counts import DecayedCountRequest
from dygmamba.sampling.transition_counts import TransitionCountRequest
from dygmamba.sampling.view import NeighborRequest, PairView
from dygmamba.sampling.walks import WalkRequest

# Values of a categorical column that are looked at: as many as a run that is trained further stores.
MAX_TYPE_VALUES = 64


PairFeature = PairDecayedCounts | PairWalks | SharedPairWalks | PairTransitions | PairHistory | TableEncoding


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


class ConcatTables(nn.Module):
    """Tables as further columns of a token; the stack becomes wider."""

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        self.out_dim = width + more

    def forward(self, x: Tensor, tables: list[Tensor]) -> Float[Tensor, "r l d"]:
        return torch.cat([x, *tables], dim=-1) if tables else x


class AddTables(nn.Module):
    """Tables added to the columns of a token through one linear map; the stack keeps its width."""

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        self.out_dim = width
        self.map = nn.Linear(more, width, bias=False) if more else None

    def forward(self, x: Tensor, tables: list[Tensor]) -> Float[Tensor, "r l d"]:
        return x if self.map is None else x + self.map(torch.cat(tables, dim=-1))


TABLES: dict[str, type[ConcatTables] | type[AddTables]] = {"concat": ConcatTables, "add": AddTables}


def build_pair_features(
    config: DyGMambaConfig, facts: DatasetFacts, history: HistoryConfig, tokens: Sequence[nn.Module]
) -> list[PairFeature]:
    """Build the pair features of the settings, without those of columns that the dataset does not have.

    `tokens` are the history channels, whose relation of walks a pair may share.
    """
    walks = [table for table in tokens if isinstance(table, TokenWalks)]
    columns = {
        "node-features": request_node_features(facts),
        "columns": request_columns(facts, config.query_columns),
    }
    features: list[PairFeature] = []
    for name in config.pair_features:
        if name in columns:
            part = COLUMN_FEATURES[name]
            features += [part(request, config.width, config.table_dropout) for request in columns[name]]
        elif name == "walks" and walks and config.relation == "shared":
            features.append(SharedPairWalks(walks[0]))
        else:
            features.append(PAIR_FEATURES[name](history))
    return features


class DyGMamba(Encoder):
    """Encode both histories, scan them with steps from time gaps, mix across the pair, pool."""

    elastic = True  # shorter look-ups give the same scores

    def __init__(self, config: DyGMambaConfig, facts: DatasetFacts) -> None:
        super().__init__()
        _, query_tokens = QUERIES[config.query]
        history = HistoryConfig(
            DecayedCountRequest(facts.scales(config.scales), directed="history" in config.pair_features),
            WalkRequest(
                config.walk_layers,
                config.walk_dim,
                facts.walk_decays(config.walk_decays, config.walk_decay),
                config.walk_seed,
            ),
            TransitionCountRequest(facts.transition_scales, config.transitions),
            config.width,
            config.table_dropout,
            config.relation_dropout,
            request_column_sums(facts, config.numeric_columns),
        )
        token_tables = [
            HISTORY_CHANNELS[name](history) for name in config.channels if name in HISTORY_CHANNELS
        ]
        pair_tables = build_pair_features(config, facts, history, token_tables)
        self.tables, self.head_tables = nn.ModuleList(token_tables), nn.ModuleList(pair_tables)
        self.pair_feature_dim = sum(table.out_dim for table in pair_tables)
        self.pair_feature_requests = tuple(
            dict.fromkeys(request for table in pair_tables for request in table.requests)
        )
        requests = dict.fromkeys(
            request for table in token_tables for request in table.requests
        )  # each one once
        self.requests = (NeighborRequest((config.length - query_tokens,)), *requests)
        self.query, self.span, self.out_dim = config.query, config.span, config.out
        added = [name for name in config.channels if config.tables == "add" and name not in STACK_CHANNELS]
        channels = ChannelConfig(
            names=tuple(name for name in config.channels if name not in added),
            node_dim=facts.node_dim,
            edge_dim=facts.edge_dim,
            time_dim=config.time_dim,
            width=config.width,
            trainable_time=config.time == "trainable",
            scales=facts.scales(config.scales),
            types=facts.columns.first(0, MAX_CODE_COLUMNS, MAX_TYPE_VALUES).types,
            type_values=config.event_types,
        )
        self.channels = Channels(channels)
        self.added = nn.ModuleList(PAIR_CHANNELS[name](channels) for name in added if name in PAIR_CHANNELS)
        self.added_alone = nn.ModuleList(CHANNELS[name](channels) for name in added if name in CHANNELS)
        more = count_columns(self.added, self.added_alone) + config.width * len(self.tables)
        self.join = TABLES[config.tables](self.channels.out_dim, more)
        width = self.join.out_dim
        if not width:
            raise ConfigError(
                f"channels={','.join(config.channels)} needs a dataset with categorical columns of events, which this "
                "one has not; add another channel, such as time",
                code="no-event-types",
            )
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
        more = [channel(tokens) for channel in self.added]
        more += [channel(tokens, view.features) for channel in self.added_alone]
        if self.tables:
            sequences = SequencePairs.from_view(view)
            more += [table(tokens, sequences) for table in self.tables]
        return self.encoders(self.join(x, more), tokens), tokens

    def pair_features(self, view: PairView) -> tuple[Float[Tensor, "p _"], ...]:
        return tuple(table(view) for table in self.head_tables)

    @property
    def is_fitted(self) -> bool:
        return self._history is None or self._history.is_fitted

    def fit_inputs(self, views: Iterable[PairView]) -> None:
        """Fit the statistics of the head's numbers to training queries."""
        if self._history is not None:
            self._history.fit_inputs(views)

    @property
    def _history(self) -> PairHistory | None:
        return next((table for table in self.head_tables if isinstance(table, PairHistory)), None)
