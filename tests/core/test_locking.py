"""FileLock: one holder at a time, released when its process dies."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from dygmamba.core.errors import DygWarning, LockedError
from dygmamba.core.files import locking
from dygmamba.core.files.locking import FileLock
from raising import raises

HOLD = (
    "import sys, time; from pathlib import Path; from dygmamba.core.files.locking import FileLock\n"
    "lock = FileLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    """The message names the holder; after kill -9 the lock is free although its file exists."""
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with raises("folder-locked", LockedError) as caught:
            FileLock(path)
        assert f"process {holder.pid} " in str(caught.value)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.exists()
    FileLock(path).release()


def test_a_released_lock_can_be_acquired_again(tmp_path):
    """By `release`, also a second time, or by deleting the object."""
    lock = FileLock(tmp_path / ".lock")
    with raises("folder-locked", LockedError) as caught:
        FileLock(tmp_path / ".lock")
    assert f"process {os.getpid()} " in str(caught.value)
    lock.release()
    lock.release()
    again = FileLock(tmp_path / ".lock")
    del again
    FileLock(tmp_path / ".lock").release()


def test_a_lock_file_that_is_a_link_changes_nothing(tmp_path):
    """A symbolic link is refused, the content of a hard link is left alone."""
    secret, path = tmp_path / "secret", tmp_path / ".lock"
    secret.write_text("secret")
    path.symlink_to(secret)
    with raises("folder-not-lockable"):
        FileLock(path)
    path.unlink()
    path.hardlink_to(secret)
    FileLock(path).release()
    assert secret.read_text() == "secret"


def test_a_removed_lock_file_is_no_lock(tmp_path, monkeypatch):
    """A process that opened the file before its holder removed it locks the new file instead."""
    path = tmp_path / ".lock"
    first, opened = FileLock(path), os.open
    monkeypatch.setattr(locking.os, "open", lambda *words: [opened(*words), first.release(remove=True)][0])
    second = FileLock(path)
    assert path.exists()
    with raises("folder-locked", LockedError):
        FileLock(path)
    second.release(remove=True)
    assert not path.exists()


def test_a_system_without_locks_gets_a_warning(tmp_path, monkeypatch):
    """No flock in the system or in the file system: a warning, and work goes on; no folder: an error."""
    with raises("folder-not-lockable"):
        FileLock(tmp_path / "none" / ".lock")

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", refuse)
    with pytest.warns(DygWarning, match="let no second process"):
        FileLock(tmp_path / ".lock").release()
    monkeypatch.setattr(locking, "fcntl", None)
    with pytest.warns(DygWarning, match="let no second process"):
        FileLock(tmp_path / ".lock").release()
