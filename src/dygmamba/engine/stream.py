"""An event stream as the engine drives it: the events, their split, the neighbor indices and the device.

Legend: e events, k training events.
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.distributed import SINGLE_PROCESS, ProcessGroup
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch, PairView, Request
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.query_types import find_query_types


@dataclass(frozen=True)
class Stream:
    """Events and their split on the host; copies on the device and indices are built on first use.

    Not slotted, because `cached_property` needs a `__dict__`.
    """

    store: EventStore
    split: Split
    device: torch.device
    processes: ProcessGroup = SINGLE_PROCESS  # processes that share the scoring of the same queries

    @cached_property
    def events(self) -> EventStore:
        """The events on the device."""
        return self.store.check_unchanged().to(self.device)

    @cached_property
    def facts(self) -> DatasetFacts:
        """Facts that a model may read when it is built; time statistics are those of the training events."""
        return DatasetFacts.of(self.store, self.split.train)

    @cached_property
    def train(self) -> Int64[Tensor, "k"]:
        """Training events (rows of the stream) on the device."""
        return self.split.train.to(self.device)

    @cached_property
    def index(self) -> Index:
        """Index of every event; each is visible to strictly later queries only."""
        return Index(self.store.check_unchanged()).to(self.device)

    @cached_property
    def training_index(self) -> Index:
        """Index of the training events only."""
        return Index(self.store.check_unchanged(), self.split.train).to(self.device)

    @cached_property
    def query_types(self) -> Int8[Tensor, "e"]:
        """Type of each validation and test event (`tasks/query_types.py`), -1 for training events; on the host."""
        types = torch.full((len(self.store),), -1, dtype=torch.int8)
        evaluated = torch.cat([self.split.val, self.split.test])
        types[evaluated] = find_query_types(self.store.check_unchanged(), evaluated)
        return types

    def view(
        self,
        pairs: PairBatch,
        requests: tuple[Request, ...],
        draws: Draws | None = None,
        length: int | None = None,
    ) -> PairView:
        """Look up the requests of a model about these pairs in strictly earlier events (`gather_view`)."""
        self.store.check_unchanged()
        return gather_view(self.index, self.events.features, pairs, requests, draws, length)

    def training_view(
        self, pairs: PairBatch, requests: tuple[Request, ...], draws: Draws | None = None
    ) -> PairView:
        """Gather as `view`, from training events only."""
        self.store.check_unchanged()
        return gather_view(self.training_index, self.events.features, pairs, requests, draws)

    def without_labels(self) -> "Stream":
        """Return the stream without labels, so that a model cannot read them."""
        return Stream(self.store.without_labels(), self.split, self.device, self.processes)

    def with_index(self, index: Index) -> "Stream":
        """Return the stream with an index of its events; both are used as they are."""
        stream = Stream(self.store, self.split, self.device, self.processes)
        stream.__dict__.update(index=index, events=self.store)
        return stream

    def alone(self) -> "Stream":
        """Return the stream for use by this process only; it shares what was built already."""
        alone = copy(self)
        alone.__dict__["processes"] = SINGLE_PROCESS
        return alone
