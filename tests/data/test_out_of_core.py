"""Data larger than memory: what is sorted, numbered and looked up on the disk is, bit for bit, what memory gives."""

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dygmamba.core.errors import FileError, WriteError
from dygmamba.core.files import writing
from dygmamba.data.events.anomalies import find_anomalies
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream, simulate, simulate_in_blocks
from dygmamba.data.readers import ReadOptions, columnar, delimited, read_dataset
from dygmamba.data.readers.collect import RowCollector
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.mapped_columns import ScratchColumn, merge_sorted_runs
from raising import raises

TINY = 20_000  # bytes: a few dozen rows at a time


def table(ids: str, order: str, rows: int = 900) -> dict[str, np.ndarray]:
    """Events with ties in every run and across runs, features, labels and ids of a kind."""
    rng = np.random.default_rng(7)
    time = np.sort(rng.integers(0, rows // 4, rows)).astype(float)
    time = {"sorted": time, "shuffled": rng.permutation(time), "tied": np.where(time > 40, 41.0, time)[::-1]}[
        order
    ]
    names = {
        "integers": np.array([f"{k}" for k in rng.permutation(10**6)[:60]]),
        "strings": np.array([f"node {k} \u00e4" for k in range(60)]),
        "pointed": np.array([f"{k}.0" if k % 2 else f"{k}" for k in range(60)]),
    }[ids]
    src, dst = names[rng.integers(0, 60, rows)], names[rng.integers(0, 60, rows)]
    return {
        "src": src,
        "dst": dst,
        "time": time,
        "x": rng.standard_normal(rows),
        "y": rng.integers(0, 2, rows),
    }


def written(folder, columns, kind):
    if kind == "parquet":
        parquet.write_table(pa.table(columns), folder / "t.parquet")
        return folder / "t.parquet"
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


@pytest.fixture
def small_blocks(monkeypatch):
    """Files of a few kilobytes come in many blocks."""
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(columnar, "BATCH_ROWS", 50)


@pytest.mark.parametrize("order", ["sorted", "shuffled", "tied"])
@pytest.mark.parametrize(("ids", "kind"), [("integers", "csv"), ("strings", "parquet"), ("pointed", "csv")])
def test_the_store_is_byte_identical(tmp_path, small_blocks, ids, kind, order):
    """For all orders and ids: imported some dozen rows at a time, it has the same bytes and is odd alike."""
    path = written(tmp_path, table(ids, order), kind)
    options = ReadOptions(features=("x",), label="y", bipartite=ids == "strings")
    memory = read_dataset(path, options)
    disk = read_dataset(path, replace(options, memory=TINY, scratch=tmp_path / "room"))
    files = [save_dataset(one, tmp_path / name).read_bytes() for one, name in ((memory, "a"), (disk, "b"))]
    assert files[0] == files[1]
    assert disk.origin == memory.origin
    assert (disk.origin.out_of_order > 0) == (order != "sorted")
    assert find_anomalies(disk) == find_anomalies(memory)
    assert not list((tmp_path / "room").iterdir())  # nothing there has a name
    assert load_dataset(tmp_path / "b" / "t.safetensors").digest == memory.digest


def test_bad_rows_are_counted_alike(tmp_path, small_blocks):
    """Rows that are left out, and rows that are refused, are those of the way through memory."""
    columns = {name: column.astype(object) for name, column in table("integers", "shuffled").items()}
    columns["time"][[3, 400, 401, 899]] = "never"
    path = written(tmp_path, columns, "csv")
    both = [ReadOptions(memory=size, scratch=tmp_path / "room") for size in (10**9, TINY)]
    sentences = []
    for options in both:
        with pytest.raises(FileError) as caught:
            read_dataset(path, options)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    memory, disk = (read_dataset(path, replace(options, skip_bad=True)) for options in both)
    assert memory.content == disk.content
    assert memory.origin == disk.origin
    assert memory.origin.skipped == 4


def test_a_parquet_file_is_held_a_part_at_a_time(tmp_path):
    """However many parts it has, what Arrow holds while it is read is that of a few."""
    size = 20_000
    columns = {name: np.random.default_rng(1).integers(0, 50, 40 * size) for name in ("src", "dst", "time")}
    columns["x"] = np.random.default_rng(2).standard_normal(40 * size)
    path = tmp_path / "t.parquet"
    parquet.write_table(
        pa.table(columns), path, row_group_size=size, use_dictionary=False, compression="none"
    )
    held = []

    def watch(batches, expected):
        for batch in batches:
            held.append(pa.total_allocated_bytes())
            yield batch

    options = ReadOptions(
        features=("x",), memory=TINY * 100, scratch=tmp_path, time_unit="plain", watch=watch
    )
    before = pa.total_allocated_bytes()
    assert len(read_dataset(path, options)) == 40 * size
    assert max(held) - before < 0.7 * path.stat().st_size


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(1, 40)
)
def test_runs_are_merged_stably(runs, most):
    """For all runs and however few rows are looked at: the stable sort of all, never more than `most`."""
    times = [np.sort(np.array(run, float)) for run in runs]
    scratch = ScratchColumn(Path(gettempdir()), np.float64)
    for run in times:
        scratch.append(run)
    row = np.arange(len(scratch))
    found = []
    for parts, order in merge_sorted_runs(
        scratch, [0, *np.cumsum([len(run) for run in times]).tolist()], most
    ):
        rows = np.concatenate([row[a:b] for a, b in parts])
        assert len(rows) <= max(most, len(times))
        found.append(rows if order is None else rows[order])
    assert np.array_equal(np.concatenate(found), np.argsort(np.concatenate(times), kind="stable"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 2000),
)
def test_batches_are_sorted_stably_on_the_disk(batches, memory):
    """For all batches and however little memory there is: the stable sort of all rows, with their numbers."""
    collector = RowCollector(ReadOptions(memory=memory), keep_rows=True)
    for batch in batches:
        ids = pa.array([f"{k}" for k in batch]).dictionary_encode()
        none = np.zeros((len(batch), 0), np.float32)
        columns = {"time": np.array(batch, float), "edge": none, "codes": none.astype(np.int32)}
        collector.add({"src": ids, "dst": ids, **columns})
    columns, _ = collector.finish()
    time = np.concatenate(batches).astype(float)
    order = np.arange(len(time)) if columns.out_of_order is None else np.argsort(time, kind="stable")
    assert np.array_equal(columns.time, time[order])
    assert np.array_equal(columns.src, np.unique(time, return_inverse=True)[1][order])
    if columns.row is not None:
        assert np.array_equal(columns.row, order)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, small_blocks, monkeypatch):
    """Whichever write fails, the scratch folder is empty and no store is there."""

    class Full(type(writing.disk)):
        left = 0

        def write(self, handle, piece):
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device")
            return super().write(handle, piece)

    path = written(tmp_path, table("integers", "shuffled"), "csv")
    options = ReadOptions(memory=TINY, scratch=tmp_path / "room")
    for writes in (0, 7, 60):
        full = Full()
        full.left = writes
        monkeypatch.setattr(writing, "disk", full)
        with raises("write-failed", WriteError):
            save_dataset(read_dataset(path, options), tmp_path / "out")
        assert not list((tmp_path / "room").iterdir())
        assert not (tmp_path / "out").exists()


def test_a_generated_stream_is_the_same_made_on_the_disk(tmp_path, monkeypatch):
    """For all sizes of the runs it is made in: the same bytes, hidden causes and features included."""
    config = GeneratorConfig(nodes=60, events=701, communities=3, edge_dim=2, ties=0.2, drift=1e-4)
    whole, store = simulate(config), generate_stream(config)
    for size in (5, 350):
        runs = [np.concatenate(columns) for columns in zip(*simulate_in_blocks(config, size), strict=True)]
        assert all(np.array_equal(a, b) for a, b in zip(runs, whole, strict=True))
    monkeypatch.setattr("dygmamba.data.generate.stream.DEFAULT_BUDGET", 0)
    disk = generate_stream(config, tmp_path / "not" / "there")
    assert (
        Dataset.from_events("a", disk, NodeIds.identity(60)).digest
        == Dataset.from_events("a", store, NodeIds.identity(60)).digest
    )
