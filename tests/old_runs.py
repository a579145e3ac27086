"""Open, resume and predict with what earlier versions wrote: runs of every kind, an export, the state of a live run.

`tests/goldens/runs-0.1.tar.gz` and `tests/goldens/kinds-0.1.tar.gz` stay as they are: the tests are about opening them.
`python tests/old_runs.py` writes an archive of the second kind with the version at hand; a later version gets a name of
its own beside these.
"""

import contextlib
import csv
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dygmamba as dm
from golden_cases import HERE, PAIRS, describe_run, digest_json, labelled_stream, mask, run_command, train

OLD_RUNS, OLD_KINDS = HERE / "runs-0.1.tar.gz", HERE / "kinds-0.1.tar.gz"
OLD = ("trees", "dyg-mamba", "dyg-mamba-counts", "jodie")
TREES: dict[str, Any] = {"trees": 6, "rounds": 3}
MAMBA = {"model": "dyg-mamba", "length": 6, "width": 4, "time_dim": 4, "out": 4, "states": 2}
LIVE: dict[str, Any] = {"late": "1h", "on_late": "set-aside", "max_ahead": "off"}
FUTURE = 1.8e9  # after all events


def record_old_runs(folder: Path) -> dict[str, Any]:
    """Open, resume and predict with run directories and a dataset file that version 0.1.0 wrote."""
    extract(OLD_RUNS, folder)
    data = folder / "data"
    found: dict[str, Any] = {}
    for label in OLD:
        run = dm.open(folder / label, device="cpu", data_dir=data)
        found[label] = describe_run(run) | {"ranked": digest_json(run.rank([3, 5], k=3).to_pylist())}
        seen = run.observe([(3, 39, FUTURE), (5, 2, FUTURE + 60)])
        found[label]["observed"] = [float(v) for v in seen.score(PAIRS[:3])["score"].to_pylist()]
    resumed = dm.resume(folder / "stopped", device="cpu", data_dir=data)
    found["stopped"] = describe_run(resumed)
    return found


def record_kinds(folder: Path) -> dict[str, Any]:
    """The same with a blend, a node run, a choice within a budget, a backtest, an export and a live state."""
    extract(OLD_KINDS, folder)
    where: dict[str, Any] = {"device": "cpu", "data_dir": folder / "data"}
    found: dict[str, Any] = {}
    for label in ("blend", "node", "budget"):
        found[label] = describe_run(dm.open(find_run(folder / label), **where))
    for label in ("node", "budget"):
        found[f"{label} stopped"] = describe_run(dm.resume(find_run(folder / f"{label}-stopped"), **where))
    for label in ("budget", "budget stopped"):
        chosen = dm.open(find_run(folder / label.replace(" ", "-")), **where).selection
        found[label]["selection"] = digest_json(chosen)
    for label in ("backtest", "backtest stopped"):
        rows = run_backtest(folder, folder / label.replace(" ", "-")).table.to_pylist()
        found[label] = {"rows": digest_json(rows), "scores": [row["ap"] for row in rows]}
    found["export"] = {"scores": score_with_export(folder / "trees.zip", folder)}
    found["live"] = record_live_state(folder, where)
    return found


def record_live_state(folder: Path, where: dict[str, Any]) -> dict[str, Any]:
    """Score with the stored events, append more, and use the commands on the state folder."""
    with dm.live(folder / "trees", folder / "live", **where) as live:
        scores = list_scores(live.score(PAIRS[:3]))
        answer = live.append([{"id": "b1", "src": 5, "dst": 2, "time": FUTURE + 7200}])
        scores += list_scores(live.score(PAIRS[:3], min_sequence=answer.sequence))
        set_aside = live.set_aside.num_rows
    state, backup = str(folder / "live"), str(folder / "live.backup")
    calls = {
        "accept": ("accept", state, "--late", "9d", "--run", str(folder / "trees")),
        "backup": ("backup", state, backup),
        "restore": ("restore", backup, str(folder / "restored")),
        "check": ("check", state),
    }
    found: dict[str, Any] = {"scores": scores, "set_aside": set_aside}
    for name, words in calls.items():
        more = ("--data-dir", str(where["data_dir"])) if name == "accept" else ()
        code, out = run_command("live", *words, *more, "--json")
        content = json.loads(out)
        content.pop("sha256", None)  # of a backup, which holds times of the clock
        found[name] = {"exit": code, "json": mask(content, folder)}
    return found


def list_scores(table: Any) -> list[float]:
    return [float(value) for value in table["score"].to_pylist()]


