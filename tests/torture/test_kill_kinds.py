"""kill -9 at any write of any kind of run: the same call, or `resume`, ends with the results of an undisturbed one."""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dygmamba as dm
from dygmamba.core.files.writing import Disk
from dygmamba.engine.run_directory import RunDirectory
from torture_cases import SECONDS, seeds, tally
from trained import TREES, read_letters

NETWORK = {"neighbors": 4, "time_dim": 4, "epochs": 3, "device": "cpu"}
NODE_TREES = {"trees": 6, "rounds": 3, "epochs": 2, "device": "cpu"}
TRIAL = {"rounds": 2, "epochs": 2, "neighbors": 0, "device": "cpu"}
QUICK = ("blend", "choose")  # other tests kill or interrupt the other kinds once
FAMILY = "kill -9, kinds of run"
UNSTABLE = ("run", "backbone", "folder", "page", "preset")  # paths
# children are forked from a server that has imported everything and computed nothing
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch._dynamo", "trained", "dygmamba.cli.training", "dygmamba.report.run_report"]
)


def go_on(out: Path, start: Callable[[], Any], pattern: str = "config.toml") -> None:
    """Resume the run below a folder, or start it if it did not get as far as its configuration."""
    found = sorted(out.glob(f"*/*/*/{pattern}"))
    _ = dm.resume(found[0].parent, device="cpu") if found else start()


def train_link(out: Path, parts: list[Path]) -> list[Any]:
    go_on(out, lambda: dm.train(read_letters(), "tgn", out=out, **NETWORK))
    return list_results(out)


def train_node_head(out: Path, parts: list[Path]) -> list[Any]:
    settings = {"task": "node", "backbone": parts[1], "epochs": 3, "device": "cpu"}
    go_on(out, lambda: dm.train(read_letters(), out=out, **settings))
    return list_results(out)


def train_node_trees(out: Path, parts: list[Path]) -> list[Any]:
    go_on(out, lambda: dm.train(read_letters(), "trees", task="node", out=out, **NODE_TREES))
    return list_results(out)


def blend(out: Path, parts: list[Path]) -> list[Any]:
    go_on(out, lambda: dm.blend(parts, out=out, device="cpu"))
    return list_results(out)


def choose(out: Path, parts: list[Path]) -> list[Any]:
    """Choose within a budget, unless that is done; a run that was started before the first record is left behind."""
    if not list(out.glob("*/*/*/results.json")):
        go_on(out, lambda: dm.train(read_letters(), budget="1h", out=out, **TREES), "selection.json")
    return [
        rows for rows in list_results(out) if rows[0]
    ]  # of the chosen run, the only one that is evaluated


def tune(out: Path, parts: list[Path]) -> list[Any]:
    found = dm.tune(read_letters(), "trees", trials=3, studies=out, **TRIAL)
    return [found.preset.read_text(), strip(found.trials)]


def backtest(out: Path, parts: list[Path]) -> list[Any]:
    found = dm.backtest(read_letters(), "trees", every="2d", out=out, **TREES)
    return strip(found.rows)


KINDS = {
    one.__name__: one
    for one in (train_link, train_node_head, train_node_trees, blend, choose, tune, backtest)
}


def list_results(out: Path) -> list[Any]:
    """Rows and epochs of every run below a folder, in the order of their models."""
    runs = sorted(map(RunDirectory, (path.parent for path in out.glob("*/*/*/config.toml"))), key=get_model)
    return [[strip(run.results()), strip(run.metrics())] for run in runs]


def get_model(run: RunDirectory) -> str:
    return run.path.parent.name


def strip(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out durations and paths."""
    return [
        {name: value for name, value in row.items() if "seconds" not in name and name not in UNSTABLE}
        for row in rows
    ]


def act(kind: str, out: Path, parts: list[Path], kill_at: int, answer: Path) -> None:
    """Do it or go on with it, and end at the write of this number (0: none); the body of a process."""
    count, replace = 0, Disk.replace

    def count_and_replace(self: Disk, old: Path, new: Path) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(self, old, new)

    Disk.replace = count_and_replace
    found = KINDS[kind](out, parts)
    answer.write_text(json.dumps([count, found]))


def run_process(*words: Any) -> int | None:
    child = FORKS.Process(target=act, args=words)
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_killed_and_continued_ends_as_if_it_was_not(kind, letter_trees_run, memory_run, tmp_path):
    """For all kinds of run and all writes: killed just before one and continued, the results are the same."""
    if not SECONDS and kind not in QUICK:
        pytest.skip("three trainings; `make torture` runs it")
    parts, answer = [letter_trees_run.path, memory_run.path], tmp_path / "answer.json"
    assert run_process(kind, tmp_path / "whole", parts, 0, answer) == 0
    writes, expected = json.loads(answer.read_text())
    for seed in seeds(FAMILY, 1):
        out = tmp_path / str(seed)
        kill_at = random.Random(seed).randint(1, writes) if SECONDS else writes // 2 + 1
        killed = run_process(kind, out, parts, kill_at, answer)
        assert killed == -signal.SIGKILL, kill_at
        tally(FAMILY, "kills")
        assert run_process(kind, out, parts, 0, answer) == 0
        same = json.loads(answer.read_text())[1] == expected  # compared apart: a difference would fill pages
        assert same, f"write {kill_at} of {writes}"
