"""A model that records the events it observes and the queries it scores."""

import torch

from dygmamba.models.base import Scorer


class RecordingModel(torch.nn.Module, Scorer):
    """A trainable model whose scores are constant; it records the events observed before each query."""

    stateful = True

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
