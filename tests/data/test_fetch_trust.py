"""Fetching lets in only what opens, only what it was before, and only so much; and tells nobody the password."""

import base64
import hashlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bad_server import BODY, OVER, QUICK, Handler, Server, dyglib_zip, serving, status, zipped
from dygmamba.core.errors import ConfigError, DownloadError, FileError
from dygmamba.data.catalogue import fetch as fetch_module
from dygmamba.data.catalogue.archive import is_intact
from dygmamba.data.catalogue.download import fetch_file
from dygmamba.data.catalogue.fetch import fetch_dataset, get_download_urls
from dygmamba.data.catalogue.http import RequestUrl, strip_credentials
from dygmamba.data.catalogue.known_datasets import find_entry
from dygmamba.data.storage.library import open_dataset

UCI = find_entry("uci")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A mirror that has uci.zip; no dataset, mirror or proxy of this machine plays a part."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DYGMAMBA_DATA", raising=False)
    with serving() as server:
        server.body = dyglib_zip()
        monkeypatch.setenv("DYGMAMBA_MIRROR", server.url.rpartition("/")[0])
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def other_members(**changed: bytes) -> bytes:
    """An archive with the right names and wrong contents."""
    np.save(table := io.BytesIO(), np.zeros((6, 4)))
    good = {"ml_uci.csv": b",u,i,ts,label,idx\n0,1,2,0.0,0.0,1\n"}
    good |= {"ml_uci.npy": table.getvalue(), "ml_uci_node.npy": table.getvalue()}
    return zipped(good | {f"ml_uci{key.removeprefix('x')}": body for key, body in changed.items()})


