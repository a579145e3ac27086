"""A model that reads what no score may depend on is refused by `check_model` and `audit`, as its author runs them."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import dygmamba as dm
from commands import invoke
from contract_cases import TINY
from dygmamba.api.trusted_code import import_model
from dygmamba.auditing.model_checks import build_audited_model, check_invariances
from dygmamba.core.errors import DygWarning
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.testing import CHECKS, TOLERANCE, ContractError
from streams import split_stream

# name of the model -> checks that must fail, in the words of `check_model`
LEAKS = {
    "reads-the-label": "label",
    "reads-the-group": "label",
    "counts-degrees": "batch",
    "averages-the-batch": "batch",
    "reads-the-longest-row": "batch",
    "reads-the-padding": "padding",
    "reads-padding-entries": "padding",
    "reads-later-features": "causal",
    "reads-its-own-time": "causal",
    "knows-its-place": "order",
    "remembers-queries": "repeat",
}
# and those that do not leak, but cannot be trained or give no score
BROKEN = LEAKS | {"has-a-dead-weight": "gradient", "divides-by-zero": "finite"}
AUDIT_NAMES = {check.name: check.audit_name for check in CHECKS}


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    """A file of the user that registers the models."""
    monkeypatch.setattr("dygmamba.models.REGISTERED", {})
    monkeypatch.setattr("dygmamba.runs.trusted_code.REGISTERED", sys.modules["dygmamba.models"].REGISTERED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mine_leaks.py"
    shutil.copy(Path(__file__).parents[1] / "leaky_models.py", path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DygWarning)
        yield path
    sys.modules.pop("mine_leaks", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two datasets: times that differ, and snapshots of a hundred events."""
    place = tmp_path_factory.mktemp("data")
    data = dm.generate(nodes=40, events=1_500, communities=4, name="small")
    save_dataset(data, place)
    rows = {"src": data.store.src.tolist(), "dst": data.store.dst.tolist()}
    save_dataset(
        dm.read(rows | {"time": [k // 100 for k in range(len(data.store))]}, name="snapshots"), place
    )
    return place


@pytest.mark.parametrize("name", BROKEN)
def test_check_model_refuses_a_broken_model(name, model_file):
    """For all leaks, and two other mistakes: the check of its kind fails and is named."""
    import_model(f"{model_file}:{name}")
    with pytest.raises(ContractError, match=BROKEN[name]) as refused:
        dm.check_model(name)
    rows = refused.value.table.to_pylist()
    assert BROKEN[name] in {row["check"] for row in rows if not row["holds"]}


@pytest.mark.parametrize(
    ("name", "data"), [*((name, "snapshots") for name in LEAKS), ("reads-later-features", "small")]
)
def test_audit_refuses_a_leak(name, data, monkeypatch, capsys, model_file, folder):
    """For all leaks, and where no times are equal: exit code 1, and the check of its kind fails."""
    words = ("audit", data, "--model", f"{model_file}:{name}", "--json", "--data-dir", str(folder))
    code, out, _ = invoke(monkeypatch, capsys, *words)
    assert code == 1
    failed = {row["name"]: row for row in json.loads(out)["checks"] if not row["passed"]}
    found = failed[AUDIT_NAMES[LEAKS[name]]]
    assert found["detail"]
    assert found["value"] is None or found["value"] > TOLERANCE


@pytest.mark.parametrize("name", ["edgebank", "trees", "tgn", "cawn", "dyg-mamba-counts"])
def test_a_model_of_each_kind_passes_the_audit(name, folder):
    """The window of the stream and the small stream; tests/models/test_contract.py has all checks of all models."""
    stream = split_stream(dm.load("snapshots", folder).store)
    settings = TINY.get(name, {})
    checks = check_invariances(build_audited_model(name, settings, stream, "snapshots"))
    assert [check.detail for check in checks if not check.passed] == []


def test_the_same_model_without_a_leak_passes(monkeypatch, capsys, model_file, folder):
    import_model(f"{model_file}:no-leak")
    assert all(dm.check_model("no-leak")["holds"].to_pylist())
    words = ("audit", "snapshots", "--model", f"{model_file}:no-leak", "--json", "--data-dir", str(folder))
    code, out, _ = invoke(monkeypatch, capsys, *words)
    assert code == 0, out
