"""Messages of the library in the words of the command line, and text that is safe to print."""

import ast
import re
import shlex
from functools import cache
from typing import Any

SETTINGS_WITHOUT_OPTION = ("patience", "batch", "query_columns")
# Calls of the library that messages recommend, as commands.
COMMAND_FORMS = {
    "read": "dygmamba data import {}",
    "train": "dygmamba train {} --model {}",
    "resume": "dygmamba train --resume {}",
    "refit": "dygmamba train --resume {} --refit all",
    "evaluate": "dygmamba evaluate {} --model {}",
    "report": "dygmamba report {}",
}


@cache
def find_options() -> dict[str, tuple[str, str | None]]:
    """Return the option of every parameter that a command has under the name that the library uses.

    Of a flag there is also how it is switched off, if it can be.
    """
    from typer.main import get_command

    from dygmamba.cli.commands import app  # which imports this module

    return {
        parameter.name: (parameter.opts[-1], next(iter(parameter.secondary_opts), None))
        for command in list_commands(get_command(app))
        for parameter in command.params
        if parameter.param_type_name == "option"
    }


def list_commands(command: Any) -> list[Any]:
    """Return the command, or those of a group and of the groups in it."""
    inner = getattr(command, "commands", None)
    return [command] if inner is None else [found for one in inner.values() for found in list_commands(one)]


def translate_message(text: object) -> str:
    """Replace parameters and calls in back quotes by options and commands."""
    return re.sub(r"`([^`]+)`", lambda match: _translate_quoted(match[1]), str(text))


def _translate_quoted(quoted: str) -> str:
    """`time_unit='ms'` becomes --time-unit ms, `dygmamba.resume('x')` dygmamba train --resume x, all else stays."""
    name, _, value = quoted.partition("=")
    if name in SETTINGS_WITHOUT_OPTION:
        return f"--set {quoted}"
    on, off = find_options().get(name, ("", None))
    if on:
        if value in ("True", "False"):
            return on if value == "True" else off or f"--no-{on[2:]}"
        value = value.strip("'")
        return f"{on} {shlex.quote(value) if value else ''}".strip()
    call = re.fullmatch(r"dygmamba\.(?:open\((.*)\)\.)?(\w+)\((.*)\)", quoted)
    if call and call[2] in COMMAND_FORMS:
        try:
            values = ast.literal_eval(f"({call[1] or call[3]},)")
            return COMMAND_FORMS[call[2]].format(*(shlex.quote(str(value)) for value in values))
        except (ValueError, SyntaxError, IndexError):  # not only strings, or too few of them
            return f"`{quoted}`"
    return f"`{quoted}`"


def escape_text(text: str) -> str:
    """Escape everything that is not a printable character of one line.

    Control characters, line ends, marks that turn the direction of writing, and stray bytes: a name that holds them can
    neither move the cursor nor look like a line of this program.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
