"""Versions of a dataset: importing again destroys nothing that a run needs."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import dygmamba as dm
from commands import error_code, invoke
from dygmamba.core.errors import FileError, LockedError, NotFoundError
from dygmamba.core.files.locking import acquire_lock
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import find_dataset, list_versions, open_dataset, save_dataset_version
from dygmamba.data.storage.mapped_file import mark_in_use
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import describe_dataset, open_run_dataset
from dygmamba.runs.run_config import RunConfig
from raising import raises


def mail(*times: float, who: str = "ann") -> Dataset:
    return dm.read([(who, "bob", time) for time in times], name="mail")


def run_on(dataset: Dataset, root: Path) -> RunDirectory:
    """A run folder that refers to a dataset as a trained one does."""
    about = describe_dataset(dataset, root)
    folder = RunDirectory.create(root, dataset.name, "trees", 0)
    folder.write_config({"run": {**about, "model": "trees", "seed": 0}, "train": {}, "model": {}})
    return folder


def test_a_second_import_keeps_the_first(tmp_path):
    """The newest has the plain name, older ones are NAME@VERSION; saving the same again changes nothing."""
    one, two = mail(1, 2), mail(1, 2, 3)
    assert save_dataset_version(one, tmp_path).how == "new"
    before = (tmp_path / "mail.safetensors").stat()
    assert save_dataset_version(mail(1, 2), tmp_path).how == "same"
    assert (tmp_path / "mail.safetensors").stat().st_ino == before.st_ino
    saved = save_dataset_version(two, tmp_path)
    assert (saved.how, saved.kept) == ("newer", tmp_path / f"mail@{one.version}.safetensors")
    assert open_dataset("mail", tmp_path).digest == two.digest
    for wanted in (one, two):
        found = open_dataset(f"mail@{wanted.version}", tmp_path)
        assert (found.name, found.digest) == ("mail", wanted.digest)
    save_dataset_version(one, tmp_path)
    assert [v.version for v in list_versions(tmp_path, "mail")] == [one.version, two.version]
    assert open_dataset("mail", tmp_path).digest == one.digest


def test_other_ids_are_another_version(tmp_path):
    """Equal events with other ids have one digest and two versions; a run gets the version it was trained on."""
    ann, abe = mail(1, 2), mail(1, 2, who="abe")
    assert ann.digest == abe.digest
    assert ann.version != abe.version
    save_dataset_version(ann, tmp_path)
    save_dataset_version(abe, tmp_path)
    for wanted in (ann, abe):
        found = find_dataset("mail", wanted.digest, [tmp_path], wanted.version)
        assert found is not None
        assert found.ids == wanted.ids


def test_a_run_finds_its_own_version(tmp_path, monkeypatch):
    """Whatever was imported since, wherever the data folder was, and from any current folder."""
    save_dataset_version(mail(1, 2), tmp_path / "data")
    old = open_dataset("mail", tmp_path / "data")
    run = run_on(old, tmp_path / "runs")
    save_dataset_version(mail(7), tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "none"))
    assert open_run_dataset(RunConfig.read(run), None).digest == old.digest
    assert open_run_dataset(RunConfig.read(run), tmp_path / "data").digest == old.digest


def test_a_run_on_a_file_outlives_the_file(tmp_path, monkeypatch):
    """Events of a table are saved with the run; an npz file is referenced, and a changed one is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "none"))
    Path("log.csv").write_text("src,dst,time\na,b,1\nb,c,2\n")
    dataset = open_dataset("log.csv")
    run = run_on(dataset, Path("runs"))
    Path("log.csv").unlink()
    run = RunDirectory(run.path.absolute())
    monkeypatch.chdir("/")
    assert open_run_dataset(RunConfig.read(run), None).digest == dataset.digest
    monkeypatch.chdir(tmp_path)
    np.savez("arrays.npz", src=[0], dst=[1], t=[1.0])
    run = RunDirectory(run_on(open_dataset("arrays.npz"), Path("runs")).path.absolute())
    monkeypatch.chdir("/")
    assert len(open_run_dataset(RunConfig.read(run), None)) == 1
    np.savez(tmp_path / "arrays.npz", src=[0], dst=[1], t=[2.0])
    with raises("dataset-changed", FileError):
        open_run_dataset(RunConfig.read(run), None)


