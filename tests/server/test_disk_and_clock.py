"""A full disk, a clock that goes back and a torn log, through a running server: nothing acknowledged is lost."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

import dygmamba as dm
from dygmamba.api.client import Client
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.state import LiveState
from live_server import running
from raising import raises

PAIRS = [("alice", "bob"), ("carol", "n3"), ("n1", "eve")]


def make_events(count: int, first: int = 0) -> list[dict]:
    """Events a minute apart, of new and known people."""
    people = ["alice", "bob", "carol", "n1", "n2", "n3"]
    return [
        {
            "id": f"e{k}",
            "src": people[k % 6],
            "dst": people[(k + 1 + k // 6 % 5) % 6],
            "time": f"2024-03-01T{k // 60:02d}:{k % 60:02d}",
        }
        for k in range(first, first + count)
    ]


def find_scores(client: Client, sequence: int) -> list[float]:
    return [row["score"] for row in client.score(PAIRS, min_sequence=sequence)]


def expected_scores(mail, events: list[dict]) -> list[float]:
    rows = [(event["src"], event["dst"], event["time"]) for event in events]
    return (mail.observe(rows) if rows else mail).score(PAIRS)["score"].to_pylist()


def list_ids(folder) -> list[str]:
    with LogReader(folder) as log:
        return [event.id for some in log.read_events(0, log.read_sequence()) for event in some]


def append_once(client: Client, events: list[dict]) -> str:
    """Append without trying again; the code of the error, or nothing if all were accepted."""
    try:
        answer = client._request("POST", "/v1/events", {"events": events}, retry=False)
    except dm.DygError as error:
        return error.code
    assert answer["accepted"] == len(events)
    return ""


def check_full_disk(mail, state, fill) -> None:
    """Append until the disk is full, ask for scores, make room, go on, and open the folder again."""
    acknowledged, refused = [], 0
    with running(lambda: dm.live(mail, state)) as url, Client(url) as client:
        with fill(client, acknowledged):
            while refused < 2:
                batch = make_events(100, len(acknowledged))
                if (code := append_once(client, batch)) == "":
                    acknowledged += batch
                    continue
                assert code in ("log-full", "log-not-writable")
                refused += 1
                assert find_scores(client, len(acknowledged)) == expected_scores(mail, acknowledged)
        alerts = [alert["code"] for alert in client.status()["alerts"]]
        assert "append-failed" in alerts
        batch = make_events(100, len(acknowledged))
        assert client.append(batch)["accepted"] == 100
        acknowledged += batch
        assert "append-failed" not in [alert["code"] for alert in client.status()["alerts"]]
        assert find_scores(client, len(acknowledged)) == expected_scores(mail, acknowledged)
    assert list_ids(state) == [event["id"] for event in acknowledged]
    with dm.live(mail, state) as live:
        assert live.score(PAIRS)["score"].to_pylist() == expected_scores(mail, acknowledged)


@pytest.fixture
def small_disk(tmp_path):
    """A small file system of its own."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@contextmanager
def filled(place, free: int):
    """Fill a file system up to this many bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(filler, filler.stat().st_size - free)
    yield
    filler.unlink(missing_ok=True)


def test_a_file_that_may_not_grow_stops_acknowledgements_and_not_scores(mail, tmp_path):
    """507 without a loss; when the limit is lifted, the same server goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def fill(client, acknowledged):
        batch = make_events(5)
        assert client.append(batch)["accepted"] == 5
        acknowledged += batch
        limit = (tmp_path / "state" / f"{LOG_FILE}-wal").stat().st_size + 30_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    check_full_disk(mail, tmp_path / "state", fill)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_server_starts_on_a_full_disk_to_score(mail, small_disk, how):
    """The log is only read: scores know all its events, appends are refused with 507, and go on when there is room."""
    state, known = small_disk / "state", make_events(20)
    with running(lambda: dm.live(mail, state)) as url, Client(url) as client:
        client.append(known)
        copy = shutil.copytree(state, small_disk / "copy")  # as the disk is under a running server
    if how == "killed":
        shutil.rmtree(state)
        copy.rename(state)
    with filled(small_disk, 0), running(lambda: dm.live(mail, state)) as url, Client(url) as client:
        assert find_scores(client, 20) == expected_scores(mail, known)
        assert client.health()
        while (code := append_once(client, make_events(50, len(known)))) == "":  # room in the old journal
            known += make_events(50, len(known))
        assert code in ("log-full", "log-not-writable")
        assert "append-failed" in [alert["code"] for alert in client.status()["alerts"]]
        assert find_scores(client, len(known)) == expected_scores(mail, known)
        (small_disk / "filler").unlink()
        assert append_once(client, more := make_events(50, len(known))) == ""
        assert find_scores(client, len(known) + 50) == expected_scores(mail, known + more)
    assert list_ids(state) == [event["id"] for event in known + more]


