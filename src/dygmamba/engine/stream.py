"""A stream of events as the engine drives it: the one bundle of a store, its split, its indices and its device.

Legend: e events, k training events, n nodes.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.distributed import SINGLE_PROCESS, ProcessGroup
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import PairBatch, PairView, Request

CACHED_PROPERTIES = ("events", "train", "index", "training_index")  # on demand, once


@dataclass(frozen=True)
class Stream:
    """Events and their split, kept on the host; what a device needs of them is moved there when it is first asked for.

    Not slotted: what is looked up in is made once, on demand.
    """

    store: EventStore
    split: Split
    device: torch.device
    ranks: ProcessGroup = SINGLE_PROCESS  # who else asks the same questions, and answers a part of them

    @cached_property
    def events(self) -> EventStore:
        """The store on the device."""
        return self.store.check_unchanged().to(self.device)

    @cached_property
    def train(self) -> Int64[Tensor, "k"]:
        """The training events' ids on the device."""
        return self.split.train.to(self.device)

    @cached_property
    def index(self) -> NeighborIndex:
        """Every event, each seen only by what is asked later."""
        return NeighborIndex.build(self.store.check_unchanged()).to(self.device)

    @cached_property
    def training_index(self) -> NeighborIndex:
        """The training events alone, as if nothing else ever happened."""
        return NeighborIndex.build(self.store.check_unchanged(), self.split.train).to(self.device)

    def view(self, pairs: PairBatch, requests: tuple[Request, ...], draws: Draws | None = None) -> PairView:
        """What a model may see for these pairs: of each end, what is strictly earlier."""
        self.store.check_unchanged()
        return gather_view(self.index, self.events.features, pairs, requests, draws)

    def training_view(
        self, pairs: PairBatch, requests: tuple[Request, ...], draws: Draws | None = None
    ) -> PairView:
        """The same of the training events."""
        self.store.check_unchanged()
        return gather_view(self.training_index, self.events.features, pairs, requests, draws)

    def without_labels(self) -> "Stream":
        """The same stream with nothing to read the answers from."""
        return Stream(replace(self.store, label=None), self.split, self.device, self.ranks)

    def alone(self) -> "Stream":
        """The same stream, and what was made of it, asked by this process with nobody's help."""
        one = Stream(self.store, self.split, self.device)
        one.__dict__.update({name: made for name, made in self.__dict__.items() if name in CACHED_PROPERTIES})
        return one
