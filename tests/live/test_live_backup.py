"""Backups and snapshots: whole or refused; what is restored or reopened scores as before."""

import hashlib
import json
import shutil
import sqlite3
import threading
import zipfile
import zlib
from contextlib import closing

import pytest

import dygmamba as dm
from dygmamba.core.errors import DygWarning, FileError
from dygmamba.live.array_file import count_bytes
from dygmamba.live.backup import _seal, check_folder, write_backup
from dygmamba.live.replica import Replica
from dygmamba.live.snapshots import TRAILER, list_snapshots, write_snapshot
from live_run_cases import live_scores, make_events, observed_scores, open_live
from raising import raises


@pytest.fixture
def folder(tmp_path):
    """A state folder with a snapshot at 5 and events up to 8."""
    with open_live(tmp_path / "state") as live:
        live.append(make_events(5))
        assert live.snapshot() == 5
        live.append(make_events(3, first=5))
    return tmp_path / "state"


def test_a_backup_of_a_running_log_is_restored_to_the_bit(folder, tmp_path):
    with open_live(folder) as live:
        assert live.backup(tmp_path / "saved.zip") == tmp_path / "saved.zip"
        live.append(make_events(1, first=8))
    copy = dm.restore(tmp_path / "saved.zip", tmp_path / "copy")
    assert check_folder(copy).snapshots == {}  # it is made again of the log
    with open_live(copy) as live:
        assert live.sequence == 8
        assert live_scores(live) == observed_scores(make_events(8))
    with raises("folder-not-empty", FileError):
        dm.restore(tmp_path / "saved.zip", copy)
    with raises("file-missing", FileError):
        dm.restore(tmp_path / "none.zip", tmp_path / "other")


