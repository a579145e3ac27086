"""Advice in messages can be followed: what they name is a parameter, a function, a command or an option."""

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

import dygmamba as dm
from dygmamba.cli import app
from dygmamba.cli.messages import COMMAND_FORMS, find_options, translate_message
from dygmamba.config import get_training_hints
from dygmamba.core.errors import DygError, DygWarning
from dygmamba.data.generate.config import GeneratorConfig
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.live.live_run import LiveRun
from dygmamba.models import MODELS
from dygmamba.report.comparison import compare_runs
from raising import raises

ROOT = Path(dm.__file__).parent
PLACEHOLDER = "x"  # stands for a value that a message fills in


def list_strings(tree: ast.AST) -> list[str]:
    """Every string that is no docstring; values in braces become placeholders."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | docs:
            found.append(node.value)
    return found


MESSAGES = [text for path in ROOT.rglob("*.py") for text in list_strings(ast.parse(path.read_text("utf-8")))]
CLASSES = (dm.Run, dm.Dataset, dm.Client, LiveRun)
METHODS = [value for kind in CLASSES for value in vars(kind).values()]
FUNCTIONS = [
    value for value in (*(getattr(dm, name) for name in dir(dm)), *METHODS) if inspect.isfunction(value)
]
PARAMETERS = {name for function in FUNCTIONS for name in inspect.signature(function).parameters}
SETTINGS = {
    *get_training_hints("node"),
    *(name for spec in MODELS.values() for name in spec.settings),
    *GeneratorConfig.__dataclass_fields__,
}


def find_command(words: list[str]):
    """The command that the words begin with, and the words after it."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "get_command"):
        inner = command.get_command(None, words[0])
        assert inner is not None, f"there is no command {words[0]!r}"
        command, words = inner, words[1:]
    return command, words


def check_command(line: str) -> None:
    """Parse a command line with the parser of the command; values in capitals and placeholders are anything."""
    command, words = find_command(shlex.split(line)[1:])
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert not [word for word in words if word.startswith("--") and word.split("=")[0] not in known], line


def test_every_option_in_back_quotes_is_a_parameter_or_a_setting():
    """For all `name` and `name=value` in errors: something that a user can give, in Python or as an option."""
    known = PARAMETERS | SETTINGS | set(find_options()) | set(dir(dm)) | set(dir(LiveRun)) | {PLACEHOLDER}
    found = [
        (path.name, name)
        for path in sorted(ROOT.rglob("*.py"))
        if not set(path.relative_to(ROOT).parts) & {"ops", "sampling", "models"}  # for authors of models
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Raise)
        for text in list_strings(node)
        for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", text)
    ]
    assert len(found) > 100
    assert [(file, name) for file, name in found if name not in known] == []


def test_every_call_in_back_quotes_fits_a_signature():
    """For all `dygmamba.function(...)` in messages: the function takes these arguments, and a command does the same."""
    for text in MESSAGES:
        for call in re.findall(r"`(dygmamba\.[^`]*\))`", text):
            node = ast.parse(call, mode="eval").body
            function = getattr(dm, re.search(r"(\w+)\($", ast.unparse(node).partition("(")[0] + "(")[1])
            arguments = (
                [object() for _ in node.args],
                {word.arg: object() for word in node.keywords if word.arg},
            )
            inspect.signature(function).bind(*arguments[0], **arguments[1])


def test_every_command_in_a_message_can_be_parsed():
    """For all command lines that messages contain, and those that calls are translated to."""
    lines = [form.format("a", "b") for form in COMMAND_FORMS.values()]
    for text in MESSAGES:
        for line in re.findall(r"\bdygmamba ((?:data )?[a-z]+(?: [\w./<>-]+)*)", translate_message(text)):
            if line.split()[0] in typer.main.get_command(app).list_commands(None):
                lines.append(f"dygmamba {line}")
    assert len(lines) > 12
    for line in lines:
        check_command(line)
    with pytest.raises(AssertionError):
        check_command("dygmamba report RUN --skip-bad")


def test_bad_rows_are_skipped_only_where_there_is_an_option_for_it(tmp_path):
    """`dm.read` has `skip_bad`; a table of pairs, of events to observe, and a file given to `train` have not."""
    for name, content in (
        ("bad.csv", b"src,dst,time\na,b,1\nc,d,x\n"),
        ("latin.csv", b"src,dst,time\n\xe9,b,1\n"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DygError, match="`skip_bad=True`"):
            dm.read(tmp_path / name)
        with pytest.raises(DygError) as caught:
            read_dataset(tmp_path / name, ReadOptions())
        assert "`" not in str(caught.value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of seed 0 on two versions of a dataset, and a run on all events of the first."""
    folder = tmp_path_factory.mktemp("runs")
    data = [dm.generate(nodes=20, events=200, communities=2, seed=seed, name="mail") for seed in (0, 1)]
    paths = [dm.train(one, "trees", epochs=1, rounds=1, out=folder)[0].path for one in data]
    return [*paths, dm.refit(paths[0]).path]


def test_a_refitted_run_is_not_told_to_be_resumed(runs):
    """`resume` refuses it: it has no test that it could be compared by."""
    with raises("run-without-test") as caught:
        dm.compare([runs[2]])
    assert "resume" not in str(caught.value)


def test_versions_of_a_dataset_are_compared_apart(runs):
    """Two runs of seed 0 are neither one row nor two seeds of one."""
    with pytest.warns(DygWarning, match="2 versions"):
        document = compare_runs(runs[:2])
    titles = [section.title for section in document.sections]
    assert [re.fullmatch(r"mail@[0-9a-f]{8}", title) is not None for title in titles] == [True, True]
    assert len(set(titles)) == 2
    for section in document.sections:
        table = section.tables[0]
        assert [row[table.columns.index("seeds")].text for row in table.rows] == ["1"]
    assert [section.title for section in compare_runs(runs[:1]).sections] == ["mail"]
