"""A researcher's model: ten lines of their own, held to the contract, trained beside the others, and their own loop.

It runs on the built-in stream, whose forgetting law is known; give a folder to keep the runs.
"""

import sys
import tempfile
from dataclasses import dataclass

import torch

import dygmamba as dm


@dataclass(frozen=True)
class Config:
    """How wide, and how far back."""

    out: int = 16
    past: int = 16


class Meetings(dm.Encoder):
    """How many of either node's latest events were with the other one, and how long ago."""

    def __init__(self, config, facts):
        super().__init__()
        self.requests, self.out_dim = (dm.NeighborRequest((config.past,)),), config.out
        self.layer = torch.nn.Linear(3, config.out)

    def forward(self, view):
        ((past,),) = view.neighbors
        pairs = view.pairs
        vectors = []
        for own, other in ((pairs.src_row, pairs.dst), (pairs.dst_row, pairs.src)):
            seen = past[own]
            met = (seen.node == other[:, None]) & seen.mask
            fresh = (met / (1 + seen.age / 3600)).sum(1)  # fading by the hour
            vectors.append(self.layer(torch.stack([met.sum(1).float(), fresh, seen.length.float()], 1)))
        return vectors[0], vectors[1]


dm.register("meetings", Config, Meetings)
sys.stdout.write(dm.check_model("meetings").to_pandas().to_string(index=False) + "\n\n")

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
data = dm.generate(nodes=60, events=2_000)
runs = dm.train(data, "meetings", seeds=range(2), epochs=4, lr=0.01, device="cpu", out=folder)
sys.stdout.write(runs.summary.to_pandas().to_string(index=False) + "\n\n")

losses = []
weight = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=0.1)
for step in dm.batches(
    data, size=100, neighbors=16, device="cpu"
):  # strictly causal, for a loop of one's own
    ((past,),) = step.view.neighbors
    pairs = step.view.pairs
    seen = past[pairs.src_row]
    met = ((seen.node == pairs.dst[:, None]) & seen.mask).any(1).float()  # did they meet lately?
    logits = torch.stack([torch.ones(len(pairs)), met], 1) @ weight
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, pairs.label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
sys.stdout.write(f"own loop: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps\n")
