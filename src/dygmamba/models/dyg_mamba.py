"""DyG-Mamba (NeurIPS 2025, openreview ja2wA4UncJ; not arXiv 2408.04713), Fig. 2.

The paper's model with every reading of it as a named part; decision 010 argues the defaults.

Legend: p pairs, q rows (node, time), l tokens, d width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Bounds, Count, Length, Rate, Settings, Width
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, with_link_head
from dygmamba.nn.encodings import CHANNELS, PAIR_CHANNELS, ChannelConfig, Channels
from dygmamba.nn.history_features import HISTORY_CHANNELS, PAIR_FEATURES, HistoryConfig, SequencePairs
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.ssm import SSMConfig, Stack
from dygmamba.nn.tokens import QUERIES, Tokens, make_tokens
from dygmamba.ops.spectral_bound import MOST_ROWS
from dygmamba.sampling.decayed_counts import DecayedCountRequest
from dygmamba.sampling.view import NeighborRequest, PairView
from dygmamba.sampling.walks import WalkRequest

Step = Literal[
    "timespan", "absolute", "linear", "logarithmic", "sigmoid", "exponential", "constant", "content", "cosine"
]


@dataclass(frozen=True, slots=True)
class DyGMambaConfig(Settings):
    """The paper's Table "Configurations", and the parts by name."""

    length: Length = 32  # tokens per sequence, the query node included
    channels: tuple[str, ...] = ("node", "edge", "time", "cooccurrence")  # what is encoded of a token
    time: Literal["fixed", "trainable"] = "fixed"  # whether the frequencies of the time encoding are trained
    query: Literal["last", "first", "absent"] = "last"  # where the query stands in its sequence
    span: Literal["preceding", "following"] = (
        "preceding"  # the span before an event or the one after it sets its step
    )
    step: Step = (
        "timespan"  # what sets the step of the scan: spans of time, positions, a constant or the content
    )
    floor: Annotated[float, Bounds(0, 1_000)] = 1.0  # the least of a step's relative span, in units of 1 / n
    selection: Literal["bounded", "unbounded", "time", "fixed"] = (
        "bounded"  # how B and C depend on the input; bounded: with spectral norms at most 1
    )
    rule: Literal["zoh", "euler"] = "zoh"  # how the continuous system becomes steps
    direction: Literal["forward", "both"] = "forward"  # whether sequences are read backwards too
    skip: Literal["learned", "none"] = "learned"  # the path around the scan
    encoders: Literal["shared", "independent"] = "shared"  # one stack for sources and destinations, or two
    mixer: Literal["none", "cross"] = "cross"  # whether each sequence attends to the other one's
    pool: Literal["mean", "gate", "gate64", "last"] = "gate"  # how the tokens become one vector
    width: Width = 50  # columns of each channel
    time_dim: Width = 100  # columns of the time encoding
    scales: Count = 9  # scales of time on which what fades is counted
    blocks: Count = 2  # blocks of the stack
    states: Annotated[int, Bounds(1, MOST_ROWS)] = 16  # states of the scan per column
    expand: Count = 2  # inner width of a block, in widths
    taps: Count = 4  # events that the short convolution reads at once
    out: Width = 172  # columns of the vector of a node
    dropout: Rate = 0.1  # share of activations left out in training
    beside: tuple[str, ...] = ()  # what the head reads of a pair besides: fading-pair, walks
    walk_layers: Annotated[int, Bounds(1, 5)] = 3  # events of the longest walks, where walks are read
    walk_dim: Width = 120  # random numbers of a node, where walks are read
    walk_decay: Annotated[float, Bounds(0, 1e12)] = (
        0.0  # how walks fade per unit of time; 0: 2 in the training period
    )
    table_dropout: Rate = 0.3  # dropout of what is read off counts and walks

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        _require_choices(
            "channels", self.channels, (*CHANNELS, *PAIR_CHANNELS, *HISTORY_CHANNELS), at_least=1
        )
        _require_choices("beside", self.beside, tuple(PAIR_FEATURES))


def _require_choices(what: str, given: tuple[str, ...], known: tuple[str, ...], at_least: int = 0) -> None:
    if len(given) < at_least or not set(given) <= set(known) or len(set(given)) < len(given):
        raise ConfigError(
            f"{what} must be a choice of {', '.join(known)}, each once; got {', '.join(given) or 'none'}"
        )


