"""A store that is written to while it is in use ends the use with one sentence: no signal, no other data."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dygmamba.core.errors import FileError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.readers import jodie_dyglib
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.engine.stream import Stream
from dygmamba.sampling.view import NeighborRequest, PairBatch

EVENTS = 20_000  # some pages of each column
HARMS = {
    "cut": lambda path: os.truncate(path, 4096),
    "emptied": lambda path: path.write_bytes(b""),
    "overwritten": lambda path: overwrite(path),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
}
USES = {
    "describe": lambda dataset, stream: dataset.describe(),
    "save": lambda dataset, stream: save_dataset(dataset, Path("elsewhere")),
    "select": lambda dataset, stream: dataset.store.select(torch.arange(3)),
    "slice": lambda dataset, stream: dataset.store[5:9].check_unchanged(),
    "move": lambda dataset, stream: stream.events,
    "view": lambda dataset, stream: stream.view(asked(), (NeighborRequest((4,)),)),
    "training view": lambda dataset, stream: stream.training_view(asked(), (NeighborRequest((4,)),)),
}


def overwrite(path: Path) -> None:
    """As many other bytes, in place."""
    with path.open("r+b") as file:
        file.seek(-800, os.SEEK_END)
        file.write(bytes(800))


def stored(folder: Path) -> Path:
    count = torch.arange(EVENTS)
    features = FeatureTable(torch.zeros(10, 0), torch.rand(EVENTS, 2))
    store = EventStore.of(count % 10, count % 7, count.double(), features=features, num_nodes=10)
    return save_dataset(Dataset.of("set", store, NodeIds.identity(10)), folder)


def asked() -> PairBatch:
    node = torch.tensor([1, 2])
    return PairBatch.of(node, node + 1, torch.tensor([9000.0, 9000.0], dtype=torch.float64))


@pytest.mark.parametrize("harm", HARMS)
def test_a_store_that_was_written_to_is_read_no_more(tmp_path, harm):
    """For all harms and all uses: one sentence."""
    path = stored(tmp_path)
    dataset = load_dataset(path)
    stream = Stream(dataset.store, chronological_split(dataset.store), torch.device("cpu"))
    HARMS[harm](path)
    for use in USES.values():
        with pytest.raises(FileError, match="while it was in use; stores never change") as caught:
            use(dataset, stream)
        assert "\n" not in str(caught.value)
    assert len(dataset.ids.to_user(np.arange(10))) == 10  # the ids are this process's own


def test_a_store_that_was_replaced_or_removed_serves_on(tmp_path):
    """The old file is there as long as it is used; copies of its columns need no file at all."""
    path = stored(tmp_path)
    dataset = load_dataset(path)
    digest, copied, pickled = (
        dataset.digest,
        copy.deepcopy(dataset),
        pickle.loads(pickle.dumps(dataset.store)),
    )
    save_dataset(dataset, tmp_path)
    assert dataset.describe().events == EVENTS
    path.unlink()
    assert Dataset.of("set", dataset.store.check_unchanged(), dataset.ids).digest == digest
    assert copied.store.source is None is pickled.source
    assert copied.describe() == dataset.describe()


def test_a_store_is_closed_with_its_last_user(tmp_path):
    """Stores opened one after another leave no file open."""
    path, open_files = stored(tmp_path), Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("this system does not list open files")
    before = len(list(open_files.iterdir()))
    for _ in range(5):
        load_dataset(path)
    assert len(list(open_files.iterdir())) == before


CHILD = """
import sys, pathlib, torch
from dygmamba.cli import main
from dygmamba.data import library
real = library.open_dataset
def opened(*words):
    dataset = real(*words)
    print("opened", flush=True)
    sys.stdin.readline()
    return dataset
library.open_dataset = opened
sys.argv = ["dygmamba", *sys.argv[1:]]
main()
"""


def test_a_command_whose_store_is_cut_ends_in_a_sentence(tmp_path):
    """Another process cuts the file between opening and use: exit code 2, one line, no signal."""
    path = stored(tmp_path)
    words = ["data", "describe", "set", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "opened\n"
        HARMS["cut"](path)
        out, err = child.communicate("\n", timeout=60)
    assert (child.returncode, out) == (2, "")
    assert err.startswith(f"error: {path} was ")
    assert err.count("\n") == 1


def test_what_is_mapped_by_name_is_what_was_opened(tmp_path):
    """A file put in its place between the two is noticed."""
    path = stored(tmp_path)
    source = MappedFile.of(path)
    source.check_name()
    os.replace(stored(tmp_path / "other"), path)
    with pytest.raises(FileError, match="was replaced while it was opened"):
        source.check_name()


def test_a_table_of_features_that_shrinks_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """DyGLib's features are mapped too, and read piece by piece."""
    path = tmp_path / "ml_x.npy"
    np.save(path, np.ones((5000, 16)))
    monkeypatch.setattr(jodie_dyglib, "COPY_ROWS", 100)
    real, calls = MappedFile.check, []

    def check(self):
        calls.append(1)
        if len(calls) == 3:
            os.truncate(path, 200)
        real(self)

    monkeypatch.setattr(MappedFile, "check", check)
    with pytest.raises(FileError, match="was cut short while it was in use"):
        jodie_dyglib._read_features(path, np.arange(5000))
