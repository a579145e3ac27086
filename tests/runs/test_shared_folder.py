"""A run that is pushed over another one: whoever reads the folder gets the old run or the new one, at every instant."""

import random
import shutil
from types import SimpleNamespace

import pytest

from dygmamba.core.files import writing
from dygmamba.runs.sharing import MANIFEST_FILE, pack_run, unpack_run
from power_cut import RecordingDisk
from raising import raises
from trained import read_letters


class Killed(BaseException):
    """The process ended."""


class CallingDisk(writing.Disk):
    """The disk, which calls a function with its number before each call that changes something."""

    def __init__(self, before):
        self.before, self.calls = before, 0

    def _note(self):
        self.calls += 1
        self.before(self.calls)

    def create(self, path):
        self._note()
        return super().create(path)

    def write(self, handle, chunk):
        self._note()
        return super().write(handle, chunk)

    def replace(self, old, new):
        self._note()
        super().replace(old, new)

    def remove(self, path):
        self._note()
        super().remove(path)

    def make_folder(self, path):
        self._note()
        super().make_folder(path)


@pytest.fixture(scope="module")
def runs(letter_trees_runs, tmp_path_factory):
    """Two runs on one stream, and the share of each: the first one with its events."""
    folder = tmp_path_factory.mktemp("shares")
    old, new = letter_trees_runs
    shares = {
        "old": pack_run(old.path, folder / "old", read_letters()),
        "new": pack_run(new.path, folder / "new"),
    }
    files = {
        name: {file.name: file.read_bytes() for file in share.iterdir()} for name, share in shares.items()
    }
    return SimpleNamespace(
        old=shares["old"], path=new.path, files=files, names={"old": old.path.name, "new": new.path.name}
    )


def pull_name(share, folder):
    """The name of the run that a reader gets from a share, whose files are then all intact."""
    return unpack_run(share, folder / "pulled", folder / "data").path.name


def push_new(runs, target):
    pack_run(runs.path, target, address="./shared")


def count_calls(runs, tmp_path, monkeypatch):
    disk = CallingDisk(lambda number: None)
    monkeypatch.setattr(writing, "disk", disk)
    push_new(runs, shutil.copytree(runs.old, tmp_path / "counted"))
    monkeypatch.undo()
    return disk.calls


def test_a_push_that_is_killed_anywhere_leaves_the_old_run_or_the_new_one(runs, tmp_path, monkeypatch):
    """For all n: killed before its n-th change of the disk, a push leaves a whole share; the next push completes it."""
    total = count_calls(runs, tmp_path, monkeypatch)
    found = []
    for last in range(1, total + 1):
        share = shutil.copytree(runs.old, tmp_path / f"share{last}")

        def die(number, last=last):
            if number >= last:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(writing, "disk", CallingDisk(die))
            with pytest.raises(Killed):
                push_new(runs, share)
        (share / ".push.lock").touch()  # a killed process leaves it
        found.append(pull_name(share, tmp_path / f"reader{last}"))
        push_new(runs, share)
        # temporary files are removed once their process is dead, and this one is not
        left = {file.name: file.read_bytes() for file in share.iterdir() if file.suffix != ".part"}
        assert left.keys() == runs.files["new"].keys()
        assert all(
            left[name] == runs.files["new"][name] for name in left if name not in ("README.md", MANIFEST_FILE)
        )
    turn = found.index(runs.names["new"])
    assert found == [runs.names["old"]] * turn + [runs.names["new"]] * (total - turn)
    assert 0 < turn < total - 1


def test_a_reader_at_any_moment_gets_the_old_run_or_the_new_one(runs, tmp_path, monkeypatch):
    """For all moments of a push: a pull that begins there is whole, first the old run, then the new one."""
    share, found = shutil.copytree(runs.old, tmp_path / "shared"), []

    def read(number):
        with monkeypatch.context() as reader:
            reader.setattr(writing, "disk", writing.Disk())
            found.append(pull_name(share, tmp_path / f"reader{number}"))

    with monkeypatch.context() as patch:
        patch.setattr(writing, "disk", CallingDisk(read))
        push_new(runs, share)
    assert set(found) == set(runs.names.values())
    assert found == sorted(found, key=[runs.names["old"], runs.names["new"]].index)


@pytest.mark.parametrize("moment", range(1, 12))
def test_a_reader_that_is_overtaken_by_a_push_gets_one_of_both_runs(runs, moment, tmp_path, monkeypatch):
    """For all moments of a pull: a whole push there, and the pull gives the old run or the new one."""
    share = shutil.copytree(runs.old, tmp_path / "shared")

    def push(number):
        if number == moment:
            with monkeypatch.context() as writer:
                writer.setattr(writing, "disk", writing.Disk())
                push_new(runs, share)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "disk", CallingDisk(push))
        name = pull_name(share, tmp_path)
    assert name in runs.names.values()


def is_about(disk, entry):
    """Whether a call was one on the share and not on a copy elsewhere; writes name the number of their file."""
    kind, what = entry[0], entry[-1] if entry[0] != "write" else entry[1]
    if kind in ("write", "sync"):
        return any(other[:2] == ("create", what) and is_about(disk, other) for other in disk.log)
    return what.resolve().is_relative_to(disk.root)


def test_a_power_cut_leaves_the_old_run_or_the_new_one(runs, tmp_path, monkeypatch):
    """For all prefixes of the calls and ways to lose what was not flushed."""
    root = tmp_path / "recorded"
    root.mkdir()
    disk = RecordingDisk(root.resolve())
    with monkeypatch.context() as patch:
        patch.setattr(writing, "disk", disk)
        for name, content in ((name, runs.files["old"][name]) for name in runs.files["old"]):
            writing.write_file(root / name, [content])
        start = len(disk.log)
        push_new(runs, root)
    disk.log = [entry for entry in disk.log if is_about(disk, entry)]
    for seed in range(60):
        rng = random.Random(seed)
        share = tmp_path / f"cut{seed}"
        disk.cut(rng.randint(start, len(disk.log)), rng, share)
        assert pull_name(share, tmp_path / f"reader{seed}") in runs.names.values()


def test_a_second_push_at_the_same_time_is_refused(runs, tmp_path, monkeypatch):
    share = shutil.copytree(runs.old, tmp_path / "shared")

    refused = []

    def push_again(number):
        if (share / ".push.lock").exists() and not refused:
            refused.append(number)
            with raises("folder-locked"):
                push_new(runs, share)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "disk", CallingDisk(push_again))
        push_new(runs, share)
    assert refused
    assert pull_name(share, tmp_path) == runs.names["new"]
