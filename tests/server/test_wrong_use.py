"""What an operator may do wrong with `serve` and `live`: one sentence, exit code 2, and no event is lost."""

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import dygmamba as dm
from command_runner import run_lines
from commands import fail
from dygmamba.live.event_log import LOG_FILE, LogReader
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
    """The code of the error of a server that does not start; it never says that it listens."""
    code, err = fail(monkeypatch, capsys, "serve", *words)
    *logged, said = err.splitlines()
    assert said.startswith("error: ")
    assert "Traceback" not in err
    assert not any(line.startswith("listening") for line in logged), err
    return code


def test_a_state_folder_that_cannot_be_used_is_said_before_the_port_is_open(
    mail, state, tmp_path, monkeypatch, capsys
):
    """A file, a run directory, a folder in use, a foreign database, and a log of an older or a newer program."""
    (tmp_path / "file").write_text("")
    run = [mail.path, "--port", 0, "--state"]
    assert serve(monkeypatch, capsys, *run, tmp_path / "file") == "write-failed"
    assert serve(monkeypatch, capsys, *run, mail.path) == "state-is-a-run"
    assert not (mail.path / LOG_FILE).exists()
    with dm.live(mail, state):
        assert serve(monkeypatch, capsys, *run, state) == "folder-locked"
        code, err = fail(monkeypatch, capsys, "live", "accept", state)
        assert (code, err.count("\n")) == ("folder-locked", 1)
    assert count_events(state) == 2
    for pragma, expected in (
        ("user_version = 0", "unsupported-log-version"),
        ("application_id = 7", "not-a-log"),
    ):
        copy = shutil.copytree(state, tmp_path / pragma[:4])
        with closing(sqlite3.connect(copy / LOG_FILE)) as database:
            database.execute(f"PRAGMA {pragma}")
        content = (copy / LOG_FILE).read_bytes()
        assert serve(monkeypatch, capsys, *run, copy) == expected
        code, err = fail(monkeypatch, capsys, "live", "check", copy)
        assert (code, err.count("\n")) == (expected, 1)
        assert (copy / LOG_FILE).read_bytes() == content
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / LOG_FILE).write_text("src,dst,time\n" * 999)
    assert serve(monkeypatch, capsys, *run, tmp_path / "text") == "log-damaged"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--late", "soon"], "invalid-late"),
        (["--on-late", "forget"], "invalid-on-late"),
        (["--max-ahead", "never"], "invalid-max-ahead"),
        (["--source", "amqp://host/topic"], "unknown-source"),
        (["--tls-cert", __file__], "tls-half-given"),
        (["--device", "cuda"], "live-needs-cpu"),
    ],
)
def test_wrong_options_are_said_before_the_port_is_open(mail, state, monkeypatch, capsys, words, code):
    assert serve(monkeypatch, capsys, mail.path, "--state", state, "--port", 0, *words) == code
    assert count_events(state) == 2


def test_a_run_of_another_dataset_and_a_port_in_use_are_said(mail, trees_run, state, monkeypatch, capsys):
    code, err = fail(monkeypatch, capsys, "serve", trees_run.path, "--state", state, "--port", 0)
    assert (code, err.splitlines()[-1].startswith("error: ")) == ("other-dataset", True)
    assert "the run cannot be opened" not in err  # no line with places in the code
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(monkeypatch, capsys, mail.path, "--state", state, "--port", port) == "port-unavailable"
    assert count_events(state) == 2


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
        ("folder-not-lockable", [*run, str(state)]),
        ("write-failed", [*run, str(closed / "new")]),
        ("file-unreadable", [*run, str(hidden)]),
        ("file-unreadable", ["serve", str(secret), "--port", "0", "--state", str(tmp_path / "new")]),
        ("file-unreadable", ["live", "check", str(hidden)]),
        ("file-unreadable", ["live", "backup", str(hidden), str(tmp_path / "hidden.zip")]),
        ("write-failed", ["live", "backup", str(state), str(closed / "saved.zip")]),
        ("write-failed", ["live", "restore", str(saved), str(closed / "copy")]),
        ("folder-not-lockable", ["live", "accept", str(state)]),
    ]
    answers = run_lines([*good, *(line for _, line in wrong)], tmp_path, has_rights=False)
    for path in (state, *state.rglob("*"), secret / "config.toml"):
        path.chmod(0o755)
    for line, answer in zip(good, answers, strict=False):
        assert (answer.exit_code, answer.err) == (0, ""), (line, answer)
    for (code, line), answer in zip(wrong, answers[len(good) :], strict=True):
        assert answer.is_one_sentence, (line, answer)
        assert answer.code == code, (line, answer)
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
