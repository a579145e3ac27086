"""Atomic writing: whole or not at all, permissions by the umask, and only regular files are replaced."""

import errno
import os
import socket
import stat
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dygmamba.core.errors import WriteError
from dygmamba.core.files import writing
from dygmamba.core.files.writing import (
    Disk,
    create_new_folder,
    make_folder,
    publish_path,
    remove_stale_temporaries,
    write_file,
    write_files,
    write_text,
)
from raising import raises


def test_text_survives_any_locale(tmp_path):
    """Characters of every plane and every line ending survive, also in a process whose locale is ASCII."""
    text = "é\U0001f600\r\n\n\r end"
    write_text(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes().decode("utf-8") == text
    code = "import pathlib, dygmamba.core.files.writing as w; w.write_text(pathlib.Path('b'), '\\xe9\\U0001f600')"
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=plain)
    assert (tmp_path / "b").read_bytes() == "é\U0001f600".encode()
    with raises("not-utf8", WriteError):
        write_text(tmp_path / "c", "\udc80")


def test_permissions_follow_the_umask(tmp_path):
    """Of a new file and of one that replaces another."""
    (tmp_path / "plain").touch()
    for _ in range(2):
        write_text(tmp_path / "a", "x")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(
            (tmp_path / "plain").stat().st_mode
        )


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device", "circle"])
@pytest.mark.parametrize("linked", [False, True])
def test_only_a_regular_file_is_replaced(tmp_path, kind, linked, monkeypatch):
    """A folder, a pipe, a socket, a device, or a link to one: an error, and it is still there."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    thing = tmp_path / "thing"
    with socket.socket(socket.AF_UNIX) as end:
        if kind == "folder":
            thing.mkdir()
        elif kind == "pipe":
            os.mkfifo(thing)
        elif kind == "socket":
            end.bind("thing")
        else:
            thing.symlink_to("/dev/null" if kind == "device" else thing)
        path = thing
        if linked:
            path = tmp_path / "link"
            path.symlink_to(thing)
        before = path.lstat()
        with raises("write-failed" if kind == "circle" else "not-a-regular-file", WriteError):
            write_text(path, "x")
        assert os.path.samestat(path.lstat(), before)
    assert not list(tmp_path.glob(".*"))


def test_a_link_to_a_file_stays_a_link(tmp_path):
    """The file behind it is replaced; behind a dangling link it is created."""
    for name in ("there", "missing"):
        folder, link = tmp_path / "far" / name, tmp_path / name
        make_folder(folder)
        link.symlink_to(folder / "file")
        if name == "there":
            write_text(folder / "file", "old")
        write_text(link, "new")
        assert link.is_symlink()
        assert (folder / "file").read_text() == "new"


def test_a_link_in_a_foreign_folder_is_replaced(tmp_path):
    """Where links are not followed, the file behind one stays as it is, and devices are still refused."""
    write_text(tmp_path / "secret", "old")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    write_text(tmp_path / "link", "new", follow_links=False)
    assert not (tmp_path / "link").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("secret", "link")] == ["old", "new"]
    (tmp_path / "folder").mkdir()
    with raises("not-a-regular-file", WriteError):
        write_text(tmp_path / "folder", "new", follow_links=False)


@pytest.mark.parametrize("fails_at", range(1, 8))
def test_several_files_are_replaced_together(tmp_path, monkeypatch, fails_at):
    """Whichever write or flush fails, none of the files has changed, and no temporary file is left."""
    names = ("a", "b", "c")
    write_files({tmp_path / name: [b"old"] for name in names})

    class Broken(Disk):
        calls = 0

        def write(self, handle, chunk):
            self.fail_once()
            return super().write(handle, chunk)

        def sync(self, handle):
            self.fail_once()
            super().sync(handle)

        def fail_once(self):
            Broken.calls += 1
            if Broken.calls == fails_at:
                raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(writing, "disk", Broken())
    with raises("write-failed", WriteError) if fails_at < 7 else nullcontext():
        write_files({tmp_path / name: [b"new"] for name in names})
    expected = "old" if fails_at < 7 else "new"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, expected)


def test_temporary_files_of_dead_processes_are_removed(tmp_path):
    """Decided by machine and process id, or by age. Nothing else is touched."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    here, own = writing.get_host_id(), os.getpid()
    names = {
        "dead": f".dygmamba-{here}-{gone.pid}-77-0.part",
        "reused": f".dygmamba-{here}-{own}-1-1.part",
        "living": f".dygmamba-{here}-{own}-1-0.part",
        "elsewhere": ".dygmamba-00000000-1-1-0.part",
        "forgotten": ".dygmamba-00000000-1-1-1.part",
        "foreign": "model.part",
    }
    for name in names.values():
        (tmp_path / name).touch()
    (tmp_path / names["dead"]).unlink()
    (tmp_path / names["dead"] / "of a killed pull").mkdir(parents=True)
    for kind in ("forgotten", "reused"):
        os.utime(tmp_path / names[kind], (1, 1))
    remove_stale_temporaries(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    swept = {"dead", "forgotten", "reused"}
    assert left == {name for kind, name in names.items() if kind not in swept}


@pytest.mark.parametrize("call", ["create", "write", "sync", "close", "replace", "sync_folder"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE, errno.EDQUOT])
def test_a_failing_system_call_leaves_a_whole_file(tmp_path, monkeypatch, call, number):
    """Whichever call fails: the folder holds the old file or the new one, and nothing else."""
    path = tmp_path / "a"
    write_text(path, "old")

    def fail(self, *words):
        if call == "close":
            os.close(*words)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing, "disk", type("Broken", (Disk,), {call: fail})())
    with raises("write-failed", WriteError) as caught:
        write_text(path, "new")
    assert f"cannot write {path}: {os.strerror(number)}; " in str(caught.value)
    assert path.read_text() == ("new" if call == "sync_folder" else "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path, monkeypatch):
    """It returns EINVAL; the file is written."""
    real = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


def test_impossible_names_are_errors(tmp_path):
    """Too long, inside a file, inside nothing."""
    write_text(tmp_path / "file", "x")
    for path in (tmp_path / ("n" * 300), tmp_path / "file" / "a", tmp_path / "none" / "a"):
        with raises("write-failed", WriteError):
            write_text(path, "x")
    for path in (tmp_path / "file", tmp_path / "file" / "a", tmp_path / ("n" * 300)):
        with raises("write-failed", WriteError):
            make_folder(path)
    write_text(tmp_path / ("n" * 255), "the longest possible name")


def test_a_replaced_file_can_be_kept_and_a_folder_is_new_once(tmp_path):
    """The previous file is moved to `keep`; chunks of any size make one file."""
    for content in (b"one", b"two", b"three"):
        write_file(tmp_path / "last", [content[:1], b"", memoryview(content)[1:]], tmp_path / "before")
    assert (tmp_path / "last").read_bytes() == b"three"
    assert (tmp_path / "before").read_bytes() == b"two"
    assert create_new_folder(tmp_path / "run")
    assert not create_new_folder(tmp_path / "run")
    publish_path(tmp_path / "run", tmp_path / "named")
    assert (tmp_path / "named").is_dir()


def test_folders_too_deep_to_remove_are_refused(tmp_path):
    with raises("folder-too-deep", WriteError):
        make_folder(tmp_path / ("a/" * 500))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_supported", [True, False])
def test_macos_flushes_the_cache_of_the_drive(tmp_path, monkeypatch, is_supported):
    """Where F_FULLFSYNC exists, a file is flushed with it, and with fsync only if the file system refuses that."""
    calls = []

    def flush(handle: int, command: int) -> None:
        calls.append(command)
        if not is_supported:
            raise OSError(errno.ENOTTY, "not supported")

    monkeypatch.setattr(writing, "FULL_SYNC", 51)
    monkeypatch.setattr(writing, "fcntl", SimpleNamespace(fcntl=flush))
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync"))
    with open(tmp_path / "file", "wb") as file:
        writing.disk.sync(file.fileno())
    assert calls == ([51] if is_supported else [51, "fsync"])
