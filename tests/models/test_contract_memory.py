"""What a memory is told, for every model that has one: under the rule `batch`, in training, and taken back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from contract_cases import (
    CASES,
    CELL,
    PERIODS,
    STATEFUL,
    TABLED,
    TRAINABLE,
    WAYS,
    Questions,
    build,
    build_evaluation_set,
    change_events,
    contents,
    label_of,
    questions,
    snapshots,
)
from dygmamba.data.events.splits import Split
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.tasks.link import LinkTask
from strategies import event_streams
from streams import unsplit

every_case = pytest.mark.parametrize("case", CASES, ids=label_of)
every_memory = pytest.mark.parametrize("case", STATEFUL, ids=label_of)
every_trained_memory = pytest.mark.parametrize(
    "case", [case for case in STATEFUL if case[0] in TRAINABLE], ids=label_of
)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def difference(found, expected):
    return float((found - expected).abs().max())


def every_pair(store, row):
    """All pairs at the time of one event and beside it."""
    src, dst = torch.cartesian_prod(torch.arange(store.num_nodes), torch.arange(store.num_nodes)).T
    return Questions(src, dst, store.time[row].expand(len(src)).contiguous(), torch.full_like(src, row))


# the exam's cells begin at 37, 44, 51 (with ties before it, from 48 on) and so on
OWN, LAST = PERIODS[-1] + 2 * CELL, 59  # a cell that begins amid an instant, and the last row of that instant


@every_case
def test_the_batch_rule_tells_of_the_cells_before_its_own_and_of_no_more(case):
    """For all events of a question's own cell on, none of them earlier than it: changed, no score changes."""
    store = snapshots()
    scorer, asked = build(case, store), every_pair(store, OWN)
    expected = WAYS["batch"](scorer, store, asked)
    for seed in range(3):
        assert_same(WAYS["batch"](scorer, change_events(store, OWN, seed=seed), asked), expected)


@every_memory
def test_the_batch_rule_shows_a_memory_events_of_its_own_time(case):
    """On snapshots, other events of the question's own time in cells before its own give other scores.

    Not so under the strict rule: that is what the stamp on a result says.
    """
    store = snapshots()
    scorer, asked = build(case, store), every_pair(store, LAST)
    begin = int(torch.searchsorted(store.time, store.time[LAST]))
    assert begin < OWN + CELL <= LAST
    others = [change_events(store, begin, OWN + CELL, seed) for seed in range(3)]
    for visible, differs in (("batch", True), ("strict", False)):
        expected = WAYS[visible](scorer, store, asked)
        most = max(difference(WAYS[visible](scorer, other, asked), expected) for other in others)
        assert most > 1e-3 if differs else most <= 1e-6


