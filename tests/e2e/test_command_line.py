"""The frame around the commands: what is listed, how errors are printed, what reaches the api."""

import inspect
import json
from typing import Any

import pytest
import typer

from commands import error_code, invoke
from dygmamba.cli import app
from dygmamba.cli.messages import list_commands
from dygmamba.cli.options import parse_seeds
from dygmamba.models import MODELS


def test_a_command_is_listed_with_the_first_line_of_its_docstring(monkeypatch, capsys):
    """`--help` of a group says what each of its commands does, in a sentence."""
    monkeypatch.setenv("COLUMNS", "200")
    for group in ([], ["data"], ["live"]):
        _, out, _ = invoke(monkeypatch, capsys, *group, "--help")
        for command in find_group(group).commands.values():
            first = inspect.cleandoc(command.help).splitlines()[0]
            assert first.endswith(".")
            assert first in out


def find_group(words) -> Any:
    """The group of commands at these words."""
    group: Any = typer.main.get_command(app)
    for word in words:
        group = group.commands[word]
    return group


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", "nothing-here"], "unknown-dataset"),
        (["train", "generated", "--epochs", "0"], "malformed-command-line"),
        (["models", "nothing"], "unknown-model"),
        (["data", "import", "nothing.csv"], "file-missing"),
    ],
)
def test_an_error_has_its_code_in_json(monkeypatch, capsys, tmp_path, words, code):
    """One sentence on stderr; with --json also an object on stdout that has the code and the sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    exit_code, out, err = invoke(monkeypatch, capsys, *words)
    assert (exit_code, out, err.count("\n")) == (2, "", 1)
    exit_code, out, again = invoke(monkeypatch, capsys, *words, "--json")
    assert (exit_code, error_code(out), again) == (2, code, err)
    assert err == f"error: {json.loads(out)['error']['message']}\n"


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("0-2,7") == [0, 1, 2, 7]


def test_the_number_of_processes_reaches_training_and_refit(monkeypatch, capsys, tmp_path):
    """`--processes` is an argument of the api; what is wrong with the others is said before anything is started."""
    calls = []

    def record(name, request, progress, more):
        calls.append((name, request.processes, request))
        return [tmp_path / "run"]

    monkeypatch.setattr("dygmamba.api.training.run_in_processes", record)
    monkeypatch.setattr("dygmamba.cli.training._print_runs", lambda *_: None)
    words = ["train", "generated", "--processes", "3", "--refit", "all", "--set", "out=8"]
    assert invoke(monkeypatch, capsys, *words, "--model", "tgn", "--epochs", "2")[0] == 0
    assert [(name, processes) for name, processes, _ in calls] == [("train", 3), ("refit", 3)]
    assert calls[0][2].settings == {"out": 8, "epochs": 2}
    assert invoke(monkeypatch, capsys, *words, "--model", "tgm")[0] == 2
    assert len(calls) == 2


def test_only_the_first_of_several_processes_prints(monkeypatch, capsys):
    """Whatever the others compute, their results are those of the first."""
    from dygmamba.cli.progress import show_progress
    from dygmamba.cli.training import _print_runs
    from dygmamba.core.progress import SILENT

    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dygmamba.cli.progress.redirect_warnings", lambda *_: None)
    with show_progress(save_on_interrupt=True) as progress:
        assert progress is SILENT
    _print_runs([], [], True)
    assert capsys.readouterr() == ("", "")


def test_models_and_version_tell_what_they_are_asked(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = invoke(monkeypatch, capsys, "models", "dyg-mamba")
    assert code == 0
    assert all(name in out for name in MODELS["dyg-mamba"].settings)
    assert "1 to 1,000,000" in out
    assert "tokens per sequence, including the query node" in out
    code, out, _ = invoke(monkeypatch, capsys, "models", "dyg-mamba", "--json")
    assert json.loads(out)["settings"]["length"]["default"] == 32
    code, out, _ = invoke(monkeypatch, capsys, "--version")
    assert (code, out.split()[0]) == (0, "dygmamba")


def test_help_shows_a_default_for_every_option(monkeypatch, capsys):
    """Whatever is left out, `--help` says what holds, for all commands; flags that are off say so by their name."""
    commands = list_commands(typer.main.get_command(app))
    assert len(commands) >= 29
    for command in commands:
        for option in (
            one for one in command.params if one.param_type_name == "option" and one.name != "help"
        ):
            shown = option.default is not None or option.required or isinstance(option.show_default, str)
            assert shown, (command.name, option.name)
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = invoke(monkeypatch, capsys, "train", "--help")
    assert "[default: (0.7,0.15,0.15)]" in out
    assert "[default: (dyg-mamba-counts on a GPU, else trees)]" in out
