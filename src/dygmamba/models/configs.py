"""Settings of every model: one dataclass per model, readable without torch.

The modules beside this one build the models. The comment behind a field is the meaning that `dygmamba models NAME`
shows, so every field has one. Defaults are the published values.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from dygmamba.core.choices import Strategy
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import MAX_LENGTH, Bounds, Count, Length, Rate, Settings, Share, Width

CHANNELS = (
    "node",
    "edge",
    "time",
    "cooccurrence",
    "decayed-cooccurrence",
    "decayed-counts",
    "walks",
    "transitions",
    "event-types",
)
# the paper's, which make up the stack of dyg-mamba-counts with tables="add"
STACK_CHANNELS = ("node", "edge", "time", "cooccurrence")
PAIR_FEATURES = ("decayed-pair", "walks", "transitions", "history", "node-features", "columns")
MAX_STATES = 256  # the spectral bound is exact up to this many states (`MOST_ROWS` in ops/projections)

Decay = Annotated[float, Bounds(0, 1e12)]
Bank = Annotated[int, Bounds(1, 16)]
Window = Annotated[int, Bounds(0, 100)]
WalkSeed = Annotated[int, Bounds(0, 2**63 - 1)]  # an integer of TOML
Fraction = Annotated[float, Bounds(1e-6, 1)]
MemoryAfterTraining = Literal["carried", "replayed"]
Selection = Literal["bounded", "unbounded", "time", "fixed"]
Discretisation = Literal["zoh", "euler"]
Step = Literal[
    "timespan", "absolute", "linear", "logarithmic", "sigmoid", "exponential", "constant", "content", "cosine"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig(Settings):
    """Settings that all networks have."""

    edge_units: Literal["scaled", "raw"] = (
        "scaled"  # multiply columns of large or tiny numbers by a power of two, or read all as they are
    )


@dataclass(frozen=True, slots=True)
class DyGMambaConfig(NetworkConfig):
    """The paper's Table "Configurations", and the parts of the paper's model by name."""

    length: Length = 32  # tokens per sequence, including the query node
    channels: tuple[str, ...] = STACK_CHANNELS  # encodings of a token: node, edge, time, cooccurrence
    time: Literal["fixed", "trainable"] = "fixed"  # whether the frequencies of the time encoding are trained
    query: Literal["last", "first", "absent"] = "last"  # position of the query node in its sequence
    span: Literal["preceding", "following"] = (
        "preceding"  # time gap that sets an event's step: before or after it
    )
    step: Step = "timespan"  # what sets the step size of the scan: time gaps, a constant or the content
    floor: Annotated[float, Bounds(0, 1_000)] = 1.0  # smallest relative time gap of a step, in units of 1 / n
    selection: Selection = "bounded"  # how B and C depend on the input; bounded: spectral norms at most 1
    rule: Discretisation = "zoh"  # discretisation of the continuous system
    direction: Literal["forward", "both"] = "forward"  # whether sequences are also read backwards
    skip: Literal["learned", "none"] = "learned"  # skip connection around the scan
    encoders: Literal["shared", "independent"] = "shared"  # one stack for sources and destinations, or two
    mixer: Literal["none", "cross"] = "cross"  # whether each sequence attends to the other one
    pool: Literal["mean", "gate", "gate64", "last"] = "gate"  # how the tokens become one vector
    width: Width = 50  # columns of each channel
    time_dim: Width = 100  # columns of the time encoding
    blocks: Count = 2  # blocks of the stack
    states: Annotated[int, Bounds(1, MAX_STATES)] = 16  # states of the scan per column
    expand: Count = 2  # inner width of a block, in widths
    taps: Count = 4  # events that the short convolution reads at once
    out: Width = 172  # columns of a node embedding
    dropout: Rate = 0.1  # share of activations dropped in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        _require_choices("channels", self.channels, STACK_CHANNELS, at_least=1)


def _require_choices(
    setting: str, given: tuple[str, ...], allowed: tuple[str, ...], at_least: int = 0
) -> None:
    if len(given) < at_least or not set(given) <= set(allowed) or len(set(given)) < len(given):
        raise ConfigError(
            f"{setting} must be names from {', '.join(allowed)}, each at most once; got {', '.join(given) or 'none'}",
            code=f"bad-{setting.replace('_', '-')}",
        )


def _require_one_decay(config: Any, decay: str, decays: str) -> None:
    if getattr(config, decay) and getattr(config, decays) > 1:
        raise ConfigError(
            f"{decay} sets a single decay, and {decays} a bank that follows from the data; got "
            f"{decay}={getattr(config, decay)}, {decays}={getattr(config, decays)}. Add {decays}=1 or remove {decay}",
            code="bad-decays",
        )


@dataclass(frozen=True, slots=True)
class MambaConfig(DyGMambaConfig):
    """The same encoder with Mamba's own step, selection and discretisation: time gaps do not control it."""

    step: Step = "content"
    selection: Selection = "unbounded"
    rule: Discretisation = "euler"


