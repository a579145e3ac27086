"""Options on how a file of events or queries is read, shared by the commands that take one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from dygmamba.cli.options import (
    Decimal,
    Delimiter,
    Encoding,
    Fill,
    Header,
    SkipBad,
    TimeFormat,
    optional,
    parse_delimiter,
    parse_list,
)


def _column_option(help: str) -> Any:
    return Annotated[str | None, optional(help=help, default="as in the dataset")]


READING_OPTIONS: dict[str, tuple[Any, Any]] = {  # name of a field of `ReadOptions` -> type and default
    "src": (
        Annotated[
            str | None, optional(help="Read source ids from this column.", default="as in the dataset")
        ],
        None,
    ),
    "dst": (
        Annotated[
            str | None, optional(help="Read destination ids from this column.", default="as in the dataset")
        ],
        None,
    ),
    "time": (
        Annotated[str | None, optional(help="Read times from this column.", default="as in the dataset")],
        None,
    ),
    "features": (
        Annotated[
            str,
            typer.Option(help="Read the features of --events from these columns (comma-separated names)."),
        ],
        "",
    ),
    "types": (
        Annotated[
            str,
            typer.Option(help="Read the event types of --events from these columns (comma-separated names)."),
        ],
        "",
    ),
    "time_unit": (
        Annotated[
            str,
            typer.Option(
                help="Read numeric times as they are (auto, plain), or as s, ms, us, ns since 1970."
            ),
        ],
        "auto",
    ),
    "time_format": (TimeFormat, None),
    "fill": (Fill, None),
    "decimal": (Decimal, None),
    "skip_bad": (SkipBad, False),
    "header": (Header, None),
    "delimiter": (Delimiter, None),
    "encoding": (Encoding, "utf-8"),
}


def with_reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: its parameter `reading` becomes the options above, parsed as arguments of the api."""
    own = inspect.signature(command, eval_str=True)
    parameters = []
    for parameter in own.parameters.values():
        if parameter.name == "reading":
            parameters += [
                inspect.Parameter(name, parameter.kind, default=default, annotation=annotation)
                for name, (annotation, default) in READING_OPTIONS.items()
            ]
        else:
            parameters.append(parameter)

    @wraps(command)
    def decorated(**options: Any) -> None:
        reading = {name: options.pop(name) for name in READING_OPTIONS}
        reading["delimiter"] = parse_delimiter(reading["delimiter"])
        for name in ("features", "types"):
            reading[name] = tuple(parse_list(reading[name]) or ())
        command(**options, reading=reading)

    decorated.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return decorated
