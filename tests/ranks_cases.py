"""Several ranks in one process: a thread each, of which one runs at a time, until all have come to what they share.

What is shared goes through memory instead of a network; all else is what processes do.
"""

import copy
import threading
from dataclasses import dataclass, field

from dygmamba.engine import distributed as engine
from dygmamba.engine.distributed import DistributedGroup


class Stage:
    """Where the threads hand over: whoever runs holds the lock."""

    def __init__(self, size):
        self.size, self.turn = size, threading.Condition()
        self.given, self.taken, self.round, self.failed = {}, [], 0, False

    def exchange(self, rank, value):
        """What all ranks gave, in order."""
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
    """A rank that is a thread."""

    stage: Stage = field(default=None, compare=False)

    def all_reduce(self, tensor):
        """Through memory."""
        parts = self.stage.exchange(self.rank, tensor.clone())
        tensor.copy_(sum(parts[1:], start=parts[0].clone()))

    def run_on_first(self, work):
        """What the first one makes."""
        return copy.deepcopy(self.stage.exchange(self.rank, work() if self.is_first else None)[0])


def act(size, work):
    """What each of so many ranks makes of `work(ranks)`."""
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
