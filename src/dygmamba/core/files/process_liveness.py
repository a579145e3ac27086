"""Whether the process that left a temporary file behind still runs."""

import hashlib
import os
import socket
import time
from functools import cache
from pathlib import Path

# Seconds. A process on another machine cannot be probed; its files count as abandoned after this long without a change.
ABANDONED_AFTER = 24 * 3600.0
_import_time = int(time.time())


@cache
def get_host_id() -> str:
    """Short id of the scope in which process ids are unique: this machine and, on Linux, this PID namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def get_process_start(pid: int | None = None) -> int:
    """Return when a process started, in clock ticks since boot; `None` is this process.

    Without /proc the result is the import time of this module for this process, and 0 for any other.
    """
    try:
        # Field 22 of proc(5). The command name in parentheses may itself hold spaces and parentheses.
        fields = (
            Path(f"/proc/{pid or os.getpid()}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return _import_time if pid is None else 0


def is_process_dead(host_id: str, pid: int, start: int, modified: float) -> bool:
    """Return whether the process that wrote a file is certainly gone.

    Args:
        host_id: `get_host_id` of the writer.
        pid: Its process id.
        start: Its `get_process_start`, because process ids are reused.
        modified: When the file last changed; decides for processes of another machine.
    """
    if host_id != get_host_id() or os.name == "nt":  # on Windows os.kill(pid, 0) would terminate the process
        return time.time() - modified > ABANDONED_AFTER
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs under another user
        pass
    current = get_process_start(pid)
    return current != 0 and current != start