@dataclass(frozen=True, slots=True)
class DyGMambaCountsConfig(DyGMambaConfig):
    """The same encoder with decayed counts, walks and transitions over the whole history of each token and pair.

    Its head reads most of the numbers that boosted trees read of a pair. It also reads the columns of the events and
    named node features, if a dataset has some.
    Stored runs that lack the newer settings open with their former values (`stored_settings.STORED_DEFAULTS`).
    """

    channels: tuple[str, ...] = CHANNELS
    scales: Count = 9  # time scales of decayed counts
    # for the head: decayed-pair, walks, transitions, history, node-features, columns
    pair_features: tuple[str, ...] = (
        "walks",
        "history",
        "node-features",
    )  # pair features that the link head reads
    query_columns: bool = (
        False  # whether a query carries the columns of its event; adds columns to pair_features
    )
    walk_layers: Annotated[int, Bounds(1, 5)] = 3  # events of the longest temporal walks, if walks are used
    walk_dim: Width = 48  # columns of the random vector of a node, if walks are used
    walk_decay: Decay = 0.0  # decay of walks per unit of time; 0: 2 over the training period
    walk_decays: Bank = 5  # decays of walks; several: spaced from the typical time gap to 4 training periods
    walk_seed: WalkSeed = 0  # seed of the random vectors, if walks are used; 0: the seed of the run
    transitions: Annotated[int, Bounds(1, 7)] = 3  # lags of transitions, if they are used
    associations: Window = (
        0  # last destinations of the source that history associates with the destination; 0: none
    )
    event_types: Annotated[int, Bounds(1, 32)] = (
        32  # frequent values of a categorical column with an embedding of their own, if event-types is used
    )
    numeric_columns: Annotated[int, Bounds(0, 32)] = (
        8  # most numeric columns of events that history reads; 0: none
    )
    relation: Literal["separate", "shared"] = "shared"  # perceptrons on walks of tokens and pair: two or one
    relation_dropout: Rate = 0.3  # dropout inside the perceptron on walks
    tables: Literal["concat", "add"] = "add"  # decayed and walk channels widen the stack or are added to it
    table_dropout: Rate = 0.3  # dropout of features from decayed counts and walks

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        _require_choices("channels", self.channels, CHANNELS, at_least=1)
        _require_choices("pair_features", self.pair_features, PAIR_FEATURES)
        if self.query_columns and "columns" not in self.pair_features:
            object.__setattr__(self, "pair_features", (*self.pair_features, "columns"))
        _require_one_decay(self, "walk_decay", "walk_decays")
        if self.tables == "add" and not set(self.channels) & set(STACK_CHANNELS):
            raise ConfigError(
                f"tables='add' needs a channel to add to, one of {', '.join(STACK_CHANNELS)}; got "
                f"{', '.join(self.channels)}",
                code="bad-channels",
            )


@dataclass(frozen=True, slots=True)
class EdgeBankConfig(Settings):
    """Settings of EdgeBank: which pairs it remembers."""

    memory: Literal["unlimited", "window", "repeat", "threshold"] = (
        "unlimited"  # pairs in memory: all, those of a window, of a window as long as repeats take, frequent ones
    )
    window: Share = 0.15  # share of the observed events that the fixed window covers


@dataclass(frozen=True, slots=True)
class NoConfig(Settings):
    """A model without settings."""


