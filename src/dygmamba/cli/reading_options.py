"""Options on how a file of events or queries is read, shared by the commands that take one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from dygmamba.cli.options import flag, option, optional, parse_list

DETECTED = "detected; for a run as in its dataset"
DELIMITERS = {
    "\\t": "\t",
    "tab": "\t",
    "blank": " ",
    "blanks": " ",
    "space": " ",
    "comma": ",",
    "semicolon": ";",
}


def parse_reading(
    src: str | None = optional(
        "Read source ids from this column, a name or a number from 0.", default=DETECTED
    ),
    dst: str | None = optional("Read destination ids from this column.", default=DETECTED),
    time: str | None = optional("Read times, numbers or dates, from this column.", default=DETECTED),
    features: str | None = optional(
        "Read features of events from these numeric columns (comma-separated names).",
        default="every usable column; for a run as in its dataset",
    ),
    types: str | None = optional(
        "Read event types from these categorical columns (comma-separated names).",
        default="every usable column; for a run as in its dataset",
    ),
    time_unit: str = option(
        "auto",
        "Read numeric times by their size (auto), as s, ms, us, ns since 1970, or as they are (plain).",
    ),
    time_format: str | None = optional(
        'Read dates in this format, like "%d.%m.%Y %H:%M".', default="detected"
    ),
    fill: float | None = optional("Replace missing features and labels by this value."),
    decimal: str | None = optional(
        'Read feature values with this decimal mark, "." or ",".', default="detected"
    ),
    skip_bad: bool = flag("--skip-bad", "Leave out rows that cannot be read."),
    header: bool | None = optional(
        "Say whether the first line names the columns.", "--header/--no-header", default="detected"
    ),
    delimiter: str | None = optional("Split lines at this delimiter; also tab, blanks.", default="detected"),
    encoding: str = option("utf-8", "Read text files in this encoding."),
) -> dict[str, Any]:
    """Return the options as fields of `ReadOptions`."""
    return locals() | {
        "delimiter": DELIMITERS.get(delimiter or "", delimiter),
        "features": tuple(parse_list(features) or ()),
        "types": tuple(parse_list(types) or ()),
    }


READING_OPTIONS = inspect.signature(parse_reading, eval_str=True).parameters


def with_reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: its keyword `reading` becomes the options above, parsed."""
    own = inspect.signature(command, eval_str=True)
    parameters = []
    for parameter in own.parameters.values():
        replaced = READING_OPTIONS.values() if parameter.name == "reading" else [parameter]
        parameters += [one.replace(kind=parameter.kind) for one in replaced]

    @wraps(command)
    def decorated(**options: Any) -> None:
        reading = parse_reading(**{name: options.pop(name) for name in READING_OPTIONS})
        command(**options, reading=reading)

    decorated.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return decorated
