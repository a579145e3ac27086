"""A live run while its disk is recorded: appends, snapshots, a change of the model, backups and a restore."""

import random
import warnings
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import dygmamba as dm
from dygmamba.core.errors import DygWarning
from dygmamba.core.files import writing
from dygmamba.live.backup import check_folder, restore_backup
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.snapshots import list_snapshots
from live_run_cases import live_scores, make_events, observed_scores, other_run
from power_cut import RecordingDisk
from trained import load_trees_run

EVENTS = make_events(20)
STATE, BACKUP, COPY = "state", "saved.zip", "copy"


@contextmanager
def recording(root: Path):
    """A disk that records all calls on files under a new folder."""
    root.mkdir()
    disk, real = RecordingDisk(root.resolve()), writing.disk
    writing.disk = disk
    try:
        yield disk
    finally:
        writing.disk = real


def record_live_run(root: Path) -> RecordingDisk:
    """The calls of a live run, with notes of what it acknowledged and finished."""
    load_trees_run(), other_run()  # trained before
    with recording(root) as disk:
        state, backup = disk.root / STATE, disk.root / BACKUP

        def take() -> None:
            disk.take(state / LOG_FILE, state / f"{LOG_FILE}-wal")

        with dm.live(load_trees_run(), state, device="cpu") as live:
            take()

            def append(first: int, until: int) -> None:
                live.append(EVENTS[first:until])
                take()
                disk.note(("acknowledged", until))

            append(0, 4)
            live.snapshot()
            live.snapshot()  # of the same events: the first one stays
            append(4, 9)
            live.snapshot()
            live.backup(backup)
            disk.note(("backup", 9))
            live.switch(other_run())
            take()
            append(9, 13)
            live.snapshot()
            live.backup(backup)
            disk.note(("backup", 13))
            append(13, 16)
            restore_backup(backup, disk.root / COPY)
            disk.note(("restored", 13))
        take()
    return disk


@cache
def expected_scores(count: int, run: dm.Run) -> list[dict]:
    """The scores of an undisturbed run after so many events of `make_events`."""
    return observed_scores(make_events(count), run)


def check_state(folder: Path, least: int, run: dm.Run, events: list[dict]) -> None:
    """Open a folder: all acknowledged events are there once, scores are those of an undisturbed run to the bit."""
    with dm.live(run, folder, device="cpu") as live, LogReader(folder) as log:
        found = [event.id for some in log.read_events(0, live.sequence) for event in some]
        assert found == [event["id"] for event in events[: len(found)]]
        assert len(found) >= least
        assert live_scores(live) == expected_scores(len(found), run)
        if len(found) < len(events):
            live.append(events[len(found) : len(found) + 1])
        assert live_scores(live) == expected_scores(live.sequence, run)
        live.snapshot()
        assert [snapshot.sequence for snapshot in list_snapshots(folder)] == [live.sequence]


def check_cut(disk: RecordingDisk, at: int, rng: random.Random, root: Path) -> None:
    """Cut the power after `at` calls, and check everything that is left."""
    notes = disk.cut(at, rng, root)
    told = dict(notes)
    run = rng.choice([load_trees_run(), other_run()])
    with warnings.catch_warnings():
        # what was being written when the power went is not used and not spoken of; damage would be a warning
        warnings.simplefilter("error", DygWarning)
        if (root / STATE).exists():
            check_state(root / STATE, told.get("acknowledged", 0), run, EVENTS)
        else:
            assert "acknowledged" not in told
        backup = root / BACKUP
        assert backup.exists() or "backup" not in told
        if backup.exists():
            assert restore_backup(backup, root / "again") >= told.get("backup", 0)
            check_state(root / "again", told.get("backup", 0), run, EVENTS)
        copy = root / COPY
        assert copy.exists() or "restored" not in told
        if copy.exists():
            assert check_folder(copy).snapshots == {}
            check_state(copy, 13, run, EVENTS)
