"""State machines of a live state: random arrivals and queries, compared with a predictor that reads all at once."""

from functools import cache

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dygmamba.history.view import PairBatch
from dygmamba.live.state import LiveState
from live_cases import (
    BEGIN,
    KNOWN,
    STATEFUL,
    STATELESS,
    TABLES,
    TYPES,
    build_all,
    first_events,
    make_dataset,
    predictor_of,
    with_all,
)

IDS = [*KNOWN, "new", "77", "007", "other"]
END = first_events()[-1][2]


MODELS = {"stateless": STATELESS, "stateful": STATEFUL, "tables": TABLES}


@cache
def predictor(cases, bipartite=False):
    dataset = make_dataset(first_events(), bipartite)
    return predictor_of(build_all(MODELS[cases], dataset.store), dataset)


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
