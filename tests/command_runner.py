"""Run command lines one after another in a process of their own, and report how each ended.

As a script it reads a request from stdin and writes the answers to stdout, both as JSON. The process may have few
rights, a limit on the size of the files that it writes, and packages that it must not import.
"""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

HEAVY = ("torch", "pyarrow", "numba", "pandas", "optuna")


class Answer(NamedTuple):
    """How a command line ended; `exit_code` is None after an exception that no user should see."""

    exit_code: int | None
    code: str | None  # of the error
    out: str
    err: str
    imports: list[str]  # attempts to import what must not be imported

    @property
    def is_one_sentence(self) -> bool:
        """Whether it is exit code 2, one line on stderr, nothing on stdout and no import that was forbidden."""
        is_error = self.err.startswith("error: ") and self.err.count("\n") == 1
        return (self.exit_code, self.out, self.imports) == (2, "", []) and is_error


def run_lines(
    lines: Iterable[Sequence[str]],
    folder: Path,
    *,
    forbidden: Sequence[str] = (),
    file_limit: int | None = None,
    has_rights: bool = True,
    environment: dict[str, str] | None = None,
) -> list[Answer]:
    """Run the lines in `folder`, which is also where datasets are looked for."""
    request = {"lines": [list(map(str, line)) for line in lines], "forbidden": forbidden, "limit": file_limit}
    variables = {"DYGMAMBA_DATA": str(folder), "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        [*(() if has_rights else drop_rights()), sys.executable, __file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | variables | (environment or {}),
    )
    assert done.returncode == 0, done.stderr
    return [Answer(*answer) for answer in json.loads(done.stdout)]


def drop_rights() -> tuple[str, ...]:
    """Return the command that takes the superuser's right to read and write anywhere; nobody else has it."""
    import pytest

    if os.getuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("the superuser may write anywhere, and there is no setpriv to take that right")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


class ImportGuard:
    """Refuse and record the import of some packages."""

    def __init__(self, forbidden: Sequence[str]) -> None:
        self.forbidden, self.seen = forbidden, []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.forbidden:
            self.seen.append(name)
            raise ImportError(f"{name} must not be imported")


def run_line(words: list[str], guard: ImportGuard) -> Answer:
    from dygmamba.cli import main

    out, err = io.StringIO(), io.StringIO()
    sys.argv, guard.seen = ["dygmamba", *words], []
    exit_code = error = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            exit_code, error = int(left.code or 0), left.__context__
        except BaseException:
            traceback.print_exc()
    return Answer(exit_code, getattr(error, "code", None), out.getvalue(), err.getvalue(), guard.seen)


if __name__ == "__main__":
    request = json.load(sys.stdin)
    guard = ImportGuard(request["forbidden"])
    sys.meta_path.insert(0, guard)
    if request["limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    sys.stdout.write(json.dumps([run_line(words, guard) for words in request["lines"]]))
