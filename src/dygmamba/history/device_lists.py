"""Look-ups in lists of events by tensors: on a model's device, or in lists on the host that events are appended to.

`SortedLists` are block lists (`history/block_lists.py`) as columns of one sorted key, group * (t + 1) + number of the
instant: one binary search finds the end of a query's past. Nothing is read back to the host, so a CUDA graph can
capture it. `BlockLookup` finds the same entries in the block lists themselves.

Legend: t instants, m entries, g groups, s scales, q queries.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from dygmamba.history.block_lists import BlockLists, CountLists, SumLists
from dygmamba.history.columns import FoundSums
from dygmamba.ops.key_slots import KeySlots


@dataclass(frozen=True, slots=True)
class SortedLists:
    """Entries of all groups in the order of their keys, on any device; the events never change.

    Attributes:
        known: Keys of the groups, sorted; None if a key is the number of its group.
        instant: Distinct times of the stream, sorted.
        key: Key of each entry.
        number: Position of each entry in its group, from 1 on.
        columns: Columns of the lists.
        scale: Time scales of the decay; none if the lists have no decayed numbers.
    """

    known: Int64[Tensor, "g"] | None
    instant: Float64[Tensor, "t"]
    key: Int64[Tensor, "m"]
    number: Int64[Tensor, "m"]
    columns: dict[str, Tensor]
    scale: Float64[Tensor, "s"]

    @staticmethod
    def from_blocks(lists: BlockLists, instant: Float64[Tensor, "t"]) -> "SortedLists":
        """Sort the groups of block lists by key; counts are stored in 32 bits."""
        keys = lists.slots.keys() if isinstance(lists.slots, KeySlots) else None
        order = slice(lists.groups) if keys is None else np.argsort(keys)
        start, size = lists.start[order], lists.size[order]
        number = np.arange(size.sum()) - np.repeat(size.cumsum() - size, size)
        columns = {name: torch.from_numpy(getattr(lists, name)) for name in lists.columns}
        if keys is not None or len(number) < len(lists.time):  # not in order yet, or with room in between
            place = torch.from_numpy(number + np.repeat(start, size))
            columns = {name: column[place] for name, column in columns.items()}
        if isinstance(lists, CountLists):
            columns["running"] = columns["running"].float()
        group = torch.repeat_interleave(torch.from_numpy(size))
        key = group * (len(instant) + 1) + torch.searchsorted(instant, columns["time"])
        known = None if keys is None else torch.from_numpy(keys[order])
        scale = (
            torch.from_numpy(lists.scale)
            if isinstance(lists, CountLists | SumLists)
            else torch.zeros(0).double()
        )
        return SortedLists(known, instant, key, torch.from_numpy(number + 1), columns, scale)

    def to(self, device: torch.device | str) -> "SortedLists":
        return replace(
            self,
            known=None if self.known is None else self.known.to(device),
            columns={name: column.to(device) for name, column in self.columns.items()},
            **{name: getattr(self, name).to(device) for name in ("instant", "key", "number", "scale")},
        )

    def find_last(
        self, key: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> tuple[Int64[Tensor, "*q"], Bool[Tensor, "*q"]]:
        """Return each key's last entry strictly before each time and whether there is one; none for negative keys."""
        if not len(self.key):
            return torch.zeros_like(key), torch.zeros_like(key, dtype=torch.bool)
        is_known, group = key >= 0, key
        if self.known is not None:
            group = torch.searchsorted(self.known, key.contiguous()).clamp(max=len(self.known) - 1)
            is_known = self.known[group] == key
        first = group * (len(self.instant) + 1)
        rank = torch.searchsorted(self.instant, time.contiguous())  # instants strictly earlier
        last = torch.searchsorted(self.key, (first + rank).contiguous()) - 1
        exists = (last >= 0) & is_known
        last = last.clamp(min=0)
        return last, exists & (self.key[last] >= first)  # else the entry found belongs to an earlier group

    def read(self, name: str, entry: Int64[Tensor, "*q"]) -> Tensor:
        """Return a column at these entries; zeros if there are no entries at all."""
        return _read(self.columns[name], entry)

    def get_number(self, key: Int64[Tensor, "*q"], entry: Int64[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        """Return the position of each entry in its group, from 1 on."""
        return _read(self.number, entry)


@dataclass(frozen=True, slots=True)
class BlockLookup:
    """Look-ups in lists on the host, valid until these change; a form of `SortedLists`."""

    lists: BlockLists

    @property
    def scale(self) -> Float64[Tensor, "s"]:
        assert isinstance(self.lists, CountLists | SumLists)
        return torch.from_numpy(self.lists.scale)

    def find_last(
        self, key: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> tuple[Int64[Tensor, "*q"], Bool[Tensor, "*q"]]:
        """Return each key's last entry strictly before each time and whether there is one; none for negative keys."""
        last = torch.from_numpy(self.lists.find_last(key.numpy(), time.numpy()))
        return last.clamp(min=0), last >= 0

    def read(self, name: str, entry: Int64[Tensor, "*q"]) -> Tensor:
        """Return a column at these entries; zeros if there are no entries at all."""
        return _read(torch.from_numpy(getattr(self.lists, name)), entry)

    def get_number(self, key: Int64[Tensor, "*q"], entry: Int64[Tensor, "*q"]) -> Int64[Tensor, "*q"]:
        """Return the position of each entry in its group, from 1 on."""
        group = torch.from_numpy(self.lists.find(key.numpy())).clamp(min=0)
        return entry + 1 - _read(torch.from_numpy(self.lists.start), group)


Lookup = SortedLists | BlockLookup


def _read(column: Tensor, entry: Int64[Tensor, "*q"]) -> Tensor:
    return column[entry] if len(column) else column.new_zeros(*entry.shape, *column.shape[1:])


def count_before(
    lists: Lookup, key: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
) -> tuple[Float32[Tensor, "*q s"], Int64[Tensor, "*q"], Float64[Tensor, "*q"]]:
    """Return the decayed count of each key strictly before each time, in 32 bits; the number of entries and the age.

    The age is that of the latest entry, -1 if there is none.
    """
    last, some = lists.find_last(key, time)
    age = torch.where(some, time - lists.read("time", last), 0.0)
    decay = torch.exp(-age[..., None] / lists.scale).float()
    count = torch.where(some[..., None], lists.read("running", last).float() * decay, 0.0)
    return count, torch.where(some, lists.get_number(key, last), 0), torch.where(some, age, -1.0)


def sum_before(lists: Lookup, key: Int64[Tensor, "q"], time: Float64[Tensor, "q"]) -> FoundSums:
    """Return what `SumLists.look_up` returns, as tensors."""
    last, some = lists.find_last(key, time)
    age = torch.where(some, time - lists.read("time", last), torch.inf)
    sums = torch.where(some[:, None, None], lists.read("running", last), 0.0)
    latest = torch.where(some[:, None], lists.read("latest", last), 0.0)
    return sums, torch.exp(-age[:, None] / lists.scale), latest, lists.read("same", last) & some[:, None]
