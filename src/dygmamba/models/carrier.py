"""A memory that is kept as training left it: what the engine knows of a scorer that has one."""

from typing import Protocol, runtime_checkable

from dygmamba.data.marks import Mark


@runtime_checkable
class Carrier(Protocol):
    """A scorer that can keep its memory as training left it, beside its weights (decision 036)."""

    carries: bool  # whether it wants to

    @property
    def carried(self) -> Mark | None:
        """The events that are in the memory it has kept; None where it has kept none."""
        ...

    def carry(self, mark: Mark) -> None:
        """Keep the memory as it is, told of these events."""
        ...

    def recall(self) -> None:
        """Make the memory what was kept."""
        ...

    def let_go(self) -> None:
        """Keep nothing any more."""
        ...
