"""Distributed training: the group of processes that train one run, and their collective operations.

Every process runs the same program with the same data, weights and draws, and computes its share of each batch; only
the first process writes files. For a single process all operations are the identity, so that no caller has to ask how
many processes there are (decision 030).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dygmamba.core.errors import DygError

Result = TypeVar("Result")
HOST = torch.device("cpu")


class PeerLostError(DygError):
    """Another process of the same training ended, so this one cannot continue."""

    exit_code = 75  # tells the launcher that another process has the cause
    code = "peer-lost"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A single process: every operation is the identity."""

    rank: int = 0
    size: int = 1
    is_distributed = False  # whether operations wait for other processes

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and decides what depends on a clock or on the user."""
        return self.rank == 0

    def share(self, count: int) -> tuple[int, int]:
        """Return the range [first, end) of `count` items that this process computes; it may be empty."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def owns(self, number: int) -> bool:
        """Return whether this process computes the item of that number, when items are dealt out in turn."""
        return number % self.size == self.rank

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum the tensor over all processes in place; every process gets the same bits."""

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return all rows of a tensor on the host of which each process has computed some, the others being zero."""
        return rows

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is set in any process."""
        return flags

    def run_on_first(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the first process and return its result in all; a DygError is raised in all."""
        return work()

    def barrier(self) -> None:
        """Wait until all processes get here."""

    def reseed(self, key: int, step: int, alike: bool) -> None:
        """Seed torch for a step, with the same seed in all processes (`alike`) or with one for each.

        A single process keeps its generator running instead.
        """


SINGLE_PROCESS = ProcessGroup()


@dataclass(frozen=True, slots=True)
class DistributedGroup(ProcessGroup):
    """A process of a torch.distributed group; even a group of one makes every collective call."""

    is_distributed = True

    def all_reduce(self, tensor: Tensor) -> None:
        _call_peers(lambda: dist.all_reduce(tensor))

    def gather_rows(self, rows: Tensor) -> Tensor:
        # the first process owns the first pass, so it always knows shape and type; adding zeros changes no bit
        shape, dtype = self.run_on_first(lambda: (rows.shape, rows.dtype))
        whole = rows if (rows.shape, rows.dtype) == (shape, dtype) else torch.zeros(shape, dtype=dtype)
        self.all_reduce(whole)
        return whole

    def any(self, *flags: bool) -> tuple[bool, ...]:
        counts = torch.tensor(flags, dtype=torch.int32)  # on the host, so that no GPU has to wait
        self.all_reduce(counts)
        return tuple(bool(number) for number in counts.tolist())

    def run_on_first(self, work: Callable[[], Result]) -> Result:
        message: list[Any] = [None, None]  # result and error, pickled by broadcast_object_list
        if self.is_first:
            try:
                message[0] = work()
            except DygError as error:
                message[1] = error
        _call_peers(lambda: dist.broadcast_object_list(message, src=0, device=HOST))
        if message[1] is not None:
            raise message[1]
        return message[0]

    def barrier(self) -> None:
        self.any(True)  # a sum on the host; an empty all-reduce would not wait

    def reseed(self, key: int, step: int, alike: bool) -> None:
        # a function of run and epoch (key), step and rank, so that a resumed run draws what it would have drawn
        stream = 0 if alike else self.rank + 1
        words = np.random.SeedSequence([key % 2**64, step, stream]).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]) >> 1)


_current: ContextVar[ProcessGroup] = ContextVar("ranks", default=SINGLE_PROCESS)


def current_group() -> ProcessGroup:
    """Return the group in use; outside of `use_process_group` it is the single process."""
    return _current.get()


@contextmanager
def use_process_group() -> Iterator[ProcessGroup]:
    """Use the initialized torch.distributed group inside the context.

    Outside of it the process works alone, because the others may not be running the same code.
    """
    if current_group().is_distributed or not dist.is_initialized():
        yield current_group()
        return
    before = _current.set(DistributedGroup(dist.get_rank(), dist.get_world_size()))
    try:
        yield current_group()
    finally:
        _current.reset(before)


def _call_peers(call: Callable[[], Any]) -> None:
    """Make a collective call; raise PeerLostError if another process is gone."""
    try:
        call()
    except RuntimeError as error:
        raise PeerLostError(
            "another process of this training ended; checkpoints are kept, see the error message of that process"
        ) from error
