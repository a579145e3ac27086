"""What an encoder may ask for when it says that it is elastic."""

import pytest
import torch

from dygmamba.errors import ConfigError
from dygmamba.models.base import Encoder, EncoderScorer
from dygmamba.sampling.view import NeighborRequest, PairView


class Asking(Encoder):
    """Two numbers per pair, whatever was asked for."""

    out_dim = 2

    def __init__(self, *requests: NeighborRequest, elastic: bool) -> None:
        super().__init__()
        self.requests, self.elastic = requests, elastic

    def forward(self, view: PairView) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(view.pairs), 2), torch.zeros(len(view.pairs), 2)


@pytest.mark.parametrize(
    "request_",
    [
        NeighborRequest((5, 5)),
        NeighborRequest((5,), "uniform"),
        NeighborRequest((5,), "time_aware"),
        NeighborRequest((5, 5), "uniform"),
    ],
)
def test_an_elastic_model_with_a_look_up_that_cannot_be_cut_is_refused(request_):
    """Fewer entries per hop are other paths, and fewer draws other entries; without `elastic` both are fine."""
    recent = NeighborRequest((3,))
    with pytest.raises(ConfigError, match=r"Asking is elastic.* one hop of recent entries; got"):
        EncoderScorer(Asking(recent, request_, elastic=True))
    assert EncoderScorer(Asking(recent, request_, elastic=False)).requests == (recent, request_)
    assert EncoderScorer(Asking(recent, recent, elastic=True)).elastic
