"""Models that learn nothing and note what they were told."""

import torch


class Counter(torch.nn.Module):
    """A trainable witness: learns nothing, remembers what it was told before each step."""

    requests, stateful, elastic = (), True, False

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen, self.asked = [], []

    def forward(self, view):
        self.asked.append((list(self.seen), view.pairs.time.tolist()))
        return self.weight.expand(len(view.pairs))

    def observe(self, events):
        self.seen += events.event.tolist()

    def reset(self):
        self.seen = []

    def snapshot(self, events):
        return list(self.seen)

    def restore(self, kept):
        self.seen = kept
