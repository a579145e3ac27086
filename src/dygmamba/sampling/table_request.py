"""Base class of requests for tables, which do not depend on the length of neighbor sequences."""

from typing import Any, ClassVar, NamedTuple, TypeVar

# not `Self`, which the type checks of the tests do not support
R = TypeVar("R", bound="TableRequest")


class FeatureUnit(NamedTuple):
    """A feature of a pair by name, with the mean and the standard deviation of training that bring it to a scale of 1.

    They are 0 and 1 for counts, shares and yes-or-no features, which have such a scale.
    """

    name: str
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

    def look_up(self, index: Any, pairs: Any, features: Any, draws: Any) -> Any:
        """Look up what is requested: features of each pair, or a table for look-ups of any node or pair.

        Args:
            index: The `EventIndex` of the visible events.
            pairs: The queries, a `PairBatch`.
            features: Node and edge features of the stream, a `FeatureTable`.
            draws: Random numbers (`Draws`), which tables do not need.
        """
        raise NotImplementedError
