"""Micro-batching: the items of concurrent requests are processed in one call, in a thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dygmamba.core.progress import Progress
from dygmamba.server.problems import Problem

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item]):
    item: Item
    size: int
    answer: "asyncio.Future[Any]"


class MicroBatcher(Generic[Item, Result]):
    """Collects items until their sizes reach `size` or `window` seconds have passed, and processes them together.

    An item that is alone is processed at once: the window only waits for requests that `expected` says are on their
    way. While a batch is processed, the next one collects.

    Args:
        process: Called in a thread with several items; returns a result or an exception for each.
        size: Total size of the items of a batch; a larger item is a batch of its own.
        window: Most seconds that the first item of a batch waits for others.
        waiting: Items that may wait; more are refused.
        expected: Number of requests that will submit an item soon, including those that wait.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        size: int,
        window: float,
        waiting: int,
        expected: Callable[[], int] = lambda: 0,
    ) -> None:
        self.process, self.size, self.window, self.expected = process, size, window, expected
        self.most_waiting = waiting
        self._waiting: list[_Waiting[Item]] = []
        self._arrived = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, "score")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for entry in self._waiting:
            entry.answer.cancel()
        self._executor.shutdown(wait=True)

    async def submit(self, item: Item, size: int, timeout: float) -> Result:
        """Return the result of an item.

        Raises:
            Problem: Too many items wait (429), or the result took too long (503).
        """
        if len(self._waiting) >= self.most_waiting:
            raise Problem.busy("the model")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, size, answer))
        self._arrived.set()
        try:
            return await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise Problem.timed_out(timeout) from None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._collect()
            batch = self._take()
            if not batch:
                continue
            work = loop.run_in_executor(self._executor, self.process, [entry.item for entry in batch])
            try:
                results = await asyncio.shield(work)
            except asyncio.CancelledError:
                for entry in batch:
                    entry.answer.cancel()
                raise
            except Exception as error:
                results = [error] * len(batch)
            for entry, result in zip(batch, results, strict=True):
                _answer(entry.answer, result)

    async def _collect(self) -> None:
        """Wait until there is a batch to process."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        deadline = asyncio.get_running_loop().time() + self.window
        while sum(entry.size for entry in self._waiting) < self.size and self.expected() > len(self._waiting):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting[Item]]:
        """Take the oldest items that fit into a batch, without those that nobody waits for any more."""
        alive = [entry for entry in self._waiting if not entry.answer.done()]
        batch, size = [], 0
        for entry in alive:
            if batch and size + entry.size > self.size:
                break
            batch.append(entry)
            size += entry.size
        self._waiting = alive[len(batch) :]
        return batch


def _answer(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():  # the request was given up
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class Cancellation(Progress):
    """Progress of a query that ends it, at the end of a pass of the model, once nobody waits for its result."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def advance(self, count: int = 1) -> None:
        if self.is_cancelled:
            raise Problem(503, "cancelled", "nobody waits for this result")


class WorkerPool:
    """Threads for single calls, with a bound on the calls that wait."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self.name, self._most, self._count = name, threads + waiting, 0

    async def run(self, function: Callable[[], Result], timeout: float | None) -> Result:
        """Return the result of a function.

        Raises:
            Problem: Too many calls wait (429), or the result took too long (503). A call that has begun goes on.
        """
        if self._count >= self._most:
            raise Problem.busy(f"the {self.name}")
        self._count += 1
        work = self._executor.submit(function)
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(work), timeout)
        except TimeoutError:
            assert timeout is not None
            raise Problem.timed_out(timeout) from None

    def _leave(self) -> None:
        self._count -= 1

    def stop(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
