"""What the torture tests share: a tiny run, what it must end as, disks that fail, and how long to go on.

By default each test takes a few seconds and fixed seeds. With DYGMAMBA_TORTURE set to a number of seconds (`make
torture`) they share that time, from a seed of the clock, which they print.
"""

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dygmamba.core.files.writing import Disk
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from dygmamba.engine.run_directory import RunDirectory

SETTINGS = {"length": 4, "width": 4, "states": 2, "blocks": 1, "out": 4, "time_dim": 4}
SETTINGS |= {"epochs": 2, "batch": 100, "save_every": 0.0}  # a checkpoint after every step
CPU = torch.device("cpu")
SECONDS = float(os.environ.get("DYGMAMBA_TORTURE", "0"))
# parts of the seconds: each gets what its count asks for; the other tests of the folder take a few seconds in all
SHARES = {
    "kill -9, training": 0.24,
    "kill -9, import, generate, report": 0.16,
    "kill -9, kinds of run": 0.01,  # of each
    "power cut, training": 0.04,
    "power cut, dataset": 0.02,
    "power cut, live run": 0.05,
    "failing disk, training": 0.03,
    "live simulation": 0.06,
    "kill -9, server": 0.15,
    "soak": 0.1,
}
SHARE = 0.004  # of each reader that is fed mutants
TALLY: dict[str, Counter[str]] = {}  # what came of each family, printed at the end
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE)


def seeds(name: str, few: int) -> Iterator[int]:
    """A few fixed ones; in the long mode as many as there is time for, said with their tally."""
    if not SECONDS:
        for seed in range(few):
            yield seed
            tally(name, "rounds")
        return
    first, end, count = int(time.time()), time.monotonic() + SECONDS * SHARES.get(name, SHARE), 0
    while time.monotonic() < end:
        yield first + count
        tally(name, "rounds")
        count += 1
    sys.stdout.write(f"\n{name}: {count:,} rounds, seeds {first} to {first + count - 1}\n")


def tally(name: str, what: str, count: int = 1) -> None:
    """Count what came of something, for the table at the end."""
    TALLY.setdefault(name, Counter())[what] += count


def tiny_dataset(folder: Path) -> Dataset:
    """Some 600 events, saved as `tiny`."""
    store = generate_stream(GeneratorConfig(seed=3, nodes=30, events=600))
    dataset = Dataset.from_events(
        "tiny", store, NodeIds.identity(store.num_nodes), Origin(format="generated")
    )
    save_dataset(dataset, folder)
    return dataset


def train(data: str, runs: str, begun: Any = None) -> None:
    """Start the run, or go on with the one that is there; for a process that will be killed once it has begun."""
    torch.set_num_threads(1)
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.runs.link_training import start_link_run
    from dygmamba.runs.opening import resume_training

    old = run_in(Path(runs))
    if old is None:
        fit = start_link_run(open_dataset("tiny", Path(data)), "dyg-mamba", 0, SETTINGS, CPU, Path(runs))
    else:
        fit = resume_training(old.path, CPU, Path(data))
    if begun is not None:
        begun.set()
    fit()


def run_in(runs: Path) -> RunDirectory | None:
    """The run under a folder, if it got as far as its configuration."""
    found = [path.parent for path in runs.glob("*/*/*/config.toml")]
    assert len(found) <= 1
    return RunDirectory(found[0]) if found else None


def state(run: RunDirectory) -> list:
    """All that a run ends as but for times: every bit of both checkpoints, and the epochs' entries."""
    bits = [
        {name: value.numpy().tobytes() for name, value in load_file(path).items()}
        for path in (run.last, run.best)
    ]
    entries = [
        {key: value for key, value in entry.items() if "seconds" not in key} for entry in run.metrics()
    ]
    return [*bits, entries]


CALLS = (
    "create",
    "write",
    "sync",
    "close",
    "replace",
    "remove",
    "remove_folder",
    "make_folder",
    "sync_folder",
)


class CountingDisk(Disk):
    """Counts its calls; from call number `fail` on, or at that one alone, it answers with an error."""

    def __init__(self, fail: int = 0, number: int = 0, lasting: bool = False) -> None:
        self.calls, self.fail, self.number, self.lasting = 0, fail, number, lasting

    def _count(self) -> None:
        self.calls += 1
        if self.fail and (self.calls == self.fail or (self.lasting and self.calls > self.fail)):
            raise OSError(self.number, os.strerror(self.number))


def _counted(name: str):
    def call(self, *words):
        if name == "close":  # the system lets a file go even where it reports an error
            os.close(*words)
            self._count()
            return None
        self._count()
        return getattr(Disk, name)(self, *words)

    return call


for _name in CALLS:
    setattr(CountingDisk, _name, _counted(_name))
