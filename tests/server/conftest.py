import random
from datetime import datetime, timedelta

import pytest

import dygmamba as dm

PEOPLE = ["alice", "bob", "carol", "dora", "eve", "fred"]


@pytest.fixture(scope="session")
def mail(tmp_path_factory) -> dm.Run:
    """A small trained run on dated mail between six people."""
    draw, start = random.Random(0), datetime(2024, 2, 1)
    rows = [(*draw.sample(PEOPLE, 2), (start + timedelta(hours=2 * k)).isoformat()) for k in range(150)]
    data = dm.read(rows, name="mail")
    (run,) = dm.train(data, "trees", rounds=2, device="cpu", out=tmp_path_factory.mktemp("mail"))
    return run
