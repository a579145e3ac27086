"""The package imports and runs where POSIX is missing: what only POSIX has is guarded."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dygmamba
import windows_like

POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
POSIX_NAMES = {
    "os": {
        "fork",
        "getpgid",
        "killpg",
        "mkfifo",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "sync",
        "sysconf",
    },
    "signal": {"SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2"},
}
SOURCES = sorted(Path(dygmamba.__file__).parent.rglob("*.py"))


def find_unguarded(tree: ast.AST) -> list[str]:
    """What a module imports or reads that Windows does not have, unless it is prepared for that."""
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any("ImportError" in ast.unparse(h.type or node) for h in node.handlers)
        for part in node.body
        for inner in ast.walk(part)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in guarded:
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            found += sorted(map(str, names & POSIX_MODULES))
        elif isinstance(node, ast.Attribute) and node.attr in POSIX_NAMES.get(ast.unparse(node.value), ()):
            found.append(ast.unparse(node))
    return found


def test_what_only_posix_has_is_guarded():
    """For all modules: POSIX-only modules are imported under `except ImportError`, names read with `getattr`."""
    found = {path.name: find_unguarded(ast.parse(path.read_text("utf-8"))) for path in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line", ["import fcntl", "def f():\n    import resource", "os.kill(1, signal.SIGKILL)"]
)
def test_the_check_finds_an_unguarded_use(line):
    """A plain import or name is found; the same under `except ImportError` is not."""
    assert find_unguarded(ast.parse(line))
    assert not find_unguarded(ast.parse("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the simulation reads /proc")
def test_everything_works_on_a_simulated_windows(tmp_path):
    """Every module is imported, and a user trains, predicts, shares, follows events and serves, as on Windows."""
    environment = os.environ | {"PYTHONPATH": str(Path(windows_like.__file__).parent)}
    command = [sys.executable, "-X", "warn_default_encoding", windows_like.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_simulation_lacks_what_windows_lacks(tmp_path):
    """For all kinds of differences: the stand-ins have them."""
    modules = windows_like.make_stand_ins()
    for module, name in (("os", "fork"), ("os", "pread"), ("signal", "SIGKILL"), ("mmap", "MAP_PRIVATE")):
        assert not hasattr(modules[module], name)
        assert hasattr(modules[module].real_module, name)
    assert (modules["os"].name, modules["sys"].platform) == ("nt", "win32")
    with pytest.raises(OSError, match="incorrect"):
        windows_like.require_valid_name(tmp_path / "12:30")
    path = tmp_path / "used"
    path.touch()
    windows_like.require_unused(path)
    with path.open("rb"), pytest.raises(PermissionError):
        windows_like.require_unused(tmp_path)
