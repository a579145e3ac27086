"""The power goes while a live run writes: nothing acknowledged is lost or doubled, and scores keep their bits."""

import random
import shutil
from pathlib import Path

import pytest

from dygmamba.core.errors import DygWarning
from dygmamba.live.snapshots import list_snapshots
from live_power_cuts import EVENTS, STATE, check_cut, check_state, record_live_run
from live_run_cases import open_live
from trained import load_trees_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record_live_run(tmp_path_factory.mktemp("recorded") / "disk")


def test_a_power_cut_at_any_call_loses_no_acknowledged_event(recorded, tmp_path):
    """For all prefixes of the calls of appends, snapshots, a switch, backups and a restore; a few of them here."""
    assert {"take", "write", "sync", "replace", "sync_folder", "remove_folder"} <= {
        call[0] for call in recorded.log
    }
    for seed in range(8):
        rng = random.Random(seed)
        at = (seed * len(recorded.log)) // 7
        check_cut(recorded, at, rng, tmp_path / str(seed))


@pytest.mark.parametrize("how", ["cut", "zeros", "old"])
def test_a_torn_write_of_a_snapshot_changes_no_score(tmp_path, how):
    """A file that ends early, or has a sector of zeros or of other content, in an array or in the description."""
    with open_live(tmp_path / STATE) as live:
        live.append(EVENTS[:6])
        live.snapshot()
    (snapshot,) = list_snapshots(tmp_path / STATE)
    content, sector = bytearray(snapshot.path.read_bytes()), random.Random(0).randbytes(512)
    for middle in (len(content) // 2, len(content) - 1000):
        folder = Path(shutil.copytree(tmp_path / STATE, tmp_path / f"{how}-{middle}"))
        torn = content.copy()
        if how == "cut":
            del torn[middle:]
        else:
            torn[middle : middle + 512] = bytes(512) if how == "zeros" else sector
        (file,) = folder.rglob(snapshot.path.name)
        file.write_bytes(torn)
        with pytest.warns(DygWarning, match="cannot be used"):
            check_state(folder, 6, load_trees_run(), EVENTS)
