"""A run of a stranger imports nothing but what the user trusts by name, and leads no write out of its folder."""

import sys
import warnings
from contextlib import suppress

import pytest

import dygmamba as dm
import dygmamba.models as registry
from commands import invoke
from dygmamba.core.errors import DygWarning, NotFoundError
from forged_runs import blend_of, forge_run
from raising import raises

STRAY = """\
import dygmamba as dm
from outside_models import NoSettings, Sound
dm.register("stray", NoSettings, Sound)
"""


@pytest.fixture
def stray(tmp_path, monkeypatch):
    """A module beside the user's shell that registers a model when it is imported."""
    (tmp_path / "stray_module.py").write_text(STRAY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "REGISTERED", {})
    yield "stray_module"
    sys.modules.pop("stray_module", None)


SOURCE = "stray_module:Sound"
FORGED = {
    "source": {"run": {"model": "stray", "source": SOURCE}},
    "blend": {"run": {"model": "blend"}, "model": blend_of("stray", {}, SOURCE)},
}


@pytest.mark.parametrize("kind", FORGED)
def test_no_module_is_imported_without_trust(trained, stray, monkeypatch, capsys, kind):
    """Wherever a run names a module, open, resume, refit, blend, audit and the command line do not import it."""
    run = forge_run(trained, trained.with_name("forged"), **FORGED[kind]).path
    attempts = (
        lambda: dm.open(run, device="cpu").score([(1, 2)]),
        lambda: dm.resume(run, device="cpu", epochs=2),
        lambda: dm.refit(run, device="cpu"),
        lambda: dm.audit(run),
    )
    for attempt in attempts:
        with raises("unregistered-model"):
            attempt()
    code, _, told = invoke(monkeypatch, capsys, "predict", str(run), "--sources", "1", "--top", "1")
    assert code == 2
    assert SOURCE in told
    assert "--trust-code" in told
    assert stray not in sys.modules


@pytest.mark.parametrize(
    "sections",
    [{"run": {"source": SOURCE}}, {"run": {"model": "blend"}, "model": blend_of("trees", {}, SOURCE)}],
)
def test_a_name_of_the_package_hides_no_import(trained, stray, sections):
    """For all models of the package: a module that the run names beside them is never imported, trusted or not."""
    run = forge_run(trained, trained.with_name("forged"), **sections)
    with suppress(dm.DygError):
        dm.open(run.path, device="cpu", trust=True).score([(1, 2)])
    assert stray not in sys.modules


@pytest.mark.parametrize("kind", FORGED)
def test_a_trusted_module_is_named_and_imported(trained, stray, monkeypatch, capsys, kind):
    """`trust=True` and `--trust-code` import the module of a run or of a part of a blend, after showing its name."""
    run = forge_run(trained, trained.with_name("forged"), **FORGED[kind]).path
    with pytest.warns(DygWarning, match="importing stray_module"):
        dm.open(run, device="cpu", trust=True)
    assert stray in sys.modules
    assert "stray" in registry.REGISTERED
    registry.REGISTERED.clear()
    sys.modules.pop(stray)
    words = ("predict", str(run), "--sources", "1", "--top", "1", "--trust-code")
    _, _, told = invoke(monkeypatch, capsys, *words)
    assert "importing stray_module" in told
    assert stray in sys.modules


@pytest.mark.parametrize("source", ["__main__:Sound", "..evil:x", ":", "no_such_module_here:X", "a b"])
def test_a_module_that_cannot_be_imported_is_an_error(trained, source):
    """For all names that lead to no module, trusted or not: one sentence."""
    run = forge_run(trained, trained.with_name("forged"), run={"model": "stray", "source": source}).path
    for trust in (False, True):
        with warnings.catch_warnings(), raises("unregistered-model", NotFoundError):
            warnings.simplefilter("ignore", DygWarning)
            dm.open(run, device="cpu", trust=trust).score([(1, 2)])


def test_nothing_is_written_through_a_link(trained, tmp_path):
    """For all files of a run: a link in a copied folder leads a resumed training or a report nowhere else."""
    run, secret = forge_run(trained, trained.with_name("forged")).path, tmp_path / "secret"
    secret.write_text("secret")
    dm.open(run, device="cpu").report()
    files = [file for file in run.rglob("*") if file.is_file() and file.name not in ("config.toml", ".lock")]
    for file in [*files, run / "checkpoint" / "last.1.safetensors", run / "extended.toml"]:
        if file.parent != run / "checkpoint" and file.name not in ("metrics.jsonl", "calibration.json"):
            file.unlink(missing_ok=True)
            file.symlink_to(secret)
    (run / "results.json").unlink()
    with suppress(dm.DygError):  # a file that is read through the link is damaged
        dm.open(run, device="cpu").report()
    (run / "extended.toml").unlink()
    dm.resume(run, device="cpu", epochs=2)
    dm.open(run, device="cpu").report()
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(secret)
    with raises("folder-not-lockable"):
        dm.resume(run, device="cpu", epochs=3)
    (run / ".lock").unlink()
    (run / "checkpoint").rename(tmp_path / "elsewhere")
    (run / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with raises("linked-checkpoint-folder"):
        dm.resume(run, device="cpu", epochs=4)
    assert secret.read_text() == "secret"
