"""How small a model may be, and what it may ask for when it says that it is elastic."""

from dataclasses import replace

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import get_setting_hints, split_bounds
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import NeighborRequest, PairBatch, PairView
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, Encoder, EncoderScorer, Scorer, build_scorer
from raising import raises


@pytest.mark.parametrize("node_dim", [0, 2])
@pytest.mark.parametrize("name", list(MODELS))
def test_the_smallest_settings_give_finite_scores(name, node_dim):
    """Every number at its lower end: one entry, one layer, one column wherever a model allows it."""
    store, spec = (
        generate_stream(GeneratorConfig(nodes=8, events=60, communities=2, edge_dim=node_dim)),
        MODELS[name],
    )
    store = replace(store, features=FeatureTable(torch.ones(8, node_dim), store.features.edge))
    bounds = {key: split_bounds(hint)[1] for key, hint in get_setting_hints(spec.config).items()}
    smallest = {key: bound.low for key, bound in bounds.items() if bound is not None}
    torch.manual_seed(0)
    model = spec.build(build_config(spec.config, smallest), DatasetFacts.of(store))
    for events in store.batches(torch.arange(30), 10):
        model.observe(events)
    pairs = PairBatch.from_pairs(store.src[30:], store.dst[30:], store.time[30:])
    view = gather_view(Index(store), store.features, pairs, model.requests, Draws.from_seed(0))
    scores = model(view)
    assert bool(torch.isfinite(scores).all())
    if isinstance(model, EncoderScorer):
        scores.square().sum().backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


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
    with raises("not-elastic", ConfigError):
        EncoderScorer(Asking(recent, request_, elastic=True))
    assert EncoderScorer(Asking(recent, request_, elastic=False)).requests == (recent, request_)
    assert EncoderScorer(Asking(recent, recent, elastic=True)).elastic


def test_a_model_is_an_encoder_or_a_scorer():
    """A scorer needs no more than its requests and `forward`; a module that is neither is refused when it is built."""

    class Constant(torch.nn.Module):
        def forward(self, view: PairView) -> torch.Tensor:
            return torch.zeros(len(view.pairs))

    class Scored(Constant, Scorer):
        pass

    facts = DatasetFacts(8, 0, 0)
    with raises("not-a-model", ConfigError):
        build_scorer(lambda config, facts: Constant(), None, facts)
    scorer = build_scorer(lambda config, facts: Scored(), None, facts)
    assert (scorer.requests, scorer.stateful, scorer.elastic, scorer.rounds_per_epoch) == (
        (),
        False,
        False,
        0,
    )
    assert scorer.is_fitted
    assert scorer.saved_prefix is None