class SharedStack(nn.Module):
    """One stack reads both sequences of a pair, in one call."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stack = build()

    def forward(self, x: Tensor, tokens: Tokens) -> Float[Tensor, "q l d"]:
        """Both halves through the same weights."""
        return self.stack(x, tokens)


class IndependentStacks(nn.Module):
    """A stack for sources and one for destinations (the paper's text)."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.src, self.dst = build(), build()

    def forward(self, x: Tensor, tokens: Tokens) -> Float[Tensor, "q l d"]:
        """The first half through the one, the second through the other."""
        p = x.shape[0] // 2
        return torch.cat([self.src(x[:p], tokens[:p]), self.dst(x[p:], tokens[p:])])


ENCODERS: dict[str, Callable[[Callable[[], nn.Module]], nn.Module]] = {
    "shared": SharedStack,
    "independent": IndependentStacks,
}


class DyGMamba(Encoder):
    """Encode both pasts, let time spans control forgetting, look across the pair, sum up."""

    elastic = True

    def __init__(self, config: DyGMambaConfig, facts: DatasetFacts) -> None:
        super().__init__()
        _, taken = QUERIES[config.query]
        tables = HistoryConfig(
            DecayedCountRequest(facts.scales(config.scales)),
            WalkRequest(config.walk_layers, config.walk_dim, config.walk_decay or 2 / facts.period),
            config.width,
            config.table_dropout,
        )
        asked = [HISTORY_CHANNELS[name](tables) for name in config.channels if name in HISTORY_CHANNELS]
        beside = [PAIR_FEATURES[name](tables) for name in config.beside]
        self.tables, self.head_tables = nn.ModuleList(asked), nn.ModuleList(beside)
        self.beside_dim = sum(table.out_dim for table in beside)
        wanted = dict.fromkeys(table.request for table in (*asked, *beside))
        self.requests = (NeighborRequest((config.length - taken,)), *wanted)
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
        """Source and destination embedding of each pair."""
        states, tokens = self.states(view)
        p, mask = view.pairs.src_row.shape[0], tokens.mask
        src, dst = self.mixer(states, mask).chunk(2)
        pooled = torch.cat([self.pool_src(src, mask[:p]), self.pool_dst(dst, mask[p:])])
        src, dst = self.out(pooled).chunk(2)
        return src, dst

    def states(self, view: PairView) -> tuple[Float[Tensor, "q l d"], Tokens]:
        """What the encoder makes of every token, sources first, then destinations; and the tokens."""
        ((recent,),) = view.neighbors
        both = torch.cat([view.pairs.src_row, view.pairs.dst_row])
        tokens = make_tokens(recent[both], self.query, self.span)  # [2p l]
        x = self.channels(tokens, view.features)
        if self.tables:
            asked = SequencePairs.from_view(view)
            x = torch.cat([x, *(table(tokens, asked) for table in self.tables)], dim=-1)
        return self.encoders(x, tokens), tokens

    def beside(self, view: PairView) -> tuple[Float[Tensor, "p _"], ...]:
        """What the tables of the past say of each pair."""
        return tuple(table(view) for table in self.head_tables)


SPEC = ModelSpec(
    config=DyGMambaConfig,
    build=with_link_head(DyGMamba),
    trainable=True,
    title="DyG-Mamba (NeurIPS 2025)",
    looks_at="both nodes' recent events, the spans between them, and who occurs in both",
    cost="linear in the length",
)


@dataclass(frozen=True, slots=True)
class MambaConfig(DyGMambaConfig):
    """The same encoder with Mamba's own step, selection and discretisation: blind to time spans."""

    step: Step = "content"
    selection: Literal["bounded", "unbounded", "time", "fixed"] = "unbounded"
    rule: Literal["zoh", "euler"] = "euler"


MAMBA = ModelSpec(
    config=MambaConfig,
    build=with_link_head(DyGMamba),
    trainable=True,
    title="vanilla Mamba (Gu and Dao 2023) on DyG-Mamba's tokens",
    looks_at="both nodes' recent events and who occurs in both; the spans only as a feature",
    cost="linear in the length",
)


@dataclass(frozen=True, slots=True)
class DyGMambaCountsConfig(DyGMambaConfig):
    """The same encoder, told by tables of the whole past how each token and the pair had met before, exactly."""

    channels: tuple[str, ...] = ("node", "edge", "time", "fading-cooccurrence", "fading-counts", "walks")
    beside: tuple[str, ...] = ("fading-pair", "walks")


COUNTS = ModelSpec(
    config=DyGMambaCountsConfig,
    build=with_link_head(DyGMamba),
    trainable=True,
    title="DyG-Mamba that reads exact fading counts and temporal walks",
    looks_at="both nodes' recent events, and of each how often it met either node and how walks lead there, fading",
    cost="linear in the length, logarithmic in the events",
)
