"""A live run scores as `observe` does, which is what `predict` uses: to the bit, whatever the model and the events.

`test_live_predictions.py` and `test_live_state.py` have tiny models of all kinds; here runs are trained, stored and
opened again.
"""

import pyarrow as pa
import pytest

import dygmamba as dm
from contract_cases import TINY
from dygmamba.live.live_run import LiveRun
from dygmamba.runs.predictor import Predictor
from letters import PEOPLE, make_letters
from trained import train_once

MODELS = {
    "trees": {"query_columns": True},
    "walk-trees": {},
    "tgn": {},
    "dyg-mamba": {},
    "dyg-mamba-counts": {"pair_features": ["columns"], "query_columns": True},
}
HOUR = 3600.0


def read_typed_letters() -> dm.Dataset:
    """Letters with a number and a type each."""
    table = make_letters()
    kinds = ["note", "bill", "card"]
    table["kind"] = [kinds[int(words) % 3] for words in table["words"]]
    return dm.read(
        table, src="who", dst="whom", time="when", features="words", types="kind", name="typed-letters"
    )


def make_events(first: float) -> list[dict]:
    """Letters after the others; every third one arrives hours late, and some are simultaneous."""
    return [
        {
            "src": PEOPLE[k % 7],
            "dst": PEOPLE[(3 * k + 1) % 7],
            "time": first + HOUR * (k // 2 - 4 * (k % 3 == 2)),
            "words": float(k % 11),
            "kind": ["bill", "note", "card"][k % 3],
        }
        for k in range(24)
    ]


def make_queries(last: float, settings: dict) -> pa.Table:
    columns = [{"words": 7.0, "kind": "bill"}, {"words": 0.5, "kind": "card"}]
    own = columns if settings.get("query_columns") else [{}, {}]
    ends = [(a, b) for a in PEOPLE[:4] for b in PEOPLE[2:6] if a != b]
    times = [last + HOUR * (k % 3) for k in range(len(ends))]
    rows = zip(ends, times, own * len(ends), strict=False)
    return pa.Table.from_pylist([{"src": a, "dst": b, "time": time, **more} for (a, b), time, more in rows])


@pytest.mark.parametrize("model", MODELS)
def test_live_scores_are_those_of_a_prediction(model, tmp_path):
    """After late events, and after restarts from the log and from a snapshot."""
    settings = TINY[model] | MODELS[model] | {"epochs": 1, "device": "cpu"}
    settings.pop("out", None)  # here the folder of the run
    data = read_typed_letters()
    run = train_once(f"live-{model}", lambda out: dm.train(data, model, out=out, **settings))[0]
    last = float(data.store.time[-1])
    events, queries = make_events(last + 5 * HOUR), make_queries(last + 20 * HOUR, settings)
    expected = [run.observe(pa.Table.from_pylist(events[:count])).score(queries) for count in (10, 17, 24)]
    assert expected[0]["score"].to_pylist() != expected[1]["score"].to_pylist()

    def open_live() -> LiveRun:
        return LiveRun(Predictor.open(run.path, "cpu"), tmp_path, late="1d")

    with open_live() as live:
        for first, until in ((0, 4), (4, 10)):
            assert live.append(events[first:until]).rejected == []
        assert live.score(queries).equals(expected[0])
    with open_live() as live:  # from the log
        assert live.score(queries).equals(expected[0])
        live.append(events[10:17])
        assert live.score(queries).equals(expected[1])
        live.snapshot()
        live.append(events[17:])
        assert live.score(queries).equals(expected[2])
    with open_live() as live:  # from the snapshot and the rest of the log
        assert live.facts()["snapshot"] == 17
        assert live.score(queries).equals(expected[2])
