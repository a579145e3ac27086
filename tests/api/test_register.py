"""A model from outside the package: ten lines, trained, saved, reopened elsewhere, held to the contract by one call."""

import pytest

import dygmamba as dm
from dygmamba.testing import CHECKS
from letters import run_python
from outside_models import NoSettings, Sound
from raising import raises
from torture_cases import SECONDS

pytestmark = pytest.mark.e2e

TEN = """\
import torch, dygmamba as dm
from dataclasses import dataclass
@dataclass(frozen=True)
class Config:
    out: int = 8
class Ages(dm.Encoder):
    def __init__(self, config, facts):
        super().__init__()
        self.requests, self.out_dim = (dm.NeighborRequest((4,)),), config.out
        self.layer = torch.nn.Linear(2, config.out)
    def forward(self, view):
        (past,) = view[self.requests[0]]
        rows = self.layer(torch.stack([past.length.float(), past.age.sum(1).log1p()], 1))
        return rows[view.pairs.src_row], rows[view.pairs.dst_row]
"""
REGISTER = "dm.register('ages', Config, Ages)\n"
TRAIN = """\
data = dm.generate(nodes=40, events=600, communities=4)
(run,) = dm.train(data, "ages", epochs=1, out="runs", device="cpu")
print(run.path, run.score([(3, 5)])["score"][0].as_py())
"""


def test_a_model_of_a_module_trains_and_opens_in_a_new_process(tmp_path):
    """The run names the module; opening imports it if it is trusted. The contract is one call."""
    (tmp_path / "mine.py").write_text(TEN + REGISTER)
    first = run_python(f"import mine, dygmamba as dm\n{TRAIN}", tmp_path, more=tmp_path)
    path, score = first.split()
    assert 'source = "mine:Ages"' in (tmp_path / path / "config.toml").read_text()
    ask = f"print(dm.open({path!r}, trust=True).score([(3, 5)])['score'][0].as_py())"
    check = "print(dm.check_model('ages').num_rows)"
    again, held = run_python(f"import dygmamba as dm; {ask}; {check}", tmp_path, more=tmp_path).split()
    assert (float(again), held) == (float(score), str(len(CHECKS)))


def test_a_model_of_a_file_is_backtested(tmp_path):
    """As `train` takes it: `--model mine.py`."""
    (tmp_path / "mine.py").write_text(TEN + REGISTER)
    save = "dm.save(dm.generate(nodes=40, events=600, communities=4, name='mail'))"
    words = [
        "dygmamba",
        "backtest",
        "mail",
        "--model",
        "mine.py",
        "--every",
        "3d",
        "--frozen",
        "--epochs",
        "1",
    ]
    code = f"import sys, dygmamba as dm; {save}; from dygmamba.cli import main; sys.argv = {words}; main()"
    assert "ages on mail: AP by period" in run_python(code, tmp_path)
    assert (tmp_path / "backtests" / "mail-ages" / "backtest.json").is_file()


def test_a_model_without_requests_is_refused_in_one_sentence(monkeypatch):
    """Before a check and before a training; a table of what each check said would not name the cause."""

    class Blind(Sound):
        def __init__(self, config, facts):
            super().__init__(config, facts)
            del self.requests

    monkeypatch.setattr("dygmamba.models.REGISTERED", {})
    dm.register("blind", NoSettings, Blind)
    with raises("no-requests"):
        dm.check_model("blind")
    with raises("no-requests"):
        dm.train(dm.generate(nodes=40, events=600, communities=4), "blind", epochs=1, device="cpu")


@pytest.mark.skipif(not SECONDS, reason="three processes; `make torture` runs it")
def test_a_model_of_a_notebook_says_what_to_do(tmp_path):
    """What was registered in a script cannot be imported: the sentence says to register it again, and then it opens."""
    path, score = run_python(TEN + REGISTER + TRAIN, tmp_path).split()
    ask = f"print(dm.open({path!r}).score([(3, 5)])['score'][0].as_py())"
    told = run_python(
        f"import dygmamba as dm\ntry: {ask}\nexcept dm.DygError as error: print(error)", tmp_path
    )
    assert "was registered in a script or notebook (__main__:Ages); register 'ages' again" in told
    assert float(run_python(TEN + REGISTER + ask, tmp_path)) == float(score)


@pytest.mark.skipif(not SECONDS, reason="three processes; `make torture` runs it")
def test_an_installed_package_offers_its_models(tmp_path):
    """An entry point of group dygmamba.models is found by name, by Python and by the command line, and reopened."""
    spec = (
        "from dygmamba.models.base import ModelSpec\n"
        "SPEC = ModelSpec(Config, Ages, True, 'Ages', 'ages', 'linear')\n"
    )
    (tmp_path / "theirs.py").write_text(TEN + spec)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dygmamba.models]\nages = theirs:SPEC\n")
    path, score = run_python("import dygmamba as dm\n" + TRAIN, tmp_path, more=tmp_path).split()
    assert 'source = "theirs:SPEC"' in (tmp_path / path / "config.toml").read_text()
    ask = f"print(dm.open({path!r}).score([(3, 5)])['score'][0].as_py())"
    listed = "print(dm.models()['ages'].settings, dm.check_model('ages').num_rows)"
    command = "import sys; sys.argv = ['dygmamba', 'models', '--json']; from dygmamba.cli import main; main()"
    again, held, told = run_python(
        f"import dygmamba as dm; {ask}; {listed}; {command}", tmp_path, more=tmp_path
    ).splitlines()
    assert (float(again), held) == (float(score), f"{{'out': 8}} {len(CHECKS)}")
    assert '"name": "ages"' in told
    gone = run_python(
        f"import dygmamba as dm\ntry: {ask}\nexcept dm.DygError as error: print(error)", tmp_path
    )
    assert "is defined by 'theirs:SPEC', which is not imported by itself" in gone


def test_a_sound_model_keeps_the_contract(monkeypatch):
    """A table of named checks, all of which hold; models that break one are in tests/runs/test_leaks.py."""
    monkeypatch.setattr("dygmamba.models.REGISTERED", {})
    dm.register("sound", NoSettings, Sound)
    table = dm.check_model("sound")
    assert table["check"].to_pylist() == [check.name for check in CHECKS]
    assert all(table["holds"].to_pylist())
