"""A model in a file of the user, named on the command line as FILE.py or FILE.py:NAME."""

import sys
import warnings

import pytest

from dygmamba.api.trusted_code import import_model
from dygmamba.core.errors import DygWarning
from dygmamba.models import find_model
from raising import raises

CODE = """
import dataclasses
import dygmamba as dm

@dataclasses.dataclass(frozen=True)
class Config:
    out: int = 8

def build(config, facts): ...

for name in NAMES:
    dm.register(name, Config, build)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr("dygmamba.models.REGISTERED", {})
    monkeypatch.setattr("dygmamba.runs.trusted_code.REGISTERED", sys.modules["dygmamba.models"].REGISTERED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_file(name: str, *models: str):
        path = tmp_path / name
        path.write_text(f"NAMES = {models!r}\n{CODE}")
        return str(path)

    yield write_file
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


def test_a_file_brings_its_model(write):
    """Under its name, or the only one; a warning names the file first; other names stay as they are."""
    path = write("mine_two.py", "first", "second")
    with pytest.warns(DygWarning, match="importing .*mine_two.py"):
        assert import_model(f"{path}:second") == "second"
    assert find_model("first").source == "mine_two:build"
    with pytest.warns(DygWarning, match="importing"):
        assert import_model(write("mine_one.py", "only")) == "only"
    assert import_model("trees") == "trees"
    assert import_model(None) is None


@pytest.mark.parametrize(
    ("name", "models", "wanted", "code"),
    [
        ("mine_many.py", ("a", "b"), "", "model-not-in-file"),
        ("mine_other.py", ("a",), ":b", "model-not-in-file"),
        ("mine_none.py", (), "", "model-not-in-file"),
        ("mine_broken.py", ("no name",), "", "broken-model-file"),
        ("json.py", ("a",), "", "malformed-model-file"),
        ("mine-dash.py", ("a",), "", "malformed-model-file"),
    ],
)
def test_files_that_bring_none_are_named(write, name, models, wanted, code):
    """Several or no models, an error in the file, and names that are no module or another one."""
    path = write(name, *models)
    with warnings.catch_warnings(), raises(code):
        warnings.simplefilter("ignore")
        import_model(path + wanted)
    with raises("file-missing"):
        import_model("nothing.py")
