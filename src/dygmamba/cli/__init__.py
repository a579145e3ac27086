"""The `dygmamba` command: a command parses its arguments, calls `dygmamba.api`, prints the result, sets the exit code.

The modules of commands are imported when a command runs, and heavy packages only after its arguments were checked.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dygmamba._version import __version__
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


class CommandEntry(NamedTuple):
    """Module and function of a command, and the line that lists it; a test compares it with the command's docstring."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "demo": CommandEntry(
        "training",
        "demo",
        "Train DyG-Mamba on a generated stream on the CPU and show what it learned, within two minutes.",
    ),
    "train": CommandEntry(
        "training",
        "train",
        "Train a model on a dataset, evaluate it on validation and test, and compare it with simple heuristics.",
    ),
    "tune": CommandEntry(
        "training",
        "tune",
        "Search for better settings in short trainings, judged on validation alone, and save them as a preset.",
    ),
    "blend": CommandEntry(
        "training",
        "blend",
        "Combine finished runs into one: the weighted sum of their scores that is best on validation.",
    ),
    "backtest": CommandEntry(
        "backtesting",
        "backtest",
        "Evaluate a model period after period, frozen, warm-started and refitted, to know when to retrain.",
    ),
    "evaluate": CommandEntry(
        "evaluation",
        "evaluate",
        "Evaluate a run or a heuristic: against negatives (AP, AUC) or among many candidates (MRR, hits@K).",
    ),
    "audit": CommandEntry(
        "evaluation",
        "audit",
        "Show what a score on this dataset can say; exit code 1 if the model's score depends on what it must not.",
    ),
    "predict": CommandEntry(
        "prediction",
        "predict",
        "Score pairs, rank destinations or classify nodes with a trained run, for past or future times.",
    ),
    "explain": CommandEntry(
        "prediction",
        "explain",
        "Show which past events of either side moved the score of a pair, and by how much.",
    ),
    "runs": CommandEntry(
        "runs",
        "list_runs",
        "List runs, the newest first: data, model, results, and the best of each dataset by validation.",
    ),
    "serve": CommandEntry(
        "serving",
        "serve",
        "Serve a run over HTTP: take events as they happen, and score, rank and explain with all of them.",
    ),
    "report": CommandEntry(
        "runs",
        "report",
        "Write a run's results, curves, learned decay and settings as one page that opens offline.",
    ),
    "export": CommandEntry(
        "runs",
        "export_model",
        "Export the scorer of a run with torch.export, as ONNX or for numpy, checked against the run itself.",
    ),
    "push": CommandEntry(
        "runs",
        "push",
        "Share a run in a folder or on the Hub: weights, settings, results, a card; no pickle.",
    ),
    "pull": CommandEntry("runs", "pull", "Fetch a shared run, checked file by file."),
    "compare": CommandEntry(
        "runs",
        "compare",
        "Compare finished runs: mean and spread over seeds, rank, paired test, published values, curves.",
    ),
    "reproduce": CommandEntry(
        "studies",
        "reproduce",
        "Reproduce a study of the paper. Finished runs are cached, so an interrupted study can be restarted.",
    ),
    "models": CommandEntry(
        "models",
        "models",
        "List the models: what each looks at, its trained parameters, and the events it reads per query.",
    ),
}
DATA_COMMANDS = {
    "describe": CommandEntry(
        "data", "describe", "Show what a dataset holds: nodes, events, period, repeats, features."
    ),
    "import": CommandEntry(
        "data_files",
        "import_dataset",
        "Import a file of events as a dataset, and show how it was read and what looks suspicious.",
    ),
    "export": CommandEntry(
        "data_files",
        "export_dataset",
        "Export a dataset's events, in your own ids and times, to a file in the format of its ending.",
    ),
    "fetch": CommandEntry("data", "fetch", "Download a public dataset, unless it is on disk already."),
    "list": CommandEntry(
        "data",
        "list_datasets",
        "List your datasets with the runs that use them, and the public ones that can be fetched.",
    ),
    "remove": CommandEntry("data", "remove", "Delete an imported dataset that no run needs."),
    "generate": CommandEntry(
        "data",
        "generate",
        "Generate a dataset of returning pairs whose decay law is known.",
    ),
}
DATA_SUMMARY = "Import, fetch, generate, describe and export streams of events."
LIVE_COMMANDS = {
    "check": CommandEntry(
        "live", "check", "Check the state folder of a live run, also while it is in use: log and snapshots."
    ),
    "accept": CommandEntry(
        "live",
        "accept",
        "Judge the events that a live run set aside again, and take those that are accepted into its log.",
    ),
    "backup": CommandEntry(
        "live", "backup", "Back up the state folder of a live run to one file, also while it is in use."
    ),
    "restore": CommandEntry(
        "live", "restore", "Restore a backup into a new state folder, after checking it."
    ),
}
LIVE_SUMMARY = "Check, accept, back up and restore the events of live runs."


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are run or looked up, but not when they are listed."""

    entries: dict[str, CommandEntry] = DATA_COMMANDS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: dict[str, Any] = {
            name: TyperCommand(name=name, callback=None, help=entry.summary)
            for name, entry in self.entries.items()
        }
        self._loaded: dict[str, Any] = {}
        self._is_listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name, or while the commands are listed what stands for it."""
        if self._is_listing or cmd_name not in self.entries:
            return self.commands.get(cmd_name)
        if cmd_name not in self._loaded:
            self._loaded[cmd_name] = _load_command(cmd_name, self.entries[cmd_name])
        return self._loaded[cmd_name]


class LiveCommands(LazyGroup):
    entries = LIVE_COMMANDS


class Commands(LazyGroup):
    """The commands of `dygmamba`. What typer says about a wrong command line becomes an error of this package."""

    entries = COMMANDS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands["data"] = LazyGroup(name="data", help=DATA_SUMMARY, no_args_is_help=True)
        self.commands["live"] = LiveCommands(name="live", help=LIVE_SUMMARY, no_args_is_help=True)

    def make_context(self, *words: Any, **more: Any) -> Any:
        with _translate_typer_errors():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        with _translate_typer_errors():
            return super().invoke(ctx)


def _load_command(name: str, entry: CommandEntry) -> Any:
    from typer.main import get_command_from_info
    from typer.models import CommandInfo

    from dygmamba.cli.help_defaults import show_option_defaults

    function = getattr(import_module(f"dygmamba.cli.{entry.module}"), entry.function)
    command = get_command_from_info(
        CommandInfo(name=name, callback=function), pretty_exceptions_short=False, rich_markup_mode="rich"
    )
    return show_option_defaults(command)


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


class CommandLineError(DygError):
    """A command line that cannot be parsed."""

    code = "malformed-command-line"


app = typer.Typer(
    cls=Commands,
    name="dygmamba",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"dygmamba {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Learn from timestamped interactions: data, training, evaluation, predictions."""


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
