"""Fetching accepts only readable archives of bounded size, and never reveals a password."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bad_server import Server, dyglib_zip, serving, status, zipped
from dygmamba.core.errors import ConfigError, DownloadError, LockedError, WriteError
from dygmamba.data.catalogue import fetch as fetch_module
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


@pytest.mark.parametrize("kind", ["no zip", "another table", None])
def test_a_kill_before_unpacking_leaves_only_a_partial_file(server, folder, monkeypatch, kind):
    """Good or bad, it never passes for an archive of the user."""
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
        with raises("download-unusable", DownloadError):
            fetch_dataset(UCI, folder)
        assert names(folder) == []
        server.body = good
    assert fetch_dataset(UCI, folder).how == "download"
    assert kind is not None or server.sent == sent  # all of it was there already
    assert names(folder) == ["uci"]


def test_two_processes_never_write_one_partial_file(server, folder):
    """A second download of the same dataset is refused, and the first one finishes."""
    pytest.importorskip("fcntl")
    refused = []

    def again(*_: object) -> None:
        if not refused:
            with raises("folder-locked", LockedError):
                fetch_dataset(UCI, folder)
            refused.append(True)

    assert fetch_dataset(UCI, folder, progress=again).how == "download"
    assert refused
    assert names(folder) == ["uci"]


def test_a_full_disk_is_an_error(server, folder):
    """The message gives the reason and the remedy; no dataset appears."""
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    folder.mkdir()
    (folder / "uci.zip.part").symlink_to("/dev/full")
    with raises("write-failed", WriteError) as error:
        fetch_dataset(UCI, folder)
    assert "free space or choose another folder" in str(error.value)
    assert not (folder / "uci").exists()


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
