"""The package imports and runs where POSIX is missing: what only POSIX has is guarded."""

import ast
from pathlib import Path

import pytest

import dygmamba

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
