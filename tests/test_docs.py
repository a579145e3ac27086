"""What the README shows, runs: its blocks of bash and Python, in order, on a small log."""

import os
import random
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import dygmamba
from tables import write_csv

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

README = (Path(__file__).parents[1] / "README.md").read_text()
PEOPLE = ["alice", "bob", "carol", "dora", "eve", "fred"]


SMALLER = {  # the same lines, done sooner
    "--epochs 20": "--epochs 1",
    "--seeds 0-2": "--seeds 0-1",
    "epochs=5": "epochs=1",
    "epochs=3": "epochs=1",
}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, with smaller numbers."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    for shown, smaller in SMALLER.items():
        assert shown in README
        found = [block.replace(shown, smaller) for block in found]
    return found


@pytest.fixture
def place(tmp_path):
    """A folder with the files that the README speaks of."""
    draw, start = random.Random(0), datetime(2024, 2, 1)
    rows = [[*draw.sample(PEOPLE, 2), (start + timedelta(hours=2 * k)).isoformat()] for k in range(150)]
    header = ["sender", "receiver", "sent"]
    write_csv(tmp_path / "mail.csv", header, rows)
    write_csv(tmp_path / "new.csv", header, [["alice", "gus", "2024-02-20T08:00"]])
    write_csv(tmp_path / "pairs.csv", ["src", "dst"], [["alice", "bob"], ["gus", "eve"]])
    return tmp_path


def run(line: list[str], folder: Path) -> str:
    """What a fresh process prints; `dygmamba` is this one."""
    command = folder / "bin" / "dygmamba"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dygmamba "$@"\n')
    command.chmod(0o755)
    variables = {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(dygmamba.__file__).parents[1]),
        "DYGMAMBA_DATA": str(folder / "data"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        line, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_commands_run(place):
    """From the import of a log to a ranking, as printed."""
    (script,) = blocks("bash")
    out = run(["bash", "-euo", "pipefail", "-c", script], place)
    assert "mean ± std of 2" in out
    assert (place / "scores.csv").read_text().count("\n") == 3


@pytest.mark.timeout(300)
def test_the_python_runs(place):
    """All blocks one after another, in one process."""
    script = place / "readme.py"
    script.write_text("\n".join(blocks("python")))
    out = run([sys.executable, str(script)], place)
    assert "dora" in out
    assert "state dict" in out
    assert list(place.glob("runs/mail/ages/*/report.html"))


def test_there_is_something_to_run():
    """The README has both kinds of blocks, and speaks of no module that does not exist."""
    assert blocks("bash")
    assert len(blocks("python")) >= 2
    root = Path(dygmamba.__file__).parent
    for name in re.findall(r"from dygmamba\.(\w+)", README):
        assert (root / name).is_dir() or (root / f"{name}.py").exists()


def test_the_api_reference_is_built_from_the_docstrings(tmp_path):
    """`make api` gives a page per module of the door, with every public name that has its home there."""
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    line = re.search(r"pdoc (.*?) -o", makefile, flags=re.DOTALL)
    assert line
    modules = line[1].replace("\\", " ").split()
    command = [sys.executable, "-m", "pdoc", *modules, "-o", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    pages = {
        module: (tmp_path / Path(*module.split("."))).with_suffix(".html").read_text() for module in modules
    }
    for name in ("read", "load", "generate"):
        assert f'id="{name}"' in pages["dygmamba.door.data"]
    for name in ("Run.score", "Run.rank", "Run.observe", "open"):
        assert f'id="{name}"' in pages["dygmamba.door.run"]
    for name in ("train", "resume", "Runs"):
        assert f'id="{name}"' in pages["dygmamba.door.runs"]
