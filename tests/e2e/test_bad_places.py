"""Where nothing can be written or read: one sentence, exit code 2, and all that was there before is as it was."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bad_places
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from dygmamba.runs.link_training import start_link_run

pytestmark = pytest.mark.e2e

TINY = {"length": 4, "width": 4, "blocks": 1, "states": 2, "out": 4, "epochs": 1}


def commands(place: Path, to: Path) -> list[list[str]]:
    """Every command that writes, each told to write into `to`; the last one writes into a run."""
    store = ["--data-dir", str(place / "data")]
    (run,) = (str(path.parent) for path in place.glob("runs/*/*/*/config.toml"))
    sizes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    return [
        ["train", "tiny", *store, "--device", "cpu", *sizes, "--out", str(to)],
        ["evaluate", "tiny", *store, "--store-negatives", str(to)],
        [
            "predict",
            run,
            *store,
            "--device",
            "cpu",
            "--sources",
            "1",
            "--top",
            "2",
            "--out",
            str(to / "s.csv"),
        ],
        ["report", run, *store, "--out", str(to / "page.html")],
        ["demo", "--epochs", "1", "--out", str(to)],
        ["data", "import", str(place / "log.csv"), "--out", "log", "--data-dir", str(to)],
        ["data", "generate", "--events", "400", "--nodes", "30", "--out", "gen", "--data-dir", str(to)],
        ["data", "fetch", "uci", "--data-dir", str(to)],
        ["report", run, *store],
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A dataset, a finished run, a table."""
    place = tmp_path_factory.mktemp("place")
    store = generate_stream(GeneratorConfig(seed=3, nodes=30, events=400))
    dataset = Dataset.from_events(
        "tiny", store, NodeIds.identity(store.num_nodes), Origin(format="generated")
    )
    save_dataset(dataset, place / "data")
    start_link_run(dataset, "dyg-mamba", 0, TINY, torch.device("cpu"), place / "runs")()
    (place / "log.csv").write_text("src,dst,time\n" + "".join(f"{k % 9},{k % 7},{k}\n" for k in range(500)))
    return place


@pytest.fixture(scope="module")
def ended(place, tmp_path_factory) -> list[list]:
    """What was said where there are no rights, and where there is no space; all of it in one process."""
    closed, secret, full = place / "closed", tmp_path_factory.mktemp("secret") / "place", place / "full"
    shutil.copytree(place, secret)
    full.mkdir(), closed.mkdir(mode=0o555)
    before = state(place)
    (run,) = place.glob("runs/*/*/*")
    run.chmod(0o555)
    for path in secret.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0)
    few, small = commands(place, closed) + readers(secret), commands(place, full)
    small = [words for words in small if words[0] not in ("demo", "report")]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(place / "cache")}
    here |= {"DYGMAMBA_MIRROR": "http://127.0.0.1:9/", "DYGMAMBA_DATA": ""}
    call = [*bad_places.without_rights(), sys.executable, bad_places.__file__]
    asked = json.dumps([20, few, small])
    done = subprocess.run(call, input=asked, capture_output=True, text=True, env=here)
    run.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert state(place) == before
    answers = zip((few, small), json.loads(done.stdout), strict=True)
    return [list(zip(words, told, strict=True)) for words, told in answers]


def readers(place: Path) -> list[list[str]]:
    """Every command that reads."""
    store = ["--data-dir", str(place / "data")]
    (run,) = (str(path) for path in place.glob("runs/*/*/*"))
    return [
        ["data", "describe", "tiny", *store],
        ["data", "import", str(place / "log.csv"), "--out", "x", "--data-dir", str(place / "new")],
        ["train", "tiny", *store],
        ["train", "--resume", run, *store],
        ["evaluate", run, *store],
        ["predict", run, *store, "--sources", "1", "--top", "2"],
        ["report", run, *store],
    ]


def state(place: Path) -> dict[str, str]:
    """Every file's digest; a lock's holder is no state."""
    kept = (path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


@pytest.mark.parametrize("which", [0, 1], ids=["no rights", "no space"])
def test_where_nothing_can_be_written_or_read_there_is_one_sentence(ended, which):
    """For all commands: exit code 2, this program's sentence or typer's box, no traceback, every file as it was."""
    assert len(ended[which]) > 5
    for command, (code, _, err) in ended[which]:
        assert code == 2, (command, err)
        assert err.splitlines()[-1].startswith("error: ") or " Error " in err, (command, err)
        assert "Traceback" not in err, (command, err)
