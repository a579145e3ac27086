"""A server below HTTP: it sends whatever bytes a test draws."""

import gzip
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bad_server import dyglib_zip
from hostile_cases import ARCHIVES

Answer = Iterator[bytes]
GOOD = dyglib_zip()
OK = b"HTTP/1.1 200 OK\r\n"


def _whole(body: bytes, length: int | str | None = None, status: bytes = OK, *more: bytes) -> bytes:
    claimed = f"Content-Length: {len(body) if length is None else length}\r\n".encode()
    return status + claimed + b"".join(line + b"\r\n" for line in more) + b"Connection: close\r\n\r\n" + body


def lengths(rng: random.Random) -> Answer:
    """A length that is not the body's."""
    yield _whole(
        GOOD, rng.choice((0, 1, len(GOOD) - 1, len(GOOD) + 1, 2**63, -1, "x", "1, 2", "9" * 5000, ""))
    )


def redirects(rng: random.Random) -> Answer:
    """To itself, to a file, to another scheme, to nowhere."""
    to = rng.choice(
        (b"/files/data.bin", b"file:///etc/passwd", b"ftp://127.0.0.1/x", b"", b"http://", b"//", b"\xff")
    )
    yield _whole(b"", None, b"HTTP/1.1 302 Found\r\n", b"Location: " + to)


def packed(rng: random.Random) -> Answer:
    """A body that is said to be gzip, and is, or is not, or is a bomb."""
    body = rng.choice(
        (GOOD, gzip.compress(GOOD), gzip.compress(GOOD)[:-20], gzip.compress(bytes(50_000_000)))
    )
    yield _whole(body, None, OK, b"Content-Encoding: " + rng.choice((b"gzip", b"br", b"x")))


def chunks(rng: random.Random) -> Answer:
    """Chunks whose lengths are none."""
    size = rng.choice((b"zz", b"-5", b"ffffffffffffffff", b"", b"5;" + b"x" * 70_000, b"0"))
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + GOOD


def flood(rng: random.Random) -> Answer:
    """More header than anyone reads."""
    line = rng.choice((b"X-A: b\r\n" * 5_000, b"X-A: " + b"b" * 200_000 + b"\r\n", b"X" * 70_000))
    yield OK + line + b"\r\n" + GOOD


def statuses(rng: random.Random) -> Answer:
    """Codes that answer another question, or none."""
    code = rng.choice(
        (b"206", b"416", b"204", b"304", b"100", b"999", b"-1", b"abc", b"200 " + b"x" * 70_000, b"503")
    )
    span = rng.choice(
        (b"bytes 0-9/10", b"bytes 5-9/*", b"bytes */0", b"bytes 9-5/1", b"x", b"bytes */" + b"9" * 5000)
    )
    later = b"Retry-After: " + rng.choice((b"0", b"9" * 400, b"x", b"\xc2\xb2"))
    yield _whole(GOOD, None, b"HTTP/1.1 " + code + b" Odd\r\n", b"Content-Range: " + span, later)


def garbage(rng: random.Random) -> Answer:
    """Bytes."""
    yield rng.choice(
        (b"", b"\0" * 1000, rng.randbytes(2000), b"HTTP/9.9 200 OK\r\n\r\n", b"SSH-2.0-x\r\n", GOOD)
    )


def archives(rng: random.Random) -> Answer:
    """An honest answer whose archive is none."""
    yield _whole(rng.choice(ARCHIVES)(rng))


ANSWERS: tuple[Callable[[random.Random], Answer], ...] = (
    *(lengths, redirects, packed, chunks, flood, statuses, garbage),
    archives,
)


@contextmanager
def answering(draw: Callable[[random.Random], Answer], rng: random.Random) -> Iterator[str]:
    """A server whose every answer is drawn so; its address."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(0.05)

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError, OSError):
                    line, _ = door.accept()
                    with line:
                        line.settimeout(2)
                        line.recv(65_536)
                        for piece in draw(rng):
                            if over.is_set():
                                break
                            line.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}/files/data.bin"
        finally:
            over.set()
            thread.join(5)