@dataclass(frozen=True, slots=True)
class TGATConfig(NetworkConfig):
    """Published settings; dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbors per hop
    sampling: Strategy = "recent"  # which neighbors: the latest, any, or later ones more likely
    layers: Count = 2  # hops
    heads: Count = 2  # attention heads
    out: Width = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.neighbors**self.layers > MAX_LENGTH:
            raise ConfigError(
                f"neighbors ** layers, the entries looked up for one node, must be at most {MAX_LENGTH:,}; got "
                f"neighbors={self.neighbors}, layers={self.layers}",
                code="too-many-neighbors",
            )


@dataclass(frozen=True, slots=True)
class CAWNConfig(NetworkConfig):
    """Published settings; walks and dropout were chosen per dataset."""

    walks: Length = 32  # walks from each end of a pair
    sampling: Strategy = (
        "time_aware"  # which events a walk follows: the latest, any, or later ones more likely
    )
    heads: Count = 8  # attention heads
    # also the width of position features, and the padded width of features; half for each direction of the LSTM
    out: Annotated[int, Bounds(2, 100_000)] = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training

    @property
    def hidden(self) -> int:
        """Width per direction of the LSTM over tokens: half of node, edge, position and time, 308 as published."""
        return (3 * self.out + self.time_dim) // 2

    @property
    def attention(self) -> int:
        """`hidden`, rounded up to a multiple of the heads: 312 as published."""
        return -(-self.hidden // self.heads) * self.heads


@dataclass(frozen=True, slots=True)
class GraphMixerConfig(NetworkConfig):
    """Published settings; neighbors, dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbors in the token sequence
    sampling: Strategy = "recent"  # which neighbors: the latest, any, or later ones more likely
    window: Length = 2000  # neighbors whose features are averaged; not looked up if nodes have no features
    blocks: Count = 2  # mixer blocks
    out: Width = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training


@dataclass(frozen=True, slots=True)
class TCLConfig(NetworkConfig):
    """Published settings; dropout and sampling were chosen per dataset."""

    neighbors: Length = 20  # neighbors in the token sequence
    sampling: Strategy = "recent"  # which neighbors: the latest, any, or later ones more likely
    layers: Count = 2  # transformer layers
    heads: Count = 2  # attention heads
    out: Width = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.out % self.heads:
            raise ConfigError(
                f"out must be a multiple of heads; got out={self.out}, heads={self.heads}", code="bad-heads"
            )


@dataclass(frozen=True, slots=True)
class DyGFormerConfig(NetworkConfig):
    """Published settings; length, patch and dropout were chosen per dataset."""

    length: Length = 32  # tokens per sequence, including the query node
    patch: Length = 1  # consecutive tokens that become one
    width: Width = 50  # columns of each of the four channels
    layers: Count = 2  # transformer layers
    heads: Count = 2  # attention heads
    time_dim: Width = 100  # columns of the time encoding
    out: Width = 172  # columns of a node embedding
    dropout: Rate = 0.1  # share of activations dropped in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.patch > self.length:
            raise ConfigError(
                f"patch must be at most length; got patch={self.patch}, length={self.length}",
                code="bad-patch",
            )
        if 4 * self.width % self.heads:
            raise ConfigError(
                f"4 * width must be a multiple of heads; got width={self.width}, heads={self.heads}",
                code="bad-heads",
            )


@dataclass(frozen=True, slots=True)
class FreeDyGConfig(NetworkConfig):
    """Settings of the release; length and dropout were chosen per dataset."""

    length: Length = 32  # events per sequence
    blocks: Count = 2  # blocks of filter and mixer
    out: Width = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    count_dim: Width = 50  # hidden width of the count encoding
    dropout: Rate = 0.1  # share of activations dropped in training
    filter_dropout: Rate = 0.1  # dropout after the filter, the same for all datasets


@dataclass(frozen=True, slots=True)
class JODIEConfig(NetworkConfig):
    """Published settings; dropout was chosen per dataset."""

    out: Width = 172  # columns of the memory and of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training
    memory: MemoryAfterTraining = (
        "carried"  # after training: keep the memory, or replay all events to rebuild it
    )


@dataclass(frozen=True, slots=True)
class DyRepConfig(JODIEConfig):
    """Published settings; dropout was chosen per dataset."""

    neighbors: Length = 10  # neighbors looked up
    heads: Count = 2  # attention heads


