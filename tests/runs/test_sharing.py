"""A run that was pushed and pulled is the same run, bit for bit, and nothing else is accepted."""

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml

import dygmamba as dm
from commands import fail, invoke
from dygmamba.core.errors import ConfigError, DownloadError, DygWarning, FileError, Interrupted, NotFoundError
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs import sharing
from forged_runs import blend_of, forge_run
from raising import raises
from trained import copy_run

PAIRS = [("ann", "bob"), ("cid", "dora"), ("nobody", "eve")]


@pytest.fixture(scope="module")
def place(network_run, tmp_path_factory):
    """A run of letters under an absolute path, pushed without and with its data."""
    folder = tmp_path_factory.mktemp("sharing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYGMAMBA_DATA", str(folder / "none"))
        run = copy_run(network_run, folder / "runs")
        dm.push(run, folder / "bare")
        dm.push(run, folder / "whole", data=True)
        yield SimpleNamespace(run=run, data=run.data, bare=folder / "bare", whole=folder / "whole")


def test_a_pulled_run_predicts_the_same_bits(place, tmp_path):
    """For all pairs: scores, weights, results and calibration are those of the run that was pushed."""
    pulled = dm.pull(place.whole, out=tmp_path / "runs", device="cpu")
    assert pulled.score(PAIRS) == place.run.score(PAIRS)
    mine, theirs = (dm.Run(run.path, "cpu") for run in (place.run, pulled))
    left, right = (run._predictor.run.scorer.state_dict() for run in (mine, theirs))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert pulled.results.drop_columns("run") == place.run.results.drop_columns("run")
    assert pulled.finished
    assert dm.pull(place.whole, out=tmp_path / "runs").path == pulled.path  # once is enough
    again = dm.push(pulled, tmp_path / "again", data=True)
    assert {f.name: f.read_bytes() for f in place.whole.iterdir() if f.name != "README.md"}.items() <= {
        f.name: f.read_bytes() if f.name != "config.json" else (place.whole / "config.json").read_bytes()
        for f in Path(again).iterdir()
    }.items()


def test_without_its_dataset_a_pulled_run_names_it(place, tmp_path, monkeypatch):
    """The error has name and digest; with the dataset, the run predicts."""
    pulled = dm.pull(place.bare, out=tmp_path / "runs", device="cpu")
    with raises("unknown-dataset", NotFoundError) as caught:
        pulled.score(PAIRS)
    assert f"'letters' with digest {place.data.digest[:16]}" in str(caught.value)
    dm.save(place.data, data_dir=tmp_path / "data")
    run = dm.open(pulled.path, device="cpu", data_dir=tmp_path / "data")
    assert run.score(PAIRS) == place.run.score(PAIRS)


def test_nothing_private_is_shared(place, network_run):
    """No path of the machine, no id of the dataset, no pickle; the dataset only if it is requested."""
    assert {file.name for file in place.bare.iterdir()} == {*sharing.SHARED_FILES, sharing.MANIFEST_FILE} - {
        sharing.DATA_FILE
    }
    assert {file.name for file in place.whole.iterdir()} == {*sharing.SHARED_FILES, sharing.MANIFEST_FILE}
    for file in place.bare.iterdir():
        content = file.read_bytes()
        for run in (place.run, network_run):  # where it is, and where it was trained
            assert str(run.path.parents[3]).encode() not in content, file.name
        assert b"dora" not in content, file.name


