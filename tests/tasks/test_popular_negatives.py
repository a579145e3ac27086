"""Popular destinations: exact shares of strictly earlier events, samples by these shares, and an unbiased softmax."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_cases import sample_store
from dygmamba.data.events.splits import Split
from dygmamba.history.destination_popularity import SCALES, UNIFORM_SHARE, DestinationPopularity
from dygmamba.tasks.link import LinkTask
from dygmamba.tasks.losses import RankingLoss
from dygmamba.tasks.training_negatives import PopularDestinations
from strategies import event_streams

CPU = torch.device("cpu")


def expected_share(store, event, node, scale):
    """q(v, t) by its definition, event by event."""
    time, pool = float(store.time[event]), set(store.dst.tolist())
    weight = {
        k: math.exp(-(time - float(store.time[k])) / scale)
        for k in range(len(store))
        if float(store.time[k]) < time
    }
    if not weight:
        return 1 / len(pool)
    own = sum(value for k, value in weight.items() if int(store.dst[k]) == node)
    return (1 - UNIFORM_SHARE) * own / sum(weight.values()) + UNIFORM_SHARE / len(pool)


@settings(max_examples=10, deadline=None)
@given(store=event_streams(min_events=2), scale=st.sampled_from([3.0, 1e3]))
def test_shares_are_those_of_the_definition_and_add_up_to_one(store, scale):
    """For all streams, events and destinations."""
    popularity = DestinationPopularity.build(store.dst, store.time, scale, CPU)
    pool = store.dst.unique()
    for event in range(0, len(store), 3):
        share = popularity.log_odds(pool, store.time[event].expand(len(pool))).exp() / len(pool)
        wanted = [expected_share(store, event, int(node), scale) for node in pool]
        torch.testing.assert_close(share, torch.tensor(wanted).double(), rtol=1e-5, atol=1e-9)
        assert float(share.sum()) == pytest.approx(1)


def test_samples_have_these_shares_and_snapshots_do_not_underflow():
    """Equally spaced chances select each destination by its share, also long after the last event."""
    dst = torch.tensor([4, 4, 7, 9, 4])
    time = torch.tensor([0.0, 0, 1, 1, 5000]).double()  # 5,000 scales later every weight is 0 in 64 bits
    popularity = DestinationPopularity.build(dst, time, 1.0, CPU)
    chance = torch.arange(20_000).double() / 20_000
    for when, share in ((0.0, [1 / 3] * 3), (1.0, [2 / 3, 1 / 6, 1 / 6])):
        drawn = popularity.sample(chance, torch.full_like(chance, when))
        found = torch.stack([(drawn == node).double().mean() for node in (4, 7, 9)])
        torch.testing.assert_close(found, torch.tensor(share).double(), atol=1e-3, rtol=0)
    at = torch.full((3,), 5000.0).double()
    share = popularity.log_odds(torch.tensor([4, 7, 9]), at).exp() / 3
    weight = torch.tensor([2 / math.e, 1, 1]).double()
    torch.testing.assert_close(share, 1 / 6 + weight / weight.sum() / 2, atol=1e-6, rtol=0)
    drawn = popularity.sample(chance, torch.full_like(chance, 5000.0))
    torch.testing.assert_close((drawn == 4).double().mean(), share[0], atol=1e-3, rtol=0)


def test_later_events_change_neither_shares_nor_samples():
    """For all training events: what is sampled for one and its odds depend on strictly earlier events only."""
    store = sample_store(400, nodes=20)
    whole, part = (DestinationPopularity.build(store.dst[:n], store.time[:n], 50.0, CPU) for n in (400, 250))
    pool = store.dst[:250].unique()
    assert torch.equal(pool, store.dst.unique()), "both must have the same destinations"
    early = store.time[:250]
    chance = torch.rand(250, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(whole.sample(chance, early), part.sample(chance, early))
    torch.testing.assert_close(whole.log_odds(store.dst[:250], early), part.log_odds(store.dst[:250], early))


@pytest.mark.parametrize("period", [1.0, 4.0**-3])
def test_the_fitted_scale_follows_how_fast_popularity_changes(period):
    """A destination that is popular for a while: the shorter that is, the shorter the time scale."""
    time = torch.arange(4000).double() / 4000
    rng = torch.Generator().manual_seed(0)
    popular = (time / period).long() if period < 1 else torch.zeros(4000, dtype=torch.int64)
    dst = torch.where(
        torch.rand(4000, generator=rng) < 0.7, popular, torch.randint(70, (4000,), generator=rng)
    )
    scale = DestinationPopularity.fit(dst, time, CPU).scale / float(time[-1])
    assert any(scale == pytest.approx(choice) for choice in SCALES)
    assert (scale < 0.02) == (period < 1)


@pytest.mark.parametrize("candidates", [1, 6])
def test_the_corrected_softmax_learns_the_choice_of_the_source(candidates):
    """Fixed choice p(v): logits fitted by the ranking loss with offsets equal log p(v) up to a constant."""
    rng = torch.Generator().manual_seed(1)
    p = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]).double()
    events = 15_000
    dst = 1 + torch.multinomial(p, events, replacement=True, generator=rng)
    store = sample_store(events, nodes=6).derive(src=torch.zeros_like(dst), dst=dst)
    store = store.derive(time=torch.arange(events).double())
    split = Split(torch.arange(events), torch.arange(0), torch.arange(0), torch.zeros(6, dtype=torch.bool))
    task = LinkTask.create(store, split, CPU, "popular-odds", RankingLoss(candidates))
    assert isinstance(task.negatives, PopularDestinations)
    keys = task.draw_negatives(0, 0)
    pairs = task.build_queries(store.select(split.train), keys)
    assert not torch.equal(keys, task.draw_negatives(0, 1))
    part = task.build_queries(store.select(split.train[70:90]), keys[70:90])  # in any batch
    assert torch.equal(part.dst.view(1 + candidates, -1), pairs.dst.view(1 + candidates, -1)[:, 70:90])
    offset = task.offset(pairs)
    logit = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.LBFGS([logit], max_iter=40)

    def closure():
        optimizer.zero_grad()
        loss = task.loss(logit[pairs.dst] + offset, pairs.label) / len(pairs)
        loss.backward()
        return loss

    optimizer.step(closure)
    learned = logit.detach()[1:].double()
    torch.testing.assert_close(learned - learned.mean(), p.log() - p.log().mean(), atol=0.08, rtol=0)
