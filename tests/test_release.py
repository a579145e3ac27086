"""The scripts of a release: they find what is wrong, and write one address everywhere."""

import importlib.util
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGED = ("pyproject.toml", "mkdocs.yml", "CITATION.cff", "recipe/meta.yaml", "SECURITY.md")


def load(name: str):
    """A script of the folder release as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "release" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path):
    """The files that the scripts read and change."""
    for name in (*CHANGED, "src/dygmamba/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_address_is_written_into_every_file_once(checkout, monkeypatch):
    """For all addresses: the last one given is the only one that is left, and the check of addresses passes."""
    script, check = load("set_repository"), load("check")
    monkeypatch.setattr(check, "ROOT", checkout)
    for address in ("https://github.com/Some-One/first", "https://github.com/Some-One/second/"):
        script.main(address, checkout)
    for name in CHANGED:
        text = (checkout / name).read_text()
        assert "Some-One/second" in text
        assert "first" not in re.findall(r"Some-One/(\w+)", text)
    assert tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["dynamic"] == [
        "readme",
        "version",
    ]
    build = tomllib.loads((checkout / "pyproject.toml").read_text())["build-system"]["requires"]
    host = re.findall(r"^    - (hatch\S*)", (checkout / "recipe/meta.yaml").read_text(), re.MULTILINE)
    assert [re.match(r"[\w-]+", name)[0] for name in build] == host  # conda builds without isolation
    assert list(check.check_addresses("")) == []
    with pytest.raises(SystemExit):
        script.main("github.com/somebody", checkout)


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


def test_the_recipe_has_the_dependencies_of_the_package(checkout, monkeypatch):
    """For all dependencies: a bound that differs, or one that is missing, is named."""
    check = load("check")
    shutil.copy(ROOT / "recipe/conda_build_config.yaml", checkout / "recipe")
    monkeypatch.setattr(check, "ROOT", checkout)
    assert list(check.check_recipe("")) == []
    recipe = checkout / "recipe/meta.yaml"
    recipe.write_text(
        recipe.read_text().replace("    - pytorch >=2.11,<3\n", "").replace("rich >=13", "rich >=12")
    )
    assert list(check.check_recipe("")) == [
        "recipe/meta.yaml lacks pytorch>=2.11,<3",
        "recipe/meta.yaml has rich>=12,<16",
        "recipe/meta.yaml lacks rich>=13,<16",
    ]


def test_actions_are_pinned_by_commit_and_rights_are_given_per_job():
    """For all workflows: no action by a tag, which its owner may move, and no rights for all jobs at once."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text()
        assert all(re.fullmatch(r"\S+@[0-9a-f]{40}", action) for action in re.findall(r"uses: (\S+)", text))
        assert "\npermissions: {}\n" in text


def test_logs_become_pages(tmp_path):
    """For all logs: a page with their text, escaped, and a link to it from the list."""
    logs, site = tmp_path / "logs", tmp_path / "site"
    logs.mkdir()
    (logs / "torture.txt").write_text("<seed 1>\n")
    load("log_pages").main(logs, site)
    assert "&lt;seed 1&gt;" in (site / "checks" / "torture.html").read_text()
    assert 'href="torture.html"' in (site / "checks" / "index.html").read_text()