@dataclass(frozen=True, slots=True)
class TGNConfig(DyRepConfig):
    """Published settings; dropout and sampling were chosen per dataset."""

    sampling: Strategy = "recent"  # which neighbors: the latest, any, or later ones more likely


@dataclass(frozen=True, slots=True)
class TPNetConfig(NetworkConfig):
    """Published settings; decay and sampling were chosen per dataset, dim follows from its size."""

    neighbors: Length = 20  # neighbors in the token sequence
    sampling: Strategy = "recent"  # which neighbors: the latest, any, or later ones more likely
    layers: Annotated[int, Bounds(1, 5)] = 3  # events of the longest temporal walks
    dim: Width = 120  # columns of the random vector of a node
    decay: Decay = 0.0  # decay of walks per unit of time; 0: 2 over the training period
    decays: Bank = 1  # decays of walks; several: spaced from the typical time gap to 4 training periods
    walk_seed: WalkSeed = 0  # seed of the random vectors; 0: the seed of the run
    blocks: Count = 2  # mixer blocks
    out: Width = 172  # columns of a node embedding
    time_dim: Width = 100  # columns of the time encoding
    dropout: Rate = 0.1  # share of activations dropped in training

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        _require_one_decay(self, "decay", "decays")


@dataclass(frozen=True, slots=True)
class BoostingConfig(Settings):
    """Number and size of boosted trees."""

    trees: Annotated[int, Bounds(1, 100_000)] = 2000  # largest number of trees
    rounds: Annotated[int, Bounds(1, 100_000)] = 10  # trees per epoch, between two validations
    rate: Fraction = 0.05  # learning rate: factor of each tree's output
    leaves: Annotated[int, Bounds(2, 4096)] = 15  # largest number of leaves per tree
    least: Annotated[int, Bounds(1, 1_000_000)] = 20  # smallest number of rows per leaf
    l2: Annotated[float, Bounds(1e-6, 1e6)] = 1.0  # L2 regularisation of leaf values
    rows: Fraction = 0.6  # share of the rows that a tree is grown from
    max_rows: Annotated[int, Bounds(1, 1_000_000_000)] = (
        200_000  # largest number of rows that a tree is grown from
    )
    columns: Fraction = 0.3  # share of the features that a tree may split on, beside associations
    skip: Annotated[float, Bounds(0, 1, below=True)] = (
        0.15  # share of the queries left out: the earliest ones
    )


# A rule that is rarely right is learned from the few negatives for which it was wrong. A short stream needs many per
# event to have enough of them; one with event types, which may have rules, also trees that see all rows and features.
SHORT_STREAM = 20_000  # training events
LONG_DEFAULTS = {"rows": 0.6, "max_rows": 200_000, "columns": 0.3, "others": 2}
SHORT_DEFAULTS = LONG_DEFAULTS | {"others": 20}
RULE_DEFAULTS = {"rows": 1.0, "max_rows": 1_000_000, "columns": 1.0, "others": 40}


