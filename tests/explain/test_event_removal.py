"""Removal of past events, for every registered model, compared with streams in which they never happened."""

import pytest
import torch

from contract_cases import (
    CASES,
    CELL,
    DRAWN,
    TRAINABLE,
    build,
    label_of,
    questions,
    sample_store,
    selected,
    snapshots,
)
from dygmamba.engine.scoring import Ranker
from dygmamba.explain import event_removal
from dygmamba.explain.event_removal import (
    MAX_PLAYERS,
    StreamRemoval,
    WindowRemoval,
    build_game,
    group_players,
)
from dygmamba.explain.shapley import CachedGame, estimate_shapley
from dygmamba.history.view import PairBatch
from streams import unsplit


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Few players, so that each test is quick."""
    monkeypatch.setattr(event_removal, "MAX_EVENTS_PER_NODE", 3)


def one(asked, row):
    """One of the questions, as a batch."""
    return PairBatch.from_pairs(asked.src[[row]], asked.dst[[row]], asked.time[[row]])


@pytest.mark.parametrize("case", CASES, ids=label_of)
def test_contributions_and_base_are_the_logit_of_a_prediction(case):
    """For all models and some pairs: with every event the game has the logit of `predict`, and its parts add up."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    logit = Ranker(scorer, unsplit(store), 0, batch_size=CELL).logits(asked.src, asked.dst, asked.time)
    for row in (0, len(asked) - 2):
        ledger = CachedGame(build_game(scorer, unsplit(store), one(asked, row), 0, CELL))
        found = estimate_shapley(ledger, 1, seed=row)
        assert found.logit == pytest.approx(float(logit[row]), abs=1e-5)
        assert found.base + float(found.value.sum()) == pytest.approx(found.logit, abs=1e-9)
        assert ledger.num_scored <= 2 * (len(ledger.game.players) - 1) + 2


UNDRAWN = [case for case in CASES if case not in DRAWN and case[0] != "cawn"]


@pytest.mark.parametrize("case", UNDRAWN, ids=label_of)
def test_removing_an_event_is_a_stream_in_which_it_never_happened(case):
    """For all models: the logit without an event is the prediction on the stream in which it never happened.

    The memory observes event by event, so that no event moves another one to another batch; models that draw neighbors
    are left out, because one event less changes the draws.
    """
    store = sample_store()
    scorer, stream = build(case, store), unsplit(store)
    pair = PairBatch.from_pairs(store.src[[50]], store.dst[[50]], store.time[[50]])
    game = StreamRemoval(scorer, stream, pair, 0, batch_size=1)
    n = len(game.players)
    tried = (0, n - 1)
    for at, logit in zip(tried, game.logits(~torch.eye(n, dtype=torch.bool)[list(tried)]), strict=True):
        rows = torch.arange(len(store))
        rest = selected(store, rows[rows != game.players[at].events[0]])
        want = Ranker(scorer, unsplit(rest), 0, batch_size=1).logits(pair.src, pair.dst, pair.time)
        assert float(logit) == pytest.approx(float(want[0]), abs=1e-5)


@pytest.mark.parametrize("make_store", [sample_store, snapshots])
def test_subsets_that_follow_each_other_have_the_logits_of_an_index_of_their_own(make_store):
    """Bit for bit, with ties: feature tables are changed from one subset to the next, and not built again."""
    store = make_store()
    scorer, pair = build(("trees", {}), store), one(questions(store), 0)
    game = StreamRemoval(scorer, unsplit(store), pair, 0, batch_size=CELL)
    whole = StreamRemoval(scorer, unsplit(store), pair, 0, batch_size=CELL)
    assert game._has_tables_only
    whole._has_tables_only = False
    keep = torch.rand(30, len(game.players), generator=torch.Generator().manual_seed(0)) < 0.6
    assert torch.equal(game.logits(keep), whole.logits(keep))


@pytest.mark.parametrize(
    "name", [name for name in TRAINABLE if name in ("dyg-mamba", "dygformer", "freedyg")]
)
def test_cutting_a_sequence_is_cutting_the_stream(name):
    """If the sequences hold both histories, removing an event from them is removing it from the stream."""
    store = sample_store(30)
    scorer, stream = build((name, {"length": 40}), store), unsplit(store)
    pair = PairBatch.from_pairs(store.src[[-1]], store.dst[[-1]], store.time[[-1]] + 1)
    game = build_game(scorer, stream, pair, 0)
    assert isinstance(game, WindowRemoval)
    n = len(game.players)
    found = game.logits(~torch.eye(n, dtype=torch.bool))
    for at, player in enumerate(game.players):
        rows = torch.arange(len(store))
        rest = selected(store, rows[rows != player.events[0]])
        want = Ranker(scorer, unsplit(rest), 0).logits(pair.src, pair.dst, pair.time)
        assert float(found[at]) == pytest.approx(float(want[0]), abs=1e-5)


def test_old_events_of_long_histories_are_grouped_and_none_is_lost():
    """For all lengths: each event in exactly one player, at most MAX_PLAYERS, the newest and the meetings single."""
    for count in (0, 1, 31, 32, 33, 500, 4_000):
        src, dst = torch.arange(0, 2 * count, 2), torch.arange(0, 3 * count, 3)
        players = group_players(src, dst)
        assert len(players) <= MAX_PLAYERS
        listed = [event for player in players for event in player.events]
        assert sorted(listed) == sorted({*src.tolist(), *dst.tolist()})
        met = sorted({*src.tolist()} & {*dst.tolist()})
        alone = {player.events[0] for player in players if len(player.events) == 1}
        assert set(met[-3:]) | set(sorted(listed)[-3:]) <= alone
        assert all((player.events[-1] in set(src.tolist())) == player.of_src for player in players)
