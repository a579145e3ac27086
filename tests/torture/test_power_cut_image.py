"""The power goes while a real file system is written to: ext4 on an image, shut down without flushing its journal.

The shutdown is ext4's own (EXT4_IOC_SHUTDOWN without a flush of the log), as file system tests use it: what is in the
page cache and in the running transaction is gone, the next mount replays the journal. Where nothing may be mounted,
the test is skipped; the replay of the writer's calls (test_power_cut.py) needs no rights.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
import warnings
from contextlib import suppress

import pytest

import dygmamba as dm
from dygmamba.core.errors import DygWarning
from dygmamba.data.storage.dataset import load_dataset
from dygmamba.live.backup import restore_backup
from dygmamba.runs.opening import resume_training
from limited_process import FORKS
from live_power_cuts import check_state
from live_run_cases import make_events
from torture_cases import CPU, SETTINGS, run_in, seeds, state, tally
from trained import load_trees_run

SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
WITHOUT_THE_LOG = 2


def system(*words: str) -> bool:
    """Whether a command of the system did its work."""
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Image:
    """An ext4 file system in a file, mounted."""

    def __init__(self, folder) -> None:
        self.file, self.place = folder / "image", folder / "mounted"
        self.place.mkdir()
        self.made = False

    def mount(self) -> bool:
        """Whether it is mounted now; what a power cut left is mended by the journal."""
        if not self.made:
            with self.file.open("wb") as file:
                file.truncate(48 << 20)
            self.made = system("mkfs.ext4", "-q", "-F", "-m", "0", str(self.file))
        return self.made and system("mount", "-o", "loop", str(self.file), str(self.place))

    def cut(self, writer) -> None:
        """The power goes under a process, and comes back."""
        handle = os.open(self.place, os.O_RDONLY)
        fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", WITHOUT_THE_LOG))
        os.close(handle)
        writer.kill()
        writer.join()
        self.unmount()
        assert self.mount()

    def unmount(self) -> None:
        """A killed process may hold it for another moment."""
        for _ in range(100):
            if system("umount", str(self.place)):
                return
            time.sleep(0.05)
        raise AssertionError("the image is held")


@pytest.fixture
def image(tmp_path):
    """Mounted, if this machine lets us."""
    found = Image(tmp_path)
    needed = ("mkfs.ext4", "mount", "umount")
    if os.geteuid() or not all(map(shutil.which, needed)) or not found.mount():
        pytest.skip("no image can be mounted here")
    yield found
    system("umount", str(found.place))


def work(data: str, place: str, said) -> None:
    """Train on the image and say, outside of it, what is committed; save a dataset there over and over."""
    from pathlib import Path

    import torch

    from dygmamba.data.storage.dataset import save_dataset
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.runs.link_training import start_link_run

    torch.set_num_threads(1)
    dataset = open_dataset("tiny", Path(data))
    save_dataset(dataset, Path(place) / "data")
    said.send(("data", 0, 0))
    fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, Path(place) / "runs")
    said.send(("run", 0, 0))
    save = fit.checkpoints.save

    def noted(progress, better=False):
        save(progress, better)
        said.send(("run", progress.epoch, progress.step))

    fit.checkpoints.save = noted
    fit()


def test_a_power_cut_of_a_mounted_file_system_loses_no_commit(image, data, dataset, expected):
    """For all moments: what was said to be saved is there after the journal's replay, and the run ends as it would."""
    for seed in seeds("power cut, ext4", 1):
        rng, (heard, said) = random.Random(seed), FORKS.Pipe(duplex=False)
        child = FORKS.Process(target=work, args=(str(data), str(image.place), said), daemon=True)
        child.start()
        said.close()
        notes = []
        for _ in range(1 + rng.randrange(10)):  # the dataset, the run, its first steps
            assert heard.poll(120)
            notes.append(heard.recv())
        time.sleep(rng.uniform(0, 0.05))
        image.cut(child)
        with suppress(EOFError):
            while True:
                notes.append(heard.recv())
        check(image, data, dataset, expected if seed % 4 == 0 else None, notes)
        tally("power cut, ext4", "cuts")
        shutil.rmtree(image.place / "runs", ignore_errors=True)
        shutil.rmtree(image.place / "data")


def check(image, data, dataset, expected, notes) -> None:
    """What was said holds."""
    assert load_dataset(image.place / "data" / "tiny.safetensors").digest == dataset.digest
    run = run_in(image.place / "runs") if (image.place / "runs").exists() else None
    reached = max(((epoch, step) for what, epoch, step in notes if what == "run"), default=None)
    if run is None:
        assert reached is None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DygWarning)
        fit = resume_training(run.path, CPU, data)
    assert (fit.state.epoch, fit.state.step) >= (reached or (0, 0))
    if expected is not None:
        fit()
        same = state(fit.run) == expected  # compared apart: a difference would be printed byte by byte
        assert same
    fit.run.unlock()


def append(run: str, place: str, events: list[dict], seed: int, said) -> None:
    """Append events to a live run on the image and say how many are acknowledged; snapshots and backups beside it."""
    from pathlib import Path

    import torch

    torch.set_num_threads(1)
    rng, count = random.Random(seed), 0
    live = dm.live(run, Path(place) / "state", device="cpu")
    while count < len(events):
        more = rng.randint(1, 3)
        live.append(events[count : count + more])
        count = min(count + more, len(events))
        said.send(("events", count))
        if rng.random() < 0.5:
            live.snapshot()
        if rng.random() < 0.3:
            live.backup(Path(place) / "saved.zip")
            said.send(("backup", count))


def test_a_power_cut_of_a_mounted_file_system_loses_no_acknowledged_event(image, tmp_path):
    """For all moments: acknowledged events are in the log once, a finished backup is whole, scores keep their bits."""
    events = make_events(60)
    for seed in seeds("power cut, ext4, live run", 1):
        rng, (heard, said) = random.Random(seed), FORKS.Pipe(duplex=False)
        words = (str(load_trees_run().path), str(image.place), events, seed, said)
        child = FORKS.Process(target=append, args=words, daemon=True)
        child.start()
        said.close()
        notes = []
        for _ in range(1 + rng.randrange(25)):
            assert heard.poll(120)
            notes.append(heard.recv())
        time.sleep(rng.uniform(0, 0.05))
        image.cut(child)
        with suppress(EOFError):
            while True:
                notes.append(heard.recv())
        told, left = (
            dict(notes),
            tmp_path / str(seed),
        )  # checked elsewhere: a mapped file would hold the image
        shutil.copytree(image.place, left, ignore=shutil.ignore_patterns("lost+found"))
        check_state(left / "state", told.get("events", 0), load_trees_run(), events)
        if "backup" in told:
            assert restore_backup(left / "saved.zip", left / "copy") >= told["backup"]
            check_state(left / "copy", told["backup"], load_trees_run(), events)
        tally("power cut, ext4", "cuts")
        shutil.rmtree(left)
        shutil.rmtree(image.place / "state")
        (image.place / "saved.zip").unlink(missing_ok=True)
