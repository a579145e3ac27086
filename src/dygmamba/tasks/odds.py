"""How often a pair is asked about as one that was not, by how often random destinations alone would; in closed form.

Who tells what happens, p(u, v), from what is asked beside it, q(u, v), learns log p(u, v) - log q(u, v): with random
destinations, q(u, v) = p(u) / m, that is log p(v | u) + log m, whom a source chooses; with other pairs something else,
how they are drawn among it. Where q is known, -log(q(u, v) / (p(u) / m)) added to each logit, in the loss of training
and nowhere else, leaves log p(v | u) + log m to be learned, whatever is asked beside (King and Zeng, "Logistic
Regression in Rare Events Data", 2001, have this of one constant).

Legend: k training events, s their distinct pairs, n nodes, m destinations, c pairs present in cells of events, p pairs
asked.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pool:
    """What training pairs are drawn from: `tries` draws out of all that leave those of the event's own cell alone."""

    src: Int64[Tensor, "k"]
    pairs: Int64[Tensor, "s"]  # source * num_nodes + destination, sorted
    busy: Int64[Tensor, "c"]  # cell * s + pair
    num_nodes: int
    destinations: int
    cell: int
    tries: int


@dataclass(frozen=True, slots=True)
class Odds:
    """The log of these odds for every pair of a training source and a training destination; on the device."""

    pairs: Int64[Tensor, "s"]
    met: Float32[Tensor, "s"]
    unmet: Float32[Tensor, "n"]  # of a source with whom it never met
    num_nodes: int

    @staticmethod
    def of_both(pool: Pool, device: torch.device) -> "Odds":
        """Of random destinations and training pairs in turn, half of the questions each."""
        s, cell = len(pool.pairs), torch.arange(len(pool.src)) // pool.cell
        events = torch.bincount(cell).double()
        taken = torch.bincount(pool.busy // s, minlength=len(events)).double() / s
        idle = sum(taken**tries for tries in range(pool.tries)) / s  # a pair that may be drawn, for one event
        everywhere = (events * idle).sum()
        busy = torch.zeros(s, dtype=torch.float64).index_add_(
            0, pool.busy % s, (events * idle)[pool.busy // s]
        )
        draws = (everywhere - busy).clamp(min=0)  # of each pair, in an epoch that asks about nothing else
        acts = torch.bincount(pool.src, minlength=pool.num_nodes).double().clamp(min=1)
        failed = torch.bincount(pool.src, (taken**pool.tries)[cell], minlength=pool.num_nodes)
        unmet = (1 + failed / acts) / 2  # where no pair was found, a random destination is asked about
        own = pool.pairs // pool.num_nodes
        met = unmet[own] + draws / 2 * pool.destinations / acts[own]
        logs = (met.log().float().to(device), unmet.log().float().to(device))
        return Odds(pool.pairs.to(device), *logs, pool.num_nodes)

    def log(self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"]) -> Float32[Tensor, "p"]:
        """Of these pairs."""
        key = src * self.num_nodes + dst
        place = torch.searchsorted(self.pairs, key).clamp(max=len(self.pairs) - 1)
        return torch.where(self.pairs[place] == key, self.met[place], self.unmet[src])
