"""The `dygmamba` command: parse, call, exit code; heavy imports stay inside the commands."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dygmamba._version import __version__
from dygmamba.cli import (
    audit,
    bench,
    blend,
    compare,
    data,
    demo,
    evaluate,
    explain,
    export_model,
    exporting,
    fetch,
    generate,
    importing,
    library,
    models,
    predict,
    report,
    reproduce,
    sharing,
    train,
    tune,
)
from dygmamba.cli.unsaid import show_unsaid
from dygmamba.cli.words import shown, spoken
from dygmamba.errors import DygError, DygWarning
from dygmamba.files.writing import ADVICE, sentence
from dygmamba.process_wide import (
    escape_what_cannot_be_shown,
    sleep_while_waiting,
    stay_in_memory,
    tell_warnings,
)
from dygmamba.room import most_memory, ran_out, shortage

sleep_while_waiting()


class Commands(TyperGroup):
    """The commands, and what typer says of a line it cannot read: as text, whatever was typed."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        """Reads the first words."""
        with _as_text():
            return super().make_context(*words, **more)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name, its help complete."""
        found = super().get_command(ctx, cmd_name)
        return None if found is None else show_unsaid(found)

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
        said = " ".join(shown(error.format_message()).split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
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


data.app.command("import")(importing.import_)
data.app.command("export")(exporting.export)
data.app.command("fetch")(fetch.fetch)
data.app.command("list")(library.list_datasets)
data.app.command("remove")(library.remove)
data.app.command("generate")(generate.generate)
app.add_typer(data.app, name="data")
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("blend")(blend.blend)
app.command("evaluate")(evaluate.evaluate)
app.command("audit")(audit.audit)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("report")(report.report)
app.command("export")(export_model.export)
app.command("push")(sharing.push)
app.command("pull")(sharing.pull)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("models")(models.models)
app.command("bench")(bench.bench)


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2.

    Ctrl-C reaches typer first, which says "Aborted" and exits with 130; files are written atomically anyway.
    """
    tell_warnings(DygWarning, lambda said: print_error(f"note: {spoken(said)}"))
    escape_what_cannot_be_shown()
    stay_in_memory(most_memory())
    try:
        app()
    except DygError as error:
        print_error(f"error: {spoken(error)}")
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        print_error(f"error: {shortage(error)}")
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        print_error(f"error: {sentence(error)}")
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
    sys.stderr.write(f"{shown(said)}\n")