def test_a_state_that_failed_is_not_ready_and_answers_at_once(mail, tmp_path, monkeypatch, caplog):
    """Queries go on with the events before; nothing waits for those that the state lacks, and a restart has them."""
    events = make_events(3)
    with running(lambda: dm.live(mail, tmp_path / "state")) as url, Client(url) as client:
        client.append(events[:1])
        find_scores(client, 1)
        with monkeypatch.context() as patch:
            patch.setattr(LiveState, "append", lambda state, added: 1 / 0)
            assert append_once(client, events[1:2]) == ""
            while client.health():
                time.sleep(0.005)
        began = time.monotonic()
        ask = {"pairs": [{"src": "alice", "dst": "bob"}], "min_sequence": 2}
        for method, path, body in (
            ("GET", "/v2/health/ready", None),
            ("GET", "/ping", None),
            ("POST", "/v1/score", ask),
            ("POST", "/v1/events", {"events": events[2:]}),
        ):
            with raises("live-state-failed") as caught:
                client._request(method, path, body, retry=False)
            assert "ZeroDivisionError" not in str(caught.value)  # the reason may hold ids
        assert time.monotonic() - began < 2
        assert [alert["code"] for alert in client.status()["alerts"]] == ["state-failed"]
        assert find_scores(client, 1) == expected_scores(mail, events[:1])
    assert [one.fields for one in caplog.records if one.levelname == "ERROR"] == [
        {"error": "ZeroDivisionError"}
    ]
    with running(lambda: dm.live(mail, tmp_path / "state")) as url, Client(url) as client:
        assert find_scores(client, 2) == expected_scores(mail, events[:2])


def test_a_server_that_was_killed_says_so_when_it_starts_again(mail, tmp_path):
    """Also through the command, which looks at the log before it opens its port; and on any loopback address."""
    command = [sys.executable, "-m", "dygmamba", "serve", str(mail.path), "--state", str(tmp_path / "state")]
    logged, events = [], make_events(2)
    for host, stop in (
        ("127.0.0.1", signal.SIGKILL),
        ("127.0.0.2", signal.SIGTERM),
        ("127.0.0.1", signal.SIGTERM),
    ):
        words = [*command, "--port", "0", "--host", host]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = iter(process.stderr)
            url = next(line for line in lines if line.startswith("listening")).split()[2].rstrip(";")
            ready = json.loads(next(line for line in lines if '"ready"' in line))
            logged.append(ready["fields"]["log"])
            with Client(url) as client:
                client.append(events)
            process.send_signal(stop)
            lines = None
            process.stderr.read()
    assert logged[0] == logged[2] == "closed properly"
    assert logged[1].startswith("not closed by its last process")


def test_a_server_goes_on_from_a_log_with_a_torn_tail(mail, tmp_path):
    """For all lengths of the journal that a power cut leaves: a first part of the events; sent again, each is once."""
    state, events = tmp_path / "state", make_events(12)
    with running(lambda: dm.live(mail, state)) as url, Client(url) as client:
        for k in range(0, 12, 3):
            client.append(events[k : k + 3])
        copy = shutil.copytree(state, tmp_path / "copy")  # as the disk is under a running server
    journal = (copy / f"{LOG_FILE}-wal").read_bytes()
    found = []
    for share in (0.999, 0.7, 0.45):
        torn = shutil.copytree(copy, tmp_path / str(share))
        (torn / f"{LOG_FILE}-wal").write_bytes(journal[: int(share * len(journal))])
        with running(lambda torn=torn: dm.live(mail, torn)) as url, Client(url) as client:
            facts = client.status()["facts"]
            assert "not closed by its last process" in facts["recovery"]
            found.append(facts["sequence"])
            assert found[-1] % 3 == 0  # whole transactions
            assert find_scores(client, found[-1]) == expected_scores(mail, events[: found[-1]])
            answer = client._request("POST", "/v1/events?verdicts=all", {"events": events})
            statuses = [verdict["status"] for verdict in answer["verdicts"]]
            assert statuses == ["duplicate"] * found[-1] + ["accepted"] * (12 - found[-1])
            assert find_scores(client, 12) == expected_scores(mail, events)
        assert list_ids(torn) == [event["id"] for event in events]
    assert found == sorted(found, reverse=True)
    assert found[0] < 12
    with raises("log-damaged"):  # a log without its journal may lack pages, and that is said
        (copy / LOG_FILE).write_bytes(b"x" * 5000)
        dm.live(mail, copy)
