"""docs/results.md is what the stored results say, to the byte, and a stored book is read as it was written."""

from pathlib import Path

import pytest

from dygmamba.errors import FileError
from dygmamba.studies.book import results_page
from dygmamba.studies.records import Book, Record

DOCS = Path(__file__).parents[2] / "docs"


def test_the_results_page_is_rebuilt_byte_for_byte():
    assert results_page(DOCS / "results") == (DOCS / "results.md").read_text("utf-8")


def test_every_stored_figure_carries_seed_rule_batch_and_command():
    for path in sorted((DOCS / "results").glob("*.json")):
        book = Book.read(path)
        assert book.command.startswith("dygmamba ")
        for record in book.records:
            assert record.rows
            if record.work == "similarity":  # of hidden states, which answer no exam
                continue
            assert all({"visible", "batch", "negatives", "setting"} <= set(row) for row in record.rows)
            assert record.work == "heuristic" or (
                record.seed is not None and record.settings and record.device
            )


def test_a_book_is_read_as_it_was_written(tmp_path):
    rows = [{"split": "test", "setting": "transductive", "negatives": "random", "ap": 0.9, "auc": 0.8}]
    records = (
        Record(
            "link", "uci", "tgn", 0, {"model": "tgn"}, rows, {"batch": 200}, {"epochs": 3}, [0.5], "cpu", "ab"
        ),
        Record("heuristic", "uci", "recency", None, {"model": "recency"}, rows),
    )
    book = Book("link", "dygmamba reproduce link", records, {"uci transductive random": 0.999})
    book.write(tmp_path / "book.json")
    assert Book.read(tmp_path / "book.json") == book


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"study": "link", "records": [{}], "settings": [], "command": ""}']
)
def test_a_damaged_book_is_one_sentence(text, tmp_path):
    path = tmp_path / "book.json"
    path.write_text(text)
    with pytest.raises(FileError, match="not a study's saved results"):
        Book.read(path)
