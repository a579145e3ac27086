"""A live state answers as a predictor that reads all events at once, whatever the order in which they arrive."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from contract_cases import build
from dygmamba.core.errors import ConfigError
from dygmamba.history.index import Index
from dygmamba.history.view import PairBatch
from dygmamba.live.event_log import RunRecord
from dygmamba.live.snapshots import LOAD_ERRORS, list_snapshots, write_snapshot
from dygmamba.live.state import LiveState
from live_cases import first_events, make_dataset, predictor_of
from live_machines import END, LiveMachine, MemoryMachine, predictor
from raising import raises
from streams import unsplit


@pytest.mark.parametrize("machine", [LiveMachine, MemoryMachine])
def test_any_order_of_arrival_gives_the_scores_of_all_events_at_once(machine):
    """Bit for bit, of every trainable model: late events, ties, new nodes, sides, types and old queries."""
    run_state_machine_as_test(machine, settings=settings(max_examples=3, stateful_step_count=5))


def test_the_pair_history_is_that_of_all_events_at_once():
    """Bit for bit with fitted statistics, after late events and new nodes; amounts of events change the scores."""
    dataset = make_dataset(first_events())
    store = dataset.store
    scorer = build(("dyg-mamba-counts", {"pair_features": ("history",)}), store)
    scorer.fit_inputs(
        [unsplit(store).view(PairBatch.from_pairs(store.src, store.dst, store.time), scorer.requests)]
    )
    machine, found = LiveMachine(), []
    for amount in (0.5, 3.0):
        machine.predictor, machine.events = predictor_of(scorer, dataset), []
        machine.state = LiveState.open(machine.predictor)
        with machine.state.read() as live:
            opened = set(live.ranker.stream_scorer.stream.index.tables)
        for event in [
            ("0", "1", END + 1, amount, "a"),
            ("3", "3", END - 2, amount, "b"),
            ("new", "2", END + 1, amount, "a"),
            ("0", "new", END + 2, amount, "a"),
        ]:
            machine.events.append(event)
            machine.state.append(make_dataset([event]))
            machine.query(END)
            machine.query(END + 9.5)
        with machine.state.read() as live:
            found.append(machine.score(live, END + 9.5))
            # a saved state has the tables of the opened one, and readers beside each other build none
            assert set(live.ranker.stream_scorer.stream.index.tables) == opened
    assert (found[0] != found[1]).any()


class EmptyLog:
    """The log of a state whose events were appended without one."""

    def read_meta(self):
        return {}

    def read_events(self, after, until):
        return iter(())


def save(state, folder):
    record = RunRecord("run", "ab12", "model", "data", "content", 0, 0)
    return write_snapshot(folder, record, EmptyLog(), lambda _: state._current)


@pytest.mark.parametrize("shared", [False, True])
def test_a_saved_state_goes_on_as_if_it_had_not_stopped(shared, tmp_path, monkeypatch):
    """After new nodes and types; the saved files stay as they were, whatever is appended later."""
    if shared:
        monkeypatch.setattr("dygmamba.live.replica.SHARED_EVENTS", 0)
    first = [
        ("new", "1", END - 3, 2.0, "c"),
        ("0", "7", END + 1, 1.0, "rare"),
        ("7", "new", END + 1, 1.0, "a"),
    ]
    more = [
        ("other", "0", END - 5, 1.0, "rare"),
        ("0", "1", END + 2, 0.5, "b"),
        ("new", "0", END + 2, 0.5, "b"),
    ]
    known = predictor("tables")
    state = LiveState.open(known)
    state.append(make_dataset(first))
    snapshot = save(state, tmp_path)
    for _ in range(2):
        snapshot.check()
        state = LiveState(*snapshot.load(known, 2))
        assert state.applied == 3
        state.append(make_dataset(more[:1]))
        state.append(make_dataset(more[1:]))
        machine = LiveMachine()
        machine.predictor, machine.state, machine.events = known, state, [*first, *more]
        machine.query(END + 9.5)
        machine.query(END - 1)


@pytest.mark.parametrize("shared", [False, True])
def test_tables_built_in_parts_are_those_of_one_part(shared, monkeypatch):
    """Of any part size; also when each table is moved to a file as soon as it is complete."""
    monkeypatch.setattr("dygmamba.history.block_lists.EVENTS_PER_PART", 7)
    if shared:
        monkeypatch.setattr("dygmamba.live.replica.SHARED_EVENTS", 0)
    machine = LiveMachine()
    machine.predictor, machine.events = predictor("tables"), []
    machine.state = LiveState.open(machine.predictor)
    machine.query(END - 1)
    machine.query(END + 9.5)


def test_a_state_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    snapshot = save(LiveState.open(predictor("stateful")), tmp_path)
    assert list_snapshots(tmp_path) == [snapshot]
    for other in (predictor("tables"), predictor("stateful", True)):
        with pytest.raises(LOAD_ERRORS):
            snapshot.load(other, 1)
    snapshot.path.write_bytes(snapshot.path.read_bytes()[:5000])
    with pytest.raises(LOAD_ERRORS):
        snapshot.load(predictor("stateful"), 1)


def test_a_change_that_fails_half_way_is_as_if_it_had_not_been_tried(monkeypatch):
    """Readers keep the state before it, and the next append works."""
    known, first = predictor("tables"), [("0", "new", END + 1, 0.0, "a")]
    state, append = LiveState.open(known), Index.append
    state.append(make_dataset(first))
    with monkeypatch.context() as patch:
        patch.setattr(Index, "append", lambda *given: append(*given) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            state.append(make_dataset([("lost", "1", END + 2, 0.0, "c")]))
    machine = LiveMachine()
    machine.predictor, machine.state, machine.events = known, state, list(first)
    machine.query(END + 9.5)
    for event in [("3", "other", END - 2, 0.0, "b"), ("other", "0", END + 2, 1.0, "a")]:
        machine.events.append(event)
        state.append(make_dataset([event]))
        machine.query(END + 9.5)


def test_a_memory_takes_no_new_nodes():
    """As when a run observes them; the state stays as it was."""
    state = LiveState.open(predictor("stateful"))
    with raises("memory-needs-known-nodes", ConfigError):
        state.append(make_dataset([("0", "1", END + 1, 0.0, "a"), ("new", "1", END + 1, 0.0, "a")]))
    assert state.applied == 0
