"""A download that cannot be is one sentence that says what to do, and leaves nothing half done."""

import errno
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_server import BODY, QUICK, Act, Handler, Server, claims, left, serving, status, truncated
from dygmamba.core.errors import ConfigError, DownloadError
from dygmamba.data.catalogue.download import fetch_file
from raw_server import answering


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data.bin"


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_passing_error_is_retried(server, target, code):
    """Two busy answers and then the file: the file."""
    server.script = [status(code, **{"Retry-After": "0"}), status(code)]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert len(server.asked) == 3


@pytest.mark.parametrize("said", ["9" * 5000, "\u00b2", "-1", "1e3", ""])
def test_a_header_that_is_no_number_is_as_if_it_was_not_there(said, target, monkeypatch):
    """Of a length and of a wait: more digits than Python reads, a digit that is none, a sign: the file arrives."""
    monkeypatch.setenv("no_proxy", "*")
    busy = f"HTTP/1.1 503 Busy\r\nRetry-After: {said}\r\nConnection: close\r\n\r\n".encode("latin-1")
    whole = f"HTTP/1.1 200 OK\r\nContent-Length: {said}\r\nConnection: close\r\n\r\n".encode("latin-1") + BODY
    answers = iter((busy, whole))
    with answering(lambda _: iter((next(answers),)), random.Random(0)) as url:
        fetch_file(url, target, **QUICK)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_lasting_error_is_one_sentence_at_once(server, target, code):
    """A refusal is not retried; the sentence names the file, the address and the folder."""
    server.script = [status(code)]
    with pytest.raises(DownloadError) as error:
        fetch_file(server.url, target, **QUICK)
    text = str(error.value)
    assert f"answered {code}" in text
    assert text.endswith(f"put data.bin from {server.url} into {target.parent} and run the command again")
    assert "\n" not in text
    assert len(server.asked) == 1
    assert left(target) == []


def test_busy_for_ever_is_given_up(server, target):
    """Retries of a busy server are bounded too."""
    server.script = [status(503)] * 9
    with pytest.raises(DownloadError, match="answered 503"):
        fetch_file(server.url, target, timeout=0.05, retries=2)
    assert len(server.asked) == 3


def test_redirects_are_followed(server, target):
    """A redirect leads to the file, also when a part is resumed."""
    there = status(302, Location="/elsewhere")
    server.script = [there, truncated(100_000), there]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert server.paths[-1] == "/elsewhere"
    assert server.asked[-1]["Range"] == "bytes=100000-"


def test_a_redirect_in_a_circle_is_an_error(server, target):
    """Going in circles ends."""
    server.script = [status(302, Location=server.url)] * 99
    with pytest.raises(DownloadError, match=r"data.bin did not arrive"):
        fetch_file(server.url, target, **QUICK)


def test_a_refused_connection_is_one_sentence_at_once(target):
    """Nobody listening: no retries, and what to do by hand."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/data.bin"
        start = time.monotonic()
        with pytest.raises(DownloadError, match=r"refused the connection; put data.bin from http"):
            fetch_file(url, target)
    assert time.monotonic() - start < 2
    assert left(target) == []


def test_an_unknown_host_is_one_sentence_at_once(target):
    """A name that cannot be resolved says so (RFC 6761 keeps .invalid free)."""
    with pytest.raises(
        DownloadError, match=r"the host nowhere.invalid cannot be found from here; put data.bin"
    ):
        fetch_file("http://nowhere.invalid/data.bin", target)


def test_only_http_is_fetched(target):
    """Addresses of files are refused before anything is opened."""
    with pytest.raises(ConfigError, match="must start with http"):
        fetch_file("file:///etc/passwd", target)


def test_an_empty_file_is_a_file(server, target):
    """Zero bytes are whole when zero were promised."""
    server.body = b""
    fetch_file(server.url, target)
    assert target.read_bytes() == b""


def test_a_body_without_a_length_ends_where_it_ends(server, target):
    """A chunked body needs no promise; one that breaks off is retried."""

    def chunked(*pieces: bytes) -> Act:
        def act(handler: Handler, server: Server) -> None:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.send_header("Connection", "close")
            handler.end_headers()
            for piece in pieces:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            handler.close_connection = True

        return act

    server.script = [chunked(BODY[:1000]), chunked(BODY[:1000], BODY[1000:], b"")]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY


def test_a_promise_beyond_the_disk_is_refused_before_a_byte_is_written(server, target):
    """More bytes than are free: the sentence says how many are needed and how many there are."""
    server.script = [claims(10**18)]
    with pytest.raises(
        DownloadError, match=r"needs 1,000,000,000,000,000,000 more bytes and .* free; free some"
    ):
        fetch_file(server.url, target, most_bytes=10**19, **QUICK)
    assert left(target) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(server, target):
    """ENOSPC while writing names the folder and the remedy; no target appears."""
    target.parent.mkdir()
    Path(f"{target}.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=os.strerror(errno.ENOSPC)) as error:
        fetch_file(server.url, target, **QUICK)
    assert "free some space or choose another folder, and run the command again" in str(error.value)
    assert not target.exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(server, tmp_path):
    """A file where the folder should be is reported like a full disk."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="cannot be written into"):
        fetch_file(server.url, tmp_path / "file" / "data.bin", **QUICK)


def test_the_target_never_exists_in_part(server, target):
    """While bytes arrive there is no target; when there is one, it is whole."""
    seen = []
    fetch_file(server.url, target, progress=lambda *_: seen.append(target.exists()))
    assert len(seen) > 1
    assert not any(seen)


def test_two_processes_never_write_one_part(server, target):
    """A second fetch of a file that is being fetched is told so, and the first one finishes."""
    pytest.importorskip("fcntl")
    told = []

    def again(*_: object) -> None:
        if not told:
            with pytest.raises(DownloadError, match="another process is fetching"):
                fetch_file(server.url, target, **QUICK)
            told.append(True)

    fetch_file(server.url, target, progress=again)
    assert told
    assert target.read_bytes() == BODY


def test_an_interrupt_keeps_the_part(server, target):
    """Ctrl-C in the middle keeps what came, and the next call goes on from there."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_file(server.url, target, progress=interrupt)
    kept = Path(f"{target}.part").stat().st_size
    assert 0 < kept < len(BODY)
    fetch_file(server.url, target)
    assert target.read_bytes() == BODY
    assert server.asked[1]["Range"] == f"bytes={kept}-"
