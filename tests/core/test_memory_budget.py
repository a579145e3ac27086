"""Memory: what would take more than there is is one sentence, before it is made or when it is asked for."""

import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

from dygmamba.cli import main
from dygmamba.core import memory_budget
from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import (
    describe_shortage,
    get_free_memory,
    is_out_of_memory,
    limit_tensor_memory,
    require_memory,
)
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.runs.link_training import start_link_run
from raising import raises
from torture_cases import CPU, tiny_dataset


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"width": 100_000}, "width=100000"),
        ({"out": 100_000, "width": 20_000}, "width=20000, out=100000"),
        ({"expand": 100, "width": 10_000}, "width=10000, expand=100"),
    ],
)
def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(settings, named, tmp_path, monkeypatch):
    """The sentence names the settings; no run folder is left, and nothing was allocated."""
    monkeypatch.setattr(memory_budget, "get_free_memory", lambda: 8 * 10**9)
    with raises("out-of-memory", ConfigError) as error:
        start_link_run(tiny_dataset(tmp_path), "dyg-mamba", 0, settings, CPU, tmp_path / "runs")
    assert named in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_look_ups_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    """A legal length and a legal batch may be too much together."""
    monkeypatch.setattr(memory_budget, "get_free_memory", lambda: 8 * 10**9)
    with raises("out-of-memory", ConfigError):
        start_link_run(tiny_dataset(tmp_path), "dyg-mamba", 0, {"length": 10**6}, CPU, tmp_path / "runs")


def test_a_stream_larger_than_the_disk_is_refused(monkeypatch):
    """By what its columns take, before any of it is made."""
    free = shutil.disk_usage(".")._replace(free=8 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with raises("disk-too-small", ConfigError):
        generate_stream(GeneratorConfig(events=2**31 - 1))


def test_what_is_built_is_counted_whatever_makes_it(monkeypatch):
    """Parameters, buffers, and sizes given in any of torch's ways; what fits is as without the count."""
    monkeypatch.setattr(memory_budget, "get_free_memory", lambda: 4 * 10_000)
    torch.manual_seed(0)
    with limit_tensor_memory("it"):
        counted = nn.Linear(50, 50)
    torch.manual_seed(0)
    assert counted.weight.equal(nn.Linear(50, 50).weight)
    for make in (
        lambda: nn.Linear(101, 100),
        lambda: [nn.Linear(50, 50) for _ in range(5)],
        lambda: torch.zeros(101, 100),
        lambda: torch.ones(size=(101, 100)),
        lambda: nn.GRUCell(100, 100),
    ):
        with (
            raises("out-of-memory", ConfigError),
            limit_tensor_memory("it"),
        ):
            make()


def test_running_out_is_told_from_other_errors(monkeypatch, capsys):
    """Torch's, NumPy's and Python's own ways to say it; the command line makes a sentence of each."""
    asked = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 3000000000 bytes. Error 12"
    )
    assert is_out_of_memory(asked)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert "3.00 GB more were requested" in describe_shortage(asked)
    require_memory(1, "one byte")

    def out_of_memory():
        raise asked

    monkeypatch.setattr("dygmamba.cli.app", out_of_memory)
    monkeypatch.setattr("dygmamba.cli.limit_process_memory", lambda most: False)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("error: this needs more memory than there is (3.00 GB more")


def test_after_an_error_nothing_changes_the_exit_code():
    """Not even a library that aborts while the interpreter ends."""
    code = "import atexit, os, sys; atexit.register(os.abort); from dygmamba.cli import command; command()"
    found = subprocess.run(
        [sys.executable, "-c", code, "evaluate", "nothing-of-that-name"], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert found.stderr.startswith("error: there is no dataset")


def test_what_a_container_uses_is_not_free(tmp_path, monkeypatch):
    """Of its limit, without the pages of files, which the system can take back; without a limit, of the machine."""
    monkeypatch.setattr(memory_budget, "CONTAINER", tmp_path)
    machine = get_free_memory()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\nactive_file 100000\ninactive_file 150000\n")
    assert get_free_memory() == 550_000
    (tmp_path / "memory.current").write_text("2000000\n")
    assert get_free_memory() == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert get_free_memory() > machine // 2
