"""What the library says in Python's words, the command line says in its own."""

import re
from pathlib import Path

import pytest
import typer

import dygmamba
from dygmamba.cli import app
from dygmamba.cli.messages import OPTIONS, translate_message


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("`device` takes auto, cpu or cuda", "--device takes auto, cpu or cuda"),
        ("give `time_unit='ms'`, us or ns", "give --time-unit ms, us or ns"),
        ("or give `fill=VALUE`", "or give --fill VALUE"),
        ("(set it with `name`)", "(set it with --out)"),
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


def test_below_the_command_line_nothing_speaks_of_options():
    """No message of the library contains an option; `import_line` (data/catalogue) is a command line on purpose."""
    root = Path(dygmamba.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if "cli" not in path.relative_to(root).parts and path.name != "fetch.py"
        for line in path.read_text().splitlines()
        if re.search(r"(?<![\w-])--[a-z]", line)
    ]
    assert found == []


def test_every_option_that_is_named_exists():
    """Each of the border's options is one of some command."""
    group = typer.main.get_command(app)
    commands = [group.get_command(None, name) for name in group.list_commands(None) if name != "data"]
    data = group.get_command(None, "data")
    commands += [data.get_command(None, name) for name in data.list_commands(None)]
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert set(OPTIONS.values()) <= known
