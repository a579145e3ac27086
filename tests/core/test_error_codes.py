"""Errors carry stable codes; their sentences are in one table.

`python tests/core/test_error_codes.py` writes the table anew, so that a reworded sentence is read in its diff.
"""

import ast
import pickle
import re
from pathlib import Path

import dygmamba
from dygmamba.core import errors
from dygmamba.core.errors import ConfigError, DygError

SOURCES = {path: path.read_text("utf-8") for path in sorted(Path(dygmamba.__file__).parent.rglob("*.py"))}
TABLE = Path(__file__).parents[1] / "goldens" / "sentences.txt"
NODES = [(path, node) for path, text in SOURCES.items() for node in ast.walk(ast.parse(text))]


def error_classes() -> dict[str, bool]:
    """Every subclass of DygError by name, and whether the class itself has a code."""
    found = {
        name: kind is not DygError and "code" in vars(kind)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, DygError)
    }
    grown = True
    while grown:
        grown = False
        for node in (node for _, node in NODES if isinstance(node, ast.ClassDef)):
            bases = [ast.unparse(base) for base in node.bases]
            if node.name not in found and set(bases) & set(found):
                own = any(
                    isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code"
                    for line in node.body
                )
                found[node.name] = own or any(found[base] for base in bases if base in found)
                grown = True
    return found


def test_every_error_that_is_raised_has_a_code():
    """For all `raise` statements with an error of the package: a code is given, or its class has one."""
    classes, missing = error_classes(), []
    for path, node in NODES:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            given = any(word.arg == "code" for word in node.exc.keywords)
            if name in classes and not classes[name] and not given:
                missing.append(f"{path.name}:{node.lineno}")
    assert not missing


def test_a_message_has_one_code():
    """For all messages of some length that are raised in several places, whatever their values: one code."""
    found: dict[str, dict[str, str]] = {}
    for path, node in NODES:
        code = [word.value for word in getattr(node, "keywords", ()) if word.arg == "code"]
        if isinstance(node, ast.Call) and code and isinstance(code[0], ast.Constant) and node.args:
            parts = getattr(node.args[0], "values", [node.args[0]])
            text = "…".join(part.value for part in parts if isinstance(part, ast.Constant))
            found.setdefault(text, {})[code[0].value] = f"{path.name}:{node.lineno}"
    assert [places for text, places in found.items() if len(text) > 40 and len(places) > 1] == []


def test_codes_are_lower_case_words_joined_by_hyphens():
    for path, text in SOURCES.items():
        for code in re.findall(r"\bcode=\"([^\"]*)\"", text):
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code), f"{path.name}: {code}"


def test_a_code_is_not_part_of_the_message_and_survives_pickling():
    error = pickle.loads(pickle.dumps(ConfigError("`k` must be at least 1; got 0", code="k-not-positive")))
    assert str(error) == "`k` must be at least 1; got 0"
    assert error.code == "k-not-positive"


def list_sentences() -> list[str]:
    """Every code with its sentences as the source has them; what is put together elsewhere as an expression."""
    found = set()
    for _, node in NODES:
        code = [word.value for word in getattr(node, "keywords", ()) if word.arg == "code"]
        if isinstance(node, ast.Call) and node.args and code and not isinstance(code[0], ast.Name):
            found.add(f"{write_text(code[0])}: {write_text(node.args[0])}")
    return sorted(found)


def write_text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(write_text(part) for part in node.values)
    return (
        str(node.value)
        if isinstance(node, ast.Constant)
        else f"{{{ast.unparse(getattr(node, 'value', node))}}}"
    )


def test_sentences_are_those_of_the_table():
    """For all errors with a code: a reworded, new or removed sentence is a change of `goldens/sentences.txt`."""
    assert list_sentences() == TABLE.read_text("utf-8").splitlines()


if __name__ == "__main__":
    TABLE.write_text("\n".join(list_sentences()) + "\n", "utf-8")