def test_the_card_is_what_the_hub_reads(place):
    """Facts as YAML, the protocol's stamp, results, digest, and lines that run."""
    _, head, body = (place.whole / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["library_name"] == "dygmamba"
    assert facts["datasets"] == ["letters"]
    assert {"link-prediction", "dyg-mamba"} <= set(facts["tags"])
    assert {"average_precision", "roc_auc"} <= set(facts["metrics"])
    tests = [row for row in place.run.results.to_pylist() if row["split"] == "test"]
    measured = {one["value"] for found in facts["model-index"][0]["results"] for one in found["metrics"]}
    assert round(tests[0]["ap"], 6) in measured
    assert place.data.digest in body
    assert "| test | transductive | random | strict | 200 |" in body
    code = re.findall(r"```python\n(.*?)```", body, re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 5
    compile(code, "card", "exec")


def changed(folder: Path, tmp_path: Path, facts: dict | None = None) -> Path:
    """A copy with a changed manifest."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    listed = json.loads((copy / "config.json").read_text())
    for key, value in (facts or {}).items():
        one = listed
        *way, last = key.split("__")
        for part in way:
            one = one[part]
        one[last] = value
    (copy / "config.json").write_text(json.dumps(listed))
    return copy


@pytest.mark.parametrize(
    "facts",
    [
        {"format": "pickle"},
        {"name": "../../x"},
        {"name": ".hidden"},
        {"folder": "a/b"},
        {"data__name": ".."},
        {"data__digest": "no"},
        {"files": {}},
        {"files": []},
        {"files__evil.py": {"bytes": 1, "sha256": "x"}},
        {"files__README.md": {"bytes": 1 << 60, "sha256": "x"}},
        {"files__README.md": {"bytes": -1, "sha256": "x"}},
        {"files__README.md": {"bytes": 5.5, "sha256": "x"}},
        {"files__README.md": {"bytes": 5}},
        {"data": None},
    ],
)
def test_an_invalid_manifest_is_refused(place, tmp_path, facts):
    """Unknown names, paths, sizes beyond the limits and nonsense are an error, and no file is left behind."""
    with raises("damaged-manifest", FileError):
        dm.pull(changed(place.bare, tmp_path, facts), out=tmp_path / "runs")
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_a_file_that_differs_from_the_manifest_is_refused(place, tmp_path):
    """For all files: a flipped bit, a link instead, one byte more, a missing file; no file is left behind."""
    for name in json.loads((place.whole / "config.json").read_text())["files"]:
        for how in ("flip", "link", "grow", "lose"):
            copy = changed(place.whole, tmp_path)
            file = copy / name
            content = file.read_bytes()
            file.unlink()
            if how == "flip":
                file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
            elif how == "link":
                file.symlink_to(place.whole / name)
            elif how == "grow":
                file.write_bytes(content + b" ")
            with pytest.raises(FileError):
                dm.pull(copy, out=tmp_path / "runs")
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    (tmp_path / "copy" / "config.json").unlink()
    os.mkfifo(tmp_path / "copy" / "config.json")
    with raises("not-a-regular-file", FileError):
        dm.pull(tmp_path / "copy", out=tmp_path / "runs")
    with raises("not-a-shared-run", FileError):
        dm.pull(tmp_path / "runs", out=tmp_path / "x")


def resealed(place, tmp_path, parts: dict | None = None, **about) -> Path:
    """A copy with other settings, and with checksums as a forger would write them."""
    copy = changed(place.bare, tmp_path)
    own = RunDirectory(tmp_path / "forged")
    own.path.mkdir()
    sections = place.run.config
    sections["run"].pop("file", None)
    sections.pop("folder")
    sections["run"] |= about
    sections["model"] = parts or sections["model"]
    own.write_config(sections)
    (copy / "config.toml").write_bytes((own.path / "config.toml").read_bytes())
    shutil.rmtree(own.path)
    content = (copy / "config.toml").read_bytes()
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    listed = json.loads((copy / "config.json").read_text())
    listed["files"]["config.toml"] = facts
    listed["folder"] = "blend" if parts else listed["folder"]
    (copy / "config.json").write_text(json.dumps(listed))
    return copy


def test_a_forged_configuration_is_refused(place, tmp_path):
    """Weights of other settings, paths of this machine, modules to import."""
    cases = [
        ({"seed": 9}, FileError, "wrong-checkpoint"),
        ({"file": "/etc/passwd"}, FileError, "shared-run-has-paths"),
        ({"backbone": "/x/y"}, FileError, "shared-run-has-paths"),
        ({"source": "antigravity:x"}, ConfigError, "unregistered-model"),
        ({"model": "tgn"}, FileError, "shared-run-inconsistent"),
    ]
    for about, kind, code in cases:
        with raises(code, kind):
            dm.pull(resealed(place, tmp_path, **about), out=tmp_path / "runs")
    for name in ("ages", "trees"):  # a module of a part of a blend, whose model is unknown or known
        parts = blend_of(name, {}, "antigravity:x")
        with raises("unregistered-model"):
            dm.pull(resealed(place, tmp_path, parts, model="blend"), out=tmp_path / "runs")
    assert "antigravity" not in sys.modules


def test_paths_of_other_runs_are_not_shared(place, tmp_path):
    """The parts of a blend, the backbone and the origin of a refit are named without their folders."""
    paths = {key: str(tmp_path / "private" / key) for key in ("backbone", "refit_of")}
    about = paths | {"blend_of": [str(tmp_path / "private" / "one"), str(tmp_path / "private" / "two")]}
    chosen = {"epochs": f"3: the best of the 9 that {paths['refit_of']} had"}
    run = forge_run(place.run.path, place.run.path.with_name("forged"), run=about, chosen=chosen)
    shared = Path(dm.push(run.path, tmp_path / "shared"))
    assert not [file for file in shared.iterdir() if b"private" in file.read_bytes()]
    assert dm.pull(shared, out=tmp_path / "runs").config["run"]["blend_of"] == ["one", "two"]
    with raises("shared-run-has-paths", FileError):
        dm.pull(resealed(place, tmp_path, blend_of=["/x/y"]), out=tmp_path / "runs")
    shutil.rmtree(run.path)


def test_a_run_that_was_named_by_a_point_is_shared_whole(place, tmp_path):
    """A path is replaced where it is a whole value or word: settings that contain it stay as they are."""
    chosen = {"epochs": "3: the best of the 9 that . had", "lr": "0.5: set. See ./mine.toml"}
    run = forge_run(
        place.run.path,
        place.run.path.with_name("forged"),
        run={"backbone": ".", "refit_of": ".."},
        chosen=chosen,
    )
    pulled = dm.pull(dm.push(run.path, tmp_path / "shared"), out=tmp_path / "runs").config
    assert pulled["chosen"] == run.config()["chosen"] | {"epochs": "3: the best of the 9 that run had"}
    assert (pulled["model"], pulled["train"]) == (run.config()["model"], run.config()["train"])
    assert (pulled["run"]["backbone"], pulled["run"]["refit_of"]) == ("run", "run")
    for path in ("", ".", ".."):
        with raises("shared-run-has-paths", FileError):
            dm.pull(resealed(place, tmp_path, backbone=path), out=tmp_path / "runs")
    shutil.rmtree(run.path)


class Hub:
    """Stands in for huggingface_hub.HfApi: repositories are folders, each call as the real client documents it."""

    root: Path
    calls: list

    def create_repo(self, repo_id, *, repo_type, private, exist_ok):
        self.calls.append(("create", repo_id, repo_type, private, exist_ok))
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id, repo_type, folder_path, commit_message):
        self.calls.append(("upload", repo_id, repo_type, commit_message))
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        (self.root / repo_id / ".gitattributes").write_text("*.safetensors filter=lfs\n")

    def model_info(self, repo_id, *, revision, files_metadata):
        assert files_metadata
        if not (self.root / repo_id).is_dir():
            raise RuntimeError("404 Client Error: Repository Not Found\nmore lines")
        files = [
            SimpleNamespace(rfilename=file.name, size=file.stat().st_size)
            for file in (self.root / repo_id).iterdir()
        ]
        return SimpleNamespace(siblings=files, sha="0123abc")

    def snapshot_download(self, repo_id, *, revision, allow_patterns, local_dir):
        self.calls.append(("download", repo_id, revision, sorted(allow_patterns)))
        for name in allow_patterns:
            shutil.copy(self.root / repo_id / name, Path(local_dir) / name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The client replaced by a fake: nothing of the network is tested."""
    module = ModuleType("huggingface_hub")
    fake = type("HfApi", (Hub,), {"root": tmp_path / "hub", "calls": []})
    vars(module)["HfApi"] = fake
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr("dygmamba.api.sharing.find_spec", lambda name: module)
    return fake


def test_to_the_hub_and_back(place, hub, tmp_path):
    """One private repository, one commit, only known files down, of one revision; the same bits."""
    assert dm.push(place.run, "ann/mail-model", data=True) == "hf://ann/mail-model"
    (hub.root / "ann" / "mail-model" / "evil.py").write_text("raise SystemExit")
    pulled = dm.pull("hf://ann/mail-model", out=tmp_path / "runs", device="cpu")
    assert pulled.score(PAIRS) == place.run.score(PAIRS)
    assert [call[0] for call in hub.calls] == ["create", "upload", "download"]
    assert hub.calls[0] == ("create", "ann/mail-model", "model", True, True)
    assert hub.calls[2][2:] == ("0123abc", sorted([*sharing.SHARED_FILES, sharing.MANIFEST_FILE]))
    assert 'dm.pull("ann/mail-model")' in (hub.root / "ann" / "mail-model" / "README.md").read_text()
    with raises("hub-failed", DownloadError) as caught:
        dm.pull("hf://ann/nothing", out=tmp_path / "runs")
    assert "ann/nothing" in str(caught.value)
    with (hub.root / "ann" / "mail-model" / "README.md").open("ab") as file:
        file.truncate(1 << 21)
    with raises("shared-file-too-large", DownloadError):
        dm.pull("hf://ann/mail-model", out=tmp_path / "runs")


def test_the_commands(place, monkeypatch, capsys, tmp_path):
    """Push and pull by command; a repository without its client is one sentence before anything is read."""
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke(monkeypatch, capsys, "push", str(place.run.path), "./model", "--with-data")
    assert (code, "dygmamba pull model" in out) == (0, True), err
    code, out, err = invoke(monkeypatch, capsys, "pull", "model", "--json")
    assert code == 0, err
    assert json.loads(out)["digest"] == place.data.digest
    monkeypatch.setattr("dygmamba.api.sharing.find_spec", lambda name: None)
    for words in (("push", str(place.run.path), "ann/model"), ("pull", "ann/model")):
        assert fail(monkeypatch, capsys, *words)[0] == "package-missing"
    for name in ("", "\n", "x\0y", "\ud800", "hf://", "hf://a/b/c"):
        code, _, err = invoke(monkeypatch, capsys, "push", str(place.run.path), name)
        assert (code, err.count("\n")) == (2, 1), err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    assert fail(monkeypatch, capsys, "push", place.run.path, "./full")[0] == "folder-not-empty"


def test_what_is_pulled_from_the_hub_is_announced(monkeypatch):
    """`user/name` looks like a folder."""

    def stop(*_, **__):
        raise Interrupted("no download")

    monkeypatch.setattr("dygmamba.api.sharing.download_files", stop)
    monkeypatch.setattr("dygmamba.api.sharing.require_hub_client", lambda: None)
    with pytest.warns(DygWarning, match="Hugging Face Hub"), raises("interrupted"):
        dm.pull("user/name")
