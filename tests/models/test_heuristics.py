"""Heuristics: each ranks pairs by what it says it looks at, from strictly earlier events only."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.library import open_dataset
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import LabelledView, PairBatch, PairView
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import NoConfig
from dygmamba.models.heuristics import (
    Association,
    DecayedPopularity,
    DestinationRecency,
    PairRecency,
    Popularity,
    Recency,
    RecencyRegression,
    SourceRecency,
)
from dygmamba.models.lagging_heuristics import LaggingPopularity, LaggingRecency
from dygmamba.runs.baselines import Baselines
from strategies import event_streams

STORE = EventStore.from_columns(
    torch.tensor([0, 0, 1, 2]), torch.tensor([3, 4, 4, 3]), torch.tensor([1.0, 2.0, 3.0, 5.0]), num_nodes=6
)
FACTS = DatasetFacts.of(STORE)
RULES = [
    Association, DecayedPopularity, DestinationRecency, PairRecency, Popularity, Recency, SourceRecency,
]  # fmt: skip


def look_up(rule, store, src, dst, time):
    pairs = PairBatch.from_pairs(
        torch.as_tensor(src), torch.as_tensor(dst), torch.as_tensor(time, dtype=torch.float64)
    )
    return rule(gather_view(Index(store), store.features, pairs, rule.requests))


def observe_all(rule, src, dst, time):
    rule.observe(STORE.select(torch.arange(4)))
    pairs = PairBatch.from_pairs(
        torch.tensor(src), torch.tensor(dst), torch.tensor(time, dtype=torch.float64)
    )
    return rule(PairView(pairs, STORE.features, {}))


@pytest.mark.parametrize(
    ("exact", "lagging", "src", "dst"),
    [
        (Popularity, LaggingPopularity, [5, 5, 5], [3, 4, 0]),
        (Recency, LaggingRecency, [2, 0, 0, 1, 1], [3, 4, 3, 3, 5]),
    ],
)
def test_both_forms_agree_after_all_events(exact, lagging, src, dst):
    """A memory that observed every event scores as the look-up does."""
    time = [9.0] * len(src)
    expected = observe_all(lagging(NoConfig(), FACTS), src, dst, time)
    assert look_up(exact(NoConfig(), FACTS), STORE, src, dst, time).tolist() == expected.tolist()


def test_popularity_counts_what_a_destination_received():
    """Node 3 and 4 received two events each, node 0 none, whoever asks."""
    found = look_up(Popularity(NoConfig(), FACTS), STORE, [5, 5, 5], [3, 4, 0], [9.0] * 3)
    assert found.tolist() == [2, 2, 0]


def test_decayed_popularity_prefers_recent_events():
    """Nodes 3 and 4 received two events each; those of 3 were the last and also the first, those of 4 between."""
    facts = replace(FACTS, period=4_000.0)
    found = look_up(DecayedPopularity(NoConfig(), facts), STORE, [5, 5, 5], [3, 4, 0], [9.0] * 3)
    assert found[0] > found[1] > found[2]


def test_recency_ranks_met_pairs_first_and_the_latest_highest():
    """(2,3) met at 5, (0,4) at 2, (0,3) at 1; (1,3) never met but 3 was active at 5; 5 was never active."""
    found = look_up(Recency(NoConfig(), FACTS), STORE, [2, 0, 0, 1, 1], [3, 4, 3, 3, 5], [9.0] * 5).tolist()
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 5
    assert found[-1] == 0


def test_roles_do_not_matter_to_the_rules_of_any_role():
    """3 and 2 met once, whoever is asked as the source; node 2 only sent and still counts as a destination."""
    rule = PairRecency(NoConfig(), FACTS)
    forth, back = look_up(rule, STORE, [2, 3], [3, 2], [9.0, 9.0])
    assert forth == back > 1
    assert look_up(DestinationRecency(NoConfig(), FACTS), STORE, [0], [2], [9.0]).tolist() == [1 / 5]


def test_source_recency_ranks_by_when_the_source_was_active_whoever_is_asked_about():
    """Node 2 was active at 5, nodes 1 and 4 at 3, node 0 last at 2; node 5 never was."""
    rule = SourceRecency(NoConfig(), FACTS)
    found = look_up(rule, STORE, [2, 1, 4, 0, 0, 5], [3, 3, 3, 3, 5, 3], [9.0] * 6).tolist()
    assert found == sorted(found, reverse=True)
    assert found[1] == found[2]
    assert found[3] == found[4]
    assert found[5] == 0


@given(store=event_streams(min_events=2, max_events=40), cut=st.floats(0, 1))
def test_association_is_the_best_confidence_over_the_last_ten_destinations(store, cut):
    """For all streams, pairs and times: c(w -> v) / (c(w) + 5), counted event by event; without a rule, popularity."""
    asked_at = float(torch.quantile(store.time, cut))
    events = sorted(
        zip(store.time.tolist(), store.src.tolist(), store.dst.tolist(), strict=True),
        key=lambda event: (event[0], event[2]),  # as `history/transitions.py` orders an instant
    )

    def list_recent(source, time):
        return [dst for when, src, dst in events if src == source and when < time][-10:]

    earlier = [event for event in events if event[0] < asked_at]
    visits = Counter(dst for _, _, dst in earlier)
    followed = Counter((w, dst) for when, src, dst in earlier for w in set(list_recent(src, when)))
    nodes = range(store.num_nodes)
    grid = torch.cartesian_prod(torch.arange(store.num_nodes), torch.arange(store.num_nodes)).reshape(-1, 2)
    time = torch.full((len(grid),), asked_at, dtype=torch.float64)
    found = look_up(Association(NoConfig(), DatasetFacts.of(store)), store, grid[:, 0], grid[:, 1], time)
    expected = []
    for source, dst in itertools.product(nodes, nodes):
        rules = [followed[w, dst] / (visits[w] + 5) for w in list_recent(source, asked_at)]
        best = max(rules, default=0)
        expected.append(1 + best if best else visits[dst] / (1 + visits[dst]))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@given(store=event_streams(min_events=2), rule=st.sampled_from(RULES), cut=st.floats(0, 1))
def test_events_at_and_after_the_query_time_change_nothing(store, rule, cut):
    """For all streams and query times: the scores are those of a stream that ends before the query."""
    asked_at = float(torch.quantile(store.time, cut))
    earlier = int((store.time < asked_at).sum())
    grid = torch.cartesian_prod(torch.arange(store.num_nodes), torch.arange(store.num_nodes)).reshape(-1, 2)
    query = (grid[:, 0], grid[:, 1], torch.full((len(grid),), asked_at, dtype=torch.float64))
    model = rule(NoConfig(), DatasetFacts.of(store))
    past = EventStore.from_columns(
        store.src[:earlier], store.dst[:earlier], store.time[:earlier], num_nodes=store.num_nodes
    )
    assert torch.equal(look_up(model, store, *query), look_up(model, past, *query))


def test_regression_learns_which_age_matters():
    """Positives are the recently active destinations, so the weight of the destination's age is the larger one."""
    rng = np.random.default_rng(0)
    events = 600
    time = torch.arange(events, dtype=torch.float64)
    dst = torch.from_numpy(np.repeat(rng.integers(20, 40, events // 6), 6))
    src = torch.from_numpy(rng.integers(0, 20, events))
    store = EventStore.from_columns(src, dst, time, num_nodes=40)
    rule = RecencyRegression(NoConfig(), DatasetFacts.of(store))
    others = torch.from_numpy(rng.integers(20, 40, events))
    pairs = PairBatch.from_pairs(
        src.repeat(2),
        torch.cat([dst, others]),
        time.repeat(2),
    ).with_labels((torch.arange(2 * events) < events).float())
    view = gather_view(Index(store), store.features, pairs, rule.requests)
    before = rule(view)
    rule.fit(LabelledView(view, pairs))
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    assert loss(rule(view), pairs.label.double()) < loss(before, pairs.label.double())
    assert rule._weight[1] < rule._weight[0]
    assert rule._weight[1] < 0


def test_every_heuristic_of_the_registry_is_exact_under_strict_visibility():
    """None keeps a memory that lags: a baseline sees what a model sees."""
    for spec in MODELS.values():
        if not spec.trainable:
            assert not spec.build(spec.config(), FACTS).stateful


def test_exact_rules_on_uci(real_data):
    """Without training, the pair's and then the destination's last activity in any role ranks UCI at 96.63 AP."""
    evaluator = Baselines.from_dataset(open_dataset("uci", real_data))
    key = ("random", "test", "transductive")
    found = {
        model: round(100 * evaluator.evaluate(model, {}, key).link["ap"], 2)
        for model in ("edgebank", "recency", "pair-recency")
    }
    assert found == {"edgebank": 83.12, "recency": 95.25, "pair-recency": 96.63}
