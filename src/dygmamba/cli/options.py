"""How commands declare options, the options that several of them share, and the parsing of their values."""

import tomllib
from pathlib import Path
from typing import Any

import typer

from dygmamba.cli.console import print_note
from dygmamba.core.errors import ConfigError


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """Return an option with a default that the help shows; `...` makes it required."""
    return typer.Option(default, *names, help=help, **more)


def optional(help: str, *names: str, default: str = "none", **more: Any) -> Any:
    """Return an option that may be left out; `default` says in the help what holds then."""
    return typer.Option(None, *names, help=help, show_default=default, **more)


def flag(name: str, help: str) -> Any:
    """Return an option that is switched on by its name, and cannot be switched off."""
    return typer.Option(False, name, help=help)


def argument(help: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument that is told apart by its place."""
    return typer.Argument(default, help=help, **more)


DATA_DIR = optional(
    "Look for datasets in this folder.", default="$DYGMAMBA_DATA, then the user's data folder"
)
AS_JSON = flag("--json", "Print one JSON object instead of text.")
DEVICE = option("auto", "Run on auto, cpu or cuda.")
PROTOCOL = option(
    "auto",
    "Remove nothing from training (time) or the events of sampled nodes, as DyGLib does (benchmark); auto is "
    "benchmark for the datasets of DyGLib, else time.",
)
RUNS_OUT = option(Path("runs"), "Write run directories below this folder.")
MODEL = optional(
    "Train this model (see `dygmamba models`), or one of yours: mine.py or mine.py:NAME.",
    default="dyg-mamba-counts on a GPU, else trees",
)
PRESET = optional(
    "Start from the settings of small (CPUs), short (quick on a GPU), paper, or NAME.toml (from `dygmamba tune`).",
    default="paper",
)
EPOCHS = optional("Train at most this many epochs.", default="from the preset", min=1)
SPLIT = optional(
    "Split by shares (0.7,0.15,0.15), by the times where validation and test start (2024-01-01,2024-06-01), or as "
    "the dataset's leaderboard does (board).",
    default="0.7,0.15,0.15",
)
ACTIVITY = flag(
    "--activity",
    "Add the source's activity rate to the score (helps with historical and inductive negatives).",
)
NEW_EVENTS = optional("Add the new events of this file, with the columns of the dataset.")
AT = optional("Ask for this time, a date or a number.", default="just after the last event")
RAW = flag("--raw", "Write CSV cells unchanged, even if a spreadsheet would run them.")
OVERRIDES = optional(
    "Set a model or training setting, key=value, e.g. length=32.", "--set", default="from the preset"
)
HEURISTIC_SETTINGS = optional(
    "Set a setting of the model, key=value, e.g. window=0.1.", "--set", default="from the model"
)
TRUST = flag(
    "--trust-code", "Import the module that defines the run's model, which runs its code; shows its name."
)

RUN_HELP = "Takes a run directory, a dataset (its newest run below runs/), or latest."


def run_argument(help: str, default: Any = ...) -> Any:
    """Return the argument for a run: a run directory, the name of a dataset, or `latest`."""
    return argument(f"{help} {RUN_HELP}", default, parser=parse_run, metavar="RUN")


def parse_run(name: str, prefer_finished: bool = True) -> Path:
    """Return the run directory that a name stands for, and print which one it is."""
    from dygmamba.api.run_names import find_run

    path = find_run(name, prefer_finished=prefer_finished)
    if path != Path(name) and path != Path(name).resolve():
        print_note(f"note: {name} is the run {path}")
    return path


def parse_run_to_resume(name: str) -> Path:
    """Return the run directory that a name stands for, finished or not; typer 0.16 takes no `partial`."""
    return parse_run(name, prefer_finished=False)


MAX_SEEDS = 10_000  # each is a training
SEED_LIMIT = 2**63  # of a generator of random numbers


def parse_overrides(pairs: list[str] | None) -> dict[str, Any]:
    """Return `--set key=value` options as a dictionary; values are read as TOML, bare words as strings."""
    settings = {}
    for pair in pairs or ():
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes key=value, got '{pair}'", code="malformed-setting")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # not TOML, or a number of too many digits
            settings[key] = text
    return settings


def parse_settings(overrides: list[str] | None, **named: Any) -> dict[str, Any]:
    """Return the settings of `--set`, and those that have an option of their own where it is given."""
    return parse_overrides(overrides) | {name: value for name, value in named.items() if value}


def parse_seeds(text: str) -> list[int]:
    """Return `0-4`, `0,3,7` or `5` as a list."""
    ranges: list[range] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranges.append(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        ranges = []
    if not any(ranges):
        raise ConfigError(
            f"--seeds takes numbers and ranges such as 0-4 or 0,3,7; got '{text[:60]}'",
            code="malformed-seeds",
        )
    if max(part[-1] for part in ranges if part) >= SEED_LIMIT:
        raise ConfigError(
            f"--seeds takes seeds below 2^63; got '{text[:60]}', choose smaller ones", code="seed-too-large"
        )
    if sum(part.stop - part.start for part in ranges if part) > MAX_SEEDS:
        raise ConfigError(
            f"--seeds takes at most {MAX_SEEDS:,} seeds; got '{text[:60]}', choose fewer",
            code="too-many-seeds",
        )
    return [seed for part in ranges for seed in part]


def parse_list(text: str | None) -> list[str] | None:
    """Return a comma-separated list of names; None stays None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
