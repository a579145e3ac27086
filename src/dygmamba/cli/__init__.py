"""The `dygmamba` command: a command parses its arguments, calls `dygmamba.api`, prints the result, sets the exit code.

Heavy packages are imported only after the arguments of a command were checked.
"""

import gc
import json
import os
import sys
from contextlib import suppress

from dygmamba.cli.commands import app
from dygmamba.cli.messages import escape_text, translate_message
from dygmamba.core.errors import DygError, DygWarning
from dygmamba.core.files.writing import ADVICE, describe_os_error
from dygmamba.core.memory_budget import describe_shortage, get_memory_limit, is_out_of_memory
from dygmamba.core.process_settings import (
    collect_garbage_rarely,
    escape_unencodable_output,
    limit_process_memory,
    redirect_warnings,
    use_passive_wait_policy,
)

use_passive_wait_policy()  # before any command imports torch


def main() -> None:
    """Run the command line; a mistake of the user is one sentence on stderr and exit code 2.

    With --json the error is also printed as an object on stdout. Ctrl-C reaches typer first, which prints "Aborted" and
    exits with 130; files are written atomically anyway.
    """
    check_output_streams()
    redirect_warnings(DygWarning, lambda text: print_error(f"note: {translate_message(text)}"))
    escape_unencodable_output()
    limit_process_memory(get_memory_limit())
    try:
        app()
    except DygError as error:
        _exit_with_error(translate_message(error), error.code, error.exit_code)
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        _exit_with_error(describe_shortage(error), "out-of-memory")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        _exit_with_error(describe_os_error(error), "disk-error")


def _exit_with_error(message: str, code: str, exit_code: int = 2) -> None:
    print_error(f"error: {message}")
    if "--json" in sys.argv:
        with suppress(OSError):  # stdout may be what failed
            sys.stdout.write(json.dumps({"error": {"code": code, "message": message}}) + "\n")
            sys.stdout.flush()
    sys.exit(exit_code)


def check_output_streams() -> None:
    """Exit with an error if stdout is closed: files that are opened later would take its place; ignore stderr."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        print_error("error: stdout is closed; redirect it to a file or to /dev/null")
        sys.exit(2)


def command() -> None:
    """Run `main` as a whole process, whose exit code nothing may change after an error.

    Threads of other packages, such as Arrow's readers, may still run, and abort if the interpreter ends under them.
    """
    collect_garbage_rarely()
    try:
        main()
    except SystemExit as left:
        gc.disable()  # the interpreter would look through everything once more before it ends
        if left.code in (None, 0):
            raise
        with suppress(OSError, ValueError):  # nobody reads any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(left.code if isinstance(left.code, int) else 1)


def print_error(text: str) -> None:
    """Print a line on stderr with its control characters escaped."""
    sys.stderr.write(f"{escape_text(text)}\n")
