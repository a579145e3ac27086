"""What an operator may do wrong with `serve` and `live`: one sentence, exit code 2, and no event is lost."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest

import bad_places
import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import DygWarning
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.snapshots import MANIFEST, list_snapshots
from raising import raises

pytestmark = pytest.mark.e2e
EVENTS = [("alice", "gus", "2024-03-01"), ("bob", "gus", "2024-03-02")]


@pytest.fixture
def state(mail, tmp_path) -> Path:
    """A state folder with two events and a snapshot."""
    with dm.live(mail, tmp_path / "state") as live:
        live.append(EVENTS)
        live.snapshot()
    return tmp_path / "state"


def count_events(folder: Path) -> int:
    """The number of events in the log, every one of them read."""
    with LogReader(folder) as log:
        log.check()
        return log.read_sequence()


def serve(monkeypatch, capsys, *words) -> str:
    """The one sentence of a server that does not start; before it opens its port, unless the port is the matter."""
    code, out, err = invoke(monkeypatch, capsys, "serve", *map(str, words))
    *logged, said = err.splitlines()
    assert (code, out) == (2, "")
    assert said.startswith("error: ")
    assert "Traceback" not in err
    assert not any(line.startswith("listening") for line in logged), err
    return said


def test_a_state_folder_that_cannot_be_used_is_said_before_the_port_is_open(
    mail, state, tmp_path, monkeypatch, capsys
):
    """A file, a run directory, a folder in use, a foreign database, and a log of an older or a newer program."""
    (tmp_path / "file").write_text("")
    run = [mail.path, "--port", 0, "--state"]
    assert "a file is in its place" in serve(monkeypatch, capsys, *run, tmp_path / "file")
    assert "is a run directory; give another folder" in serve(monkeypatch, capsys, *run, mail.path)
    assert not (mail.path / LOG_FILE).exists()
    with dm.live(mail, state):
        said = serve(monkeypatch, capsys, *run, state)
        assert f"process {os.getpid()} is writing {state}" in said
        code, _, err = invoke(monkeypatch, capsys, "live", "accept", str(state))
        assert (code, err.count("\n")) == (2, 1)
    assert count_events(state) == 2
    for pragma, words in (("user_version = 0", "log version 0"), ("application_id = 7", "another program")):
        copy = shutil.copytree(state, tmp_path / words[:7])
        with closing(sqlite3.connect(copy / LOG_FILE)) as database:
            database.execute(f"PRAGMA {pragma}")
        content = (copy / LOG_FILE).read_bytes()
        assert words in serve(monkeypatch, capsys, *run, copy)
        code, _, err = invoke(monkeypatch, capsys, "live", "check", str(copy))
        assert (code, words in err, err.count("\n")) == (2, True, 1)
        assert (copy / LOG_FILE).read_bytes() == content
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / LOG_FILE).write_text("src,dst,time\n" * 999)
    assert "is damaged" in serve(monkeypatch, capsys, *run, tmp_path / "text")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--late", "soon"], "--late takes a time"),
        (["--on-late", "forget"], "--on-late takes 'refuse' or 'set-aside'"),
        (["--max-ahead", "never"], "--max-ahead takes a time"),
        (["--source", "amqp://host/topic"], "kafka://HOST:PORT/TOPIC"),
        (["--tls-cert", __file__], "both a certificate and a key"),
        (["--device", "cuda"], "a live run needs --device cpu"),
    ],
)
def test_wrong_options_are_said_before_the_port_is_open(mail, state, monkeypatch, capsys, words, said):
    assert said in serve(monkeypatch, capsys, mail.path, "--state", state, "--port", 0, *words)
    assert count_events(state) == 2


def test_a_run_of_another_dataset_and_a_port_in_use_are_said(mail, trees_run, state, monkeypatch, capsys):
    words = ("serve", str(trees_run.path), "--state", str(state), "--port", "0")
    code, _, err = invoke(monkeypatch, capsys, *words)
    assert (code, err.splitlines()[-1].startswith("error: ")) == (2, True)
    assert "the run was trained on another one; open it with that run" in err
    assert "the run cannot be opened" not in err  # no line with places in the code
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = serve(monkeypatch, capsys, mail.path, "--state", state, "--port", port)
    assert f"http://127.0.0.1:{port} cannot be opened; give another --port" in said
    assert count_events(state) == 2


@pytest.mark.parametrize("how", ["damaged", "older"])
def test_a_snapshot_that_cannot_be_used_is_no_obstacle(mail, state, how):
    """A damaged one gives a warning, one in an older format none: the log is read, with the same scores."""
    with dm.live(mail, state) as live:
        expected = live.score([("alice", "gus")]).to_pylist()
    (snapshot,) = list_snapshots(state)
    if how == "older":
        manifest = snapshot.manifest | {"format": "dygmamba-snapshot-0"}
        (snapshot.path / MANIFEST).write_text(json.dumps(manifest))
    else:
        (file,) = snapshot.path.glob("state/tables-*")
        file.write_bytes(file.read_bytes()[:-500])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with dm.live(mail, state) as live:
            assert live.score([("alice", "gus")]).to_pylist() == expected
    assert [one.category for one in told] == [DygWarning] * (how == "damaged")


def test_where_nothing_may_be_written_or_read(mail, state, tmp_path):
    """A read-only folder is not served but checked and backed up; an unreadable one, or run, is one sentence."""
    closed, hidden, saved = tmp_path / "closed", tmp_path / "hidden", tmp_path / "saved.zip"
    shutil.copytree(state, hidden)
    closed.mkdir(mode=0o555)
    (hidden / LOG_FILE).chmod(0)
    secret = Path(shutil.copytree(mail.path, mail.path.with_name("secret")))
    (secret / "config.toml").chmod(0)
    for path in (state, *state.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    run = ["serve", str(mail.path), "--port", "0", "--state"]
    good = [["live", "check", str(state)], ["live", "backup", str(state), str(saved)]]
    wrong = [
        [*run, str(state)],
        [*run, str(closed / "new")],
        [*run, str(hidden)],
        ["serve", str(secret), "--port", "0", "--state", str(tmp_path / "new")],
        ["live", "check", str(hidden)],
        ["live", "backup", str(hidden), str(tmp_path / "hidden.zip")],
        ["live", "backup", str(state), str(closed / "saved.zip")],
        ["live", "restore", str(saved), str(closed / "copy")],
        ["live", "accept", str(state)],
    ]
    call = [*bad_places.without_rights(), sys.executable, bad_places.__file__]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    asked = json.dumps([1 << 40, good + wrong, []])
    done = subprocess.run(call, input=asked, capture_output=True, text=True, env=here)
    for path in (state, *state.rglob("*"), secret / "config.toml"):
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    answers = list(zip(good + wrong, json.loads(done.stdout)[0], strict=True))
    for words, (code, _, err) in answers[: len(good)]:
        assert (code, err) == (0, ""), (words, err)
    for words, (code, out, err) in answers[len(good) :]:
        assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
        assert err.startswith("error: "), (words, err)
        assert "damaged" not in err, (words, err)  # what may not be read is not called damaged
    assert count_events(state) == 2
    assert count_events(dm.restore(saved, tmp_path / "copy")) == 2


def test_an_append_to_a_folder_that_became_read_only_is_refused_and_others_are_kept(mail, state):
    """The log is opened, then its files become those of another program: no acknowledgement without a flush."""
    with dm.live(mail, state) as live:
        connection = live._writer._log._connect()
        connection.execute("PRAGMA query_only = ON")
        with raises("log-not-writable"):
            live.append([("carol", "gus", "2024-03-03")])
        assert live.append([("carol", "gus", "2024-03-03")]).accepted == 1  # over a new connection
    assert count_events(state) == 3
