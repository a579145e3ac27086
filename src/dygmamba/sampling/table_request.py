"""Base class of requests for tables, which do not depend on the length of neighbor sequences."""

from typing import TypeVar

# not `Self`, which the type checks of the tests do not support
R = TypeVar("R", bound="TableRequest")


class TableRequest:
    """A request whose table holds the whole history; its cost and length stay the same when sequences are cut."""

    __slots__ = ()

    @property
    def tokens(self) -> int:
        """Entries looked up per query: none, entries of other requests are looked up in the table."""
        return 0

    @property
    def fanout(self) -> tuple[int, ...]:
        return (0,)

    def cut(self: R, length: int) -> R:
        """Return the request itself: a history is not cut."""
        return self
