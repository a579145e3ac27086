"""The `dygmamba` command: parse, call, exit code; heavy imports stay inside the commands."""

import sys

import typer

from dygmamba.cli import audit, bench, data, demo, evaluate, fetch, generate, models, predict, report, train
from dygmamba.cli.words import shown, spoken
from dygmamba.errors import DygError, DygWarning
from dygmamba.files.writing import ADVICE, sentence
from dygmamba.process_wide import sleep_while_waiting, tell_warnings

sleep_while_waiting()

app = typer.Typer(
    name="dygmamba",
    help="Learn from timestamped interactions: data, evaluation, benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data.app.command("fetch")(fetch.fetch)
data.app.command("list")(fetch.list_datasets)
data.app.command("generate")(generate.generate)
app.add_typer(data.app, name="data")
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("audit")(audit.audit)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("models")(models.models)
app.command("bench")(bench.bench)


def main() -> None:
    """Run the command line; a user's mistake is one sentence on stderr and exit code 2.

    Ctrl-C reaches typer first, which says "Aborted" and exits with 130; files are written atomically anyway.
    """
    tell_warnings(DygWarning, lambda said: print_error(f"note: {said}"))
    try:
        app()
    except DygError as error:
        print_error(f"error: {spoken(error)}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in ADVICE:
            raise
        print_error(f"error: {sentence(error)}")
        sys.exit(2)


def print_error(said: str) -> None:
    """A line on stderr, its control characters escaped."""
    sys.stderr.write(f"{shown(said)}\n")
