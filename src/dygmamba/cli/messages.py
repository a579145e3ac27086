"""The border between Python and the command line: options become settings, sentences name options."""

import re
import tomllib
from typing import Any

from dygmamba.core.errors import ConfigError

# what the library calls a parameter in back quotes; here it is an option of that name, or of the one given
OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("src", "dst", "time", "features", "label", "bipartite", "time_unit", "fill", "format", "delimiter"),
        *("encoding", "data_dir", "device", "at", "out", "negatives", "split", "setting", "visible", "task"),
        *("backbone", "finetune", "balance", "model", "seeds", "metrics", "candidates", "preset", "epochs"),
        *(
            "train_negatives",
            "activity",
            "train_candidates",
            "loss",
            "filtered",
            "orders",
            "header",
            "time_format",
            "skip_bad",
            "force",
            "studies",
            "trials",
            "hours",
        ),
        *("resume", "raw", "log", "processes"),
    )
} | {"name": "--out"}
SETTINGS_WITHOUT_OPTION = ("patience", "batch")  # those that have no option of their own
MAX_SEEDS = 10_000  # each is a training
SEED_LIMIT = 2**63  # what a generator of random numbers takes
COMMAND_FORMS = {
    "read": "dygmamba data import {}",
    "train": "dygmamba train {} --model {}",
    "resume": "dygmamba train --resume {}",
    "refit": "dygmamba train --resume {} --refit all",
    "evaluate": "dygmamba evaluate {} --model {}",
    "report": "dygmamba report {}",
}


def translate_message(sentence: object) -> str:
    """A library's sentence in the command line's words."""
    return re.sub(r"`([^`]+)`", lambda found: _translate_quoted(found[1]), str(sentence))


def _translate_quoted(quoted: str) -> str:
    """`time_unit='ms'` is --time-unit ms, `dygmamba.resume('x')` is dygmamba train --resume x, all else stays."""
    name, _, value = quoted.partition("=")
    if name in SETTINGS_WITHOUT_OPTION:
        return f"--set {quoted}"
    if name in OPTIONS and value in ("True", "False"):
        return OPTIONS[name] if value == "True" else f"--no-{OPTIONS[name][2:]}"
    if name in OPTIONS:
        value = value.strip(chr(39))
        return f"{OPTIONS[name]} {chr(34) + value + chr(34) if ' ' in value else value}".strip()
    call = re.fullmatch(r"dygmamba\.(?:open\((.*)\)\.)?(\w+)\((.*)\)", quoted)
    if call and call[2] in COMMAND_FORMS:
        return COMMAND_FORMS[call[2]].format(*re.findall(r"'([^']*)'", call[1] or call[3]))
    return f"`{quoted}`"


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`--set key=value` options as a dictionary; values are read as TOML, bare words as strings."""
    settings = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes key=value, got '{pair}'")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # not TOML, or a number of too many digits
            settings[key] = text
    return settings


def parse_seeds(text: str) -> list[int]:
    """`0-4`, `0,3,7` or `5` as a list."""
    ranges: list[range] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranges.append(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        ranges = []
    if not any(ranges):
        raise ConfigError(f"--seeds takes numbers and ranges such as 0-4 or 0,3,7; got '{text[:60]}'")
    last = max(part[-1] for part in ranges if part)
    if last >= SEED_LIMIT or sum(part.stop - part.start for part in ranges if part) > MAX_SEEDS:
        raise ConfigError(
            f"--seeds takes at most {MAX_SEEDS:,} seeds below 2^63; got '{text[:60]}', choose fewer"
        )
    return [seed for part in ranges for seed in part]


def escape_text(text: str) -> str:
    """Text that a terminal shows and never obeys: what is no letter of one line is written as an escape.

    Control characters and line ends, marks that turn the direction of writing, and stray bytes: a name that holds them
    can neither move the cursor nor look like a line of this program's.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
