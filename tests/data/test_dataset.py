"""The dataset file: exact, complete or absent, and never trusted blindly."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import dygmamba as dm
from dygmamba.core.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.core.files import writing
from dygmamba.core.files.writing import Disk
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage import dataset as store_module
from dygmamba.data.storage import locations
from dygmamba.data.storage.dataset import Dataset, Origin, load_dataset, save_dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.data.storage.locations import data_folder, data_folders, find_dataset_files
from raising import raises
from strategies import event_streams


def small(name: str = "small") -> Dataset:
    store = EventStore.from_columns(
        torch.tensor([0, 1, 0]),
        torch.tensor([2, 2, 2]),
        torch.tensor([1.5, 1.5, 1.7e9 + 1e-6]),
        features=FeatureTable(torch.tensor([[0.5], [-0.0], [2.0]]), torch.tensor([[1.0, 2.0]] * 3)),
        label=torch.tensor([0.0, 1.0, 0.0]),
        bipartite=True,
    )
    ids = NodeIds(pa.array(["ann", "", "ann"], pa.large_string()), 2)
    origin = Origin(
        "log.csv", "csv", "who", "whom", "when", "bad", ("a", "b"), "s", "1970-01-01T00:00:00Z", 3
    )
    return Dataset.from_events(name, store, ids, origin)


def assert_same(left: Dataset, right: Dataset) -> None:
    assert (left.name, left.ids, left.digest, left.origin) == (
        right.name,
        right.ids,
        right.digest,
        right.origin,
    )
    assert (left.store.num_nodes, left.store.bipartite) == (right.store.num_nodes, right.store.bipartite)
    for one, other in zip(columns(left), columns(right), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.numpy().tobytes() == other.numpy().tobytes()


def columns(dataset: Dataset) -> list[torch.Tensor]:
    store = dataset.store
    label = [] if store.label is None else [store.label]
    return [store.src, store.dst, store.time, store.features.edge, store.features.node, *label]


@given(
    stream=event_streams(edge_dim=2),
    names=st.sets(st.text(max_size=3), min_size=8, max_size=8),
    textual=st.booleans(),
    labelled=st.booleans(),
)
def test_a_saved_dataset_comes_back_bit_for_bit(tmp_path_factory, stream, names, textual, labelled):
    """For all streams and ids: load(save(d)) = d."""
    nodes = stream.num_nodes
    ids = NodeIds(pa.array(sorted(names)[:nodes], pa.large_string())) if textual else NodeIds.identity(nodes)
    label = torch.arange(len(stream), dtype=torch.float32) if labelled else None
    stream = EventStore.from_columns(
        stream.src, stream.dst, stream.time, features=stream.features, num_nodes=nodes, label=label
    )
    dataset = Dataset.from_events("any", stream, ids)
    assert_same(load_dataset(save_dataset(dataset, tmp_path_factory.mktemp("d"))), dataset)


def test_every_field_survives_and_loading_copies_nothing(tmp_path):
    """Bipartite ids, labels, both feature tables and the origin survive; the columns are mapped pages."""
    dataset = small()
    path = save_dataset(dataset, tmp_path / "new" / "folder")
    loaded = load_dataset(path)
    assert_same(loaded, dataset)
    assert "ids_source" not in load_file(path)  # sources that come first need no column
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()


def test_a_slice_with_shared_memory_can_be_saved(tmp_path):
    """A sub-stream whose columns are views, and whose ids are a slice, is saved like any other."""
    base = torch.arange(8).reshape(4, 2)
    store = EventStore.from_columns(base[:, 0], base[:, 0], torch.arange(4.0))[1:3]
    words = pa.array([f"n{k}" for k in range(20)], pa.large_string()).slice(5, store.num_nodes)
    dataset = Dataset.from_events("part", store, NodeIds(words))
    assert_same(load_dataset(save_dataset(dataset, tmp_path)), dataset)


def test_the_digest_is_of_the_events_alone():
    """Equal events have equal digests whatever they are called; any changed value changes it."""
    one, two = small("one"), small("two")
    assert one.digest == two.digest
    src, dst, time, *_, label = (column.clone() for column in columns(one))
    label[0] = 2
    other = EventStore.from_columns(src, dst, time, features=one.store.features, label=label)
    assert Dataset.from_events("one", other, NodeIds.identity(3)).digest != one.digest


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch, error):
    """Interrupted or out of space: the folder is as it was."""
    path = save_dataset(small(), tmp_path)
    before = path.read_bytes()

    class Broken(Disk):
        def write(self, handle, chunk):
            super().write(handle, chunk[:4])
            raise error

    monkeypatch.setattr(writing, "disk", Broken())
    with pytest.raises((KeyboardInterrupt, FileError)):
        save_dataset(small(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_damaged_file_is_refused(tmp_path):
    """Truncated, random, missing, or a folder: a FileError and nothing else."""
    path = save_dataset(small(), tmp_path)
    good = path.read_bytes()
    for cut in (0, 4, 40, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with raises("file-damaged", FileError):
            load_dataset(path)
    path.write_bytes(os.urandom(500))
    with raises("file-damaged", FileError):
        load_dataset(path)
    for path, code in ((tmp_path / "none.safetensors", "file-missing"), (tmp_path, "is-a-folder")):
        with raises(code, FileError):
            load_dataset(path)


@pytest.mark.parametrize("mask", [1, 128, 129])
def test_no_flipped_bit_goes_unnoticed(tmp_path, mask):
    """For every third byte of the file: changed, they are a FileError, or were spare and change nothing."""
    path = save_dataset(small(), tmp_path)
    good = path.read_bytes()
    spared = 0
    for at in range(mask % 3, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
        try:
            assert_same(load_dataset(path), small())
            spared += 1
        except FileError:
            pass
    assert spared < 16


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format": "weights"}, "not-a-dataset"),
        ({"version": "99"}, "unsupported-format-version"),
        ({"digest": "0"}, "file-damaged"),
        ({"ids_digest": "0"}, "file-damaged"),
        ({"about": {"sources": 77}}, "file-damaged"),
        ({"about": {"origin": {}}}, "file-damaged"),
        ({"about": {"origin": {"features": [], "colour": 1}}}, "file-damaged"),
    ],
)
def test_foreign_or_false_metadata_is_refused(tmp_path, change, code):
    """A safetensors file is a dataset only if it says so, in this version, and consistently."""
    path = save_dataset(small(), tmp_path)
    tensors, ids = load_file(path), store_module._get_id_columns(small().ids)
    facts = {"bipartite": True, "sources": 2, "origin": {"features": []}} | change.get("about", {})
    about = json.dumps(facts)
    good = {"format": "dygmamba-events", "version": "1", "digest": small().digest, "about": about}
    good |= {"ids_digest": store_module._hash_ids(ids, about)}
    save_file(tensors, path, good | change | {"about": about})
    with raises(code, FileError):
        load_dataset(path)


def test_ids_and_nodes_must_agree_and_names_must_be_file_names(tmp_path):
    """One id per node; no name climbs out of the folder."""
    with raises("id-count", EventError):
        Dataset.from_events("x", small().store, NodeIds.identity(4))
    for name in ("../up", "a/b", "", ".hidden", "-x", "a b"):
        with raises("invalid-dataset-name", ConfigError):
            save_dataset(small(name), tmp_path)


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    """--data-dir before $DYGMAMBA_DATA before the user's data folder; the first of them is written to."""
    given_dir, chosen, home = tmp_path / "given", tmp_path / "chosen", tmp_path / "home" / "dygmamba"
    former = tmp_path / "cache" / "dygmamba"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DYGMAMBA_DATA", raising=False)
    assert data_folders() == [home, former]
    monkeypatch.setenv("DYGMAMBA_DATA", str(chosen))
    assert data_folders(given_dir) == [given_dir, chosen, home, former]
    assert (data_folder(given_dir), data_folder()) == (given_dir, chosen)
    for folder, name in ((home, "one"), (chosen, "one"), (home, "two")):
        save_dataset(small(name), folder)
    (chosen / "one.safetensors").write_bytes(b"")
    with raises("file-damaged", FileError) as caught:
        open_dataset("one")
    assert str(chosen) in str(caught.value)
    assert open_dataset("two").name == "two"
    assert open_dataset(str(home / "one.safetensors")).name == "one"
    assert dict(find_dataset_files(home)).keys() == {"one", "two"}


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", "HOME", ".local/share"),
        ("darwin", "HOME", "Library/Application Support"),
        ("win32", "LOCALAPPDATA", "."),
    ],
)
def test_datasets_are_saved_where_nobody_cleans_up(tmp_path, monkeypatch, platform, variable, place):
    """New ones go to the data folder of the platform, not to the cache; those in the cache are found and removed."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "DYGMAMBA_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(locations, "sys", SimpleNamespace(platform=platform))
    former = tmp_path / ".cache" / "dygmamba"
    old = save_dataset(small("mail"), former)
    assert open_dataset("mail").name == "mail"
    assert dm.save(dm.read([("ann", "bob", 1)], name="mail")).parent == tmp_path / place / "dygmamba"
    assert len(open_dataset("mail")) == 1
    version = load_dataset(old).version
    assert [Path(path).parent for path in dm.datasets()["path"].to_pylist()] == [data_folder(), former]
    assert open_dataset(f"mail@{version}").version == version
    assert dm.remove(f"mail@{version}") == [f"mail@{version}"]
    assert len(dm.datasets()) == 1


def test_an_unknown_name_is_an_error_with_folders_and_hints(tmp_path, monkeypatch):
    """The error names the folders, close names and both ways to get data; tables point at the import."""
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    save_dataset(small("Wikipedia"), tmp_path)
    with raises("unknown-dataset", NotFoundError) as caught:
        open_dataset("wikipedai")
    for words in (str(tmp_path), "did you mean Wikipedia", "dygmamba.read('FILE')"):
        assert words in str(caught.value)
    table = tmp_path / "log.csv"
    table.write_text("a,b,c\n1,2,3\n")
    with raises("column-not-recognized", FileError) as caught:
        open_dataset(str(table))
    assert f"dygmamba.read('{table}')" in str(caught.value)
    with raises("file-missing", FileError):
        open_dataset(str(tmp_path / "none.npz"))
    with raises("is-a-folder", FileError):
        open_dataset(str(tmp_path))
