"""Write the training loop yourself: `dm.batches` yields causal batches, the rest is plain PyTorch.

Run it with `python examples/own_training_loop.py`; it takes a few seconds on a CPU.
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import dygmamba as dm


def compute_features(view):
    """Return two features per pair: is the destination among the source's 16 latest neighbors, and how recent?"""
    (recent,) = view[dm.NeighborRequest((16,))]  # one hop
    recent = recent[view.pairs.src_row]  # neighbors are stored once per node; `src_row` points to them
    same = ((recent.node == view.pairs.dst[:, None]) & recent.mask).float()
    return torch.stack([same.amax(dim=1), (same / (1 + recent.age / 3600)).sum(dim=1)], dim=1)


def run_epoch(data, split, seed=0):
    """Return the mean loss of one epoch; with `split="train"`, train the weights."""
    losses = []
    # A batch holds events and as many random negatives. Everything in `view` is strictly earlier than its query.
    for step in dm.batches(data, size=100, split=split, seed=seed, neighbors=16, device="cpu"):
        logits = model(compute_features(step.view))[:, 0]
        loss = binary_cross_entropy_with_logits(logits, step.label)
        if split == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


data = dm.generate(nodes=40, events=1_500, seed=1)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for number in range(3):
    loss = run_epoch(data, "train", seed=number)  # another seed draws other negatives
    print(f"epoch {number + 1}: training loss {loss:.3f}")
with torch.no_grad():
    print(f"validation loss {run_epoch(data, 'val'):.3f}; random guessing has 0.693")
