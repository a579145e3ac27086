"""A download is the file or nothing, however the server cuts, changes or miscounts it."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_server import BODY, QUICK, Handler, Server, claims, deaf, left, serving, stalled, status, truncated
from dygmamba.core.errors import DownloadError
from dygmamba.data.catalogue.download import fetch_file


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data.bin"


def test_a_download_is_the_file_and_nothing_else(server, target):
    """fetch_file returns the target, equal to the body; no part is left; progress sums to the size."""
    seen = []
    assert fetch_file(server.url, target, progress=lambda added, total: seen.append((added, total))) == target
    assert target.read_bytes() == BODY
    assert left(target) == ["data.bin"]
    assert sum(added for added, _ in seen) == len(BODY)
    assert {total for _, total in seen} == {len(BODY)}


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_known_checksum_is_verified(server, target, algorithm):
    """The right checksum passes, of a download and of a file that is there already (without a request)."""
    checksum = f"{algorithm}:{hashlib.new(algorithm, BODY).hexdigest()}"
    fetch_file(server.url, target, checksum=checksum)
    fetch_file(server.url, target, checksum=checksum)
    assert len(server.asked) == 1


def test_a_corrupt_body_is_deleted(server, target):
    """A body that does not match its checksum is an error, and neither the target nor the part remains."""
    server.body = BODY[:-1] + bytes([BODY[-1] ^ 1])
    with pytest.raises(DownloadError, match=r"arrived corrupt .* and was deleted; put data.bin from http"):
        fetch_file(server.url, target, checksum=f"md5:{hashlib.md5(BODY).hexdigest()}", **QUICK)
    assert left(target) == []


def test_a_wrong_file_of_the_user_is_neither_used_nor_touched(server, target):
    """A file in the target's place with another checksum is refused and kept, without a request."""
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(DownloadError, match="move it away"):
        fetch_file(server.url, target, checksum="md5:" + "0" * 32)
    assert target.read_bytes() == b"mine"
    assert server.asked == []


def test_a_truncated_body_is_resumed(server, target):
    """After a hang-up at byte k only the bytes from k on are asked for and sent."""
    server.script = [truncated(100_000)]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert server.asked[1]["Range"] == "bytes=100000-"
    assert server.asked[1]["If-Range"] == '"one"'
    assert server.sent == len(BODY)


def test_a_later_call_resumes_what_an_earlier_one_left(server, target):
    """Two calls together transfer the file once, and progress of the second still sums to the size."""
    server.script = [truncated(120_000)]
    with pytest.raises(DownloadError, match="run the command again to go on from 120,000 bytes"):
        fetch_file(server.url, target, timeout=0.4, retries=0)
    assert left(target) == ["data.bin.part", "data.bin.part.json"]
    seen = []
    fetch_file(server.url, target, progress=lambda added, _: seen.append(added))
    assert target.read_bytes() == BODY
    assert server.sent == len(BODY)
    assert seen[0] == 120_000
    assert sum(seen) == len(BODY)


def test_a_stall_times_out_and_is_resumed(server, target):
    """A server that falls silent is left after the timeout and asked for the rest."""
    server.script = [stalled(50_000)]
    start = time.monotonic()
    fetch_file(server.url, target, timeout=0.3, retries=2)
    assert target.read_bytes() == BODY
    assert 0.3 <= time.monotonic() - start < 3
    assert server.asked[1]["Range"] == "bytes=50000-"


def test_a_server_that_always_stalls_is_given_up(server, target):
    """Retries are bounded: retries + 1 requests, one sentence, and what came is kept."""
    server.script = [stalled(1000)] * 9
    with pytest.raises(
        DownloadError, match=r"sent nothing for 0.1 s; run the command again to go on from 1,000"
    ):
        fetch_file(server.url, target, timeout=0.1, retries=2)
    assert len(server.asked) == 3
    assert not target.exists()


def test_a_server_without_range_restarts_cleanly(server, target):
    """An answer 200 to a Range request replaces the part; progress goes back and still sums to the size."""
    server.script = [truncated(100_000), deaf]
    seen = []
    fetch_file(server.url, target, progress=lambda added, _: seen.append(added), **QUICK)
    assert target.read_bytes() == BODY
    assert server.sent == len(BODY) + 100_000
    assert min(seen) == -100_000
    assert sum(seen) == len(BODY)


@pytest.mark.parametrize("tag", ['"two"', 'W/"weak"', ""])
def test_a_changed_file_is_never_spliced(server, target, tag):
    """If the file changes between two requests, the result is the new file alone."""
    server.script = [truncated(100_000)]
    with pytest.raises(DownloadError):
        fetch_file(server.url, target, timeout=0.4, retries=0)
    server.body, server.tag = BODY[::-1] + b"new", tag
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY[::-1] + b"new"


