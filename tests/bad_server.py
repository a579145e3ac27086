"""A real server on this machine that breaks every promise a server can make, and archives for it."""

import http.server
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BODY = np.random.RandomState(0).bytes(300_000)
QUICK = {"timeout": 0.4, "retries": 3}
OVER = threading.Event()  # set when a test ends, so that a stalling handler lets its thread go


class Handler(http.server.BaseHTTPRequestHandler):
    """Plays the next act of the server's script, then the honest one for ever."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Server = self.server  # pyright: ignore[reportAssignmentType]
        server.asked.append(dict(self.headers))
        server.paths.append(self.path)
        act = server.script.pop(0) if server.script else honest
        act(self, server)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def send(
        self, status: int, body: bytes, *, length: int | None = None, headers: dict | None = None
    ) -> None:
        """A whole answer; `length` is what it claims to be, the connection closes after what it is."""
        self.send_response(status)
        claimed = len(body) if length is None else length
        for key, value in ({"Content-Length": str(claimed), "Connection": "close"} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        self.server.sent += len(body)  # pyright: ignore[reportAttributeAccessIssue]
        self.wfile.write(body)  # after it was counted: the client may be done before this returns
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    """A file, a script of misdeeds, and a record of what was asked and sent."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.tag = BODY, '"one"'
        self.script: list[Act] = []
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/files/data.bin"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what these tests are about."""


Act = Callable[[Handler, Server], None]


def honest(handler: Handler, server: Server) -> None:
    """What RFC 9110 asks of a server with one file."""
    start, size = handler.headers.get("Range", ""), len(server.body)
    same = handler.headers.get("If-Range") in (None, server.tag)
    tag = {"ETag": server.tag} if server.tag else {}
    if not start or not same:
        return handler.send(200, server.body, headers=tag)
    first = int(start.removeprefix("bytes=").removesuffix("-"))
    if first >= size:
        return handler.send(416, b"", headers={"Content-Range": f"bytes */{size}"})
    span = {"Content-Range": f"bytes {first}-{size - 1}/{size}"}
    return handler.send(206, server.body[first:], headers=tag | span)


def truncated(after: int) -> Act:
    """Hangs up in the middle of the body."""
    return lambda handler, server: handler.send(
        200, server.body[:after], length=len(server.body), headers={"ETag": server.tag}
    )


def stalled(after: int) -> Act:
    """Sends a little and then nothing, without hanging up."""

    def act(handler: Handler, server: Server) -> None:
        handler.send(200, server.body[:after], length=len(server.body), headers={"ETag": server.tag})
        handler.wfile.flush()
        OVER.wait(10)

    return act


def status(code: int, **headers: str) -> Act:
    """An error page."""
    return lambda handler, _: handler.send(code, b"<html>no</html>", headers=headers)


def claims(length: int, body: bytes = BODY) -> Act:
    """Lies about the length, whatever is asked."""
    return lambda handler, server: handler.send(200, body, length=length, headers={"ETag": server.tag})


@contextmanager
def serving() -> Iterator[Server]:
    """The server, running until the block ends."""
    OVER.clear()
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        OVER.set()
        server.shutdown()


def left(target: Path) -> list[str]:
    """The names of the files around the target."""
    return sorted(path.name for path in target.parent.iterdir()) if target.parent.exists() else []


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as bundle:
        for name, body in files.items():
            bundle.writestr(name, body)
    return buffer.getvalue()


def dyglib_zip(name: str = "uci", events: int = 5) -> bytes:
    """An archive as the public record has them: a folder with the three ml_ files."""
    rows = "".join(f"{k},{1 + k % 2},{3},{float(k)},0.0,{k + 1}\n" for k in range(events))
    files = {f"{name}/ml_{name}.csv": f",u,i,ts,label,idx\n{rows}".encode()}
    for part, shape in ((f"ml_{name}.npy", (events + 1, 4)), (f"ml_{name}_node.npy", (4, 4))):
        np.save(buffer := io.BytesIO(), np.zeros(shape))
        files[f"{name}/{part}"] = buffer.getvalue()
    return zipped(files)
