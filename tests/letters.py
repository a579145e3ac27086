"""Small logs with names and dates, and settings that train in a second."""

import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dygmamba

SMALL = {"epochs": 1, "length": 6, "width": 4, "states": 2, "blocks": 1, "time_dim": 4, "device": "cpu"}
PEOPLE = ["ann", "bob", "cid", "dora", "eve", "fred", "gus", "Zoë, Ltd."]


def make_letters(count: int = 240, seed: int = 0) -> dict[str, list]:
    """Who wrote to whom, when, and how much; every tenth letter is bad."""
    draw, start = random.Random(seed), datetime(2024, 5, 1, tzinfo=UTC)
    pairs = [draw.sample(PEOPLE, 2) for _ in range(count)]
    return {
        "who": [pair[0] for pair in pairs],
        "whom": [pair[1] for pair in pairs],
        "when": [start + timedelta(hours=k, minutes=draw.randint(0, 30)) for k in range(count)],
        "words": [float(draw.randint(1, 99)) for _ in range(count)],
        "bad": [int(k % 10 == 3) for k in range(count)],
    }


COLUMNS = {"src": "who", "dst": "whom", "time": "when"}


def run_python(code: str, folder: Path, more: Path | str = "") -> str:
    """What a fresh process in `folder` prints, which knows of no dataset; `more` is looked in for modules too."""
    places = (Path(__file__).parent, Path(dygmamba.__file__).parents[1], more)
    variables = {
        "DYGMAMBA_DATA": str(folder / "none"),
        "PYTHONPATH": os.pathsep.join(str(place) for place in places if place),
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, "-P", "-c", code]  # without the current folder
    done = subprocess.run(
        line, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
