"""The `dygmamba` command: parse, call, exit code; heavy imports stay inside the commands."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dygmamba._version import __version__
from dygmamba.cli import data, data_files, evaluation, models, prediction, runs, studies, training
from dygmamba.cli.help_defaults import show_option_defaults
from dygmamba.cli.messages import escape_text, translate_message
from dygmamba.core.errors import DygError, DygWarning
from dygmamba.core.files.writing import ADVICE, describe_os_error
from dygmamba.core.memory_budget import describe_shortage, get_memory_limit, is_out_of_memory
from dygmamba.core.process_settings import (
    escape_unencodable_output,
    limit_process_memory,
    redirect_warnings,
    use_passive_wait_policy,
)

use_passive_wait_policy()


class Commands(TyperGroup):
    """The commands, and what typer says of a line it cannot read: as text, whatever was typed."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        """Reads the first words."""
        with _as_text():
            return super().make_context(*words, **more)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name, its help complete."""
        found = super().get_command(ctx, cmd_name)
        return None if found is None else show_option_defaults(found)

    def invoke(self, ctx: Any) -> Any:
        """Reads the others, and runs the command."""
        with _as_text():
            return super().invoke(ctx)


@contextmanager
def _as_text() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # an error of the click that typer brings; one of them is the help, for who typed nothing
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        said = " ".join(escape_text(error.format_message()).split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        more = "dygmamba" if context is None else context.command_path
        raise Misread(f"{said[:1].lower()}{said[1:]}; '{more} --help' shows what there is") from None


class Misread(DygError):
    """A line of words that is no command."""


app = typer.Typer(
    cls=Commands,
    name="dygmamba",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"dygmamba {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Learn from timestamped interactions: data, training, evaluation, predictions."""


data_app = typer.Typer(
    help="Import, fetch, generate, describe and export streams of events.", no_args_is_help=True
)
data_app.command("describe")(data.describe)
data_app.command("import")(data_files.import_dataset)
data_app.command("export")(data_files.export_dataset)
data_app.command("fetch")(data.fetch)
data_app.command("list")(data.list_datasets)
data_app.command("remove")(data.remove)
data_app.command("generate")(data.generate)
app.add_typer(data_app, name="data")
app.command("demo")(training.demo)
app.command("train")(training.train)
app.command("tune")(training.tune)
app.command("blend")(training.blend)
app.command("evaluate")(evaluation.evaluate)
app.command("audit")(evaluation.audit)
app.command("predict")(prediction.predict)
app.command("explain")(prediction.explain)
app.command("report")(runs.report)
app.command("export")(runs.export_model)
app.command("push")(runs.push)
app.command("pull")(runs.pull)
app.command("compare")(runs.compare)
app.command("reproduce")(studies.reproduce)
app.command("models")(models.models)
app.command("bench")(studies.bench)


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2.

    Ctrl-C reaches typer first, which says "Aborted" and exits with 130; files are written atomically anyway.
    """
    redirect_warnings(DygWarning, lambda said: print_error(f"note: {translate_message(said)}"))
    escape_unencodable_output()
    limit_process_memory(get_memory_limit())
    try:
        app()
    except DygError as error:
        print_error(f"error: {translate_message(error)}")
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print_error(f"error: {describe_shortage(error)}")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        print_error(f"error: {describe_os_error(error)}")
        sys.exit(2)


def command() -> None:
    """`main` as a whole process: after an error nothing is left to do, and nothing may change the exit code.

    Threads of other packages, Arrow's readers among them, may still run, and abort if the interpreter ends under them.
    """
    try:
        main()
    except SystemExit as left:
        if left.code in (None, 0):
            raise
        with suppress(OSError, ValueError):  # nobody reads any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(left.code if isinstance(left.code, int) else 1)


def print_error(said: str) -> None:
    """A line on stderr, its control characters escaped."""
    sys.stderr.write(f"{escape_text(said)}\n")
