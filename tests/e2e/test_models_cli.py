"""`dygmamba models`: what there is to choose from."""

import json

import pytest

from commands import invoke
from dygmamba.models import MODELS

NAMES = {
    *("dyg-mamba", "mamba", "jodie", "dyrep", "tgn", "cawn", "tgat", "edgebank"),
    *("graphmixer", "tcl", "dygformer", "freedyg"),
}

pytestmark = pytest.mark.e2e


@pytest.fixture
def listed(monkeypatch, capsys):
    code, out, _ = invoke(monkeypatch, capsys, "models", "--json")
    assert code == 0
    return {row["name"]: row for row in json.loads(out)["models"]}


def test_every_registered_model_is_listed_once(listed):
    """The list is the registry, in one JSON object, and holds every model of the paper's tables."""
    assert list(listed) == list(MODELS)
    assert set(listed) >= NAMES
    for row in listed.values():
        assert set(row) == {
            *("name", "title", "looks_at", "cost", "trainable", "stateful", "parameters", "tokens", "hops")
        }
        assert row["title"]
        assert row["looks_at"]
        assert row["cost"]


def test_only_trained_models_have_parameters(listed):
    """Parameters are counted on the built model: none where nothing is trained."""
    for row in listed.values():
        assert (row["parameters"] > 0) == row["trainable"]


def test_costs_are_those_of_the_published_settings(listed):
    """UCI's lengths: 32 tokens of which one is the query, two hops of 20, ten neighbours, one look-up of the pair."""
    tokens = {"dyg-mamba": 31, "dygformer": 31, "tgat": 420, "tgn": 10, "edgebank": 1, "graphmixer": 20}
    assert {name: listed[name]["tokens"] for name in tokens} == tokens
    assert {name: listed[name]["stateful"] for name in ("tgn", "edgebank", "dyg-mamba")} == {
        "tgn": True,
        "edgebank": False,
        "dyg-mamba": False,
    }


def test_a_dataset_brings_its_own_settings(monkeypatch, capsys, tmp_path):
    """On the embedded stream, which has no published settings, the defaults hold; memory is sized by its nodes."""
    code, out, _ = invoke(
        monkeypatch, capsys, "models", "--data", "generated", "--data-dir", str(tmp_path), "--json"
    )
    assert code == 0
    assert {row["name"] for row in json.loads(out)["models"]} >= NAMES


def test_an_unknown_dataset_is_one_sentence(monkeypatch, capsys, tmp_path):
    """Exit code 2, nothing on stdout."""
    code, out, err = invoke(monkeypatch, capsys, "models", "--data", "nowhere", "--data-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no dataset 'nowhere'")


def test_the_table_names_paper_and_size(monkeypatch, capsys):
    """Without --json the same list is a table."""
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = invoke(monkeypatch, capsys, "models")
    assert code == 0
    assert "DyG-Mamba (NeurIPS 2025)" in out
    assert "not trained" in out
