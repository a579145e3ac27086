"""DyG-Mamba with features of the whole history of each token and pair: decayed counts, walks, transitions, columns.

It goes beyond the paper (docs/research/findings.md). Tokens, stack, mixer and readout are those of `dyg_mamba`.

Legend: p pairs, r = 2 p sequences (sources, then destinations), l tokens, d width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.history.decayed_counts import DecayedCountLookup
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.transition_counts import TransitionLookup
from dygmamba.history.view import NeighborRequest, PairView
from dygmamba.history.walks import WalkRequest
from dygmamba.models.base import DatasetFacts
from dygmamba.models.column_requests import request_column_sums, request_columns, request_node_features
from dygmamba.models.configs import STACK_CHANNELS, DyGMambaConfig, DyGMambaCountsConfig
from dygmamba.models.dyg_mamba import DyGMamba, list_channel_sizes
from dygmamba.nn.column_features import TableEncoding
from dygmamba.nn.encodings import CHANNELS, PAIR_CHANNELS, Channels, count_columns
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
from dygmamba.nn.pair_history import PAIR_FEATURES, PairHistory
from dygmamba.nn.tokens import Tokens

# Values of a categorical column that are looked at: as many as a run that is trained further stores.
MAX_TYPE_VALUES = 64


PairFeature = PairDecayedCounts | PairWalks | SharedPairWalks | PairTransitions | PairHistory | TableEncoding


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


def list_history_sizes(
    config: DyGMambaCountsConfig, facts: DatasetFacts, recent: NeighborRequest
) -> HistoryConfig:
    """Return what is looked up beside the sequences `recent`, and the sizes of its encodings."""
    return HistoryConfig(
        recent,
        DecayedCountLookup(facts.scales(config.scales), directed="history" in config.pair_features),
        WalkRequest(
            config.walk_layers,
            config.walk_dim,
            facts.walk_decays(config.walk_decays, config.walk_decay),
            config.walk_seed,
        ),
        TransitionLookup(
            facts.transition_scales,
            config.transitions,
            config.associations if "history" in config.pair_features else 0,
        ),
        config.width,
        config.table_dropout,
        config.relation_dropout,
        request_column_sums(facts, config.numeric_columns),
    )


def build_pair_features(
    config: DyGMambaCountsConfig, facts: DatasetFacts, history: HistoryConfig, tokens: Sequence[nn.Module]
) -> list[PairFeature]:
    """Build the pair features of the settings, without those of columns that the dataset does not have.

    `tokens` are the history channels, whose relation of walks a pair may share.
    """
    walks = [table for table in tokens if isinstance(table, TokenWalks)]
    requests: dict[str, tuple[FeatureRequest, ...]] = {
        "node-features": request_node_features(facts),
        "columns": request_columns(facts, config.query_columns),
    }
    features: list[PairFeature] = []
    for name in config.pair_features:
        if name in requests:
            features += [
                TableEncoding(request, config.width, config.table_dropout) for request in requests[name]
            ]
        elif name == "walks" and walks and config.relation == "shared":
            features.append(SharedPairWalks(walks[0]))
        else:
            features.append(PAIR_FEATURES[name](history))
    return features


class DyGMambaCounts(DyGMamba):
    """DyG-Mamba whose tokens and link head also read features of the whole history."""

    def build_encodings(self, config: DyGMambaConfig, facts: DatasetFacts) -> int:
        """Build the encodings of a token and those of the pair; return the columns of a token."""
        assert isinstance(config, DyGMambaCountsConfig)
        history = list_history_sizes(config, facts, self.recent)
        token_tables = [
            HISTORY_CHANNELS[name](history) for name in config.channels if name in HISTORY_CHANNELS
        ]
        pair_tables = build_pair_features(config, facts, history, token_tables)
        self.tables, self.head_tables = nn.ModuleList(token_tables), nn.ModuleList(pair_tables)
        self.pair_feature_dim = sum(table.out_dim for table in pair_tables)
        self.pair_feature_requests = tuple(
            dict.fromkeys(request for table in pair_tables for request in table.requests)
        )
        # each one once
        self.requests += tuple(dict.fromkeys(request for table in token_tables for request in table.requests))
        added = [name for name in config.channels if config.tables == "add" and name not in STACK_CHANNELS]
        channels = replace(
            list_channel_sizes(config, facts),
            names=tuple(name for name in config.channels if name not in added),
            scales=facts.scales(config.scales),
            types=facts.columns.first(0, MAX_CODE_COLUMNS, MAX_TYPE_VALUES).types,
            type_values=config.event_types,
        )
        self.channels = Channels(channels)
        self.added = nn.ModuleList(PAIR_CHANNELS[name](channels) for name in added if name in PAIR_CHANNELS)
        self.added_alone = nn.ModuleList(CHANNELS[name](channels) for name in added if name in CHANNELS)
        more = count_columns(self.added, self.added_alone) + config.width * len(self.tables)
        self.join = TABLES[config.tables](self.channels.out_dim, more)
        if not self.join.out_dim:
            raise ConfigError(
                f"channels={','.join(config.channels)} needs a dataset with categorical columns of events, which this "
                "one has not; add another channel, such as time",
                code="no-event-types",
            )
        return self.join.out_dim

    def encode(self, tokens: Tokens, view: PairView) -> Float[Tensor, "r l d"]:
        """Return the paper's encodings of each token, joined with those of its history."""
        more = [channel(tokens, view.features) for channel in (*self.added, *self.added_alone)]
        if self.tables:
            sequences = SequencePairs.from_view(view)
            more += [table(tokens, sequences) for table in self.tables]
        return self.join(super().encode(tokens, view), more)

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