def score_with_export(program: Path, folder: Path) -> list[float]:
    """Run the exported program, which needs numpy alone, on the events it was trained on."""
    table = dm.load("kinds", data_dir=folder / "data").to_arrow()
    events, pairs = folder / "events.csv", folder / "pairs.csv"
    for path, rows in ((events, table.select(["src", "dst", "time"]).to_pylist()), (pairs, None)):
        with path.open("w", newline="") as file:
            names = ["src", "dst", "time"] if rows else ["src", "dst"]
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows or [{"src": src, "dst": dst} for src, dst in PAIRS[:3]])
    words = [sys.executable, str(program), str(events), str(pairs)]
    answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return [float(row["score"]) for row in csv.DictReader(answer.splitlines())]


def run_backtest(folder: Path, out: Path, **more: Any) -> Any:
    """Make or continue a backtest; a finished one is read."""
    data = dm.load("kinds", data_dir=folder / "data")
    more |= {"every": "12h", "out": out, "device": "cpu", "data_dir": folder / "data", "epochs": 1}
    return dm.backtest(data, "trees", **more, **TREES)


def find_run(folder: Path) -> Path:
    """A run directory, or the one below a folder that `train` wrote with a budget; candidates are beside it."""
    return folder if (folder / "config.toml").exists() else min((folder / "kinds" / "trees").iterdir())


def extract(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


class Stop(Exception):
    """Ends a training half-way."""


def stop_after(epochs: int) -> Callable[[dict[str, Any]], None]:
    """A `progress` that raises at the end of so many epochs."""
    seen: list[dict[str, Any]] = []

    def stop(entry: dict[str, Any]) -> None:
        seen.append(entry)
        if len(seen) == epochs:
            raise Stop

    return stop


def make_kinds(archive: Path) -> None:
    """Write one of each kind, as small as possible, and the datasets they need."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, runs = folder / "data", folder / "runs"
        where: dict[str, Any] = {"device": "cpu", "data_dir": data}
        dm.save(dm.generate(name="kinds", nodes=40, events=300, communities=4, seed=4), data_dir=data)
        dm.save(labelled_stream(), data_dir=data)
        dataset, labelled = (dm.load(name, data_dir=data) for name in ("kinds", "labelled"))
        trees = train(dataset, {"model": "trees", **TREES}, runs, **where)
        memory = train(dataset, {"model": "jodie", "time_dim": 4, "out": 4}, runs, **where)
        blend = dm.blend([trees.path, memory.path], out=runs, **where)
        node = train(labelled, MAMBA, runs, task="node", **where)
        trees.export(folder / "trees.zip")
        with dm.live(trees, folder / "live", data_dir=data, **LIVE) as live:
            live.append([{"id": "a1", "src": 3, "dst": 39, "time": FUTURE}])
            live.append([{"id": "a2", "src": 4, "dst": 38, "time": FUTURE - 86400}])
            live.snapshot()
        choice: dict[str, Any] = {**where, **TREES, "budget": "1h", "epochs": 2}
        dm.train(dataset, out=folder / "budget", **choice)
        run_backtest(folder, folder / "backtest")
        with contextlib.suppress(Stop):  # after two epochs of the backbone
            train(labelled, MAMBA, folder / "half", task="node", progress=stop_after(3), **where)
        with contextlib.suppress(Stop):  # in the second candidate
            dm.train(dataset, out=folder / "budget-stopped", **choice, progress=stop_after(3))
        with contextlib.suppress(Stop):  # in the second period
            run_backtest(folder, folder / "backtest-stopped", progress=stop_after(3))
        for run, label in ((trees, "trees"), (blend, "blend"), (node, "node")):
            shutil.move(run.path, folder / label)
        (half,) = (folder / "half").glob("*/*-node/*")
        shutil.move(half, folder / "node-stopped")
        with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
            for path in sorted(folder.iterdir()):
                if path.name not in ("runs", "half"):
                    tar.add(path, path.name, filter=leave_out_pages)


def leave_out_pages(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Pages are not read again; a finished run is not resumed."""
    is_old = info.name.startswith(("trees/checkpoint/last", "blend/checkpoint/last", "node/checkpoint/last"))
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return None if is_old or info.name.endswith((".html", ".md", ".tex", ".csv")) else info


if __name__ == "__main__":
    made = HERE / f"kinds-{dm.__version__.rpartition('.')[0]}.tar.gz"
    if made.exists():
        sys.exit(f"{made} exists; later versions have to open what it holds")
    make_kinds(made)
