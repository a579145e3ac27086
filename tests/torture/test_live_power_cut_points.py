"""The power goes at every call of a live run: `make torture` only; tests/live has the short form."""

import random
import shutil

import pytest

from live_power_cuts import check_cut, record_live_run
from torture_cases import SECONDS, seeds


@pytest.mark.skipif(not SECONDS, reason="tests/live has the short form")
def test_a_power_cut_at_every_call_loses_no_acknowledged_event(tmp_path):
    """For all prefixes of the calls, then again with other losses: events, scores, backups and restores are whole."""
    disk = record_live_run(tmp_path / "disk")
    points = list(range(len(disk.log) + 1))
    random.Random(0).shuffle(points)  # a short time tries some of all parts
    for seed in seeds("power cut, live run", 0):
        at = points[seed % len(points)]
        check_cut(disk, at, random.Random(seed), tmp_path / str(seed))
        shutil.rmtree(tmp_path / str(seed))
