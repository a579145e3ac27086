"""The examples run as they stand, in a fresh process, and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def printed(name: str, folder: Path) -> str:
    """What an example prints; a warning is an error."""
    (path,) = [path for path in EXAMPLES if path.stem == name]
    command = [sys.executable, "-W", "error", str(path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested():
    """A new example needs a test below."""
    assert [path.stem for path in EXAMPLES] == ["analyst", "researcher"]


def test_the_analyst_gets_a_ranking_a_changed_score_and_a_page(tmp_path):
    """DyG-Mamba stands beside the rule, favourites lead the ranking, one more message moves its own score."""
    text = printed("analyst", tmp_path)
    assert {"recency", "dyg-mamba"} <= set(text.split())
    assert re.search(r"alice\s+bob .* 1$", text, flags=re.MULTILINE)
    before, after = (
        float(number) for number in re.findall(r"alice to hal: (\S+), after one message (\S+)", text)[0]
    )
    assert before != after
    assert Path(text.split("the page: ")[1].strip()).is_file()


def test_the_researcher_gets_a_contract_a_table_and_a_loop(tmp_path):
    """Their model keeps the contract, is trained for two seeds, and their own loop learns."""
    text = printed("researcher", tmp_path)
    assert "False" not in text
    assert "transductive" in text
    first, last = (float(number) for number in re.findall(r"loss (\S+) -> (\S+)", text)[0])
    assert last < first - 0.02
