"""The lock of a run folder: one holder at a time, and none once it is dead."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from dygmamba.core.errors import DygWarning, FileError
from dygmamba.core.files import locking
from dygmamba.core.files.locking import FileLock

HOLD = (
    "import sys, time; from pathlib import Path; from dygmamba.core.files.locking import Lock\n"
    "lock = Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    """The sentence names the holder; after kill -9 the lock is free although its file is there."""
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FileError, match=f"process {holder.pid} is writing"):
            FileLock(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.exists()
    FileLock(path).release()


def test_a_lock_let_go_can_be_taken_again(tmp_path):
    """By `release`, twice if one likes, or by forgetting it."""
    lock = FileLock(tmp_path / ".lock")
    with pytest.raises(FileError, match=f"process {os.getpid()}"):
        FileLock(tmp_path / ".lock")
    lock.release()
    lock.release()
    again = FileLock(tmp_path / ".lock")
    del again
    FileLock(tmp_path / ".lock").release()


def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch):
    """No flock in the system, or none in its file system: a warning, and work goes on; no folder: a sentence."""
    with pytest.raises(FileError, match="cannot lock"):
        FileLock(tmp_path / "none" / ".lock")

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", refuse)
    with pytest.warns(DygWarning, match="let no second process"):
        FileLock(tmp_path / ".lock").release()
    monkeypatch.setattr(locking, "fcntl", None)
    with pytest.warns(DygWarning, match="let no second process"):
        FileLock(tmp_path / ".lock").release()
