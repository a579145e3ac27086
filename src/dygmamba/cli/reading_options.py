"""Options on how a file of events or queries is read, shared by the commands that take one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from dygmamba.cli.options import optional, parse_list

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
    src: Annotated[
        str | None,
        optional(help="Read source ids from this column, a name or a number from 0.", default=DETECTED),
    ] = None,
    dst: Annotated[
        str | None, optional(help="Read destination ids from this column.", default=DETECTED)
    ] = None,
    time: Annotated[
        str | None, optional(help="Read times, numbers or dates, from this column.", default=DETECTED)
    ] = None,
    features: Annotated[
        str | None,
        optional(
            help="Read features of events from these numeric columns (comma-separated names).",
            default="every usable column; for a run as in its dataset",
        ),
    ] = None,
    types: Annotated[
        str | None,
        optional(
            help="Read event types from these categorical columns (comma-separated names).",
            default="every usable column; for a run as in its dataset",
        ),
    ] = None,
    time_unit: Annotated[
        str,
        typer.Option(
            help="Read numeric times by their size (auto), as s, ms, us, ns since 1970, or as they are (plain)."
        ),
    ] = "auto",
    time_format: Annotated[
        str | None, optional(help='Read dates in this format, like "%d.%m.%Y %H:%M".', default="detected")
    ] = None,
    fill: Annotated[float | None, optional(help="Replace missing features and labels by this value.")] = None,
    decimal: Annotated[
        str | None,
        optional(help='Read feature values with this decimal mark, "." or ",".', default="detected"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read.")] = False,
    header: Annotated[
        bool | None,
        optional(
            "--header/--no-header", help="Say whether the first line names the columns.", default="detected"
        ),
    ] = None,
    delimiter: Annotated[
        str | None, optional(help="Split lines at this delimiter; also tab, blanks.", default="detected")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Read text files in this encoding.")] = "utf-8",
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
