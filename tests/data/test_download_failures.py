"""A failed download is an error that says what to do, and leaves nothing half done."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_server import BODY, QUICK, Act, Handler, Server, claims, left, serving, status, truncated
from downloads import fetch_file
from dygmamba.core.errors import ConfigError, DownloadError
from raising import raises


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data.bin"


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_temporary_error_is_retried(server, target, code):
    """Two busy responses, then the file."""
    server.script = [status(code, **{"Retry-After": "0"}), status(code)]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert len(server.asked) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_permanent_error_is_not_retried(server, target, code):
    """The message names the file, the URL and the folder."""
    server.script = [status(code)]
    with raises("http-error", DownloadError) as error:
        fetch_file(server.url, target, **QUICK)
    text = str(error.value)
    assert f"answered {code}" in text
    assert text.endswith(f"put data.bin from {server.url} into {target.parent} and run the command again")
    assert len(server.asked) == 1
    assert left(target) == []


def test_redirects_are_followed(server, target):
    """A redirect leads to the file, also when a download is resumed."""
    there = status(302, Location="/elsewhere")
    server.script = [there, truncated(100_000), there]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert server.paths[-1] == "/elsewhere"
    assert server.asked[-1]["Range"] == "bytes=100000-"


def test_a_refused_connection_is_not_retried(target):
    """The message says how to get the file by hand."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/data.bin"
        start = time.monotonic()
        with raises("host-unreachable", DownloadError) as error:
            fetch_file(url, target)
    assert f"refused the connection; put data.bin from {url}" in str(error.value)
    assert time.monotonic() - start < 2
    assert left(target) == []


def test_an_unknown_host_is_not_retried(target):
    """RFC 6761 keeps .invalid free."""
    with raises("host-unreachable", DownloadError) as error:
        fetch_file("http://nowhere.invalid/data.bin", target)
    assert "nowhere.invalid cannot be found; put data.bin" in str(error.value)


def test_only_http_is_fetched(target):
    """URLs of local files are refused before anything is opened."""
    with raises("invalid-url", ConfigError):
        fetch_file("file:///etc/passwd", target)


def test_a_body_without_a_length_ends_where_it_ends(server, target):
    """A chunked body needs no length; one that breaks off is retried."""

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


def test_a_file_larger_than_the_disk_is_refused_at_once(server, target):
    """The message says how many bytes are needed."""
    server.script = [claims(10**18)]
    with raises("disk-too-small", DownloadError):
        fetch_file(server.url, target, **QUICK)
    assert left(target) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error(server, target):
    """The message gives the reason and the remedy; no target appears."""
    target.parent.mkdir()
    Path(f"{target}.part").symlink_to("/dev/full")
    with raises("write-failed", DownloadError) as error:
        fetch_file(server.url, target, **QUICK)
    assert "free some space or choose another folder, and run the command again" in str(error.value)
    assert not target.exists()


def test_two_processes_never_write_one_partial_file(server, target):
    """A second download of the same file is refused, and the first one finishes."""
    pytest.importorskip("fcntl")
    refused = []

    def again(*_: object) -> None:
        if not refused:
            with raises("download-locked", DownloadError):
                fetch_file(server.url, target, **QUICK)
            refused.append(True)

    fetch_file(server.url, target, progress=again)
    assert refused
    assert target.read_bytes() == BODY


def test_an_interrupt_keeps_the_received_bytes(server, target):
    """After Ctrl-C the next call resumes from them."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_file(server.url, target, progress=interrupt)
    kept = Path(f"{target}.part").stat().st_size
    assert 0 < kept < len(BODY)
    fetch_file(server.url, target)
    assert target.read_bytes() == BODY
    assert server.asked[1]["Range"] == f"bytes={kept}-"
