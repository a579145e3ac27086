"""Fetching datasets by name: once, found by `open_dataset`, and from a mirror if one is set."""

import json
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bad_server import OVER, Handler, Server, dyglib_zip, serving, status, truncated, zipped
from dygmamba.api import data_files
from dygmamba.cli import app
from dygmamba.cli.data import fetch, list_datasets
from dygmamba.core.errors import DownloadError, FileError, NotFoundError
from dygmamba.data.catalogue.fetch import fetch_dataset, format_import_command
from dygmamba.data.catalogue.known_datasets import find_entry, load_catalogue
from dygmamba.data.storage.library import open_dataset
from raising import raises


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore datasets, mirrors and proxies of this machine."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DYGMAMBA_DATA", raising=False)
    monkeypatch.delenv("DYGMAMBA_MIRROR", raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def mirror(server, monkeypatch):
    """A mirror that has uci.zip."""
    server.body = dyglib_zip()
    monkeypatch.setenv("DYGMAMBA_MIRROR", server.url.rpartition("/")[0] + "/")
    return server


def test_a_fetched_dataset_can_be_opened(mirror, tmp_path):
    """Opened by name; a second fetch makes no request; the archive is not kept."""
    fetched = fetch_dataset(find_entry("UCI"), tmp_path)
    assert (fetched.entry.name, fetched.folder, fetched.how) == ("uci", tmp_path / "uci", "download")
    assert mirror.paths == ["/files/uci.zip"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["uci"]
    assert len(open_dataset("uci", tmp_path).store) == 5
    assert fetch_dataset(find_entry("uci"), tmp_path).how == "present"
    assert len(mirror.asked) == 1


def test_a_dataset_in_the_cache_is_not_fetched_again(mirror, tmp_path):
    """Where datasets were saved before."""
    fetch_dataset(find_entry("uci"), tmp_path / "cache" / "dygmamba")
    fetched, _ = data_files.fetch("uci")
    assert (fetched.how, fetched.folder.parent) == ("present", tmp_path / "cache" / "dygmamba")
    assert len(open_dataset("uci")) == 5


def test_an_incomplete_dataset_is_fetched_again(mirror, tmp_path):
    """A missing table of events is noticed by the next fetch, and comes back."""
    fetch_dataset(find_entry("uci"), tmp_path)
    (tmp_path / "uci" / "ml_uci.csv").unlink()
    assert fetch_dataset(find_entry("uci"), tmp_path).how == "download"
    assert len(open_dataset("uci", tmp_path)) == 5


def test_an_archive_of_the_user_is_used_without_a_network(server, tmp_path, monkeypatch):
    """uci.zip in the folder is unpacked and kept, and no request is made."""
    monkeypatch.setenv("DYGMAMBA_MIRROR", "http://nowhere.invalid")
    (tmp_path / "uci.zip").write_bytes(dyglib_zip())
    assert fetch_dataset(find_entry("uci"), tmp_path).how == "archive"
    assert (tmp_path / "uci" / "ml_uci_node.npy").exists()
    assert (tmp_path / "uci.zip").exists()


def test_an_archive_of_the_user_that_is_broken_is_kept(tmp_path):
    """A file of the user is never deleted."""
    (tmp_path / "uci.zip").write_bytes(dyglib_zip()[:500])
    with raises("archive-damaged", FileError):
        fetch_dataset(find_entry("uci"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["uci.zip"]


def test_an_error_page_in_place_of_an_archive_leaves_nothing(mirror, tmp_path):
    """A login page with status 200 is not an archive: an error, and the folder stays empty."""
    mirror.body = b"<html>please log in</html>"
    with raises("download-unusable", DownloadError):
        fetch_dataset(find_entry("uci"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_in_another_format_is_present(tmp_path):
    """uci.npz in the folder is what open_dataset reads, so nothing is fetched."""
    (tmp_path / "uci.npz").touch()
    assert fetch_dataset(find_entry("uci"), tmp_path).how == "present"


@pytest.fixture
def entry(server):
    """A dataset with two URLs."""
    server.body = dyglib_zip()
    first, second = (server.url.replace("data.bin", name) for name in ("x/uci.zip", "uci.zip"))
    return replace(find_entry("uci"), urls=(first, second))


def test_the_second_url_is_tried_if_the_first_fails(server, entry, tmp_path):
    """If both fail, the error is that of the first."""
    server.script = [status(404)]
    assert fetch_dataset(entry, tmp_path / "a").how == "download"
    server.script = [status(404), status(403)]
    with raises("http-error", DownloadError):
        fetch_dataset(entry, tmp_path / "b")


def test_a_url_that_can_be_resumed_is_not_given_up(server, entry, tmp_path):
    """If the first URL left a partial file, the second is not tried, so the file can be resumed."""
    server.script = [truncated(500), status(403)]
    with raises("http-error", DownloadError) as caught:
        fetch_dataset(entry, tmp_path)
    assert "resume from 500 bytes" in str(caught.value)
    assert server.paths == ["/files/x/uci.zip"] * 2


def test_the_import_command_works(mirror, tmp_path):
    """Running the command creates a dataset that opens by its name."""
    mirror.body = zipped({"tgbn-trade_edgelist.csv": b"year,nation,trading nation,weight\n1986,a,b,1\n"})
    line = format_import_command(fetch_dataset(find_entry("tgbn-trade"), tmp_path))
    result = CliRunner().invoke(app, shlex.split(line or "")[1:])
    assert result.exit_code == 0, result.output
    assert open_dataset("tgbn-trade", tmp_path).store.num_nodes == 2
    assert format_import_command(fetch_dataset(find_entry("tgbn-trade"), tmp_path)) is None


@pytest.fixture
def command(tmp_path):
    """Run `fetch ... --data-dir` or `list ... --data-dir` as the command line parses it."""
    app = typer.Typer()
    app.command("fetch")(fetch)
    app.command("list")(list_datasets)
    return lambda *words: CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])


def test_the_command_fetches_warns_and_is_idempotent(mirror, tmp_path, command):
    """Exit 0, one JSON object on stdout, the warning about the counts and the licence on stderr, no bar."""
    first = command("fetch", "uci", "--json")
    assert first.exit_code == 0, first.output
    answer = json.loads(first.stdout)
    assert (answer["name"], answer["how"], answer["import"]) == ("uci", "download", None)
    assert "uci differs from its published table: 3 nodes instead of 1,899, 5 events" in answer["warning"]
    assert first.stderr.splitlines()[0] == answer["warning"]
    assert "licence: MIT or Apache 2.0" in first.stderr
    assert "\x1b" not in first.stderr
    again = command("fetch", "uci")
    assert again.stdout == f"uci is already in {tmp_path}; nothing to do\n"
    assert (again.exit_code, again.stderr) == (0, "")


def test_the_command_fails_in_one_sentence(mirror, tmp_path, command):
    """Errors pass through as they are; for an unknown name there is a suggestion."""
    mirror.script, url = [status(404)], mirror.url.rpartition("/")[0]
    error = command("fetch", "uci").exception
    assert isinstance(error, DownloadError)
    assert str(error).endswith(f"put uci.zip from {url}/uci.zip into {tmp_path} and run the command again")
    with raises("unknown-dataset", NotFoundError) as caught:
        raise command("fetch", "wikiped").exception
    assert "did you mean wikipedia" in str(caught.value)


def test_the_command_prints_how_to_import_what_it_cannot_read(mirror, tmp_path, command):
    """A TGB archive is unpacked, and the line to type next is printed on one line, however long it is."""
    mirror.body = zipped({"tgbn-trade_edgelist.csv": b"year,nation,trading nation,weight\n1986,a,b,1\n"})
    result = command("fetch", "tgbn-trade")
    assert mirror.paths == ["/files/tgbn-trade.zip"]
    assert f": dygmamba data import {tmp_path / 'tgbn-trade'}" in result.stdout.splitlines()[1]


def test_the_list_says_what_is_here(mirror, tmp_path, command):
    """Every entry once, with its counts; only what was fetched is on disk."""
    command("fetch", "uci")
    lines = command("list").stdout.splitlines()
    assert [line.split()[0] for line in lines[3:-1] if line] == list(load_catalogue())
    assert lines[-1] == f"on disk in {tmp_path}: uci"
    entries = {entry["name"]: entry for entry in json.loads(command("list", "--json").stdout)["datasets"]}
    assert [name for name, entry in entries.items() if entry["on_disk"]] == ["uci"]
    assert entries["Contacts"]["counts"][1]["nodes"] == 694


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_an_interrupted_command_keeps_the_partial_file(mirror, tmp_path, capsys):
    """SIGINT while a server stalls: the partial file stays, and stderr says that the command can be resumed."""
    part, main = tmp_path / "uci.zip.part", threading.main_thread().ident or 0

    def act(handler: Handler, server: Server) -> None:
        handler.send(200, server.body[:500], length=len(server.body), headers={"ETag": server.tag})
        while not (part.exists() and part.stat().st_size == 500) and not OVER.is_set():
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)  # to the thread that waits in recv, as a terminal would
        OVER.wait(10)

    mirror.script = [act]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            fetch("uci", tmp_path, as_json=False)
    finally:
        signal.signal(signal.SIGINT, before)
    OVER.set()
    err = capsys.readouterr().err
    assert "uci.zip" in err
    assert "kept" in err
    assert part.stat().st_size == 500
    assert not (tmp_path / "uci.zip").exists()
    fetch("uci", tmp_path, as_json=False)
    assert mirror.asked[1]["Range"] == "bytes=500-"
