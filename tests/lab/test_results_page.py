"""docs/research/results.md is what the stored results say, to the byte, and a stored book is read as it was written."""

from dataclasses import replace
from pathlib import Path

import pytest

from dygmamba.core.errors import FileError
from dygmamba.lab.results_page import BLOCK, build_results_page, fill_result_blocks
from dygmamba.report.result_records import ResultRecord, StudyResults

DOCS = Path(__file__).parents[2] / "docs" / "research"


def test_the_results_page_is_rebuilt_byte_for_byte():
    assert build_results_page(DOCS / "results") == (DOCS / "results.md").read_text("utf-8")


ROOT = DOCS.parents[1]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(path.read_text("utf-8"))
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_result_tables_of_other_pages_are_rebuilt_byte_for_byte(path):
    """For all pages with generated tables: the tables are those of the stored records."""
    text = path.read_text("utf-8")
    assert fill_result_blocks(text, DOCS / "results") == text


def test_the_readme_has_a_generated_table():
    assert ROOT / "README.md" in PAGES


def test_every_stored_figure_carries_seed_rule_batch_and_command():
    for path in sorted((DOCS / "results").glob("*.json")):
        book = StudyResults.read(path)
        assert book.command.startswith("dygmamba ")
        for record in book.records:
            assert record.rows
            if record.work in ("similarity", "cost"):  # of hidden states and of time, which answer no exam
                continue
            assert all({"visible", "batch", "negatives", "setting"} <= set(row) for row in record.rows)
            assert record.work == "heuristic" or (
                record.seed is not None and record.settings and record.device
            )


def test_a_mark_tells_lengths_and_sizes_of_one_model_apart(tmp_path):
    """Records that differ in `about` alone are rows of their own, and a cost against length is a table too."""
    row = {"split": "test", "setting": "transductive", "negatives": "random", "ap": 0.9, "auc": 0.8}
    rows = [row | {"ap_pooled": 0.9}]
    for study, about in (("length", {"length": 64}), ("sensitivity", {"setting": "blocks", "value": 3})):
        book = StudyResults(study, "dygmamba", (ResultRecord("link", "uci", "dyg-mamba", 0, about, rows),))
        book.write(tmp_path / f"{study}.json")
    cost = [{"epoch_seconds": 1.5, "peak_mb": 2048.0}]
    record = ResultRecord("cost", "uci", "dyg-mamba", 0, {"length": 64, "patch": "none"}, cost)
    StudyResults("efficiency", "dygmamba", (record,)).write(tmp_path / "efficiency.json")
    marks = ("table length uci transductive random", "table sensitivity uci transductive random")
    text = "\n\n".join(f"<!-- {mark} -->" for mark in (*marks, "study efficiency uci"))
    (tmp_path / "results.in.md").write_text(text, "utf-8")
    page = build_results_page(tmp_path)
    assert "| L = 64 | **90.00** |" in page
    assert "| blocks = 3 | **90.00** |" in page
    assert "| 64 | 1.50 | 2,048 |" in page


def test_streams_side_by_side_are_ordered_by_the_mean_rank(tmp_path):
    """Ranks are of those that have a figure everywhere, among themselves; the others come last, with what they have."""
    found = {
        "a": {"x": 0.9, "y": 0.6},
        "b": {"x": 0.8, "y": 0.9},
        "c": {"x": 0.7, "y": 0.5},
        "d": {"x": 0.95},
    }
    row = {"split": "test", "setting": "transductive", "negatives": "random"}
    records = [
        ResultRecord("link", data, model, 0, {}, [row | {"ap": ap}])
        for model, by_stream in found.items()
        for data, ap in by_stream.items()
    ]
    for name, data in (("first", "x"), ("second", "y")):
        StudyResults("link", "dygmamba", tuple(one for one in records if one.data == data)).write(
            tmp_path / f"{name}.json"
        )
    (tmp_path / "results.in.md").write_text("<!-- overview first,second transductive random -->", "utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in build_results_page(tmp_path).splitlines()
    ]
    assert rows[0] == ["model", "mean rank", "x", "y"]
    assert rows[2:] == [
        ["a", "**1.5**", "90.00", "60.00"],
        ["b", "**1.5**", "80.00", "**90.00**"],
        ["c", "3.0", "70.00", "50.00"],
        ["d", "-", "**95.00**", "-"],
    ]
    StudyResults("link", "dygmamba", (replace(records[0], model="e"),)).write(tmp_path / "third.json")
    (tmp_path / "results.in.md").write_text("<!-- overview third,second transductive random -->", "utf-8")
    assert "| e | - | **90.00** | - |" in build_results_page(tmp_path)  # nobody is on both
    (tmp_path / "results.in.md").write_text("<!-- overview first transductive random -->", "utf-8")
    with pytest.raises(FileError, match="mend the mark <!-- overview first transductive random -->"):
        build_results_page(tmp_path)


def test_a_book_is_read_as_it_was_written(tmp_path):
    rows = [{"split": "test", "setting": "transductive", "negatives": "random", "ap": 0.9, "auc": 0.8}]
    records = (
        ResultRecord(
            "link", "uci", "tgn", 0, {"model": "tgn"}, rows, {"batch": 200}, {"epochs": 3}, [0.5], "cpu", "ab"
        ),
        ResultRecord("heuristic", "uci", "recency", None, {"model": "recency"}, rows),
    )
    book = StudyResults("link", "dygmamba reproduce link", records, {"uci transductive random": 0.999})
    book.write(tmp_path / "book.json")
    assert StudyResults.read(tmp_path / "book.json") == book


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"study": "link", "records": [{}], "settings": [], "command": ""}']
)
def test_a_damaged_book_is_one_sentence(text, tmp_path):
    path = tmp_path / "book.json"
    path.write_text(text)
    with pytest.raises(FileError, match="not a study's saved results"):
        StudyResults.read(path)
