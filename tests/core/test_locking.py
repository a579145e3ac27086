"""Folder locks: one holder at a time, released when its process dies."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from dygmamba.core.errors import DygWarning, LockedError
from dygmamba.core.files.locking import acquire_lock, hold_lock
from raising import raises

HOLD = (
    "import sys, time; from pathlib import Path; from dygmamba.core.files.locking import acquire_lock\n"
    "lock = acquire_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    """The message names the holder; after kill -9 the lock is free although its file exists."""
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with raises("folder-locked", LockedError) as caught:
            acquire_lock(path)
        assert f"process {holder.pid} " in str(caught.value)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.exists()
    acquire_lock(path).release()


def test_a_released_lock_can_be_acquired_again(tmp_path):
    """By `release`, also a second time, by deleting the object, or with its file."""
    path = tmp_path / ".lock"
    lock = acquire_lock(path)
    with raises("folder-locked", LockedError) as caught:
        acquire_lock(path)
    assert f"process {os.getpid()} " in str(caught.value)
    lock.release()
    lock.release()
    again = acquire_lock(path)
    del again
    with hold_lock(path):
        assert path.exists()
    assert not path.exists()


def test_a_lock_file_that_is_a_link_changes_nothing(tmp_path):
    """A symbolic link is refused, the content of a hard link is left alone."""
    secret, path = tmp_path / "secret", tmp_path / ".lock"
    secret.write_text("secret")
    path.symlink_to(secret)
    with raises("folder-not-lockable"):
        acquire_lock(path)
    path.unlink()
    path.hardlink_to(secret)
    acquire_lock(path).release()
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_gets_a_warning(tmp_path, monkeypatch, number):
    """Work goes on; a folder that cannot be written to is an error."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(DygWarning, match="let no second process"):
        acquire_lock(tmp_path / ".lock").release()
    (tmp_path / "file").touch()
    with raises("folder-not-lockable"):
        acquire_lock(tmp_path / "file" / ".lock")
