"""The command line, in a process of its own or in this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dygmamba.cli import main


def run(*words: str, folder: Path) -> subprocess.CompletedProcess:
    """The command in a process of its own, its datasets in `folder`."""
    environment = os.environ | {"DYGMAMBA_DATA": str(folder), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-m", "dygmamba", "data", *words], capture_output=True, text=True, env=environment
    )


def call(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    """`dygmamba data` in this process: exit code, stdout, stderr."""
    return invoke(monkeypatch, capsys, "data", *words)


def invoke(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    """The same entry point in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["dygmamba", *words])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def fail(monkeypatch, capsys, *words: object) -> tuple[str, str]:
    """The same for a command that ends with exit code 2: the code of its error, stderr."""
    monkeypatch.setattr(sys, "argv", ["dygmamba", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert (left.value.code, captured.out) == (2, ""), captured
    return getattr(left.value.__context__, "code", ""), captured.err


def error_code(out: str) -> str:
    """The code of the error that a command with --json printed on stdout."""
    return json.loads(out)["error"]["code"]
