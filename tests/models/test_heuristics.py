import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import NoConfig
from dygmamba.models.heuristics import Popularity, Recency, SourceRecency
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.view import PairBatch, PairView

STORE = EventStore.from_columns(
    torch.tensor([0, 0, 1, 2]), torch.tensor([3, 4, 4, 3]), torch.tensor([1.0, 2.0, 3.0, 5.0]), num_nodes=6
)


def scores(model, src, dst, time):
    model.observe(STORE.select(torch.arange(4)))
    pairs = PairBatch.from_pairs(
        torch.tensor(src), torch.tensor(dst), torch.tensor(time, dtype=torch.float64)
    )
    return model(PairView(pairs, (), STORE.features)).tolist()


def test_popularity_counts_what_a_destination_received():
    """Node 3 and 4 received two events each, node 0 none, whoever asks."""
    model = Popularity(NoConfig(), DatasetFacts.of(STORE))
    assert scores(model, [5, 5, 5], [3, 4, 0], [9.0, 9.0, 9.0]) == [2, 2, 0]


def test_recency_ranks_met_pairs_first_and_the_latest_highest():
    """(2,3) met at 5, (0,4) at 2, (0,3) at 1; (1,3) never met but 3 was active at 5; 5 was never active."""
    model = Recency(NoConfig(), DatasetFacts.of(STORE))
    found = scores(model, [2, 0, 0, 1, 1], [3, 4, 3, 3, 5], [9.0] * 5)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 5
    assert found[-1] == 0


def test_source_recency_ranks_by_when_the_source_acted_whoever_is_asked_about():
    """Node 2 acted at 5, node 1 at 3, node 0 last at 2; nodes 4 and 5 never did, though 4 received."""
    model = SourceRecency(NoConfig(), DatasetFacts.of(STORE))
    src, dst = torch.tensor([2, 1, 0, 0, 4, 5]), torch.tensor([3, 3, 3, 5, 3, 3])
    pairs = PairBatch.from_pairs(src, dst, torch.full((6,), 9.0, dtype=torch.float64))
    found = model(gather_view(NeighborIndex.build(STORE), STORE.features, pairs, model.requests)).tolist()
    assert found == sorted(found, reverse=True)
    assert found[2] == found[3]
    assert found[4:] == [0, 0]
    assert len(set(found)) == 4
