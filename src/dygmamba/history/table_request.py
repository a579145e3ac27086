"""Base class of requests for tables, which do not depend on the length of neighbor sequences."""

from typing import Any, ClassVar, NamedTuple, TypeVar

# not `Self`, which the type checks of the tests do not support
R = TypeVar("R", bound="TableRequest")


EVENT_COLUMN, NODE_COLUMN, HISTORY = "column of events", "node feature", "history without columns"


class FeatureGroup(NamedTuple):
    """Features that are computed from the same column of the dataset, or that count the same."""

    kind: str
    name: str


class FeatureUnit(NamedTuple):
    """A feature of a pair by name and group, with the mean and the standard deviation of training.

    These bring it to a scale of 1. They are 0 and 1 for counts, shares and yes-or-no features, which have such a scale.
    """

    name: str
    group: FeatureGroup = FeatureGroup(HISTORY, "other features")
    mean: float = 0.0
    deviation: float = 1.0


class TableRequest:
    """A request whose table holds the whole history; its cost and length stay the same when sequences are cut."""

    __slots__ = ()
    # whether queries are looked up on the CPU, which a captured CUDA graph cannot do; a table that is kept on the
    # device of the stream overrides it
    on_host: ClassVar[bool] = True

    @property
    def tokens(self) -> int:
        """Entries looked up per query: none, entries of other requests are looked up in the table."""
        return 0

    @property
    def fanout(self) -> tuple[int, ...]:
        return (0,)

    def cut(self: R, length: int | None) -> R:
        """Return the request itself: a history is not cut."""
        return self

    def prepare(self, index: Any) -> Any:
        """Return the table of the request, which an `Index` builds once."""
        raise NotImplementedError

    def look_up(self, index: Any, pairs: Any, draws: Any) -> Any:
        """Return what a view holds of a `PairBatch`: the table, in which any node or pair can be looked up."""
        return self.prepare(index)


class FeatureRequest(TableRequest):
    """A request for features of each pair, which are computed on the CPU at the pair's table time.

    Its fields are its settings, plain values, and its module in `history` imports no torch: exported trees carry both.
    `prepare` may return None where the features need no table of their own.
    """

    __slots__ = ()
    query: bool = False  # whether queries carry columns, which are read too

    @property
    def names(self) -> list[str]:
        """Description of each feature, in the order of the columns.

        A checkpoint of boosted trees holds a checksum of these names: rewording one makes old runs unreadable.
        """
        return [unit.name for unit in self.units]

    @property
    def units(self) -> list[FeatureUnit]:
        """Name, group and scale of each feature; a request defines `names` or these."""
        return [FeatureUnit(name) for name in self.names]

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence."""
        return 1

    def look_up(self, index: Any, pairs: Any, draws: Any) -> Any:
        """Return the features of each pair."""
        return index.compute_features(self, pairs.at_table_time())

    def compute(self, index: Any, pairs: Any, src: Any, dst: Any, time: Any) -> Any:
        """Return the features of each pair as an array; `src`, `dst` and `time` are arrays of the pairs."""
        return self.prepare(index).compute_features(src, dst, time)
