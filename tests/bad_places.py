"""Commands one after another in one process, which may have few rights; what each said, as JSON.

Run as a script, with JSON on stdin: a size, commands, and further commands that may write no file beyond that size.
"""

import io
import json
import os
import resource
import shutil
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

import pytest

from dygmamba.cli import main


def said(words: list[str]) -> list:
    """Exit code (None: it broke), stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv, code = ["dygmamba", *words], None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
        except BaseException:  # what no user should ever see
            traceback.print_exc()
    return [code, out.getvalue(), err.getvalue()]


def without_rights() -> tuple[str, ...]:
    """What takes the superuser's right to write anywhere; nobody else has it."""
    if os.getuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("the superuser may write anywhere, and there is no setpriv to take that right")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


if __name__ == "__main__":
    limit, few, small = json.load(sys.stdin)
    answers = [[said(words) for words in few]]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    answers.append([said(words) for words in small])
    sys.stdout.write(json.dumps(answers))