@pytest.mark.parametrize("how", ["cut", "flip", "name", "text"])
def test_a_damaged_backup_is_refused_and_leaves_no_folder(folder, tmp_path, how):
    saved = tmp_path / "saved.zip"
    with open_live(folder) as live:
        live.backup(saved)
    content = bytearray(saved.read_bytes())
    if how == "cut":
        saved.write_bytes(content[: len(content) // 2])
    elif how == "flip":
        content[len(content) // 3] ^= 4
        saved.write_bytes(content)
    elif how == "text":
        saved.write_bytes(b"no zip")
    else:
        with zipfile.ZipFile(saved, "w") as archive:
            archive.writestr("../evil", "x")
            archive.writestr("backup.json", json.dumps({"files": {"../evil": {}}, "sha256": ""}))
    with raises("backup-damaged", FileError):
        dm.restore(saved, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "evil").exists()


def rewrite_backup(saved, target, files, kind=zipfile.ZIP_STORED):
    """A backup with other files, whose checksums fit."""
    with zipfile.ZipFile(saved) as archive:
        about = json.loads(archive.read("backup.json"))
        files = {"events.sqlite": archive.read("events.sqlite")} | files
    about["files"] = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    del about["sha256"]
    with zipfile.ZipFile(target, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("backup.json", _seal(about), zipfile.ZIP_STORED)


def test_a_backup_of_an_earlier_version_is_restored_without_its_snapshot(folder, tmp_path):
    """Also a name that leads out of the folder is not unpacked: only the log is."""
    write_backup(folder, tmp_path / "saved.zip")
    more = {"snapshots/ab12-000000000005/state/state.json": b"{}", "../evil": b"x"}
    rewrite_backup(tmp_path / "saved.zip", tmp_path / "old.zip", more)
    copy = dm.restore(tmp_path / "old.zip", tmp_path / "copy")
    assert [path.name for path in copy.iterdir()] == ["events.sqlite"]
    assert not (tmp_path / "evil").exists()
    with open_live(copy) as live:
        assert live_scores(live) == observed_scores(make_events(8))


@pytest.mark.parametrize("how", ["trigger", "bomb"])
def test_a_hostile_backup_is_refused_before_it_is_unpacked(folder, tmp_path, how, monkeypatch):
    """A log with a trigger, and one that inflates to far more than the backup."""
    saved, hostile, files = tmp_path / "saved.zip", tmp_path / "hostile.zip", {}
    write_backup(folder, saved)
    written: list = []
    if how == "trigger":
        with zipfile.ZipFile(saved) as archive:
            (tmp_path / "log").write_bytes(archive.read("events.sqlite"))
        with closing(sqlite3.connect(tmp_path / "log")) as log:
            log.execute("CREATE TRIGGER gone AFTER INSERT ON events BEGIN DELETE FROM events; END")
            log.commit()
        files["events.sqlite"] = (tmp_path / "log").read_bytes()
    else:
        files["events.sqlite"] = bytes(1 << 22)
        monkeypatch.setattr("dygmamba.live.backup.write_file", lambda *given: written.append(given))
    rewrite_backup(saved, hostile, files, zipfile.ZIP_DEFLATED if how == "bomb" else zipfile.ZIP_STORED)
    with raises("backup-damaged", FileError):
        dm.restore(hostile, tmp_path / "copy")
    assert not written
    assert not (tmp_path / "copy").exists()


def rewrite_description(snapshot, change):
    """Change the description at the end of a snapshot, with a checksum that fits."""
    about, content = snapshot.read(), snapshot.path.read_bytes()
    length, _ = TRAILER.unpack(content[-TRAILER.size :])
    text = json.dumps(about | change).encode()
    trailer = TRAILER.pack(len(text), zlib.crc32(text))
    snapshot.path.write_bytes(content[: -TRAILER.size - length] + text + trailer)


@pytest.mark.parametrize("how", ["none", "damaged", "foreign", "ahead", "description"])
def test_a_snapshot_saves_reading_the_log_or_is_left_out(folder, how, monkeypatch):
    """Scores are the same with a good snapshot, a damaged one, and one of another log; only the first is loaded."""
    (snapshot,) = list_snapshots(folder)
    content = bytearray(snapshot.path.read_bytes())
    if how in ("damaged", "description"):
        content[len(content) // 2 if how == "damaged" else -100] ^= 1
        snapshot.path.write_bytes(content)
    elif how == "foreign":
        rewrite_description(snapshot, {"last": 1})
    elif how == "ahead":
        snapshot.path.rename(str(snapshot.path).replace("5.", "9."))
    replayed = []
    from dygmamba.live.serving_state import ServedRun

    append = ServedRun.append
    monkeypatch.setattr(
        ServedRun, "append", lambda run, events: (replayed.append(len(events)), append(run, events))
    )
    if how in ("damaged", "description"):
        with pytest.warns(DygWarning, match="cannot be used"):
            live = open_live(folder)
    else:
        live = open_live(folder)
    with live:
        assert sum(replayed) == (3 if how == "none" else 8)
        assert live_scores(live) == observed_scores(make_events(8))
    if how in ("damaged", "description"):
        assert check_folder(folder).snapshots[5] != "ok"


def test_old_snapshots_are_removed(folder):
    with open_live(folder) as live:
        for k in range(8, 12):
            live.append(make_events(1, first=k))
            live.snapshot()
    assert [snapshot.sequence for snapshot in list_snapshots(folder)] == [12]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_snapshot_of_the_same_events_is_written_only_if_it_is_damaged(folder, is_damaged, monkeypatch):
    """It may be mapped, and Windows deletes no mapped file; what is left of an older one is removed."""
    saved = []
    monkeypatch.setattr(
        "dygmamba.live.live_run.write_snapshot",
        lambda *given: saved.append(given) or write_snapshot(*given),
    )
    with open_live(folder) as live:
        live.snapshot()
    (before,) = list_snapshots(folder)
    assert len(saved) == 1
    content = before.path.read_bytes()
    leftover = before.path.with_name("0123456789ab-000000000003")
    leftover.mkdir()  # of an earlier version
    with open_live(folder) as live:
        if is_damaged:
            before.path.write_bytes(content[:-1])
            with pytest.warns(DygWarning, match="cannot be used"):
                assert live.snapshot() == 8
        assert live.snapshot() == 8
    (after,) = list_snapshots(folder)
    assert len(saved) == 1 + is_damaged
    assert is_damaged or after.path.read_bytes() == content
    assert check_folder(folder).snapshots == {8: "ok"}
    assert not leftover.exists()


def test_a_long_stream_is_opened_from_a_snapshot_without_a_build(tmp_path, monkeypatch):
    """Also before any event is appended; scores are those of the first opening, and the snapshot is left as it was."""
    monkeypatch.setattr("dygmamba.live.replica.SHARED_EVENTS", 0)
    with open_live(tmp_path / "state") as live:
        before = live_scores(live)
    built = []
    monkeypatch.setattr(Replica, "build", lambda *given: built.append(given))
    for count in (2, 4):
        with open_live(tmp_path / "state") as live:
            assert live_scores(live) == (before if count == 2 else observed_scores(make_events(2)))
            live.append(make_events(2, first=count - 2))
            assert live_scores(live) == observed_scores(make_events(count))
    assert not built
    assert [snapshot.sequence for snapshot in list_snapshots(tmp_path / "state")] == [0]
    assert check_folder(tmp_path / "state").snapshots == {0: "ok"}


def test_a_flipped_bit_in_spare_capacity_is_found(tmp_path):
    """New nodes get their zeros from there."""
    with open_live(tmp_path / "state") as live:
        live.append(make_events(5))
        live.snapshot()
    (snapshot,) = list_snapshots(tmp_path / "state")
    part = next(part for part in snapshot.read()["arrays"].values() if part["used"] < count_bytes(part))
    with open(snapshot.path, "r+b") as file:
        file.seek(part["offset"] + count_bytes(part) - 1)
        file.write(b"\1")
    with raises("damaged-state", FileError):
        snapshot.check()


def test_appends_do_not_wait_for_a_snapshot_that_is_being_written(tmp_path, monkeypatch):
    """Whatever their number, and queries see them; the snapshot has the events from before it began."""
    begun, may_go_on = threading.Event(), threading.Event()

    def wait(*given):
        begun.set()
        assert may_go_on.wait(30)

    with open_live(tmp_path / "state") as live:
        live.append(make_events(2))
        monkeypatch.setattr("dygmamba.live.snapshots.sync_file", wait)
        writing = threading.Thread(target=live.snapshot)
        writing.start()
        assert begun.wait(30)
        appending = threading.Thread(
            target=lambda: [live.append(make_events(1, first=k)) for k in range(2, 6)], daemon=True
        )
        appending.start()
        appending.join(30)
        is_waiting = appending.is_alive()
        may_go_on.set()
        writing.join()
        assert not is_waiting
        assert live_scores(live) == observed_scores(make_events(6))
        assert [snapshot.sequence for snapshot in list_snapshots(tmp_path / "state")] == [2]


def test_a_snapshot_of_another_log_does_not_suppress_new_ones(folder, tmp_path, monkeypatch):
    """For example one that was left in the folder when its log was replaced."""
    (foreign,) = list_snapshots(folder)
    other = tmp_path / "other" / "snapshots"
    other.mkdir(parents=True)
    shutil.copy(foreign.path, other / foreign.path.name.replace("5.", "9."))
    monkeypatch.setattr("dygmamba.live.live_run.SNAPSHOT_EVENTS", 3)
    monkeypatch.setattr("dygmamba.live.live_run.SNAPSHOT_SHARE", 0)
    with open_live(tmp_path / "other") as live:
        live.append(make_events(4))
    assert [snapshot.sequence for snapshot in list_snapshots(tmp_path / "other")] == [4]
