"""Disk index: equal to the index in memory, written once, and rewritten if it is damaged."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from dygmamba.core.errors import FileError, WriteError
from dygmamba.core.files import writing
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.library import read_version, remove_version
from dygmamba.data.storage.locations import INDEX_FOLDER
from dygmamba.history import disk_index
from dygmamba.history.block_lists import SortedKeys
from dygmamba.history.counts import CountFeatures
from dygmamba.history.draws import Draws
from dygmamba.history.index import STRATEGIES, Index
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.ops.key_slots import KeySlots
from dygmamba.ops.recent_neighbors.counting_sort import split_nodes
from raising import raises

EVENTS = 3_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    store = generate_stream(GeneratorConfig(nodes=60, events=EVENTS, communities=3, ties=0.3, edge_dim=2))
    return save_dataset(
        Dataset.from_events("large", store, NodeIds.identity(60)), tmp_path_factory.mktemp("data")
    )


@pytest.fixture
def on_disk(monkeypatch):
    """Limits such that a few hundred entries count as many."""
    for name in ("MAX_ENTRY_BYTES", "MAX_COPIED_BYTES"):
        monkeypatch.setattr(disk_index, name, 16 * 400)
    monkeypatch.setattr(
        disk_index,
        "iterate_slices",
        lambda rows, width: (slice(k, min(k + 700, rows)) for k in range(0, rows, 700)),
    )


def subsets():
    some = torch.arange(EVENTS)[torch.arange(EVENTS) % 3 != 1]
    return {"all": None, "first": torch.arange(2_000), "some": some}


@pytest.mark.parametrize("which", subsets())
def test_disk_index_equals_memory_index(path, which, on_disk, monkeypatch):
    """For all strategies and sets of events: the same neighbors and entries, bit for bit."""
    store, events = load_dataset(path).store, subsets()[which]
    disk = Index(store, events)
    with monkeypatch.context() as small:
        small.setattr(disk_index, "MAX_COPIED_BYTES", 10**9)
        memory = Index(store, events)
    assert disk.source is not None
    assert memory.source is None
    for name in ("start", "size", "neighbor", "event", "time"):
        assert torch.equal(getattr(disk.entries, name), getattr(memory.entries, name))
    rng = torch.Generator().manual_seed(1)
    node = torch.randint(-1, 60, (200,), generator=rng)
    when = store.time[torch.randint(0, EVENTS, (200,), generator=rng)]
    for strategy in STRATEGIES:
        request = NeighborRequest((5, 2), strategy, 1e-5)
        both = [index.gather(request, node, when, Draws.from_seed(0, 0)) for index in (disk, memory)]
        for one, other in zip(*both, strict=True):
            assert torch.equal(one.node, other.node)
            assert torch.equal(one.event, other.event)
            assert torch.equal(one.time, other.time)


@pytest.mark.parametrize("which", ["all", "some"])
def test_disk_counts_equal_memory_counts(path, which, on_disk, monkeypatch):
    """For all kinds of groups: decayed counts, numbers of events, ages and neighbor features, bit for bit."""
    monkeypatch.setattr(disk_index, "DEFAULT_BUDGET", 8 * 16 * 7 * 500)  # some hundred entries at a time
    store, events = load_dataset(path).store, subsets()[which]
    loops = torch.arange(0, EVENTS, 50)
    dst = store.dst.clone()  # the column of a file is read-only
    dst[loops] = store.src[loops]  # self-loops are one event of their node
    store = replace(store, dst=dst, source=None)
    disk = Index(store, events)
    with monkeypatch.context() as small:
        small.setattr(disk_index, "MAX_ENTRY_BYTES", 10**9)
        memory, other = Index(store, events), Index(store, events)
    rng = torch.Generator().manual_seed(2)
    src, dst = (torch.randint(0, 60, (300,), generator=rng) for _ in range(2))
    when = store.time[torch.randint(0, EVENTS, (300,), generator=rng)]
    request = CountFeatures((1e3, 1e5, 1e7), 4)
    both = [index.compute_features(request, PairBatch.from_pairs(src, dst, when)) for index in (disk, memory)]
    assert torch.equal(*both)
    assert float(both[0].abs().sum()) > 0
    assert isinstance(disk.counts(request.scales).groups["pair"].slots, SortedKeys)
    monkeypatch.setattr(
        disk_index, "MAX_COUNT_BYTES", 0
    )  # the counts of an index in memory may be too large too
    there = other.compute_features(request, PairBatch.from_pairs(src, dst, when))
    assert torch.equal(there, both[0])
    assert isinstance(memory.counts(request.scales).groups["pair"].slots, KeySlots)
    followed = [
        index.compute_features(TransitionFeatures(request.scales), PairBatch.from_pairs(src, dst, when))
        for index in (disk, memory)
    ]
    assert torch.equal(*followed)


def test_the_index_file_is_reused_and_rewritten_when_damaged(path, on_disk, monkeypatch):
    """A second process reuses the file; one flipped bit and it is rewritten; another store has its own."""
    store = load_dataset(path).store
    Index(store)
    folder = path.parent / INDEX_FOLDER
    made = []
    real = disk_index._write_entries
    monkeypatch.setattr(
        disk_index, "_write_entries", lambda path, *rest: (made.append(path), real(path, *rest))
    )
    Index(store)
    assert made == []
    for one in folder.iterdir():
        content = bytearray(one.read_bytes())
        content[-5] ^= 1
        one.write_bytes(content)
    good = Index(store)
    assert len(made) == 1
    assert torch.equal(good.entries.time.sort().values, store.time.repeat_interleave(2))
    Index(store[:2_500])
    assert len(made) == 2  # a part of a store is not the store
    assert made[1].parent != folder
    with good.source.path.open("r+b") as other:
        other.truncate(100)
    with raises("file-modified", FileError):
        good.recent(torch.tensor([1]), torch.tensor([1e10], dtype=torch.float64), 3)


def test_processes_that_start_together_share_one_file(path, monkeypatch, tmp_path):
    """For indexes that would fit into memory, too: the first one writes the file, the others wait and map it."""
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(disk_index, "MAX_COPIED_BYTES", 16 * 400)
    with ThreadPoolExecutor(4) as threads:
        indexes = list(threads.map(lambda _: Index(load_dataset(copy).store), range(4)))
    (file,) = (tmp_path / INDEX_FOLDER).iterdir()
    assert {index.source.opened.st_ino for index in indexes} == {file.stat().st_ino}
    store = replace(load_dataset(copy).store, source=None)  # nobody can map what is in memory
    memory = Index(store)
    assert memory.source is None
    assert all(torch.equal(index.entries.time, memory.entries.time) for index in indexes)
    assert memory.counts((1e3,)).groups["pair"].slots.__class__ is KeySlots
    assert indexes[0].counts((1e3,)).groups["pair"].slots.__class__ is KeySlots  # counts fit into memory


def test_a_read_only_folder_gets_a_temporary_index(path, on_disk, monkeypatch, tmp_path):
    """The index is built in an anonymous temporary file and works."""
    store = load_dataset(path).store
    real = disk_index._write_entries

    def refused(target, *rest):
        if target.parent.name == INDEX_FOLDER:
            raise disk_index.WriteError("cannot write")
        real(target, *rest)

    monkeypatch.setattr(disk_index, "_write_entries", refused)
    monkeypatch.setattr(disk_index, "gettempdir", lambda: str(tmp_path))
    for file in (path.parent / INDEX_FOLDER).glob("*"):
        file.unlink()
    index = Index(store)
    assert len(index.entries.time) == 2 * EVENTS
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_and_leaves_no_index(path, on_disk, monkeypatch, tmp_path):
    """Whichever write fails, beside the dataset or in the temporary folder."""
    copy = tmp_path / "data" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    store = load_dataset(copy).store
    monkeypatch.setattr(disk_index, "gettempdir", lambda: str(tmp_path / "data"))
    for writes in (0, 3, 12):

        class Full(type(writing.disk)):
            left = writes

            def write(self, handle, piece):
                Full.left -= 1
                if Full.left < 0:
                    raise OSError(28, "No space left on device")
                return super().write(handle, piece)

        with monkeypatch.context() as failing:
            failing.setattr(writing, "disk", Full())
            with raises("write-failed", WriteError):
                Index(store)
        assert [one for one in copy.parent.rglob("*") if one.is_file()] == [copy]


def test_removing_a_dataset_removes_its_index(path, on_disk, tmp_path):
    """Removing the dataset removes its index."""
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    Index(load_dataset(copy).store)
    assert list((tmp_path / INDEX_FOLDER).iterdir())
    remove_version(read_version(copy))
    assert not list((tmp_path / INDEX_FOLDER).iterdir())


def test_node_ranges_cover_all_nodes_within_the_budget():
    """For all budgets: consecutive ranges; only a single node may exceed the budget."""
    start = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 9, 50))])
    for most in (1, 5, 40, 1000):
        runs = list(split_nodes(start, most))
        assert [low for low, _ in runs] == [0, *(high for _, high in runs[:-1])]
        assert runs[-1][1] == 50
        assert all(start[high] - start[low] <= most or high == low + 1 for low, high in runs)


def test_features_are_gathered_from_mapped_pages(path):
    """Features of a loaded store are mapped from its file, and a view does not copy the table."""
    from dygmamba.data.storage.mapped_columns import _maps
    from dygmamba.ops.rows import gather_rows

    store = load_dataset(path).store
    edge = store.features.edge
    inside = [start for start, pages in _maps.items() if start <= edge.data_ptr() < start + len(pages)]
    assert inside
    assert store.to("cpu").features.edge.data_ptr() == edge.data_ptr()
    row = torch.tensor([2_999, 0, 7])
    assert torch.equal(gather_rows(edge, row), edge.clone()[row])
