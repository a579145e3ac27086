"""A live state answers as a predictor that reads all events at once, whatever the order in which they arrive."""

from functools import cache

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.live.state import LiveState
from dygmamba.sampling.view import PairBatch
from live_cases import (
    BEGIN,
    KNOWN,
    STATEFUL,
    STATELESS,
    TYPES,
    build_all,
    first_events,
    make_dataset,
    predictor_of,
    with_all,
)
from raising import raises

IDS = [*KNOWN, "new", "77", "007", "other"]
END = first_events()[-1][2]


@cache
def predictor(cases, bipartite=False):
    dataset = make_dataset(first_events(), bipartite)
    scorer = build_all(STATELESS if cases == "stateless" else STATEFUL, dataset.store)
    return predictor_of(scorer, dataset)


def events(ids):
    """One to four events: late ones, ties, and ones after the end."""
    time = st.sampled_from([BEGIN, END - 8, END - 1, END, END + 1, END + 1.5, END + 2, END + 9])
    columns = st.tuples(st.sampled_from(ids), st.sampled_from(ids), time, st.sampled_from([0.5, -2.0]))
    return st.lists(
        st.tuples(columns, st.sampled_from(TYPES)).map(lambda pair: (*pair[0], pair[1])),
        min_size=1,
        max_size=4,
    )


class LiveMachine(RuleBasedStateMachine):
    """Appends, late ones and ties among them, and queries, old ones among them, in any order."""

    cases, ids = "stateless", IDS

    @initialize(bipartite=st.booleans())
    def begin(self, bipartite):
        self.predictor = predictor(self.cases, bipartite)
        self.state, self.events = LiveState.open(self.predictor), []

    @rule(data=st.data())
    def append(self, data):
        more = data.draw(events(self.ids))
        self.events += more
        self.state.append(make_dataset(more, self.predictor.dataset.store.bipartite))

    @rule(time=st.sampled_from([BEGIN + 5, END, END + 1, END + 9.5]))
    def query(self, time):
        expected = with_all(self.predictor, self.predictor.dataset, self.events)
        with self.state.read() as live:
            assert torch.equal(self.score(live, time), self.score(expected, time))
            assert live.dataset.ids.values.equals(expected.dataset.ids.values)
            assert live.dataset.ids.is_source == expected.dataset.ids.is_source
            assert torch.equal(live.dataset.store.destinations, expected.dataset.store.destinations)
        assert self.state.applied == len(self.events)

    def teardown(self):
        self.query(END + 9.5)

    def score(self, own, time):
        """The logits of every model for pairs of known, new and absent nodes."""
        pairs = {
            "src": ["0", "3", "new", "77", "0", "absent"],
            "dst": ["1", "3", "2", "new", "007", "absent"],
        }
        when = torch.full((6,), time, dtype=torch.float64)
        visible = None if own.ranker.schedule is None else own.ranker.schedule.count_earlier(when)
        return own.ranker.stream_scorer(PairBatch.from_pairs(*self.locate(own, pairs), when), visible)

    def locate(self, own, pairs):
        """The nodes of pairs; ids without events stand for nodes without events."""
        nodes = (own.dataset.ids.to_node(pairs[side], side) for side in ("src", "dst"))
        absent = own.dataset.store.num_nodes
        return tuple(torch.from_numpy(node).where(torch.from_numpy(node) >= 0, absent) for node in nodes)


class MemoryMachine(LiveMachine):
    """The same for models with a memory, which take known nodes only."""

    cases, ids = "stateful", KNOWN

    def locate(self, own, pairs):
        return tuple(nodes.clamp(max=5) for nodes in super().locate(own, pairs))


@pytest.mark.parametrize("machine", [LiveMachine, MemoryMachine])
def test_any_order_of_arrival_gives_the_scores_of_all_events_at_once(machine):
    """Bit for bit, of every trainable model: late events, ties, new nodes, sides, types and old queries."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=4, stateful_step_count=8, phases=[Phase.generate])
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_saved_state_goes_on_as_if_it_had_not_stopped(shared, tmp_path, monkeypatch):
    """After new nodes and types; the saved files stay as they were, whatever is appended later."""
    if shared:
        monkeypatch.setattr("dygmamba.live.state.SHARED_BYTES", 0)
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
    known = predictor("stateless")
    state = LiveState.open(known)
    state.append(make_dataset(first))
    assert state.save(tmp_path) == 3
    for _ in range(2):
        state = LiveState.load(known, tmp_path)
        assert state.applied == 3
        state.append(make_dataset(more[:1]))
        state.append(make_dataset(more[1:]))
        machine = LiveMachine()
        machine.predictor, machine.state, machine.events = known, state, [*first, *more]
        machine.query(END + 9.5)
        machine.query(END - 1)


def test_a_state_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    """In one sentence that says what to do."""
    with raises("no-saved-state", FileError):
        LiveState.load(predictor("stateful"), tmp_path)
    LiveState.open(predictor("stateful")).save(tmp_path)
    with raises("damaged-state", FileError):
        LiveState.load(predictor("stateless"), tmp_path)
    with raises("damaged-state", FileError):
        LiveState.load(predictor("stateful", True), tmp_path)
    (file,) = tmp_path.glob("*.bin")
    file.write_bytes(file.read_bytes()[:5000])
    with raises("damaged-state", FileError):
        LiveState.load(predictor("stateful"), tmp_path)


def test_a_memory_takes_no_new_nodes():
    """As when a run observes them; the state stays as it was."""
    state = LiveState.open(predictor("stateful"))
    with raises("memory-needs-known-nodes", ConfigError):
        state.append(make_dataset([("0", "1", END + 1, 0.0, "a"), ("new", "1", END + 1, 0.0, "a")]))
    assert state.applied == 0
