"""Observers of a training for tests."""

from contextlib import AbstractContextManager, nullcontext

from dygmamba.core.progress import SILENT, Progress


class StepCounter(Progress):
    """Counts the steps of a training, not the queries of its validation."""

    def __init__(self) -> None:
        self.steps = 0

    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> AbstractContextManager[Progress]:
        return nullcontext(SILENT if name in ("validation", "training table") else self)

    def advance(self, count: int = 1) -> None:
        self.steps += count
