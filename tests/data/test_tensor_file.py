"""Tensor files: other programs can read them, and every changed bit of a sealed one is noticed."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from dygmamba.core.errors import FileError
from dygmamba.data.storage.tensor_file import (
    DTYPE_NAMES,
    DamagedFileError,
    TensorColumn,
    build_header,
    read_sealed_tensors,
    write_sealed_tensors,
    write_tensors,
)
from raising import raises


def every_kind() -> dict[str, torch.Tensor]:
    kinds = {str(kind): torch.tensor([[0, 1, 1]]).to(kind) for kind in DTYPE_NAMES}
    return kinds | {"none": torch.zeros(0, 3), "one": torch.tensor(2.5), "turned": torch.ones(2, 3).T}


def test_the_format_is_the_published_one(tmp_path):
    """For all kinds of numbers and shapes: the library reads what we write, names and letters included."""
    tensors, metadata = every_kind(), {"é": "\U0001f600\n"}
    for write in (write_tensors, write_sealed_tensors):
        write(tmp_path / "file", tensors, metadata)
        found = load_file(tmp_path / "file")
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert torch.equal(found[name], value)
        with safe_open(tmp_path / "file", "pt") as file:
            assert file.metadata().items() >= metadata.items()


def test_a_sealed_file_comes_back_or_is_refused(tmp_path):
    """For every bit of the file and every length: changed or cut there, it is damaged."""
    path = tmp_path / "file"
    write_sealed_tensors(path, {"a": torch.arange(5)}, {"k": "v"})
    tensors, metadata = read_sealed_tensors(path)
    assert torch.equal(tensors["a"], torch.arange(5))
    assert metadata["k"] == "v"
    good = path.read_bytes()
    cuts = [good[:cut] for cut in range(len(good))]
    flips = [
        good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :]
        for bit in range(8 * len(good))
    ]
    for bad in [*cuts, *flips, good + b"\0", save({"a": torch.arange(5)})]:
        path.write_bytes(bad)
        with raises("file-damaged", DamagedFileError):
            read_sealed_tensors(path)
    with raises("file-unreadable", FileError):
        read_sealed_tensors(tmp_path / "none")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a limit")
def test_mapped_tensors_do_not_count_as_memory(tmp_path):
    """A process whose data are limited, as the command line limits them, maps a file larger than that limit."""
    path, size = tmp_path / "large.safetensors", 1 << 32
    header = build_header([TensorColumn.reserve("x", torch.float64, (size // 8,))], {})
    path.write_bytes(header)
    os.truncate(path, len(header) + size)  # a hole
    code = (
        "import os, resource, sys; from pathlib import Path; "
        "from dygmamba.data.storage.tensor_file import map_tensors; "
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, resource.getrlimit(resource.RLIMIT_DATA)[1])); "
        "tensors, _ = map_tensors(Path(sys.argv[1]), os.open(sys.argv[1], os.O_RDONLY)); "
        "print(len(tensors['x']), float(tensors['x'][-1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(size // 8), "0.0"], done.stderr
