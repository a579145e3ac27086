"""Readers and the writer of a live state: who waits for whom, and what a reader sees."""

from threading import Event, Thread

import torch

from contract_cases import build
from dygmamba.live.replica import Replica
from dygmamba.live.state import LiveState
from live_cases import first_events, make_dataset, predictor_of

END = first_events()[-1][2]
PATIENCE = 30  # seconds after which a thread that waits is taken to be blocked


def open_state():
    dataset = make_dataset(first_events())
    return LiveState.open(predictor_of(build(("dyg-mamba", {}), dataset.store), dataset))


def events(number):
    """Two events that belong together."""
    time = END + number
    return make_dataset([("0", "new", time, 0.0, "a"), ("new", "1", time, 0.0, "a")])


def observe(state):
    """What a reader sees: appended events, events of node 1 in the index, last time, score of a pair."""
    with state.read() as live:
        node = torch.tensor([1])
        index = live.ranker.stream_scorer.stream.index
        number = index.past(node, torch.tensor([torch.inf], dtype=torch.float64))[1]
        score = live.score([("0", "1", END + 50)]).table["uncalibrated_score"][0].as_py()
        applied = len(live.dataset.store) - len(first_events())
        return applied, int(number), float(live.dataset.store.time[-1]), score


def run(target):
    thread = Thread(target=target, daemon=True)
    thread.start()
    return thread


def finish(thread):
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_reader_does_not_wait_for_an_append_and_sees_none_of_it(monkeypatch):
    """While the writer is in the middle of a change, of either replica."""
    state, stopped, go_on = open_state(), Event(), Event()
    before, publish = observe(state), Replica.publish

    def stop_before_publishing(self, unchanged):
        stopped.set()
        assert go_on.wait(PATIENCE)
        publish(self, unchanged)

    monkeypatch.setattr(Replica, "publish", stop_before_publishing)
    writer = run(lambda: state.append(events(1)))
    assert stopped.wait(PATIENCE)  # events and tables of the spare replica are changed
    seen = []
    finish(run(lambda: seen.append(observe(state))))
    assert seen == [before]
    go_on.set()
    finish(writer)
    after = observe(state)
    assert after[:3] == (2, before[1] + 1, END + 1)
    assert after[3] != before[3]


def test_an_append_does_not_wait_for_a_reader_who_keeps_what_it_saw():
    """Two appends later the reader's state is the same; the writer waits only before the third change of it."""
    state = open_state()
    before = observe(state)
    with state.read() as live:
        finish(run(lambda: state.append(events(1))))
        assert observe(state)[0] == 2
        assert live.score([("0", "1", END + 50)]).table["uncalibrated_score"][0].as_py() == before[3]
        assert len(live.dataset.store) == len(first_events())
        later = run(lambda: state.append(events(2)))
        later.join(0.05)
        assert later.is_alive()
        assert observe(state)[0] == 2
    finish(later)
    assert observe(state)[:3] == (4, before[1] + 2, END + 2)


def test_concurrent_readers_see_whole_appends_only():
    """For all states that several readers see while a writer appends pairs of events, late ones among them."""
    state, seen, done = open_state(), [[], []], Event()
    base = observe(state)[1]

    def watch(own):
        while not done.is_set():
            own.append(observe(state))

    readers = [run(lambda own=own: watch(own)) for own in seen]
    for number in (3, 4, 1, 6, 2, 5):
        state.append(events(number))
    done.set()
    for reader in readers:
        finish(reader)
    scores = {}
    for own in seen:
        assert [applied for applied, *_ in own] == sorted(applied for applied, *_ in own)
        for applied, number, _, score in own:
            assert number == base + applied // 2
            assert applied % 2 == 0
            assert scores.setdefault(applied, score) == score
