"""kill -9 at random moments: a run goes on to the same end, other files are whole or not there."""

import multiprocessing
import os
import random
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from dygmamba.core.errors import FileError
from dygmamba.data.storage.dataset import load_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run, resume_training
from raising import raises
from torture_cases import CPU, SECONDS, SETTINGS, run_in, seeds, state, tally, train

KILLS = 8  # of one run, before it may end

# children are forked from a server that has imported everything and computed nothing
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch._dynamo",
        "torture_cases",
        "dygmamba.cli.data",
        "dygmamba.runs.link_training",
        "dygmamba.report.run_report",
    ]
)


def command(words: list[str]) -> None:
    """The command line, in a child whose words nobody reads."""
    from dygmamba.cli import app

    with open(os.devnull, "w") as nobody, redirect_stdout(nobody), redirect_stderr(nobody):
        app(words, standalone_mode=False)


def killed(target, words: tuple, after: float, begun: Any = None) -> bool:
    """Whether the child had to be killed, so long after it has begun; what it did by itself it did well."""
    child = FORKS.Process(target=target, args=words)
    child.start()
    if begun is not None:
        begun.wait(120)
    child.join(after)
    by_hand = child.is_alive()
    child.kill()
    child.join()
    assert by_hand or child.exitcode == 0
    return by_hand


@pytest.fixture
def undisturbed(data, tmp_path):
    """The end of a run that nobody killed, in a process like the killed ones'.

    A first one only compiles the kernels: in the process that does, the last bits of the scan's gradients are others.
    """
    for name in ("compiling", "computing"):
        assert not killed(train, (str(data), str(tmp_path / name)), 120)
    run = run_in(tmp_path / "computing")
    assert run is not None
    return state(run)


@pytest.mark.skipif(not SECONDS, reason="seven trainings; tests/e2e/test_train_cli.py kills a run once")
def test_a_run_killed_again_and_again_ends_as_if_it_was_not(data, dataset, undisturbed, tmp_path):
    """For all moments t1, t2, ...: killed at each and resumed, its end is bit for bit that of the undisturbed run."""
    start = time.monotonic()
    start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path / "timed")()
    took, kills = time.monotonic() - start, 0
    for seed in seeds("kill -9, training", 1):
        rng, runs = random.Random(seed), tmp_path / str(seed)
        for number in range(KILLS):  # the first kill may come before there is a run
            begun = FORKS.Event()
            after = rng.uniform(0, 1 / KILLS) * took
            by_hand = killed(
                train, (str(data), str(runs), begun), after, begun if number or seed % 4 else None
            )
            kills += by_hand
            tally("kill -9, training", "kills", by_hand)
        assert not killed(train, (str(data), str(runs)), 120)
        run = run_in(runs)
        assert run is not None
        same = state(run) == undisturbed  # compared apart: a difference would be printed byte by byte
        assert same, f"seed {seed}"
        assert not list(runs.rglob("*.part"))
    sys.stdout.write(f"{kills:,} kills\n")


def test_a_killed_command_leaves_a_whole_file_or_none(whole, data, dataset, tmp_path):
    """`data import`, `data generate` and `report`: what is there is whole; called once more, it is done and clean."""
    table = tmp_path / "log.csv"
    pairs = zip(
        dataset.store.src.tolist(), dataset.store.dst.tolist(), dataset.store.time.tolist(), strict=True
    )
    table.write_text("src,dst,time\n" + "".join(f"{u},{v},{t}\n" for u, v, t in pairs))
    page, digests, took, kills = tmp_path / "page.html", {}, {}, 0
    calls = {
        "a": ["data", "import", str(table), "--out", "a", "--data-dir", str(tmp_path)],
        "b": ["data", "generate", "--out", "b", "--events", "2000", "--data-dir", str(tmp_path)],
        "page": ["report", str(whole.path), "--out", str(page), "--data-dir", str(data)],
    }
    if not SECONDS:
        calls = {"b": calls["b"]}
    killed(command, (["models"],), 120)  # the first child waits for the server
    for name, words in calls.items():
        start = time.monotonic()
        assert not killed(command, (words,), 120)
        took[name] = time.monotonic() - start
        digests[name] = content(tmp_path, name)
    for seed in seeds("kill -9, import, generate, report", 2):
        rng = random.Random(seed)
        name = list(calls)[seed % len(calls)]
        if rng.random() < 0.5:
            (page if name == "page" else tmp_path / f"{name}.safetensors").unlink(missing_ok=True)
        by_hand = killed(command, (calls[name],), rng.uniform(0.1, 0.9) * took[name])
        kills += by_hand
        tally("kill -9, import, generate, report", "kills", by_hand)
        assert content(tmp_path, name) in (None, digests[name]), f"seed {seed}"
    for name, words in calls.items():
        assert not killed(command, (words,), 120)
        assert content(tmp_path, name) == digests[name]
    assert not list(tmp_path.glob("*.part"))
    sys.stdout.write(f"{kills:,} kills\n")


def content(folder, name: str) -> str | bytes | None:
    """What a command left, if anything; a file that is not whole is an error."""
    path = folder / ("page.html" if name == "page" else f"{name}.safetensors")
    if not path.exists():
        return None
    if name != "page":
        return load_dataset(path).digest
    text = path.read_bytes()
    assert text.rstrip().endswith(b"</html>")
    return text


def test_a_run_in_use_is_refused(data, whole, tmp_path):
    """While a process holds the folder, a second one that would train into it is refused; readers are not."""
    holder = RunDirectory(whole.path)
    holder.lock()
    try:
        with raises("folder-locked", FileError):
            resume_training(whole.path, CPU, data)
        open_run(whole.path, CPU, data)
    finally:
        holder.unlock()
    resume_training(whole.path, CPU, data).run.unlock()
