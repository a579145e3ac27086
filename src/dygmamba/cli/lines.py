"""Progress where no terminal can show a bar: a line soon after the start, then one every half minute."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from rich.progress import TaskID

T = TypeVar("T")
FIRST, EVERY = 3.0, 30.0  # seconds


@dataclass(slots=True)
class Work:
    """Something under way: how much of it is done, since when, and how much was done then."""

    description: str
    total: float | None
    completed: float = 0
    began: float = field(default_factory=time.monotonic)
    before: float = 0
    paced: bool = False

    def reach(self, completed: float) -> None:
        """So much is done; the clock starts with the first of it, for what comes before is of another pace."""
        if not self.paced and completed > self.completed:
            self.before, self.began, self.paced = completed, time.monotonic(), True
        self.completed = completed

    @property
    def line(self) -> str:
        """What there is to say of it now."""
        if self.total is None:
            return f"{self.description}: {self.completed:,.0f}" if self.completed else self.description
        said = f"{self.description}: {self.completed:,.0f} of {self.total:,.0f}"
        done, left = self.completed - self.before, self.total - self.completed
        if done <= 0 or left <= 0:
            return said
        from dygmamba.data.statistics import rough_duration

        return f"{said}, about {rough_duration((time.monotonic() - self.began) * left / done)} left"


class Lines:
    """The part of rich's Progress that is used here; a thread of its own tells of the latest work."""

    def __init__(self, say: Callable[[str], None], first: float = FIRST, every: float = EVERY) -> None:
        self._say, self._first, self._every = say, first, every
        self._works: dict[int, Work] = {}
        self._end, self._thread = threading.Event(), threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def add_task(self, description: str, total: float | None = None, completed: float = 0) -> "TaskID":
        """Something more is under way."""
        number = max(self._works, default=-1) + 1
        self._works[number] = Work(description, total, completed, before=completed)
        return cast("TaskID", number)

    def update(
        self, task: "TaskID", *, description: str | None = None, completed: float | None = None
    ) -> None:
        """What is known of it now."""
        work = self._works[task]
        work.description = work.description if description is None else description
        if completed is not None:
            work.reach(completed)

    def advance(self, task: "TaskID", count: float = 1) -> None:
        """So much more is done."""
        work = self._works[task]
        work.reach(work.completed + count)

    def remove_task(self, task: "TaskID") -> None:
        """It is done."""
        del self._works[task]

    def track(self, steps: Iterable[T], total: float | None = None) -> Iterator[T]:
        """The steps, each counted when it is done."""
        task = self.add_task("working", total)
        for step in steps:
            yield step
            self.advance(task)
        self.remove_task(task)

    def _tell(self) -> None:
        wait = self._first
        while not self._end.wait(wait):
            wait = self._every
            if works := list(self._works.values()):
                self._say("; ".join(work.line for work in works))
