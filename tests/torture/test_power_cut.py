"""The power goes at any call: the run is absent, or it resumes from its last commit or a later state."""

import random
import warnings

import pytest

from dygmamba.core.errors import DygWarning
from dygmamba.core.files import writing
from dygmamba.data.storage.dataset import load_dataset, save_dataset
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import resume_training
from power_cut import RecordingDisk
from torture_cases import CPU, SETTINGS, run_in, seeds, state


def recorded(root, work):
    """The disk after some work under a new folder."""
    root.mkdir()
    disk, real = RecordingDisk(root.resolve()), writing.disk
    writing.disk = disk
    try:
        work(disk)
    finally:
        writing.disk = real
    return disk


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """A whole run, call by call; a note where a checkpoint was committed."""
    root = tmp_path_factory.mktemp("recorded") / "runs"

    def work(disk):
        fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, disk.root)
        save = fit.checkpoints.save

        def noted(progress, better=False):
            save(progress, better)
            disk.note((progress.epoch, progress.step))

        fit.checkpoints.save = noted
        disk.note((0, 0))  # the configuration is there: from now on there is a run
        fit()

    return recorded(root, work)


def test_every_prefix_leaves_a_run_that_resumes_or_none(trained, data, expected, tmp_path):
    """For all prefixes of the calls and ways to lose what was not flushed: no commit is lost, nothing is refused."""
    for seed in seeds("power cut, training", 24):
        rng = random.Random(seed)
        at = rng.randint(0, len(trained.log))
        root = tmp_path / str(seed)
        notes = trained.cut(at, rng, root)
        run = run_in(root)
        if run is None:
            assert not notes
            assert not list(root.rglob("*.safetensors"))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DygWarning)
            fit = resume_training(run.path, CPU, data)
        reached = (fit.state.epoch, fit.state.step)
        assert reached >= max(notes, default=(0, 0)), f"seed {seed}, after {at} calls"
        assert fit.run.metrics() == fit.state.entries
        if seed % 8 == 0:
            fit()
            assert state(fit.run) == expected, f"seed {seed}, after {at} calls"
        fit.run.unlock()


def test_a_dataset_is_whole_or_as_it_was(dataset, tmp_path):
    """For all prefixes of a first and a second save: nothing, the first, or the second; once said, it stays."""

    def work(disk):
        save_dataset(dataset, disk.root / "deep" / "folder")
        disk.note("first")
        save_dataset(dataset, disk.root / "deep" / "folder")

    disk = recorded(tmp_path / "work", work)
    for seed in seeds("power cut, dataset", 60):
        rng = random.Random(seed)
        notes = disk.cut(rng.randint(0, len(disk.log)), rng, tmp_path / str(seed))
        found = tmp_path / str(seed) / "deep" / "folder" / "tiny.safetensors"
        assert found.exists() or not notes
        if found.exists():
            assert load_dataset(found).digest == dataset.digest


def test_the_model_of_the_disk_is_not_too_kind(tmp_path):
    """A file renamed without a flush is lost or cut in some of the cuts: the tests above could fail."""

    def careless(disk):
        handle = disk.create(disk.root / "part")
        disk.write(handle, memoryview(b"content"))
        disk.close(handle)
        disk.replace(disk.root / "part", disk.root / "file")
        disk.sync_folder(disk.root)

    disk = recorded(tmp_path / "work", careless)
    left = set()
    for seed in range(40):
        disk.cut(len(disk.log), random.Random(seed), tmp_path / str(seed))
        left.add((tmp_path / str(seed) / "file").read_bytes())
    assert {b"", b"content"} < left
