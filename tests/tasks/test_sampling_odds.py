"""Correction by known odds: they equal the sampling frequencies and affect training only."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from contract_cases import TINY, TRAINABLE, sample_store
from dygmamba.config import build_config
from dygmamba.data.events.splits import Split, chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine import executor as engine
from dygmamba.engine.executor import Batch, Epoch, choose_executor
from dygmamba.engine.executor.eager import BucketedExecutor
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.length_buckets import SHARE_CHOICES, SINGLE_BUCKET
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.device_lists import SortedLists
from dygmamba.history.draws import Draws
from dygmamba.history.source_activity import SourceActivity
from dygmamba.history.view import LabelledView, PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.models.objectives import LogisticObjective
from dygmamba.tasks.activity import fit_activity
from dygmamba.tasks.link import LinkTask, build_link_set
from dygmamba.tasks.training_negatives import (
    MIN_RELATIVE_RATE,
    TRAINING_NEGATIVES,
    WINDOW_EVENTS,
    ActivityShares,
    EarlierPairs,
    MixedOddsNegatives,
    SamplingOdds,
)
from strategies import event_streams

CPU = torch.device("cpu")
EPOCHS = 200
NODES = 14


def trained_on(store):
    ids = torch.arange(len(store))
    return Split(ids, ids[:0], ids[:0], torch.zeros(store.num_nodes, dtype=torch.bool))


@pytest.fixture(scope="module")
def dense():
    """Few pairs, active and rare sources, windows in which most pairs occur: every branch of the sampler is used."""
    store = sample_store(2 * WINDOW_EVENTS + 50, nodes=NODES, seed=1)
    rng = torch.Generator().manual_seed(0)
    src = (torch.rand(len(store), generator=rng) ** 2 * (NODES - 1)).long()
    return type(store).from_columns(src, store.dst, store.time, num_nodes=NODES)


class WindowShares:
    """Share of each source in the events of the window that a time belongs to."""

    def __init__(self, store):
        windows = store.src.split(WINDOW_EVENTS)
        self.share = torch.stack(
            [torch.bincount(src, minlength=NODES) / len(src) for src in windows]
        ).double()
        self.start = store.time[::WINDOW_EVENTS].contiguous()

    def at(self, src, time):
        """Share of the window's events."""
        return self.share[torch.searchsorted(self.start, time.contiguous(), right=True) - 1, src]


