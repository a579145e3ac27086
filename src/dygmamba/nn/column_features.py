"""Pair features from named columns, for the link head: node features of both ends, and columns of events.

The tables are those that boosted trees read (`history/node_features.py`, `history/columns.py`). They are computed
outside of the network, on the CPU, from what is known strictly before the query.

Legend: p pairs, b encoded columns.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.view import PairView
from dygmamba.nn.initialization import two_layers

LARGEST = torch.finfo(torch.float32).max


class TableEncoding(nn.Module):
    """A perceptron on features of each pair, in standard deviations of the training period.

    The statistics are fixed before training, so that a score does not depend on the other pairs of its batch. Amounts
    have long tails, and those of later events may be beyond all of training: z becomes sign(z) log(1 + |z|).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, request: FeatureRequest, width: int, dropout: float) -> None:
        super().__init__()
        self.request, self.requests, self.out_dim = request, (request,), width
        units = request.units
        # 64 bits, because a deviation may be too small for 32; not stored, because they follow from the facts
        for name in ("mean", "deviation"):
            column = torch.tensor([getattr(unit, name) for unit in units], dtype=torch.float64)
            self.register_buffer(name, column, persistent=False)
        self.encode = two_layers(len(units), 4 * width, width, dropout)

    def forward(self, view: PairView) -> Float[Tensor, "p b"]:
        # a feature in deviations may be infinite in 32 bits
        z = ((view[self.request].double() - self.mean) / self.deviation).clamp(-LARGEST, LARGEST)
        return self.encode((z.sign() * torch.log1p(z.abs())).float())
