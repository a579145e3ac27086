"""The one writer: whole or not at all, as public as the umask says, never in place of what is no file."""

import errno
import os
import socket
import stat
import subprocess
import sys

import pytest

from dygmamba.core.errors import FileError, WriteError
from dygmamba.core.files import locking, writing
from dygmamba.core.files.writing import (
    Disk,
    create_new_folder,
    make_folder,
    publish_path,
    remove_stale_temporaries,
    write_file,
    write_text,
)


def test_what_is_written_is_read_back_whatever_the_locale(tmp_path):
    """Letters of every plane and every kind of line end survive, in a process whose locale is plain ASCII."""
    text = "é\U0001f600\r\n\n\r end"
    write_text(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes().decode("utf-8") == text
    code = "import pathlib, dygmamba.core.files.writing as w; w.write_text(pathlib.Path('b'), '\\xe9\\U0001f600')"
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=plain)
    assert (tmp_path / "b").read_bytes() == "é\U0001f600".encode()
    with pytest.raises(FileError, match="no letter of UTF-8"):
        write_text(tmp_path / "c", "\udc80")


def test_a_file_is_as_public_as_the_umask_says(tmp_path):
    """New or replaced."""
    (tmp_path / "plain").touch()
    for _ in range(2):
        write_text(tmp_path / "a", "x")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(
            (tmp_path / "plain").stat().st_mode
        )


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device", "circle"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path, kind, linked, monkeypatch):
    """A folder, a pipe, a socket, a device, or a link to one: one sentence, and it is still there."""
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
        with pytest.raises(FileError, match=r"cannot write .*; (give the name of a file|its links lead)"):
            write_text(path, "x")
        assert os.path.samestat(path.lstat(), before)
    assert not list(tmp_path.glob(".*"))


def test_a_link_to_a_file_stays_a_link(tmp_path):
    """The file behind it is replaced; behind a link to nothing it is made."""
    for name in ("there", "missing"):
        folder, link = tmp_path / "far" / name, tmp_path / name
        make_folder(folder)
        link.symlink_to(folder / "file")
        if name == "there":
            write_text(folder / "file", "old")
        write_text(link, "new")
        assert link.is_symlink()
        assert (folder / "file").read_text() == "new"


def test_left_overs_of_the_dead_are_swept_and_of_the_living_kept(tmp_path):
    """By machine, process number and start; what another machine left, after a day; nothing else is touched."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    here, own, start = locking.get_host_id(), os.getpid(), locking.get_process_start()
    names = {
        "dead": f".dygmamba-{here}-{gone.pid}-77-0.part",
        "reused": f".dygmamba-{here}-{own}-{start + 1}-0.part",
        "living": f".dygmamba-{here}-{own}-{start}-0.part",
        "elsewhere": ".dygmamba-00000000-1-1-0.part",
        "forgotten": ".dygmamba-00000000-1-1-1.part",
        "foreign": "model.part",
    }
    for name in names.values():
        (tmp_path / name).touch()
    os.utime(tmp_path / names["forgotten"], (1, 1))
    remove_stale_temporaries(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    swept = {"dead", "forgotten"} | ({"reused"} if os.path.exists("/proc/self/stat") else set())
    assert left == {name for kind, name in names.items() if kind not in swept}


@pytest.mark.parametrize("call", ["create", "write", "sync", "close", "replace", "sync_folder"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE, errno.EDQUOT])
def test_an_error_of_the_system_is_one_sentence_and_leaves_a_whole_file(tmp_path, monkeypatch, call, number):
    """Whichever call fails: what is there is the old file or the new one, and nothing else is there."""
    path = tmp_path / "a"
    write_text(path, "old")

    def fail(self, *words):
        if call == "close":
            os.close(*words)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing, "disk", type("Broken", (Disk,), {call: fail})())
    with pytest.raises(FileError, match=rf"cannot write {path}: .*; \w+") as caught:
        write_text(path, "new")
    assert "\n" not in str(caught.value)
    assert path.read_text() == ("new" if call == "sync_folder" else "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_system_that_cannot_flush_folders_is_good_enough(tmp_path, monkeypatch):
    """It answers EINVAL; the file is written."""
    real = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


def test_names_that_cannot_be_are_one_sentence(tmp_path):
    """Too long, inside a file, inside nothing."""
    write_text(tmp_path / "file", "x")
    for path in (tmp_path / ("n" * 300), tmp_path / "file" / "a", tmp_path / "none" / "a"):
        with pytest.raises(FileError, match="cannot write"):
            write_text(path, "x")
    for path in (tmp_path / "file", tmp_path / "file" / "a", tmp_path / ("n" * 300)):
        with pytest.raises(FileError, match="cannot write"):
            make_folder(path)
    write_text(tmp_path / ("n" * 255), "the longest name there is")


def test_what_is_replaced_can_be_kept_and_folders_are_new_once(tmp_path):
    """The generation before, under its own name; pieces of any size make one file."""
    for content in (b"one", b"two", b"three"):
        write_file(tmp_path / "last", [content[:1], b"", memoryview(content)[1:]], tmp_path / "before")
    assert (tmp_path / "last").read_bytes() == b"three"
    assert (tmp_path / "before").read_bytes() == b"two"
    assert create_new_folder(tmp_path / "run")
    assert not create_new_folder(tmp_path / "run")
    publish_path(tmp_path / "run", tmp_path / "named")
    assert (tmp_path / "named").is_dir()


def test_folders_that_nobody_could_remove_again_are_not_made(tmp_path):
    with pytest.raises(WriteError, match="folders in one another"):
        make_folder(tmp_path / ("a/" * 500))
    assert list(tmp_path.iterdir()) == []
