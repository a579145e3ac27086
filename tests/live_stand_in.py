"""A live run without a log, for tests of the server alone: every event is accepted at once."""

import threading
from typing import NamedTuple

import dygmamba as dm


class Verdict(NamedTuple):
    index: int
    status: str
    sequence: int | None
    message: str


class Acknowledgement(NamedTuple):
    sequence: int
    accepted: int
    verdicts: list[Verdict]


class StandIn:
    """Answers as `LiveRun` does; `gate` holds scores back, so that a test can see a queue fill."""

    def __init__(self, run: dm.Run) -> None:
        self.run, self.sequence, self.calls = run, 0, []
        self.gate, self.is_closed, self.failure = threading.Event(), False, None
        self.gate.set()

    @property
    def applied(self) -> int:
        return self.sequence

    def append(self, events, source=None, offset=None):
        if self.failure is not None:
            raise self.failure
        rows = [{name: event[name] for name in ("src", "dst", "time")} for event in events]
        if rows:
            self.run = self.run.observe(
                {name: [row[name] for row in rows] for name in ("src", "dst", "time")}
            )
        first, self.sequence = self.sequence + 1, self.sequence + len(events)
        verdicts = [Verdict(k, "accepted", first + k, "") for k in range(len(events))]
        return Acknowledgement(self.sequence, len(events), verdicts)

    def score(self, pairs, at=None):
        self.gate.wait(10)
        self.calls.append(len(pairs["src"]))
        return self.run.score(pairs, at)

    def rank(self, sources, k=10, at=None, candidates=None, only_new=False):
        return self.run.rank(sources, k, at, candidates, only_new)

    def classify(self, nodes=None, at=None, k=None):
        return self.run.classify(nodes, at, k)

    def explain(self, pair, at=None, *, orders=4, columns=None):
        return self.run.explain(pair, at, orders=orders, columns=columns)

    def facts(self):
        return {"name": "mail", "version": "1"}

    def close(self):
        self.is_closed = True