@dataclass(frozen=True, slots=True)
class TreesConfig(BoostingConfig):
    """Number and size of the trees, and the features they are grown from."""

    # of these 0 stands for a value that suits the stream; a short one has fewer than 20,000 training events
    rows: Share = (
        0  # share of the rows that a tree is grown from; 0: all in a short stream with types, else 0.6
    )
    max_rows: Annotated[int, Bounds(0, 1_000_000_000)] = (
        0  # largest number of rows that a tree is grown from; 0: a million in a short stream with types, else 200,000
    )
    columns: Share = (
        0  # share of the features that a tree may split on; 0: all in a short stream with types, else 0.3
    )
    others: Annotated[int, Bounds(0, 100)] = (
        0  # negative samples per training event; 0: 20 in a short stream, 40 in one with types, else 2
    )
    scales: Count = 9  # time scales of decayed counts
    neighbors: Annotated[int, Bounds(0, 10_000)] = 64  # neighbors of each end whose events are counted
    walks: Annotated[int, Bounds(0, 5)] = (
        0  # events of the longest walks whose overlaps are features; 0: none
    )
    walk_dim: Width = 120  # columns of the random vector of a node, if walks are used
    walk_decays: Bank = 1  # decays of walks; several: spaced from the typical time gap to 4 training periods
    walk_seed: WalkSeed = 0  # seed of the random vectors, if walks are used; 0: the seed of the run
    transitions: Annotated[int, Bounds(0, 7)] = (
        3  # last destinations of the source, whose followers are counted; 0: none
    )
    associations: Window = (
        10  # last destinations of the source that are associated with the destination; 0: none
    )
    association_types: bool = (
        True  # whether they are also by event type of the earlier event, if there are types
    )
    numeric_columns: Annotated[int, Bounds(0, 32)] = (
        8  # most numeric columns of events that are read; 0: none
    )
    event_types: Annotated[int, Bounds(0, 64)] = (
        8  # most frequent values of a categorical column that are counted apart; 0: none
    )
    node_columns: Annotated[int, Bounds(0, 32)] = (
        8  # most numeric node features that are read; 0: none at all
    )
    query_columns: bool = False  # whether a query carries the columns of its event, such as its amount

    def resolve(self, events: int, has_rules: bool) -> "TreesConfig":
        """Return these settings with what suits so many training events in the place of 0.

        Args:
            events: Number of training events.
            has_rules: Whether associations by event type are features.
        """
        short = RULE_DEFAULTS if has_rules else SHORT_DEFAULTS
        usual = short if events < SHORT_STREAM else LONG_DEFAULTS
        return replace(self, **{name: getattr(self, name) or value for name, value in usual.items()})


@dataclass(frozen=True, slots=True)
class WalkTreesConfig(TreesConfig):
    """The same with overlaps of temporal walks of up to three events between the two nodes."""

    walks: Annotated[int, Bounds(0, 5)] = 3


@dataclass(frozen=True, slots=True)
class NodeTreesConfig(BoostingConfig):
    """Trees for the labels of nodes: their number and size, and the features they are grown from."""

    trees: Annotated[int, Bounds(1, 100_000)] = (
        1000  # largest number of rounds, with one tree per output each
    )
    rounds: Annotated[int, Bounds(1, 100_000)] = 10  # rounds per epoch, between two validations
    leaves: Annotated[int, Bounds(2, 4096)] = 8  # largest number of leaves per tree
    skip: Annotated[float, Bounds(0, 1, below=True)] = 0.0  # share of the queries left out: the earliest ones
    scales: Count = 9  # time scales of decayed counts
    neighbors: Annotated[int, Bounds(0, 10_000)] = 32  # neighbors of each end whose events are counted
    transitions: Annotated[int, Bounds(0, 7)] = (
        3  # last destinations of the source, whose followers are counted; 0: none
    )
    values: Annotated[int, Bounds(0, 10_000)] = 16  # edge features, and node features, that are read at most
    labels: bool = False  # also read the labels of strictly earlier events


def resolve_walk_seed(config: Any, seed: int) -> Any:
    """Return the settings of a new run with the seed of its random vectors: its own seed, unless `walk_seed` is set.

    Only a new run resolves it, and stores the result. A stored run without it was trained with vectors of seed 0.
    """
    if isinstance(config, DyGMambaCountsConfig):
        uses_walks = "walks" in (*config.channels, *config.pair_features)
    else:
        uses_walks = isinstance(config, TPNetConfig) or (isinstance(config, TreesConfig) and config.walks > 0)
    return replace(config, walk_seed=seed % 2**63) if uses_walks and not config.walk_seed else config


@dataclass(frozen=True, slots=True)
class BlendConfig(Settings):
    """The models of a blend by name, their settings as JSON, where external ones come from, and their weights."""

    parts: tuple[str, ...] = ("trees",)  # models
    settings: tuple[str, ...] = ("{}",)  # settings of each model
    sources: tuple[str, ...] = ("",)  # module:attribute of each model that another package defines
    weights: tuple[float, ...] = (1.0,)  # weight of each model's logit

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if len({len(self.parts), len(self.settings), len(self.sources), len(self.weights)}) > 1:
            raise ConfigError(
                f"a blend needs as many settings, sources and weights as models; got {len(self.parts)} models, "
                f"{len(self.settings)} settings, {len(self.sources)} sources and {len(self.weights)} weights",
                code="blend-length-mismatch",
            )