BAD = {
    "no zip": b"<html>log in</html>",
    "no rows": other_members(**{"x.csv": b",u,i,ts,label,idx\n"}),
    "times go back to nan": other_members(**{"x.csv": b",u,i,ts,label,idx\n0,1,2,nan,0.0,1\n"}),
    "another table": other_members(**{"x.csv": b"a,b\n1,2\n"}),
    "half a table of features": other_members(**{"x.npy": b"\x93NUMPY\x01\x00v\x00{"}),
    "empty files": other_members(**{"x.csv": b"", "x.npy": b"", "x_node.npy": b""}),
    "a member short": zipped({"ml_uci.csv": b",u,i,ts,label,idx\n0,1,2,0.0,0.0,1\n"}),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_does_not_open_leaves_nothing(server, folder, kind):
    """For all bad archives: a sentence, an empty folder, and the next call fetches the good one."""
    good, server.body = server.body, BAD[kind]
    with pytest.raises(DownloadError, match="what arrived is of no use") as caught:
        fetch_dataset(UCI, folder)
    assert "\n" not in str(caught.value)
    assert names(folder) == []
    server.body = good
    assert fetch_dataset(UCI, folder).how == "download"
    assert len(open_dataset("uci", folder)) == 5


@pytest.mark.parametrize("kind", ["no zip", "another table", None])
def test_a_kill_before_it_was_opened_leaves_nothing_that_counts_as_done(server, folder, monkeypatch, kind):
    """Between download and unpacking: what is there is a part, good or bad, and never an archive of the user's."""
    good = server.body
    server.body = good if kind is None else BAD[kind]
    real = fetch_module.unpack_archive

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_module, "unpack_archive", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch_dataset(UCI, folder)
    assert names(folder) == ["uci.zip.part", "uci.zip.part.json"]
    monkeypatch.setattr(fetch_module, "unpack_archive", real)
    sent = server.sent
    if kind is not None:
        with pytest.raises(DownloadError, match="of no use"):
            fetch_dataset(UCI, folder)
        assert names(folder) == []
        server.body = good
    assert fetch_dataset(UCI, folder).how == "download"
    assert kind is not None or server.sent == sent  # all of it was there already
    assert names(folder) == ["uci", "uci.zip.sha256"]


def test_the_first_archive_that_opened_is_the_only_one_ever_after(server, folder):
    """Another one, downloaded or put there by hand: both digests and what to do, and the dataset is as it was."""
    fetch_dataset(UCI, folder)
    first = hashlib.sha256(server.body).hexdigest()
    ledger = folder / "uci.zip.sha256"
    assert ledger.read_text() == f"{first}  uci.zip\n"
    (folder / "uci" / "source.json").write_text("{}")  # not whole any more: fetched again
    assert fetch_dataset(UCI, folder).how == "download"
    (folder / "uci" / "source.json").write_text("{}")
    server.body = dyglib_zip(events=6)
    second = hashlib.sha256(server.body).hexdigest()
    both = rf"sha256:{second} instead of sha256:{first}.*, or delete .*uci\.zip\.sha256 if the publisher"
    with pytest.raises(DownloadError, match=both):
        fetch_dataset(UCI, folder)
    assert names(folder) == ["uci", "uci.zip.sha256"]
    (folder / "uci.zip").write_bytes(server.body)
    with pytest.raises(DownloadError, match=both):
        fetch_dataset(UCI, folder)
    assert len(open_dataset("uci", folder)) == 5
    ledger.unlink()
    assert fetch_dataset(UCI, folder).how == "archive"
    assert ledger.read_text() == f"{second}  uci.zip\n"
    assert is_intact(folder / "uci")


@pytest.mark.parametrize("text", ["", "x", "0" * 63 + "  uci.zip", "é" * 64])
def test_a_damaged_ledger_is_one_sentence(server, folder, text):
    """It vouches for nothing, and is not overwritten in silence."""
    folder.mkdir()
    (folder / "uci.zip.sha256").write_text(text)
    with pytest.raises(FileError, match="holds no digest; delete it"):
        fetch_dataset(UCI, folder)
    assert (folder / "uci.zip.sha256").read_text() == text


def endless(handler: Handler, server: Server) -> None:
    """A body without a length and without an end."""
    handler.send_response(200)
    handler.end_headers()
    while not OVER.is_set():
        handler.wfile.write(BODY)


def dripping(handler: Handler, server: Server) -> None:
    """A byte now and then, so that nothing ever times out."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BODY)))
    handler.send_header("ETag", server.tag)
    handler.end_headers()
    for byte in BODY:
        handler.wfile.write(bytes([byte]))
        if OVER.wait(0.02):
            break


def test_a_body_is_bounded(server, tmp_path):
    """Promised or endless: refused at the bound, nothing kept."""
    for script, limit in (([], 50), ([endless], 10**6)):
        server.body, server.script = BODY, script
        with pytest.raises(DownloadError, match=rf"or more, at most {limit:,} are right; put data.bin"):
            fetch_file(server.url, tmp_path / "data.bin", most_bytes=limit, **QUICK)
        assert list(tmp_path.glob("data*")) == []


def test_the_time_of_all_tries_is_bounded(server, tmp_path):
    """A server that drips is left after a while; what came is kept, and the next call goes on from it."""
    server.body, server.script, start = BODY, [dripping], time.monotonic()
    with pytest.raises(
        DownloadError, match=r"it took too long; run the command again to go on from [\d,]+ b"
    ):
        fetch_file(server.url, tmp_path / "data.bin", most_seconds=0.3, **QUICK)
    assert time.monotonic() - start < 5
    assert fetch_file(server.url, tmp_path / "data.bin", **QUICK).read_bytes() == BODY
    assert "Range" in server.asked[1]


def test_a_password_is_sent_to_its_host_and_told_to_nobody(server, folder, monkeypatch):
    """Name and password of a mirror: asked with, and in no sentence, no file and no request to another host."""
    mirror = server.url.rpartition("/")[0].replace("//", "//me:s%40cret@")
    monkeypatch.setenv("DYGMAMBA_MIRROR", mirror)
    server.script = [status(404)]
    with pytest.raises(DownloadError, match="answered 404") as caught:
        fetch_dataset(UCI, folder)
    assert server.asked[0]["Authorization"] == f"Basic {base64.b64encode(b'me:s@cret').decode()}"
    said = [str(caught.value), repr(RequestUrl.of(get_download_urls(UCI)[0]))]

    def looking(added: int, total: int | None) -> None:
        said.extend(path.read_bytes().decode("latin-1") for path in folder.iterdir() if path.is_file())

    with serving() as elsewhere:
        elsewhere.body = server.body
        server.script = [status(302, Location=elsewhere.url)]
        fetch_dataset(UCI, folder, progress=looking)
        assert "Authorization" not in elsewhere.asked[0]
    said += [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    assert any('"url"' in text for text in said)
    for secret in ("s%40cret", "s@cret", "me:", base64.b64encode(b"me:s@cret").decode()):
        assert not any(secret in text for text in said)


@pytest.mark.parametrize(
    "mirror", ["ftp://me:secret@host/x", "me:secret@host/x", "//me:secret@host", "me:sec:ret@@secret@host"]
)
def test_a_wrong_mirror_is_named_without_its_password(monkeypatch, mirror):
    """Whatever stands before the host is not repeated."""
    monkeypatch.setenv("DYGMAMBA_MIRROR", mirror)
    with pytest.raises(ConfigError) as caught:
        get_download_urls(UCI)
    assert "host" in str(caught.value)
    assert "sec" not in str(caught.value)


def test_an_address_without_a_password_is_as_it_is():
    """Also where an at sign stands elsewhere."""
    for url in ("https://host/a@b", "http://host:80/x?y=a@b", "http://host/#a@b"):
        assert strip_credentials(url) == url
        assert RequestUrl.of(url) == RequestUrl(url)
    assert json.dumps(strip_credentials("https://me@host/x")) == '"https://host/x"'
