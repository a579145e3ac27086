"""A file modified while it is mapped is an error: no signal, no wrong data."""

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
from dygmamba.data.readers.numpy_files import load_matrix
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.engine.stream import Stream
from dygmamba.history.view import NeighborRequest, PairBatch
from raising import raises

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
    store = EventStore.from_columns(count % 10, count % 7, count.double(), features=features, num_nodes=10)
    return save_dataset(Dataset.from_events("set", store, NodeIds.identity(10)), folder)


def asked() -> PairBatch:
    node = torch.tensor([1, 2])
    return PairBatch.from_pairs(node, node + 1, torch.tensor([9000.0, 9000.0], dtype=torch.float64))


@pytest.mark.parametrize("harm", HARMS)
def test_a_modified_file_is_not_read_any_more(tmp_path, harm):
    """For all modifications and all uses: an error."""
    path = stored(tmp_path)
    dataset = load_dataset(path)
    stream = Stream(dataset.store, chronological_split(dataset.store), torch.device("cpu"))
    HARMS[harm](path)
    for use in USES.values():
        with raises("file-modified", FileError):
            use(dataset, stream)
    assert len(dataset.ids.to_user(np.arange(10))) == 10  # the ids are this process's own


def test_a_replaced_or_removed_file_stays_usable(tmp_path):
    """The old content stays as long as it is mapped; copies of the columns need no file at all."""
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
    assert Dataset.from_events("set", dataset.store.check_unchanged(), dataset.ids).digest == digest
    assert copied.store.source is None is pickled.source
    assert copied.describe() == dataset.describe()


def test_a_file_is_closed_with_its_last_user(tmp_path):
    """Datasets opened one after another leave no file open."""
    path, open_files = stored(tmp_path), Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("this system does not list open files")
    before = len(list(open_files.iterdir()))
    for _ in range(5):
        load_dataset(path)
    assert len(list(open_files.iterdir())) <= before  # sockets of other tests may close meanwhile


CHILD = """
import sys, pathlib, torch
from dygmamba.cli import main
from dygmamba.data.storage import library
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


@pytest.mark.slow
def test_a_command_whose_file_is_truncated_ends_with_an_error(tmp_path):
    """Another process truncates the file between opening and use: exit code 2, one line, no signal."""
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


def test_a_file_replaced_between_opening_and_mapping_is_noticed(tmp_path):
    path = stored(tmp_path)
    source = MappedFile.open(path)
    source.check_name()
    os.replace(stored(tmp_path / "other"), path)
    with raises("file-replaced", FileError):
        source.check_name()


def test_a_table_of_features_that_shrinks_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Features of published formats are not mapped: a file cut between its header and its values is an error."""
    path = tmp_path / "ml_x.npy"
    np.save(path, np.ones((5000, 16)))
    real = np.lib.format.read_array

    def read(file, **options):
        os.truncate(path, 200)
        return real(file, **options)

    monkeypatch.setattr(np.lib.format, "read_array", read)
    with raises("file-damaged", FileError):
        load_matrix(path)
