"""Register a model of your own, check that it keeps the rules for models, and train it.

Run it with `python examples/own_model.py`; it takes a few seconds on a CPU.
"""

from dataclasses import dataclass

import torch

import dygmamba as dm


@dataclass(frozen=True)
class Config:
    """Settings of the model; `dm.train` accepts them as keyword arguments."""

    length: int = 16  # latest events of each node that the model sees
    width: int = 16


class MeanNeighbor(dm.Encoder):
    """Encodes a node by the mean over its latest events: was it with the other node of the pair, and how long ago?"""

    def __init__(self, config, facts):
        super().__init__()
        # An encoder declares what it needs of the history. It receives only events that are strictly earlier
        # than the query, so it cannot see the future by mistake.
        self.recent = dm.NeighborRequest((config.length,))
        self.requests = (self.recent,)
        self.out_dim = config.width
        self.layer = torch.nn.Linear(2, config.width)

    def forward(self, view):
        (recent,) = view[self.recent]  # one hop
        pairs = view.pairs  # neighbors are stored once per node; `src_row` and `dst_row` point to them
        src = self.encode(recent[pairs.src_row], pairs.dst)
        return src, self.encode(recent[pairs.dst_row], pairs.src)

    def encode(self, recent, other):
        same = (recent.node == other[:, None]).float()
        features = torch.stack([same, same / (1 + recent.age / 3600)], dim=2)
        mask = recent.mask[:, :, None].float()  # short histories are padded; padding must not count
        return self.layer((features * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))


dm.register("mean-neighbor", Config, MeanNeighbor)

# Every model must be causal, finite and independent of batch, order and padding, with a gradient for every weight.
for row in dm.check_model("mean-neighbor").to_pylist():
    print(f"{row['check']:10} {'passed' if row['holds'] else 'failed: ' + row['detail']}")

data = dm.generate(nodes=40, events=1_000, seed=1)
(run,) = dm.train(data, "mean-neighbor", epochs=5, lr=0.01, device="cpu")
for row in run.results.to_pylist():
    print(f"{row['split']:4} {row['setting']:12} AP {row['ap']:.3f}")
