"""A download is the whole file or nothing, however the server truncates, changes or miscounts it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_server import BODY, QUICK, Server, left, serving, stalled, truncated
from downloads import fetch_file
from dygmamba.core.errors import DownloadError
from raising import raises


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data.bin"


def test_a_download_is_the_file_and_nothing_else(server, target):
    """The target equals the body, no partial file is left, and progress sums to the size."""
    seen = []
    checksum = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    fetch_file(server.url, target, checksum=checksum, progress=lambda *step: seen.append(step))
    assert target.read_bytes() == BODY
    assert left(target) == ["data.bin"]
    assert sum(added for added, _ in seen) == len(BODY)
    assert {total for _, total in seen} == {len(BODY)}


def test_a_corrupt_body_is_deleted(server, target):
    """A body that does not match its checksum is an error, and neither the target nor the part remains."""
    server.body = BODY[:-1] + bytes([BODY[-1] ^ 1])
    with raises("checksum-mismatch", DownloadError) as caught:
        fetch_file(server.url, target, checksum=f"md5:{hashlib.md5(BODY).hexdigest()}", **QUICK)
    assert f"put data.bin from {server.url}" in str(caught.value)
    assert left(target) == []


def test_a_later_call_resumes_what_an_earlier_one_left(server, target):
    """Two calls together transfer the file once, and progress of the second still sums to the size."""
    server.script = [truncated(120_000)]
    with raises("download-failed", DownloadError) as caught:
        fetch_file(server.url, target, timeout=0.4, retries=0)
    assert "resume from 120,000 bytes" in str(caught.value)
    assert left(target) == ["data.bin.part", "data.bin.part.json"]
    seen = []
    fetch_file(server.url, target, progress=lambda added, _: seen.append(added))
    assert target.read_bytes() == BODY
    assert server.sent == len(BODY)
    assert seen[0] == 120_000
    assert sum(seen) == len(BODY)


def test_a_server_that_always_stalls_is_given_up(server, target):
    """Retries are bounded: retries + 1 requests, an error, and the received bytes are kept."""
    server.script = [stalled(1000)] * 9
    with raises("download-failed", DownloadError) as caught:
        fetch_file(server.url, target, timeout=0.1, retries=2)
    assert "resume from 1,000 bytes" in str(caught.value)
    assert len(server.asked) == 3
    assert not target.exists()


@pytest.mark.parametrize("tag", ['"two"', 'W/"weak"', ""])
def test_two_versions_of_a_file_are_never_mixed(server, target, tag):
    """If the file changes between two requests, the result is the new file alone."""
    server.script = [truncated(100_000)]
    with raises("download-failed", DownloadError):
        fetch_file(server.url, target, timeout=0.4, retries=0)
    server.body, server.tag = BODY[::-1] + b"new", tag
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY[::-1] + b"new"


def test_without_a_validator_a_download_is_not_resumed(server, target):
    """A server without ETag or date is asked for the whole file again, unless there is a checksum."""
    server.tag = ""
    server.script = [truncated(100_000)]
    fetch_file(server.url, target, **QUICK)
    target.unlink()
    server.script = [truncated(100_000)]
    fetch_file(server.url, target, checksum=f"md5:{hashlib.md5(BODY).hexdigest()}", **QUICK)
    assert target.read_bytes() == BODY
    assert [asked.get("Range") for asked in server.asked] == [None, None, None, "bytes=100000-"]


def test_a_complete_partial_file_needs_no_body(server, target):
    """A partial file that has all bytes already is complete: the server is not asked again."""
    target.parent.mkdir(parents=True)
    Path(f"{target}.part").write_bytes(BODY)
    Path(f"{target}.part.json").write_text(
        json.dumps({"url": server.url, "validator": '"one"', "total": len(BODY)})
    )
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert server.sent == 0


@pytest.mark.parametrize(
    "stamp", ["", "{", "[]", '{"url": 1}', '{"url": "http://other", "validator": "x", "total": 1}']
)
def test_a_partial_file_of_unknown_origin_is_discarded(server, target, stamp):
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(b"x" * 1000)
    Path(f"{target}.part.json").write_text(stamp)
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert "Range" not in server.asked[0]
