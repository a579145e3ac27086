"""What the library says in Python's words, the command line says in its own."""

import re
from pathlib import Path

import pytest
import typer

import dygmamba
from dygmamba.cli import app
from dygmamba.cli.messages import list_commands, translate_message


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("`device` takes auto, cpu or cuda", "--device takes auto, cpu or cuda"),
        ("give `time_unit='ms'`, us or ns", "give --time-unit ms, us or ns"),
        ("or give `fill=VALUE`", "or give --fill VALUE"),
        ("(set it with `name`)", "(set it with --out)"),
        ("give `trust=True`", "give --trust-code"),
        ("or `header=False`", "or --no-header"),
        ("leave out `protocol`", "leave out --protocol"),
        ("go on with: `dygmamba.resume('runs/a b/c')`", "go on with: dygmamba train --resume 'runs/a b/c'"),
        ("first: `dygmamba.train('uci', 'tgn')`", "first: dygmamba train uci --model tgn"),
        ("`dygmamba.open('runs/x').report()`", "dygmamba report runs/x"),
        ("see `dygmamba data list`", "see `dygmamba data list`"),
        ("no column '`x`'", "no column '`x`'"),
    ],
)
def test_a_sentence_names_options(python, command):
    """Parameters and calls in back quotes become options and commands; all else stays."""
    assert translate_message(python) == command


COMMAND_LINES = ("fetch.py", "lists.py", "run_sections.py")


def test_below_the_command_line_nothing_speaks_of_options():
    """No message of the library contains an option.

    The modules of `COMMAND_LINES` print or recommend a command line on purpose.
    """
    root = Path(dygmamba.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if "cli" not in path.relative_to(root).parts and path.name not in COMMAND_LINES
        for line in path.read_text().splitlines()
        if re.search(r"(?<![\w-])--[a-z]", line)
    ]
    assert found == []


@pytest.mark.parametrize("command", list_commands(typer.main.get_command(app)), ids=lambda one: one.name)
def test_every_parameter_is_named_by_its_option(command):
    """For all options of all commands: a message that names the parameter names this option."""
    for option in (one for one in command.params if one.param_type_name == "option" and one.name != "help"):
        assert translate_message(f"`{option.name}`") == option.opts[-1], option.name
        assert translate_message(f"`{option.name}=3`") == f"{option.opts[-1]} 3"
        for off in option.secondary_opts:
            assert translate_message(f"`{option.name}=False`") == off
