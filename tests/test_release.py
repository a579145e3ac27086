"""The checks of a release find what is wrong; workflows and pages name targets that the Makefile has."""

import importlib.util
import re
import shutil
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load(name: str):
    """A script of the folder release as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "release" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path):
    """The sources of a package that has its version alone."""
    (tmp_path / "src" / "dygmamba").mkdir(parents=True)
    shutil.copy(ROOT / "src/dygmamba/_version.py", tmp_path / "src/dygmamba")
    return tmp_path


@pytest.mark.parametrize(
    ("extra", "size", "said"),
    [("tests/test_x.py", 1, "holds tests/test_x.py"), ("dygmamba/x.bin", 3_000_000, "more than 2,000,000")],
)
def test_a_wheel_with_more_than_the_package_is_refused(checkout, monkeypatch, extra, size, said):
    """Other folders and more than 2 MB are named; a wheel of the sources alone passes."""
    check = load("check")
    monkeypatch.setattr(check, "ROOT", checkout)
    (checkout / "dist").mkdir()
    version = check.read_version()
    (checkout / "dist" / f"dyg_mamba-{version}.tar.gz").touch()
    wheel = checkout / "dist" / f"dyg_mamba-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(checkout / "src/dygmamba/_version.py", "dygmamba/_version.py")
    assert list(check.check_wheel("")) == []
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(extra, b"\0" * size)
    (problem,) = check.check_wheel("")
    assert said in problem


def test_actions_are_pinned_by_commit_and_rights_are_given_per_job():
    """For all workflows: no action by a tag, which its owner may move, and no rights for all jobs at once."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text()
        assert all(re.fullmatch(r"\S+@[0-9a-f]{40}", action) for action in re.findall(r"uses: (\S+)", text))
        assert "\npermissions: {}\n" in text


def test_targets_of_make_are_few_and_described():
    """CONTRIBUTING.md describes every target, and no file names one that does not exist."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)[0].split()
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^make ([\w-]+) ", guide, flags=re.MULTILINE) == targets
    for path in (ROOT / ".ci/run", *sorted((ROOT / ".github").rglob("*.*ml")), ROOT / "CONTRIBUTING.md"):
        if path.exists():  # .ci is not part of the sdist
            assert set(re.findall(r"(?:run: |`|^|  )make ([\w-]+)", path.read_text(), re.MULTILINE)) <= set(
                targets
            )
