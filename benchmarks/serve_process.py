"""The server of the benchmark `serve`: a process of its own, so that clients do not share its interpreter.

`python -m benchmarks.serve_process RUN STATE DEVICE BATCH_PAIRS` serves on a free port and prints the
address.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dygmamba.core.errors import DygError
from dygmamba.live.live_run import LiveRun
from dygmamba.runs.predictor import Predictor
from dygmamba.server.app import run_server
from dygmamba.server.settings import ServerSettings

DATA = "bench-data"
MAX_LATE = 1e9  # clients overtake each other, and every event is accepted


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process; `process` is its id."""

    url: str
    process: int

    @contextmanager
    def connect(self) -> Iterator[Callable[[str, Any], Any]]:
        """Yield a function that posts a body to a path over one connection and returns the answer."""
        parts = urlsplit(self.url)
        connection = HTTPConnection(str(parts.hostname), parts.port, timeout=60)

        def post(path: str, body: Any) -> Any:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                raise DygError(str(answer.get("detail")), code=answer.get("code"))
            return answer

        try:
            yield post
        finally:
            connection.close()

    @property
    def memory_mb(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process}/status")
        if not status.exists():
            return float("nan")
        found = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("VmRSS:"))
        return int(found.split()[1]) / 1024


@contextmanager
def start_server(run: Path, state: Path, device: str, batch_pairs: int) -> Iterator[RunningServer]:
    """Start a server in a process of its own and wait until it is ready."""
    command = [sys.executable, "-m", __name__, str(run), str(state), device, str(batch_pairs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise DygError(
                f"the server of the benchmark did not start; run `{shlex.join(command)}` to see its error",
                code="server-not-started",
            )
        _wait_until_ready(url)
        yield RunningServer(url, process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _wait_until_ready(url: str) -> None:
    parts = urlsplit(url)
    while True:
        connection = HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        time.sleep(0.1)


def serve(run: Path, state: Path, device: str, batch_pairs: int) -> None:
    """Serve a run on a free port, and print the address."""
    settings = ServerSettings(port=0, batch_pairs=batch_pairs)

    def print_url(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    run_server(
        lambda: LiveRun(open_predictor(run, device), state, late=MAX_LATE), settings, on_start=print_url
    )


def open_predictor(run: Path, device: str) -> Predictor:
    """Open a run of this benchmark, whose dataset is in a folder beside the runs."""
    return Predictor.open(
        run, device, next(parent / DATA for parent in run.parents if (parent / DATA).exists())
    )


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
