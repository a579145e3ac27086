"""Who this process is among those that train one run together, and the few things they do in common.

Every process runs the same program with the same data, weights and draws, and computes its share of the questions; the
first of them writes. One process is the identity of everything here, so nobody else asks how many there are
(decision 030).
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
    """Another process of the same training is gone, so this one cannot go on."""

    exit_code = 75  # whoever started the processes looks for another one to blame


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process, which has nobody to agree with."""

    rank: int = 0
    size: int = 1
    several = False  # whether anything below waits for others

    @property
    def leads(self) -> bool:
        """Whether this process writes, and decides where a clock or a user does."""
        return self.rank == 0

    def share(self, count: int) -> tuple[int, int]:
        """From where to where in a row of so many this process computes: as even as can be, perhaps nothing."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def is_mine(self, number: int) -> bool:
        """Whether the piece of work of that number is this process's, where pieces are dealt out in turn."""
        return number % self.size == self.rank

    def sum(self, tensor: Tensor) -> None:
        """Its sum over the processes, in place: the same bits in each."""

    def collect(self, rows: Tensor) -> Tensor:
        """Rows on the host that each process has some of, the rest zero: all of them."""
        return rows

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether one of the processes says so, of each."""
        return flags

    def led(self, work: Callable[[], Result]) -> Result:
        """What the first process makes of it; what it refuses, all refuse."""
        return work()

    def wait(self) -> None:
        """Until all have come this far."""

    def reseed(self, key: int, step: int, alike: bool) -> None:
        """Draw as this step does, here alike in all processes or in each its own; one process draws on."""


SINGLE_PROCESS = ProcessGroup()


@dataclass(frozen=True, slots=True)
class DistributedGroup(ProcessGroup):
    """One of the processes of a group (`process_wide.join_others`); a group of one still makes every call."""

    several = True

    def sum(self, tensor: Tensor) -> None:
        """One all-reduce."""
        _call_peers(lambda: dist.all_reduce(tensor))

    def collect(self, rows: Tensor) -> Tensor:
        """A sum with zeros changes no bit; the first process knows the shape, as it always has the first piece."""
        shape, kind = self.led(lambda: (rows.shape, rows.dtype))
        whole = rows if (rows.shape, rows.dtype) == (shape, kind) else torch.zeros(shape, dtype=kind)
        self.sum(whole)
        return whole

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """One small all-reduce on the host, which no GPU waits for."""
        said = torch.tensor(flags, dtype=torch.int32)
        self.sum(said)
        return tuple(bool(number) for number in said.tolist())

    def led(self, work: Callable[[], Result]) -> Result:
        """The result is sent, so it must be a plain value."""
        told: list[Any] = [None, None]
        if self.leads:
            try:
                told[0] = work()
            except DygError as error:
                told[1] = error
        _call_peers(lambda: dist.broadcast_object_list(told, src=0, device=HOST))
        if told[1] is not None:
            raise told[1]
        return told[0]

    def wait(self) -> None:
        """A sum that nobody needs, on the host: one of nothing would not wait."""
        self.any(True)

    def reseed(self, key: int, step: int, alike: bool) -> None:
        """A function of run, epoch, step and process, so that a resumed run draws what it would have drawn."""
        who = 0 if alike else self.rank + 1
        words = np.random.SeedSequence([key % 2**64, step, who]).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]) >> 1)


_current: ContextVar[ProcessGroup] = ContextVar("ranks", default=SINGLE_PROCESS)


def current_group() -> ProcessGroup:
    """Who this process is at the moment."""
    return _current.get()


@contextmanager
def use_process_group() -> Iterator[ProcessGroup]:
    """Inside, this process is one of its group; outside it works for itself, as others may not be asked the same."""
    if current_group().several or not dist.is_initialized():
        yield current_group()
        return
    before = _current.set(DistributedGroup(dist.get_rank(), dist.get_world_size()))
    try:
        yield current_group()
    finally:
        _current.reset(before)


def _call_peers(call: Callable[[], Any]) -> None:
    """Call the others; where one of them is gone, say so in a sentence."""
    try:
        call()
    except RuntimeError as error:
        raise PeerLostError(
            "another process of this training ended; what was saved is kept, see what that one said"
        ) from error