@pytest.mark.parametrize(
    ("case", "ties"),
    [(case, ties) for case in CASES for ties in (1, CELL) if ties == CELL or case not in TABLED],
    ids=label_of,
)
def test_the_rules_agree_where_no_tie_crosses_cells(case, ties):
    """On streams each of whose instants lies within a cell: strict and batch give the same scores.

    Of tables where each instant is a cell: they are exact by the strict rule, and by the other lag within the cell.
    """
    count = 9 * CELL
    store = snapshots([ties] * (count // ties), gap=40.0 / CELL * ties)
    borders = (3 * CELL, 5 * CELL)
    evaluation_set = build_evaluation_set(store, questions(store, borders[-1]), borders)
    evaluation_set = replace(
        evaluation_set, earlier=tuple(part[: len(part) // CELL * CELL] for part in evaluation_set.earlier)
    )
    scorer = build(case, store)
    strict, batch = (
        score_evaluation_set(scorer, unsplit(store), evaluation_set, VisibilityRule(visible, CELL))
        for visible in ("strict", "batch")
    )
    assert_same(strict, batch)


@pytest.mark.parametrize("case", [case for case in CASES if case not in (*STATEFUL, *TABLED)], ids=label_of)
def test_of_sequences_alone_there_is_one_rule(case):
    """On snapshots too, a model without memory and tables scores alike under both rules, to the last bit."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    assert torch.equal(WAYS["strict"](scorer, store, asked), WAYS["batch"](scorer, store, asked))


TRAINED = 48  # rows of the training period: the first four instants
LATE = 37  # the first row of the last of them; batches of seven begin at 35 and 42


def losses(case, store, base, folder, **fit):
    """The loss of each step of a first epoch on a stream, its questions and facts those of another."""
    ids = torch.arange(len(base))
    known = torch.zeros(base.num_nodes, dtype=torch.bool)
    split = Split(ids[:TRAINED], ids[TRAINED:60], ids[60:], known)
    task = LinkTask.create(base, split, torch.device("cpu"))
    config = FitConfig(batch=CELL, precision="float32", **fit)
    run = Trainer(
        task, build(case, base), Stream(store, split, torch.device("cpu")), config, RunDirectory(folder), 0
    )
    run.scorer.train()
    return torch.stack([run.executor.step(run.batch(run.epoch(0), n)) for n in range(run.steps_per_epoch)])


def with_other_features(store, begin):
    """The same events, those from `begin` on with other features."""
    return replace(store, features=change_events(store, begin).features)


@every_trained_memory
@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_training_shows_a_memory_nothing_of_its_own_time(case, visible, tmp_path):
    """For streams that differ in the features of events from T on: steps with no question after T are the same.

    Also the second batch of T, though the first one is over by then: its weights are those of the other stream.
    The published rule tells of that first one.
    """
    store = snapshots()
    other = with_other_features(store, LATE)
    found, expected = (losses(case, s, store, tmp_path, lr=1e-2, visible=visible) for s in (other, store))
    assert_same(found[:6], expected[:6])
    assert (difference(found[6], expected[6]) > 1e-5) is (visible == "batch")


@every_trained_memory
@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_no_step_sees_who_else_met_at_its_time(case, visible, tmp_path):
    """With weights that stay: a batch of T has the same loss whoever else met at T, in its memory or DyRep's store.

    The published rule shows it those of T in the batches before.
    """
    store = snapshots()
    other = change_events(store, LATE, 6 * CELL)
    found, expected = (losses(case, s, store, tmp_path, lr=1e-30, visible=visible) for s in (other, store))
    assert_same(found[:5], expected[:5])
    assert difference(found[5], expected[5]) > 1e-5  # the batch with the changed questions themselves
    assert (difference(found[6], expected[6]) > 1e-5) is (visible == "batch")


@every_memory
@settings(max_examples=12)
@given(store=event_streams(min_events=2, max_events=40, edge_dim=2))
def test_what_was_taken_back_was_never_told(case, store):
    """For all streams and cuts: observed and restored, a scorer holds what it held, bit for bit, and goes on alike."""
    scorer, never = build(case, store), build(case, store)
    half = len(store) // 2
    for told in (scorer, never):
        for events in store.batches(torch.arange(half), CELL):
            told.observe(events)
    before, later = contents(scorer), store.select(torch.arange(half, len(store)))
    for cut in (later, later[:1], later[:0], later):
        kept = scorer.snapshot(cut)
        scorer.observe(cut)
        assert (contents(scorer) != before) is (len(cut) > 0)
        scorer.restore(kept)
        assert contents(scorer) == before
    scorer.observe(later), never.observe(later)
    assert contents(scorer) == contents(never)


def test_a_snapshot_keeps_dyreps_neighbours():
    """DyRep's store of neighbours is part of what is kept: observing changes it, restoring brings it back."""
    store = snapshots()
    scorer = build(("dyrep", {}), store)
    scorer.observe(store.select(torch.arange(20)))
    recent, cut = scorer.encoder.partner.recent, store.select(torch.arange(20, 26))
    before = {name: table.clone() for name, table in recent.named_buffers()}
    kept = scorer.snapshot(cut)
    scorer.observe(cut)
    assert not torch.equal(recent.event, before["event"])
    scorer.restore(kept)
    assert all(torch.equal(table, before[name]) for name, table in recent.named_buffers())
