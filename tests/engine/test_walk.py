import pytest
import torch
from hypothesis import given

from dygmamba.data.generate import GeneratorConfig, generate_stream
from dygmamba.data.splits import chronological_split
from dygmamba.engine.evaluation import EvaluationSet, evaluation_set, score_by_length, score_set
from dygmamba.errors import EventError
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.edgebank import EdgeBank, EdgeBankConfig
from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.negatives import Negatives
from strategies import event_streams


class Witness:
    """A scorer that notes the latest time it had observed whenever it is asked."""

    requests = ()
    stateful = True

    def __init__(self):
        self.reset()

    def __call__(self, view):
        self.asked.append((self.latest, float(view.pairs.time.min())))
        return torch.zeros(len(view.pairs))

    def observe(self, events):
        self.seen += events.event.tolist()
        if len(events):
            self.latest = max(self.latest, float(events.time.max()))

    def reset(self):
        self.asked, self.seen, self.latest = [], [], float("-inf")


def whole_stream(store):
    events = torch.arange(len(store))
    return EvaluationSet(
        "test", "transductive", "random", events, events[:0], Negatives(store.src, store.dst)
    )


@given(store=event_streams(min_events=1))
def test_strict_ties_show_memory_only_strictly_earlier_events(store):
    """With strict ties, everything observed before a batch is strictly earlier than all its queries."""
    witness = Witness()
    score_set(witness, store, NeighborIndex.build(store), whole_stream(store), batch_size=5, strict_ties=True)
    assert all(latest < first for latest, first in witness.asked)


@given(store=event_streams(min_events=1))
def test_memory_lags_by_one_batch(store):
    """As published, the events observed before batch k are exactly those of the batches before it."""
    witness = Witness()
    score_set(witness, store, NeighborIndex.build(store), whole_stream(store), batch_size=5)
    assert witness.seen == list(range(5 * ((len(store) - 1) // 5)))


@given(store=event_streams(min_events=4))
def test_every_positive_is_scored_once_with_its_negative(store):
    """Scores come in time order: one positive and one negative per event of the set."""
    split = chronological_split(store)
    try:
        chosen = evaluation_set(store, split, "test", "transductive", "historical")
    except EventError:  # a batch that uses every possible pair leaves no negative
        return
    if not len(chosen.events):
        return
    bank = EdgeBank(EdgeBankConfig(), DatasetFacts.of(store))
    scores = score_set(bank, store, NeighborIndex.build(store), chosen, batch_size=3)
    assert sorted(scores.group[scores.label == 1].tolist()) == list(range(len(chosen.events)))
    assert sorted(scores.group[scores.label == 0].tolist()) == list(range(len(chosen.events)))


def test_drawn_neighbours_are_the_same_at_every_evaluation():
    """A model that samples neighbours gets the same scores again, whatever was drawn in between."""
    store = generate_stream(GeneratorConfig(nodes=30, events=400, seed=1))
    split = chronological_split(store)
    spec = MODELS["tgat"]
    config = spec.config(neighbors=3, out=8, time_dim=4, sampling="uniform")
    scorer = spec.build(config, DatasetFacts.of(store)).eval()
    chosen = evaluation_set(store, split, "val", "transductive", "random")
    index = NeighborIndex.build(store)
    with torch.no_grad():
        first = score_set(scorer, store, index, chosen).score
        torch.rand(5)
        assert torch.equal(score_set(scorer, store, index, chosen).score, first)


@pytest.mark.parametrize("tokens", [1, 50, 10_000])
def test_asking_by_length_changes_no_score(tokens):
    """Pairs of like length asked together, in parts of any size, get the scores they get in time order."""
    store = generate_stream(GeneratorConfig(nodes=30, events=400, seed=1))
    split = chronological_split(store)
    spec = MODELS["dyg-mamba"]
    config = spec.config(length=20, width=4, states=4, out=8, time_dim=4)
    scorer = spec.build(config, DatasetFacts.of(store)).eval()
    chosen = evaluation_set(store, split, "test", "inductive", "historical")
    index = NeighborIndex.build(store)
    with torch.no_grad():
        there = score_by_length(scorer, store, index, chosen, tokens)
        here = score_set(scorer, store, index, chosen)
    assert there.metrics().n == here.metrics().n
    for column in ("label", "group"):
        assert sorted(getattr(there, column).tolist()) == sorted(getattr(here, column).tolist())
    assert there.metrics().ap == pytest.approx(here.metrics().ap, abs=1e-4)
    key = torch.argsort(there.group * 2 + there.label), torch.argsort(here.group * 2 + here.label)
    torch.testing.assert_close(there.score[key[0]], here.score[key[1]], rtol=1e-4, atol=1e-5)
