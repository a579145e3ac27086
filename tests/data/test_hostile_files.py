"""Files that crash, hang or fill the memory of a naive reader are errors of one sentence, within a second."""

import gzip
import io
import os
import random

import numpy as np
import pyarrow as pa
import pytest

from dygmamba.core.errors import DygError
from dygmamba.core.memory_budget import is_out_of_memory
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.data.readers.json_lines import scan_value
from dygmamba.data.readers.queries import read_ids
from raising import raises

EVENTS = b"src,dst,time\na,b,1\nc,d,2\n"
LINE = b'{"src": 1, "dst": 2, "time": 3}\n'


def arrow_file(compression: str | None, encode: bool) -> bytes:
    words = pa.array([f"user{k % 7}" for k in range(40)])
    table = pa.table(
        {"src": words.dictionary_encode() if encode else words, "dst": words, "time": np.arange(40.0)}
    )
    buffer = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(buffer, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=20)
    return buffer.getvalue()


@pytest.mark.parametrize(("compression", "encode"), [(None, False), (None, True), ("lz4", False)])
def test_a_flipped_bit_of_an_arrow_file_is_data_or_an_error(tmp_path, compression, encode):
    """For all bits: one in eleven of these crashed the process before batches were validated."""
    good, path, draw = arrow_file(compression, encode), tmp_path / "events.arrow", random.Random(0)
    results = set()
    for bit in draw.sample(range(8 * len(good)), 150):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        for read in (read_dataset, lambda file: read_ids(file, ReadOptions(), read_dataset(file).origin)):
            try:
                results.add(type(read(path)))
            except DygError as error:
                results.add(error.code)
    assert "file-damaged" in results


HOSTILE = {  # file name: content, options, code
    "wide.csv": (b",".join([b"1"] * 100_000) + b"\n", {}, "too-many-columns"),
    "long.jsonl.gz": (gzip.compress(LINE + b"x" * 6_000_000 + b"\n" + LINE), {}, "line-too-long"),
    "long.txt": (
        b"src dst time\n" + b"1 2 3\n" * 180_000 + b"x" * 9_000_000 + b"\n1 2 3\n",
        {},
        "line-too-long",
    ),
    "long.csv": (EVENTS + b"1,2,3\n" * 180_000 + b"\0" * 9_000_000, {}, "line-too-long"),
    "zeros.jsonl": (LINE + bytes(2_000_000), {}, "unsupported-file"),
    "half.jsonl": (b'{"src": "\\ud800", "dst": 2, "time": 3}\n', {}, "no-json-objects"),
    "later.jsonl": (LINE + b'{"src": "\\ud800", "dst": 2, "time": 3}\n', {}, "bad-rows"),
    "two.jsonl": (LINE + LINE.strip() + LINE, {}, "bad-rows"),
    "sixteen.jsonl": (LINE.decode().encode("utf-16"), {}, "wrong-encoding"),
    "not-sixteen.jsonl": (LINE, {"encoding": "utf-16"}, "wrong-encoding"),
    "not-sixteen.csv": (EVENTS, {"encoding": "utf-16-le"}, "wrong-encoding"),
    "rot13.csv": (EVENTS, {"encoding": "rot13"}, "unknown-encoding"),
    "punycode.jsonl": (LINE, {"encoding": "punycode"}, "unknown-encoding"),
    "hex.csv": (EVENTS, {"encoding": "hex"}, "unknown-encoding"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error(tmp_path, name):
    content, options, code = HOSTILE[name]
    path = tmp_path / name
    path.write_bytes(content)
    with raises(code):
        read_dataset(path, ReadOptions(**options))


def test_an_archive_of_a_later_version_is_an_error(tmp_path):
    """Python's zipfile refuses it with an error of its own, when the format is recognised."""
    path = tmp_path / "events.npz"
    np.savez(path, src=np.arange(3), dst=np.arange(3), t=np.arange(3))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 6] = 255  # the version that is needed to read the first member
    path.write_bytes(content)
    with raises("file-damaged"):
        read_dataset(path)


def test_an_archive_of_zeros_is_not_unpacked(tmp_path, monkeypatch):
    """A few kilobytes must not become gigabytes; here the limits are lowered instead of the archive enlarged."""
    monkeypatch.setattr("dygmamba.data.readers.numpy_files.MAX_UNPACKED_BYTES", 1 << 20)
    zeros, path = np.zeros(100_000, np.int64), tmp_path / "bomb.npz"
    np.savez_compressed(path, src=zeros, dst=zeros, t=zeros)
    with raises("unpacks-to-too-much"):
        read_dataset(path)


@pytest.mark.parametrize("name", ["events.csv", "tgbl-wiki_edgelist.csv", "ml_x.npy"])
def test_a_named_pipe_is_not_waited_for(tmp_path, name):
    """Given itself, as the table of a leaderboard folder, and as the features beside a table."""
    os.mkfifo(tmp_path / name)
    (tmp_path / "ml_x.csv").write_text(",u,i,ts,label,idx\n0,1,2,0.0,0,1\n")
    given = {"events.csv": "events.csv", "tgbl-wiki_edgelist.csv": ".", "ml_x.npy": "ml_x.csv"}[name]
    with raises("file-unreadable"):
        read_dataset(tmp_path / given)


def test_json_lines_are_read_in_blocks(tmp_path, monkeypatch):
    """Iterating over the raw file would call `readinto` for each byte."""
    monkeypatch.setattr("dygmamba.data.readers.text.NormalizedLines.readinto", None)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"src": "a", "dst": 9223372036854775808, "time": 1.50}\r\n\n' + LINE)
    dataset = read_dataset(path)
    assert dataset.ids.values.to_pylist() == ["1", "2", "9223372036854775808", "a"]
    assert scan_value('{"a": 1.50}', 0) == ({"a": "1.50"}, 11)


def test_a_library_that_does_not_fit_into_memory_is_a_shortage():
    """Under `ulimit -v` the import of torch fails."""
    assert is_out_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    assert not is_out_of_memory(ImportError("No module named 'torch'"))
