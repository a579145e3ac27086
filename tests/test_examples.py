"""The notebooks run as they stand, in a fresh process, and show what they say."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from torture_cases import SECONDS

STRICT = """import warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="ipykernel")
"""
EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "examples").iterdir())}


def shown(name: str, folder: Path) -> str:
    """What the cells of a notebook print and show, run in order in this folder; a warning is an error."""
    book = nbformat.read(EXAMPLES[name], as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    NotebookClient(book, timeout=280, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


def test_every_notebook_is_tested():
    """A new one needs a test below."""
    assert list(EXAMPLES) == ["analyst", "researcher"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_notebook_is_kept_without_what_it_printed(name):
    """For all cells: no outputs, no counts, no machine's folders; else every run would change the file."""
    text = EXAMPLES[name].read_text()
    for cell in json.loads(text)["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell["metadata"]
    assert not re.search(r"[\"'( ]/(home|root|tmp|usr|work|Users)/", text)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_analyst_gets_a_ranking_a_changed_score_and_a_page(tmp_path):
    """The trees stand beside rules, favourites lead the ranking, one more message moves its own score."""
    text = shown("analyst", tmp_path)
    assert {"recency", "trees"} <= set(text.split())
    assert re.search(r"alice\s+bob .* 1$", text, flags=re.MULTILINE)
    before, after = re.findall(r"alice to hal: (\S+), after one message (\S+)", text)[0]
    assert float(before) != float(after)
    assert list(tmp_path.glob("runs/mail/trees/*/report.html"))


@pytest.mark.e2e
@pytest.mark.skipif(not SECONDS, reason="a notebook of many trainings; `make torture` runs it")
def test_the_researcher_gets_a_contract_tables_and_a_loop(tmp_path):
    """Their model keeps the contract, two seeds of it, two ablations and the trees are one table, their loop learns."""
    text = shown("researcher", tmp_path)
    assert "False" not in text
    assert all(word in text for word in ("transductive", "trees", "past=2)", "hours=1000000.0"))
    first, last = re.findall(r"loss (\S+) -> (\S+)", text)[0]
    assert float(last) < float(first) - 0.02
