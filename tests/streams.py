"""Streams for tests of what is asked of them, where no period is trained on."""

import torch

from dygmamba.data.events.splits import Split, chronological_split
from dygmamba.engine.stream import Stream


def unsplit(store, device="cpu"):
    """A stream all of whose events are the test period."""
    ids = torch.arange(len(store))
    nobody = torch.zeros(store.num_nodes, dtype=torch.bool)
    return Stream(store, Split(ids[:0], ids[:0], ids, nobody), torch.device(device))


def split_stream(store, device="cpu"):
    """A stream split as link prediction is."""
    return Stream(store, chronological_split(store), torch.device(device))