@pytest.mark.parametrize(
    "lie", [{"tag": '"two"'}, {"first": 0}, {"size": len(BODY) + 1}], ids=["version", "place", "size"]
)
def test_a_rest_of_another_file_is_refused(server, target, lie):
    """The bytes of another version, another place or a file of another size are not appended."""

    def act(handler: Handler, server: Server) -> None:
        said = {"tag": server.tag, "first": 100_000, "size": len(BODY)} | lie
        span = f"bytes {said['first']}-{len(BODY) - 1}/{said['size']}"
        handler.send(206, bytes(len(BODY) - 100_000), headers={"Content-Range": span, "ETag": said["tag"]})

    server.script = [truncated(100_000), act]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY


def test_an_end_before_the_promised_length_is_not_believed(server, target):
    """A server that promised 300,000 bytes and then says that 100,000 are all is asked for the file again."""
    beyond = status(416, **{"Content-Range": "bytes */100000"})
    server.script = [truncated(100_000), beyond]
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY


def test_a_file_that_has_become_shorter_has_no_old_tail(server, target):
    """Starting again throws away all of the part, also what the new file does not overwrite."""
    server.script = [truncated(100_000)]
    with pytest.raises(DownloadError):
        fetch_file(server.url, target, timeout=0.4, retries=0)
    server.body, server.tag = b"short", '"two"'
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == b"short"


def test_without_proof_of_sameness_a_part_is_not_resumed(server, target):
    """A server without ETag or date is asked for the whole file again, unless a checksum will tell."""
    server.tag = ""
    server.script = [truncated(100_000)]
    fetch_file(server.url, target, **QUICK)
    target.unlink()
    server.script = [truncated(100_000)]
    fetch_file(server.url, target, checksum=f"md5:{hashlib.md5(BODY).hexdigest()}", **QUICK)
    assert target.read_bytes() == BODY
    assert [asked.get("Range") for asked in server.asked] == [None, None, None, "bytes=100000-"]


@pytest.mark.parametrize("act", [claims(len(BODY) + 999), claims(10**6)])
def test_a_length_that_is_too_long_is_an_error_that_leaves_nothing(server, target, act):
    """A server that promises more than it has is asked again, then given up; no part is kept."""
    server.script = [act] * 9
    with pytest.raises(DownloadError, match=r"promised [\d,]+ bytes and sent 300,000; put data.bin from"):
        fetch_file(server.url, target, timeout=0.1, retries=3)
    assert left(target) == []


def test_a_length_that_is_too_short_is_caught_by_the_checksum(server, target):
    """Bytes beyond the promised length are not read; the checksum tells that the file is not whole."""
    server.script = [claims(1000)]
    with pytest.raises(DownloadError, match="corrupt"):
        fetch_file(server.url, target, checksum=f"sha256:{hashlib.sha256(BODY).hexdigest()}", **QUICK)
    assert left(target) == []


def test_an_overlong_rest_is_an_error_that_leaves_nothing(server, target):
    """A rest that is longer than the whole file allows is refused and deleted."""

    def overlong(handler: Handler, server: Server) -> None:
        span = {"Content-Range": f"bytes 100000-{len(BODY) - 1}/{len(BODY)}", "ETag": server.tag}
        handler.send(206, BODY, headers=span)

    server.script = [truncated(100_000), overlong]
    with pytest.raises(DownloadError, match="sent more than the 300,000 bytes promised"):
        fetch_file(server.url, target, **QUICK)
    assert left(target) == []


def test_a_whole_part_needs_no_body(server, target):
    """A part that has all bytes already becomes the target when the server says there are no more (416)."""
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(BODY)
    Path(f"{target}.part.json").write_text(
        json.dumps({"url": server.url, "validator": '"one"', "total": None})
    )
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert server.sent == 0


@pytest.mark.parametrize(
    "stamp", ["", "{", "[]", '{"url": 1}', '{"url": "http://other", "validator": "x", "total": 1}']
)
def test_a_part_with_a_broken_stamp_is_started_again(server, target, stamp):
    """Bytes of unknown origin are thrown away."""
    target.parent.mkdir()
    Path(f"{target}.part").write_bytes(b"x" * 1000)
    Path(f"{target}.part.json").write_text(stamp)
    fetch_file(server.url, target, **QUICK)
    assert target.read_bytes() == BODY
    assert "Range" not in server.asked[0]
