"""StreamScorer: what a memory has observed, and that cutting queries changes no score."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import EventError, ScoreError
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import StreamScorer, check_finite
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, Heuristic
from dygmamba.models.configs import EdgeBankConfig
from dygmamba.models.lagging_heuristics import LaggingEdgeBank
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import LinkTask, build_link_set
from raising import raises
from recording_model import RecordingModel
from strategies import event_streams
from streams import split_stream, unsplit

SIZES = st.integers(1, 7)


class Witness(Heuristic):
    """A scorer that records what it had observed at each call and returns the number of events."""

    def __init__(self):
        self.reset()
        self.asked = []

    def __call__(self, view):
        self.asked.append((list(self.seen), view.pairs.time.tolist()))
        return torch.full((len(view.pairs),), float(len(self.seen)))

    def observe(self, events):
        self.seen = [*self.seen, *events.event.tolist()]

    def snapshot(self, events):
        return self.seen

    def restore(self, kept):
        self.seen = kept

    def reset(self):
        self.seen = []


def events_of(store):
    """An evaluation set of every event of a stream, each with its reverse."""
    ids = torch.arange(len(store))
    pairs = PairBatch.from_pairs(
        torch.cat([store.src, store.dst]), torch.cat([store.dst, store.src]), store.time.repeat(2)
    )
    return EvaluationSet({}, ids, (), pairs.with_labels(torch.ones(len(pairs))), ids.repeat(2))


@given(store=event_streams(min_events=1), size=SIZES, first=st.integers(0, 9))
def test_batches_cut_each_period_from_its_own_begin(store, size, first):
    """For all streams, sizes and periods: the batches are the events in order; only a period's last one is shorter."""
    ids = torch.arange(len(store))
    periods = (ids[:first], ids[first:])
    clock = MemorySchedule.from_periods(store, periods, size)
    cells = clock.batches_between(0, len(store))
    assert torch.cat(cells).tolist() == ids.tolist()
    expected = [cell.tolist() for period in periods for cell in period.split(size) if len(cell)]
    assert [cell.tolist() for cell in cells] == expected


@given(store=event_streams(min_events=1), size=SIZES)
def test_a_strict_memory_has_observed_strictly_earlier_events_only(
    store,
    size,
):
    """For all streams with ties: a query sees all full batches that are strictly earlier, and no other.

    What it sees is a function of its time and of what is strictly earlier: later events, or none, change nothing.
    """
    asked = torch.cat([store.time, store.time[-1:] + 1])
    seen = MemorySchedule.from_periods(store, (torch.arange(len(store)),), size).count_in_earlier_batches(
        asked
    )
    for time, count in zip(asked.tolist(), seen.tolist(), strict=True):
        earlier = int((store.time < time).sum())
        assert count == earlier // size * size
        past = MemorySchedule.from_periods(store[:earlier], (torch.arange(earlier),), size)
        assert int(past.count_in_earlier_batches(torch.tensor([time], dtype=torch.float64))) == count


