"""Runs of trees on streams whose node features change: they learn from them, and never see them early."""

from functools import cache

import pytest
import torch

import dygmamba as dm
from dygmamba.data.events.node_rows import NodeRows
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.testing import sample_stream
from purchases import generate_residents
from raising import raises

SMALL = {"trees": 20, "rounds": 20, "epochs": 1, "leaves": 15, "rate": 0.2, "neighbors": 4, "transitions": 0}


@cache
def residents():
    return generate_residents(customers=40, shops=150, events=1000, categories=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    save_dataset(residents(), out)
    return out


@pytest.fixture(scope="module")
def run(folder):
    """A run that reads node features."""
    return dm.train(residents(), "trees", out=folder / "with", device="cpu", **SMALL)[0]


def last_pair():
    store = residents().store
    return int(store.src[-1]), residents().ids.to_user(store.dst[-1:].numpy()).to_pylist()[0]


def test_they_lift_the_test_ap_by_twenty_points(run, folder):
    """Where a changing node feature decides by construction; a run that is told not to read it has no such feature."""
    plain = dm.train(residents(), "trees", out=folder / "without", device="cpu", **SMALL, node_columns=0)[0]
    ap = [one.results.to_pylist()[0]["ap"] for one in (run, plain)]
    assert ap[0] > ap[1] + 0.20


def test_explanations_name_them(run):
    found = run.explain(last_pair(), orders=1)
    names = [number.name for number in found.numbers.strongest]
    assert any("of source and destination is the same" in name for name in names)
    assert any("level of the source minus" in name for name in names)


def test_an_audit_finds_a_look_up_that_sees_the_query_time(run, folder, monkeypatch):
    """`dygmamba audit` passes the run, and fails it if rows at exactly the query time were visible."""
    sound = {check.name: check for check in dm.audit("generated", run=run.path, data_dir=folder).checks}
    assert sound["future"].passed

    def find_last_until(self, node, time):
        earlier = torch.searchsorted(self._instants, time.contiguous(), side="right")
        row = torch.searchsorted(self._key, node * (len(self._instants) + 1) + earlier) - 1
        return torch.where((row >= 0) & (self.node[row.clamp(min=0)] == node), row, -1)

    monkeypatch.setattr(NodeRows, "find_last_before", find_last_until)
    leaky = {check.name: check for check in dm.audit("generated", run=run.path, data_dir=folder).checks}
    assert not leaky["future"].passed
    assert "node feature" in leaky["future"].detail


def test_new_events_and_live_runs_keep_them(run, tmp_path):
    """Known nodes keep their features after `observe` and in a live run, with equal scores; new nodes have none."""
    src, dst = last_pair()
    later = {"src": [src, 9999], "dst": [dst, dst], "time": [1.9e9, 1.9e9]}
    seen = run.observe(later)
    assert len(seen.data.store.features.node_rows) == len(residents().store.features.node_rows)
    pairs = [(src, dst), (9999, dst), (src, 8888)]
    expected = seen.score(pairs)["score"].to_pylist()
    assert all(0 <= score <= 1 for score in expected)
    with dm.live(run, tmp_path / "state") as live:
        live.append([{"src": a, "dst": b, "time": t} for a, b, t in zip(*later.values(), strict=True)])
        assert live.score(pairs)["score"].to_pylist() == expected


def test_exports_take_them_as_inputs_or_name_the_setting(run, tmp_path):
    """ONNX graphs get the features from this package; the numpy scorer has no table of nodes."""
    program = dm.load_program(run.export(tmp_path / "trees.onnx"))
    pair = [last_pair()]
    score = float(program.probability(run.inputs(pair))[0])
    assert score == pytest.approx(run.score(pair)["score"][0].as_py(), abs=1e-6)
    with raises("model-not-exportable") as caught:
        run.export(tmp_path / "scorer.zip")
    assert "node features" in str(caught.value)
    assert "`node_columns=0`" in str(caught.value)


def test_networks_do_not_read_them(folder):
    """A network has the scores that it has without node features."""
    plain = dm.read(residents().to_arrow(), name="plain")
    assert plain.store.features.node_rows is None
    tiny = {"length": 4, "width": 4, "states": 2, "blocks": 1, "time_dim": 4, "epochs": 1, "batch": 200}
    runs = [
        dm.train(data, "dyg-mamba", out=folder / name, device="cpu", **tiny)[0]
        for name, data in (("a", residents()), ("b", plain))
    ]
    assert runs[0].results.to_pylist()[0]["ap"] == runs[1].results.to_pylist()[0]["ap"]


def test_the_stream_of_the_contract_has_rows_at_event_times():
    """So that a model which sees a row at exactly the query time fails the check."""
    store = sample_stream()
    assert bool(torch.isin(store.features.node_rows.time, store.time).any())
