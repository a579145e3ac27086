"""The commands: every function is listed with the first line of its docstring, in this order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from dygmamba._version import __version__
from dygmamba.cli import data, data_files, evaluation, live, models, prediction, runs, studies, training
from dygmamba.cli.messages import escape_text
from dygmamba.cli.options import option
from dygmamba.core.errors import DygError


class CommandLineError(DygError):
    """A command line that cannot be parsed."""

    code = "malformed-command-line"


class Commands(TyperGroup):
    """The commands of `dygmamba`. What typer says about a wrong command line becomes an error of this package."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        with _translate_typer_errors():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        with _translate_typer_errors():
            return super().invoke(ctx)


@contextmanager
def _translate_typer_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Errors of the click inside typer have this method. One of them is the help, if nothing was typed.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        text = " ".join(escape_text(error.format_message()).split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        command = "dygmamba" if context is None else context.command_path
        raise CommandLineError(f"{text[:1].lower()}{text[1:]}; see '{command} --help'") from None


app = typer.Typer(
    cls=Commands, name="dygmamba", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
data_app = typer.Typer(
    name="data", help="Import, fetch, generate, describe and export streams of events.", no_args_is_help=True
)
live_app = typer.Typer(
    name="live", help="Check, accept, back up and restore the events of live runs.", no_args_is_help=True
)

for function in (training.demo, training.train, training.tune, training.blend, training.backtest):
    app.command()(function)
for function in (evaluation.evaluate, evaluation.audit, prediction.predict, prediction.explain):
    app.command()(function)
app.command("runs")(runs.show_runs)
app.command()(live.serve)
app.command()(runs.report)
app.command("export")(runs.export_model)
for function in (runs.push, runs.pull, runs.compare, studies.reproduce, models.models):
    app.command()(function)
data_app.command()(data.describe)
data_app.command("import")(data_files.import_dataset)
data_app.command("export")(data_files.export_dataset)
data_app.command()(data.fetch)
data_app.command("list")(data.list_datasets)
data_app.command()(data.remove)
data_app.command()(data.generate)
for function in (live.check, live.accept, live.backup, live.restore):
    live_app.command()(function)
app.add_typer(data_app)
app.add_typer(live_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dygmamba {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = option(
        False, "Show the version and exit.", "--version", callback=_print_version, is_eager=True
    ),
) -> None:
    """Learn from timestamped interactions: data, training, evaluation, predictions."""