@given(store=event_streams(min_events=1))
def test_evaluation_follows_the_visibility_rule(store):
    """Strict: all observed events are earlier than all queries. Batch: exactly the batches before its own."""
    for visible in ("strict", "batch"):
        witness = Witness()
        count = score_evaluation_set(witness, unsplit(store), events_of(store), VisibilityRule(visible, 3))
        place = torch.arange(len(store)).repeat(2)
        if visible == "batch":
            assert count.tolist() == (place // 3 * 3).tolist()
        for seen, times in witness.asked:
            latest = max((float(store.time[event]) for event in seen), default=float("-inf"))
            assert visible == "batch" or latest < min(times)


@given(store=event_streams(min_events=3), batch=SIZES, visible=st.sampled_from(["strict", "batch"]))
def test_training_follows_the_visibility_rule(store, batch, visible):
    """For all streams and batches: before step k a memory observes the strictly earlier batches, or all before k."""
    ids = torch.arange(len(store))
    clock = MemorySchedule.from_periods(store, (ids,), batch)
    told = clock.visible_batches(visible)
    assert told == sorted(told)
    for number, cells in enumerate(told):
        first = float(store.time[number * batch])
        if visible == "batch":
            assert cells == number
        else:
            assert cells == sum(float(latest) < first for latest in clock.latest)


@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_strict_training_shows_no_event_of_the_batchs_own_time(visible, tmp_path):
    """On a stream of few instants, strict training never shows an event at or after the batch's time."""
    store = generate_stream(GeneratorConfig(nodes=30, events=400, seed=1))
    store = replace(store, time=(store.time / 2e4).floor())
    stream, witness = split_stream(store), RecordingModel()
    task = LinkTask.create(store, stream.split, stream.device)
    fit = Trainer(task, witness, stream, FitConfig(batch=10, visible=visible), RunDirectory(tmp_path), 0)
    for step in range(fit.steps_per_epoch):
        fit.executor.step(fit.batch(fit.epoch(0), step))
    tied = 0
    for number, (seen, times) in enumerate(witness.asked):
        assert seen == stream.split.train[: len(seen)].tolist()
        latest = max((float(store.time[event]) for event in seen), default=float("-inf"))
        assert visible == "batch" or latest < min(times)
        assert visible == "strict" or len(seen) == 10 * number
        tied += latest >= min(times)
    assert (tied > 0) is (visible == "batch")


@given(store=event_streams(min_events=4))
def test_every_positive_is_scored_once_with_its_negative(store):
    """One positive and one negative per event of the evaluation set, in its order."""
    stream = split_stream(store)
    try:
        evaluation_set = build_link_set(store, stream.split, "test", strategy="historical")
    except EventError:  # no event, or a batch that uses every possible pair leaves no negative
        return
    bank = LaggingEdgeBank(EdgeBankConfig(), DatasetFacts.of(store))
    assert len(score_evaluation_set(bank, stream, evaluation_set)) == 2 * len(evaluation_set.events)
    for label in (0, 1):
        rows = evaluation_set.pairs.label == label
        assert evaluation_set.pairs.group[rows].tolist() == list(range(len(evaluation_set.events)))


@pytest.mark.parametrize("tokens", [1, 50, 10_000])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dyg-mamba", {"length": 20, "width": 4, "states": 4}),
        ("tgat", {"neighbors": 3, "sampling": "uniform"}),
        ("cawn", {"walks": 4, "heads": 2}),
        ("tgn", {"neighbors": 3, "sampling": "uniform"}),
    ],
)
def test_scores_do_not_depend_on_how_queries_are_cut(name, settings, tokens):
    """Alone or together, in any order and pass size: scores agree to 1e-5, with sampled neighbors too."""
    store = generate_stream(GeneratorConfig(nodes=30, events=500, seed=1))
    stream, spec = split_stream(store), MODELS[name]
    torch.manual_seed(0)
    scorer = spec.build(spec.config(out=8, time_dim=4, **settings), DatasetFacts.of(store))
    evaluation_set = build_link_set(store, stream.split, "test", "inductive", "historical")
    clock = MemorySchedule.from_periods(store, (*evaluation_set.earlier, evaluation_set.events))
    seen = clock.count_in_earlier_batches(evaluation_set.pairs.time)
    whole = StreamScorer(scorer, stream, 0, clock)(evaluation_set.pairs, seen)
    parts = StreamScorer(scorer, stream, 0, clock, tokens)
    torch.testing.assert_close(parts(evaluation_set.pairs, seen), whole, rtol=1e-4, atol=1e-5)
    order = torch.randperm(len(evaluation_set.pairs), generator=torch.Generator().manual_seed(3))[:9]
    some = PairBatch.from_pairs(
        evaluation_set.pairs.src[order], evaluation_set.pairs.dst[order], evaluation_set.pairs.time[order]
    )
    torch.testing.assert_close(parts(some, seen[order]), whole[order], rtol=1e-4, atol=1e-5)


def test_repeated_evaluation_gives_the_same_scores():
    """Whatever was drawn or observed in between: the same bits."""
    store = generate_stream(GeneratorConfig(nodes=30, events=400, seed=1))
    stream = split_stream(store)
    evaluation_set = build_link_set(store, stream.split, "val")
    for name in ("tgat", "tgn"):
        spec = MODELS[name]
        config = spec.config(neighbors=3, out=8, time_dim=4, sampling="uniform")
        scorer = spec.build(config, DatasetFacts.of(store))
        first = score_evaluation_set(scorer, stream, evaluation_set)
        torch.rand(5)
        assert torch.equal(score_evaluation_set(scorer, stream, evaluation_set), first)
        assert not torch.equal(score_evaluation_set(scorer, stream, evaluation_set, seed=1), first)


@given(store=event_streams(min_events=1), at=st.integers(1, 12))
def test_an_interrupted_scorer_starts_again(store, at):
    """Wherever an update or a score fails, even within a batch: afterwards the memory observes each event once."""

    class Halting(Witness):
        left = at

        def halt(self):
            self.left -= 1
            if not self.left:
                raise InterruptedError

        def observe(self, events):
            super().observe(events[: len(events) // 2])
            self.halt()
            super().observe(events[len(events) // 2 :])

        def __call__(self, view):
            self.halt()
            return super().__call__(view)

    clock = MemorySchedule.from_periods(store, (torch.arange(len(store)),), 3)
    walk, pairs = (
        StreamScorer(Halting(), unsplit(store), 0, clock),
        PairBatch.from_pairs(store.src, store.dst, store.time),
    )
    seen = clock.count_earlier(store.time)
    with suppress(InterruptedError):
        walk(pairs, seen)
    walk.scorer.left = -1
    assert walk(pairs, seen).tolist() == seen.tolist()
    assert all(told == list(range(len(told))) for told, _ in walk.scorer.asked)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_an_error(wrong):
    """NaN and infinities, in scores or in vectors: the message names the time."""
    time = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for answers in (torch.tensor([0.0, wrong, 1.0]), torch.tensor([[0.0, 0.0], [0.0, wrong], [1.0, 1.0]])):
        with raises("not-finite", ScoreError):
            check_finite(answers, time)
