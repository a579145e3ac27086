"""Which process wrote something, and whether it still lives: its machine, its number and when it started."""

import hashlib
import os
import socket
import time
from functools import cache
from pathlib import Path

FORGOTTEN = 24 * 3600.0  # seconds: what another machine left and did not touch for so long, nobody is writing
_imported = int(time.time())


@cache
def here() -> str:
    """A word for where process numbers mean the same: this machine and, on Linux, this namespace."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]


def started(pid: int | None = None) -> int:
    """When a process started, in ticks since the machine did; where that is not told, when it imported this."""
    try:
        words = (
            Path(f"/proc/{pid or os.getpid()}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
        return int(words[19])
    except (OSError, IndexError, ValueError):
        return _imported if pid is None else 0


def is_dead(where: str, pid: int, start: int, touched: float) -> bool:
    """Whether the process is surely gone; of another machine's only its long silence tells."""
    if where != here() or os.name == "nt":  # Windows has no harmless way to ask
        return time.time() - touched > FORGOTTEN
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives and is another user's
        pass
    now = started(pid)
    return now != 0 and now != start
