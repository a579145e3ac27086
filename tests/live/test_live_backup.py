"""Backups and snapshots: whole or refused; what is restored or reopened scores as before."""

import hashlib
import json
import sqlite3
import zipfile
from contextlib import closing
from copy import copy as duplicate

import pytest

import dygmamba as dm
from dygmamba.core.errors import DygWarning, FileError
from dygmamba.live.backup import _seal, check_folder, write_backup
from dygmamba.live.snapshots import list_snapshots
from dygmamba.live.state import LiveState
from dygmamba.live.state_files import count_bytes, read_description
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
    assert check_folder(copy).snapshots == {5: "ok"}
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


@pytest.mark.parametrize("how", ["trigger", "bomb", "overlap"])
def test_a_hostile_backup_is_refused_before_it_is_unpacked(folder, tmp_path, how, monkeypatch):
    """A log with a trigger, a file that inflates to far more than the backup, one content under many names."""
    saved, hostile, files = tmp_path / "saved.zip", tmp_path / "hostile.zip", {}
    write_backup(folder, saved)
    with zipfile.ZipFile(saved) as archive:
        files["events.sqlite"] = archive.read("events.sqlite")
        about = json.loads(archive.read("backup.json"))
    if how == "trigger":
        (tmp_path / "log").write_bytes(files["events.sqlite"])
        with closing(sqlite3.connect(tmp_path / "log")) as log:
            log.execute("CREATE TRIGGER gone AFTER INSERT ON events BEGIN DELETE FROM events; END")
            log.commit()
        files["events.sqlite"] = (tmp_path / "log").read_bytes()
    else:
        files["snapshots/ab-1/zeros"] = bytes(1 << 22)
    entries = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    written: list = []
    if how != "trigger":
        monkeypatch.setattr("dygmamba.live.backup.write_file", lambda *given: written.append(given))
    with zipfile.ZipFile(
        hostile, "w", zipfile.ZIP_DEFLATED if how == "bomb" else zipfile.ZIP_STORED
    ) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if how == "overlap":
            _, second = archive.infolist()
            for number in range(2, 6):
                twin = duplicate(second)
                twin.filename = f"snapshots/ab-{number}/zeros"
                archive.filelist.append(twin)
                entries[twin.filename] = entries[second.filename]
        about = {"format": about["format"], "sequence": about["sequence"], "files": entries}
        archive.writestr("backup.json", _seal(about), zipfile.ZIP_STORED)
    with raises("backup-damaged", FileError):
        dm.restore(hostile, tmp_path / "copy")
    assert not written
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("how", ["none", "damaged", "foreign", "ahead", "manifest", "outside"])
def test_a_snapshot_saves_reading_the_log_or_is_left_out(folder, how, monkeypatch):
    """Scores are the same with a good snapshot, a damaged one, and one of another log; only the first is loaded."""
    (snapshot,) = list_snapshots(folder)
    about = snapshot.path / "manifest.json"
    if how == "damaged":
        file = max(snapshot.path.glob("state/*"), key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif how == "manifest":
        about.write_text("{")
    elif how == "outside":  # a backup would copy the file, whoever may read it
        about.write_text(json.dumps(snapshot.manifest | {"files": {"../../../secret": {"bytes": 0}}}))
    elif how in ("foreign", "ahead"):
        change = {"last": 1} if how == "foreign" else {"sequence": 9}
        about.write_text(json.dumps(snapshot.manifest | change))
    replayed = []
    from dygmamba.live.serving_state import ServedRun

    append = ServedRun.append
    monkeypatch.setattr(
        ServedRun, "append", lambda run, events: (replayed.append(len(events)), append(run, events))
    )
    if how == "damaged":
        with pytest.warns(DygWarning, match="cannot be used"):
            live = open_live(folder)
    else:
        live = open_live(folder)
    with live:
        assert sum(replayed) == (3 if how == "none" else 8)
        assert live_scores(live) == observed_scores(make_events(8))
    if how == "damaged":
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
    saved, save = [], LiveState.save
    monkeypatch.setattr(LiveState, "save", lambda state, path: saved.append(path) or save(state, path))
    with open_live(folder) as live:
        live.snapshot()
    (before,) = list_snapshots(folder)
    assert len(saved) == 1
    leftover = before.path.with_name("0123456789ab-000000000003")
    leftover.mkdir()
    with open_live(folder) as live:
        if is_damaged:
            (before.path / next(iter(before.manifest["files"]))).write_bytes(b"{}")
        assert live.snapshot() == 8
    (after,) = list_snapshots(folder)
    assert len(saved) == 1 + is_damaged
    assert (after.manifest == before.manifest) is not is_damaged
    assert check_folder(folder).snapshots == {8: "ok"}
    assert not leftover.exists()


def test_a_long_stream_is_opened_from_a_snapshot_without_a_build(tmp_path, monkeypatch):
    """Also before any event is appended; scores are those of the first opening, and the snapshot is left as it was."""
    for module in ("live_run", "state"):
        monkeypatch.setattr(f"dygmamba.live.{module}.SHARED_EVENTS", 0)
    with open_live(tmp_path / "state") as live:
        before = live_scores(live)
    built = []
    monkeypatch.setattr(LiveState, "build", lambda *given: built.append(given))
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
    about = read_description(snapshot.path / "state")
    part = next(part for part in about["arrays"].values() if part["used"] < count_bytes(part))
    with open(snapshot.path / "state" / about["file"], "r+b") as file:
        file.seek(part["offset"] + count_bytes(part) - 1)
        file.write(b"\1")
    with raises("damaged-state", FileError):
        snapshot.check()