def test_a_version_in_use_is_not_removed(tmp_path, monkeypatch, capsys):
    """`data list` shows versions and runs, `data remove` refuses one in use unless forced, and promotes the older."""
    monkeypatch.chdir(tmp_path)
    old, new = mail(1, 2), mail(3)
    save_dataset_version(old, tmp_path / "data")
    run = run_on(open_dataset("mail", tmp_path / "data"), tmp_path / "runs")
    save_dataset_version(new, tmp_path / "data")
    where = ("--data-dir", "data")
    code, out, _ = invoke(monkeypatch, capsys, "data", "list", *where)
    assert code == 0
    assert f"mail@{old.version}" in out
    assert "no run" in out
    code, out, err = invoke(monkeypatch, capsys, "data", "remove", f"mail@{old.version}", *where)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--force" in err
    assert run.path.name in err
    with raises("unknown-dataset", NotFoundError):
        dm.remove("mail@00000000", data_dir="data")
    assert dm.remove(f"mail@{new.version}", data_dir="data") == [f"mail@{new.version}"]
    assert open_dataset("mail", tmp_path / "data").digest == old.digest
    code, out, _ = invoke(monkeypatch, capsys, "data", "remove", "mail", "--force", *where)
    assert (code, out) == (0, f"removed mail@{old.version}\n")
    assert list_versions(tmp_path / "data") == []


def test_two_imports_under_one_name_do_not_mix(tmp_path):
    """While one process writes a dataset, new or not, another must wait; a damaged dataset is simply replaced."""
    for _ in range(2):
        lock = acquire_lock(tmp_path / ".mail.lock")
        with raises("folder-locked", LockedError):
            save_dataset_version(mail(2), tmp_path)
        lock.release()
        save_dataset_version(mail(1), tmp_path)
    path = tmp_path / "mail.safetensors"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # no lock file is left
    os.truncate(path, 40)
    assert save_dataset_version(mail(1), tmp_path).how == "new"
    assert open_dataset("mail", tmp_path).digest == mail(1).digest


def test_a_dataset_without_permission_is_not_replaced(tmp_path, monkeypatch):
    """It is not damaged: the error says what to allow, and saving leaves it alone."""
    path, opened = save_dataset_version(mail(1), tmp_path).path, Path.open

    def refuse(self, *words, **more):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, *words, **more)

    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with raises("file-unreadable", FileError) as caught:
            save_dataset_version(mail(2), tmp_path)
    assert "allow this user to read it" in str(caught.value)
    assert path.read_bytes() == before


def test_a_dataset_of_a_live_training_is_not_removed(tmp_path, monkeypatch):
    """Wherever its run is: it is in use until the training ends, unless it is forced."""
    monkeypatch.chdir(tmp_path)
    save_dataset_version(mail(1), tmp_path / "data")
    source = open_dataset("mail", tmp_path / "data").store.source
    with mark_in_use(source), raises("dataset-in-use", FileError):
        dm.remove("mail", data_dir="data")
    assert len(dm.remove("mail", data_dir="data")) == 1


def test_appending_twice_at_once_loses_no_events(tmp_path):
    """Of two processes that append to one dataset, each that succeeds has its events in it; one may be refused."""
    data = tmp_path / "data"
    count = 1_000_000  # so that reading and saving take a while
    number = np.arange(count)
    dm.save(dm.read({"src": number % 9, "dst": number % 7, "time": number}, name="mail"), data_dir=data)
    for start in range(count, count + 4, 2):
        for time in (start, start + 1):
            (tmp_path / f"{time}.csv").write_text(f"src,dst,time\n0,1,{time}\n")
        words = [
            sys.executable,
            "-m",
            "dygmamba",
            "data",
            "import",
            "--append",
            "mail",
            "--data-dir",
            str(data),
        ]
        processes = [
            subprocess.Popen(
                [*words, str(tmp_path / f"{time}.csv"), "--json"], stdout=subprocess.PIPE, text=True
            )
            for time in (start, start + 1)
        ]
        outputs = [process.communicate()[0] for process in processes]
        codes = [process.returncode for process in processes]
        assert all(
            code == 0 or error_code(out) == "folder-locked" for code, out in zip(codes, outputs, strict=True)
        )
        count += codes.count(0)
        assert len(open_dataset("mail", data)) == count
    assert not list(data.glob("*.lock"))