def all_pairs(store, time):
    """Every training source with every training destination at every time."""
    pairs = torch.cartesian_prod(store.src.unique(), store.dst.unique()).repeat_interleave(len(time), dim=0)
    return PairBatch.from_pairs(*pairs.T, time.repeat(len(pairs) // len(time)))


def test_odds_equal_sampling_frequencies_in_every_window(dense):
    """For all windows and pairs: frequency of random destinations times the odds, within five standard deviations."""
    negatives = MixedOddsNegatives.create(dense, trained_on(dense), CPU, WindowShares(dense))
    drawn = torch.stack([negatives.draw_negatives(0, epoch) for epoch in range(EPOCHS)], dim=1)
    pairs = all_pairs(dense, dense.time)
    random = negatives.odds.shares.at(pairs.src, pairs.time) / len(dense.dst.unique())
    expected = random * negatives.odds.log(pairs.src, pairs.dst, pairs.time).double().exp()
    key = (pairs.src * NODES + pairs.dst).view(-1, len(dense))[:, 0]
    again = 0
    for cell in torch.arange(len(dense)).split(WINDOW_EVENTS):
        found = torch.bincount(drawn[cell].flatten(), minlength=NODES**2)[key].double()
        stated = EPOCHS * expected.view(-1, len(dense))[:, cell].sum(dim=1)
        assert float(found.sum()) == pytest.approx(float(stated.sum()), rel=1e-6), "nothing else is drawn"
        assert bool(((found - stated).abs() < 5 * stated.sqrt() + 1e-6).all())
        plain = EPOCHS * random.view(-1, len(dense))[:, cell].sum(dim=1)
        assert not bool(((found - plain).abs() < 5 * plain.sqrt()).all()), "and it matters"
        own = dense.src[cell] * NODES + dense.dst[cell]
        again += int(torch.isin(drawn[cell], own).sum())
    assert again > drawn.numel() / 4, "pairs of the event's own window are drawn too"


@settings(max_examples=40)
@given(store=event_streams(min_events=2), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_probabilities_sum_to_one_and_negatives_are_earlier_pairs(store, seed, epoch):
    """For all streams with ties: at every event the stated probabilities sum to 1; no drawn pair is a later one."""
    negatives = MixedOddsNegatives.create(store, trained_on(store), CPU)
    m, time = len(store.dst.unique()), store.time.unique()
    pairs = all_pairs(store, time)
    share = negatives.odds.shares.at(pairs.src, pairs.time)
    stated = share / m * negatives.odds.log(pairs.src, pairs.dst, pairs.time).double().exp()
    total = stated.view(-1, len(time)).sum(dim=0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-5, atol=0)
    drawn = negatives.draw_negatives(seed, epoch)
    key = store.src * store.num_nodes + store.dst
    for k, pair in enumerate(drawn.tolist()):
        earlier = set(key[store.time < store.time[k]].tolist())
        is_random = (k + epoch) % 2 == 0 or not earlier
        assert pair // store.num_nodes == int(store.src[k]) if is_random else pair in earlier


def test_odds_depend_on_earlier_events_only(dense):
    """Other events from a time on leave the odds until then, inclusive, as they are."""
    key = dense.src * NODES + dense.dst
    cut = int(torch.searchsorted(dense.time, dense.time[WINDOW_EVENTS]))
    other = key.clone()
    other[cut:] = key[0]
    pairs = all_pairs(dense, dense.time[: cut + 1])
    first, second = (
        SamplingOdds(EarlierPairs.from_events(pair, dense.time), WindowShares(dense), NODES, NODES)
        for pair in (key, other)
    )
    assert len(first.earlier.pairs) > len(second.earlier.pairs)
    asked = (pairs.src, pairs.dst, pairs.time)
    assert torch.equal(first.log(*asked), second.log(*asked))


def test_shares_are_fitted_rates_and_sum_to_one(dense):
    """For all instants: the fitted rate over the sum of rates; later events change nothing."""
    src, time = dense.src, dense.time
    senders = SourceActivity.from_events(dense, torch.arange(len(dense)))
    turns, rate = ActivityShares.fit(senders, src, time, CPU), fit_activity(senders, src, time)
    sources, instant = src.unique(), time.unique()
    who, when = sources.repeat(len(instant)), instant.repeat_interleave(len(sources))
    found = turns.at(who, when).view(-1, len(sources))
    torch.testing.assert_close(
        found.sum(dim=1), torch.ones(len(instant), dtype=torch.float64), rtol=1e-6, atol=0
    )
    least = MIN_RELATIVE_RATE * len(src) / len(sources) / senders.period
    rates = (rate.log_rate(senders, who, when).exp() + least).view(-1, len(sources))
    torch.testing.assert_close(found, rates / rates.sum(dim=1, keepdim=True), rtol=1e-5, atol=1e-9)
    assert float(found.min()) > 0
    early = len(instant) // 2
    cut = int(torch.searchsorted(time, instant[early]))
    other = src.clone()
    other[cut:] = other[cut:].flip(0)
    again = replace(turns, lists=SortedLists.count_events(other, time, turns.lists.scale))
    asked = who[: (early + 1) * len(sources)], when[: (early + 1) * len(sources)]
    assert torch.equal(again.at(*asked), turns.at(*asked))


def test_other_negatives_have_no_offset(dense):
    """Random, historical and mixed negatives leave the logits as they are."""
    pairs = all_pairs(dense, dense.time[-1:])
    for kind in TRAINING_NEGATIVES.keys() - {"mixed-odds", "popular-odds"}:
        assert LinkTask.create(dense, trained_on(dense), CPU, kind).offset(pairs) is None


@pytest.fixture(scope="module")
def stream():
    """A small stream with busy and idle nodes."""
    store = generate_stream(GeneratorConfig(nodes=40, events=600, seed=3))
    return Stream(store, chronological_split(store), CPU)


def test_mixed_odds_has_the_random_destinations_of_mixed_and_random_validation(stream):
    """Every other event has the same random destination; validation uses negatives that keep the source."""
    mixed, known = (
        LinkTask.create(stream.store, stream.split, CPU, kind) for kind in ("mixed", "mixed-odds")
    )
    first, second = mixed.draw_negatives(1, 3), known.draw_negatives(1, 3)
    assert torch.equal(first[1::2], second[1::2])
    assert not torch.equal(first[::2], second[::2])
    evaluation_set = build_link_set(stream.store, stream.split, "val")
    assert torch.equal(known.validation.pairs.node, evaluation_set.pairs.node)
    assert known.validation.about == evaluation_set.about


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("shares", [SINGLE_BUCKET, SHARE_CHOICES[3]])
def test_every_model_trains_with_offsets(stream, name, shares, monkeypatch):
    """For all models, whole or in buckets: the loss has the offsets, scores do not."""
    monkeypatch.setattr(engine, "choose_shares", lambda lengths, most, costs: shares)
    spec, how = find_model(name), LinkFitConfig(batch=50, train_negatives="mixed-odds", precision="float32")
    torch.manual_seed(0)
    config = build_config(spec.config, TINY[name])
    scorer = spec.build(config, DatasetFacts.of(stream.store, stream.split.train))
    task = LinkTask.create(stream.store, stream.split, CPU, "mixed-odds")

    def epoch(number):
        return Epoch(number, stream.train, task.draw_negatives(0, number), Draws.from_seed(0, number))

    executor = choose_executor(task, scorer, stream, how, epoch)
    if scorer.rounds_per_epoch or (shares != SINGLE_BUCKET and not isinstance(executor, BucketedExecutor)):
        return
    scorer.eval()  # no chance
    told = (
        MemorySchedule.from_periods(stream.store, (stream.split.train,), 50).visible_batches("strict")[1]
        if scorer.stateful
        else 0
    )
    rows, batch = executor.context.rows(1), Batch(epoch(0), 1, range(told))
    pairs = task.build_queries(stream.events.select(stream.train[rows]), batch.epoch.others[rows])
    executor.prepare(batch.epoch)
    executor.prepared_epoch = 0
    scorer.reset()
    for cell in batch.memory_batches:
        executor.update_memory(cell)
    with torch.no_grad():
        said = scorer(stream.training_view(pairs, scorer.requests, executor.context.draws))
    expected = binary_cross_entropy_with_logits(said + task.offset(pairs), pairs.label)
    assert float(executor.run(batch)) == pytest.approx(float(expected), rel=1e-5)


def test_trees_start_from_offsets_and_store_none(stream):
    """Rows start from a constant that is right on average plus their offsets; without offsets from the logit."""
    label = torch.tensor([1.0, 0, 0, 1, 0], dtype=torch.float64)
    start = torch.tensor([2.0, -4, 1, 0, 0.5], dtype=torch.float64)
    objective = LogisticObjective(label)
    found = torch.sigmoid(objective.fit_base(start) + start)
    assert float(found.mean()) == pytest.approx(0.4, abs=1e-12)
    assert torch.equal(objective.fit_base(0 * start), torch.logit(label.mean())[None])
    spec = find_model("trees")
    facts = DatasetFacts.of(stream.store, stream.split.train)
    task = LinkTask.create(stream.store, stream.split, CPU, "mixed-odds")
    pairs = task.build_queries(stream.events.select(stream.train), task.draw_negatives(0, 0))
    views, lessons, scores = [], [], []
    for offset in (None, lambda pairs: None, task.offset):
        torch.manual_seed(0)
        scorer = spec.build(build_config(spec.config, TINY["trees"] | {"skip": 0.0}), facts)
        views.append(stream.training_view(pairs, scorer.requests))
        lessons.append(scorer.study([LabelledView(views[-1], pairs)], offset))
        for _ in range(4):
            scorer.learn(lessons[-1])
        scores.append(scorer(views[-1]))
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    scorer.learn(lessons[2])
    known = lessons[2].score[:, 0] - task.offset(pairs).double()
    torch.testing.assert_close(known, scores[2], rtol=0, atol=1e-12)
