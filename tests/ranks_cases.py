"""Distributed training in one process: a thread per rank, of which one runs at a time until the next collective call.

Collective calls go through memory instead of a network; everything else is what processes do.
"""

import copy
import threading
from dataclasses import dataclass, field

from dygmamba.engine import distributed as engine
from dygmamba.engine.distributed import DistributedGroup


class Stage:
    """Exchange of values between the threads; the running thread holds the lock."""

    def __init__(self, size):
        self.size, self.turn = size, threading.Condition()
        self.given, self.taken, self.round, self.failed = {}, [], 0, False

    def exchange(self, rank, value):
        """Wait for all ranks and return their values, in order."""
        self.given[rank] = value
        if len(self.given) == self.size:
            self.taken, self.given = [self.given[number] for number in range(self.size)], {}
            self.round += 1
            self.turn.notify_all()
            return self.taken
        mine = self.round
        while self.round == mine:
            assert self.turn.wait(60), "a rank is missing"
            assert not self.failed, "another rank failed"
        return self.taken


@dataclass(frozen=True, slots=True)
class Acted(DistributedGroup):
    """A process group whose ranks are threads."""

    stage: Stage = field(default=None, compare=False)

    def all_reduce(self, tensor):
        parts = self.stage.exchange(self.rank, tensor.clone())
        tensor.copy_(sum(parts[1:], start=parts[0].clone()))

    def run_on_first(self, work):
        return copy.deepcopy(self.stage.exchange(self.rank, work() if self.is_first else None)[0])


def act(size, work):
    """Return the results of `work(group)` in each of `size` ranks."""
    stage, found, errors = Stage(size), [None] * size, []

    def play(rank):
        with stage.turn:
            try:
                own = Acted(rank, size, stage)
                engine._current.set(own)  # of this thread alone
                found[rank] = work(own)
            except BaseException as error:
                errors.append(error)
                stage.failed = True
                stage.round += 1
                stage.turn.notify_all()

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
