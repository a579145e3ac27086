"""A full disk, a clock that goes back and a torn log, through a running server: nothing acknowledged is lost."""

import os
import resource
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

import dygmamba as dm
from dygmamba.api.client import Client
from dygmamba.core.clock import Clock
from dygmamba.live.event_log import LOG_FILE, LogReader
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


def test_a_disk_without_space_stops_acknowledgements_and_not_scores(mail, tmp_path):
    """The same on a small file system of its own, filled by another program."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    filler = place / "filler"

    @contextmanager
    def fill(client, acknowledged):
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(filler, filler.stat().st_size - 60_000)
        yield
        filler.unlink()

    try:
        check_full_disk(mail, place / "state", fill)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_clock_that_goes_back_changes_no_verdict_and_no_score(mail, tmp_path, monkeypatch):
    """For all jumps between requests: events are judged by their times, and the server goes on answering."""
    real, jumps = time.time, [0.0, -4e8, -1e9, 30.0, -7200.0]
    events = make_events(50)
    with running(lambda: dm.live(mail, tmp_path / "state")) as url, Client(url) as client:
        for k, jump in enumerate(jumps):
            monkeypatch.setattr(Clock, "now", lambda clock, jump=jump: real() + jump)
            answer = client.append(events[10 * k : 10 * k + 10])
            assert answer["accepted"] == 10
            late = {"src": "alice", "dst": "bob", "time": "2024-02-28"}
            assert client.append([late])["verdicts"][0]["status"] == "late"
            assert find_scores(client, answer["sequence"]) == expected_scores(mail, events[: 10 * k + 10])
            assert client.status()["facts"]["sequence"] == 10 * k + 10
            assert client._request("GET", "/v2/health/ready")["ready"] is True
    monkeypatch.undo()
    assert list_ids(tmp_path / "state") == [event["id"] for event in events]


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
