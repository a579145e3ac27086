"""One to five flipped bits anywhere in a file: found, or nothing that is read has changed; never taken in silence."""

import random
import shutil
import warnings

import pytest

from dygmamba.core.errors import DygWarning, FileError
from dygmamba.data.storage.dataset import load_dataset
from dygmamba.engine.checkpoint import read_newest
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.negatives import NegativeRequest, load_or_sample_negatives, sample_negatives
from dygmamba.runs.opening import open_run, resume_training
from raising import raises
from torture_cases import CPU, seeds, state

FLIPS = 50  # per round


def flip(good: bytes, rng: random.Random) -> bytes:
    """Other bytes than the good ones."""
    bad = bytearray(good)
    for bit in rng.sample(range(8 * len(good)), rng.randint(1, 5)):
        bad[bit // 8] ^= 1 << bit % 8
    return bytes(bad)


def test_a_flipped_last_is_never_resumed(whole, data, expected, tmp_path):
    """The one before is taken, with a warning, and the run ends as it would have; without one it is an error."""
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "run"))
    good, before = run.last.read_bytes(), run.previous.read_bytes()
    for seed in seeds("bit flips, last", 1):
        rng = random.Random(seed)
        for _ in range(FLIPS):
            run.last.write_bytes(flip(good, rng))
            run.previous.write_bytes(before)
            with pytest.warns(DygWarning, match=r"last.safetensors is damaged"):
                _, progress, path = read_newest(run)
            assert (progress.finished, path) == (False, run.previous)
            run.previous.unlink()
            with raises("damaged-checkpoint", FileError):
                read_newest(run)
            run.previous.write_bytes(flip(before, rng))
            with raises("damaged-checkpoint", FileError):
                read_newest(run)
        run.previous.write_bytes(before)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DygWarning)
            resume_training(run.path, CPU, data)()
        assert state(run) == expected
        assert run.previous.read_bytes() == before  # a damaged file never takes the place of a good one


def test_flipped_weights_and_settings_are_never_used(whole, data, tmp_path):
    """`best` and config.toml: evaluation and prediction refuse them in one sentence."""
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "run"))
    for seed in seeds("bit flips, best and config", 1):
        rng = random.Random(seed)
        for path in (run.best, run.path / "config.toml"):
            good = path.read_bytes()
            for _ in range(FLIPS):
                path.write_bytes(flip(good, rng))
                with pytest.raises(FileError) as caught:
                    open_run(run.path, CPU, data)
                assert "\n" not in str(caught.value)
            path.write_bytes(good)


def test_flipped_data_and_negatives_are_never_used(dataset, data, tmp_path):
    """A dataset and stored negatives: refused, or (spare bits of a dataset's header) the same in every column."""
    events = dataset.store.time.argsort()[-100:]
    request = NegativeRequest("historical", events, events, 0.0, seed=0)
    drawn = sample_negatives(dataset.store, request)
    load_or_sample_negatives(dataset.store, request, tmp_path)
    (kept,) = tmp_path.glob("negatives-*")
    copy = shutil.copy(data / "tiny.safetensors", tmp_path / "tiny.safetensors")
    good_data, good_kept, spared = copy.read_bytes(), kept.read_bytes(), 0
    for seed in seeds("bit flips, dataset and negatives", 1):
        rng = random.Random(seed)
        for _ in range(FLIPS):
            kept.write_bytes(flip(good_kept, rng))
            with raises("damaged-negatives", FileError):
                load_or_sample_negatives(dataset.store, request, tmp_path)
            copy.write_bytes(flip(good_data, rng))
            try:
                found = load_dataset(copy)
            except FileError:
                continue
            spared += 1
            assert (found.digest, found.ids, found.origin) == (dataset.digest, dataset.ids, dataset.origin)
    kept.write_bytes(good_kept)
    assert load_or_sample_negatives(dataset.store, request, tmp_path).dst.equal(drawn.dst)
    assert spared <= FLIPS
