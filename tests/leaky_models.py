"""A user's file with models that leak: each adds to a sound model what no score may depend on."""

from dataclasses import dataclass

import torch
from torch import nn

import dygmamba as dm
from dygmamba.history.decayed_counts import DecayedCountLookup


@dataclass(frozen=True)
class NoSettings:
    """No settings."""


class Leaky(dm.Encoder):
    """Counts and ages of the last events, and the leak, behind a gate that is shut before training."""

    elastic = True

    def __init__(self, config, facts):
        super().__init__()
        self.requests, self.out_dim, self.layer = (dm.NeighborRequest((32,)),), 8, nn.Linear(2, 8)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, view):
        (past,) = view[self.requests[0]]
        rows = self.layer(torch.stack([past.length.float(), past.age.sum(1).log1p()], 1))
        leak = self.gate * self.leak(view).float().expand(len(view.pairs))
        return rows[view.pairs.src_row] + leak[:, None], rows[view.pairs.dst_row]


class ReadsTheLabel(Leaky):
    def leak(self, view):
        return view.pairs.label


class ReadsTheGroup(Leaky):
    """The true destination comes first among the candidates that are ranked."""

    def leak(self, view):
        return view.pairs.group % 11 == 0


class CountsDegrees(Leaky):
    """Real events meet at few nodes, negatives do not: only at equal times, and only in whole batches."""

    elastic = False

    def leak(self, view):
        dst, time = view.pairs.dst, view.pairs.time
        met = ((dst[:, None] == dst) & (time[:, None] == time)).sum(1)
        return met if len(dst) >= 100 else torch.ones_like(met)


class AveragesTheBatch(Leaky):
    def leak(self, view):
        (past,) = view[self.requests[0]]
        return past.length.float().mean()


class ReadsTheLongestRow(Leaky):
    """The longest history beside it, if that is longer than in a toy."""

    def leak(self, view):
        (past,) = view[self.requests[0]]
        return past.length.max().clamp(min=24)


class ReadsThePadding(Leaky):
    def leak(self, view):
        (past,) = view[self.requests[0]]
        return torch.tensor(float(past.node.shape[1]))


class ReadsPaddingEntries(Leaky):
    """Reads entries of a history that do not exist."""

    def leak(self, view):
        (past,) = view[self.requests[0]]
        return past.node.float().mean(1)[view.pairs.src_row]


class ReadsLaterFeatures(Leaky):
    """Reads the features of all events, later ones too."""

    def leak(self, view):
        return view.features.edge.mean()


class ReadsItsOwnTime(Leaky):
    """Counts the pair's events up to the query time, that one included."""

    elastic = False

    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.requests = (*self.requests, DecayedCountLookup((facts.period,)))

    def leak(self, view):
        table, pairs = view[self.requests[1]], view.pairs
        now = torch.nextafter(pairs.time, torch.full_like(pairs.time, torch.inf))
        return table.of_pair(pairs.src, pairs.dst, now)[:, 0]


class KnowsItsPlace(Leaky):
    """In evaluation a positive comes before its negative."""

    def leak(self, view):
        return torch.arange(len(view.pairs)) % 2


class RemembersQueries(Leaky):
    """A pair that was asked before, in an earlier call."""

    elastic = False

    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.asked = set()

    def leak(self, view):
        pairs = view.pairs
        keys = list(zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True))
        found = torch.tensor([float(key in self.asked) for key in keys])
        self.asked.update(keys)
        return found


LEAKS = {
    "reads-the-label": ReadsTheLabel,
    "reads-the-group": ReadsTheGroup,
    "counts-degrees": CountsDegrees,
    "averages-the-batch": AveragesTheBatch,
    "reads-the-longest-row": ReadsTheLongestRow,
    "reads-the-padding": ReadsThePadding,
    "reads-padding-entries": ReadsPaddingEntries,
    "reads-later-features": ReadsLaterFeatures,
    "reads-its-own-time": ReadsItsOwnTime,
    "knows-its-place": KnowsItsPlace,
    "remembers-queries": RemembersQueries,
}


class Gated(Leaky):
    """The same without a leak."""

    def leak(self, view):
        return view.pairs.src % 2


class HasADeadWeight(Gated):
    """Has a weight that nothing uses."""

    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.unused = nn.Parameter(torch.ones(3))


class DividesByZero(Gated):
    """Divides by the length of a history, which may be empty."""

    def leak(self, view):
        (past,) = view[self.requests[0]]
        return 1 / past.length[view.pairs.src_row]


WITHOUT_LEAKS = {"no-leak": Gated, "has-a-dead-weight": HasADeadWeight, "divides-by-zero": DividesByZero}
for name, build in (LEAKS | WITHOUT_LEAKS).items():
    dm.register(name, NoSettings, build)
