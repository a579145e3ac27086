"""Fetching accepts only readable, unchanged archives of bounded size, and never reveals a password."""

import base64
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bad_server import Server, dyglib_zip, serving, status, zipped
from dygmamba.core.errors import ConfigError, DownloadError, FileError
from dygmamba.data.catalogue.archive import is_intact
from dygmamba.data.catalogue.fetch import fetch_dataset, get_download_urls
from dygmamba.data.catalogue.known_datasets import find_entry
from dygmamba.data.storage.library import open_dataset
from raising import raises

UCI = find_entry("uci")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A mirror that has uci.zip; datasets, mirrors and proxies of this machine are ignored."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
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
def test_an_unreadable_archive_leaves_nothing(server, folder, kind):
    """For all bad archives: an error, an empty folder, and the next call fetches the good one."""
    good, server.body = server.body, BAD[kind]
    with raises("download-unusable", DownloadError):
        fetch_dataset(UCI, folder)
    assert names(folder) == []
    server.body = good
    assert fetch_dataset(UCI, folder).how == "download"
    assert len(open_dataset("uci", folder)) == 5


def test_the_first_readable_archive_is_pinned(server, folder):
    """Another one, downloaded or put there by hand, is refused with both hashes, and the dataset stays as it was."""
    fetch_dataset(UCI, folder)
    first = hashlib.sha256(server.body).hexdigest()
    pinned = folder / "uci.zip.sha256"
    assert pinned.read_text() == f"{first}  uci.zip\n"
    (folder / "uci" / "source.json").write_text("{}")  # not whole any more: fetched again
    assert fetch_dataset(UCI, folder).how == "download"
    (folder / "uci" / "source.json").write_text("{}")
    server.body = dyglib_zip(events=6)
    second = hashlib.sha256(server.body).hexdigest()

    def assert_refused() -> None:
        with raises("checksum-mismatch", DownloadError) as caught:
            fetch_dataset(UCI, folder)
        assert f"sha256:{second} instead of sha256:{first}" in str(caught.value)
        assert f"delete {pinned} " in str(caught.value)

    assert_refused()
    assert names(folder) == ["uci", "uci.zip.sha256"]
    (folder / "uci.zip").write_bytes(server.body)
    assert_refused()
    assert len(open_dataset("uci", folder)) == 5
    pinned.unlink()
    assert fetch_dataset(UCI, folder).how == "archive"
    assert pinned.read_text() == f"{second}  uci.zip\n"
    assert is_intact(folder / "uci")


@pytest.mark.parametrize("text", ["", "x", "0" * 63 + "  uci.zip", "é" * 64])
def test_a_damaged_pinned_hash_is_an_error(server, folder, text):
    """It is not overwritten silently."""
    folder.mkdir()
    (folder / "uci.zip.sha256").write_text(text)
    with raises("trusted-hash-damaged", FileError):
        fetch_dataset(UCI, folder)
    assert (folder / "uci.zip.sha256").read_text() == text


def test_a_password_is_sent_to_its_host_only(server, folder, monkeypatch):
    """It is in no message, no file and no request to another host."""
    mirror = server.url.rpartition("/")[0].replace("//", "//me:s%40cret@")
    monkeypatch.setenv("DYGMAMBA_MIRROR", mirror)
    server.script = [status(404)]
    with raises("http-error", DownloadError) as caught:
        fetch_dataset(UCI, folder)
    assert server.asked[0]["Authorization"] == f"Basic {base64.b64encode(b'me:s@cret').decode()}"
    said = [str(caught.value)]

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
    """Nothing before the host is repeated."""
    monkeypatch.setenv("DYGMAMBA_MIRROR", mirror)
    with raises("invalid-mirror", ConfigError) as caught:
        get_download_urls(UCI)
    assert "host" in str(caught.value)
    assert "sec" not in str(caught.value)
