"""Tables are written as what the suffix of the file says, by one function for all commands."""

import gzip
import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from openpyxl import load_workbook
from pyarrow import feather, parquet

from dygmamba.api.prediction import write_predictions
from dygmamba.api.requests.prediction import PredictRequest
from dygmamba.cli import app
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.export import write_table
from raising import raises

TABLE = pa.table({"src": ["ann", "=cmd()"], "dst": ["bob", "cid"], "score": [0.25, 1 / 3]})
CSV = b"src,dst,score\nann,bob,0.25\n'=cmd(),cid,0.333333333\n"


def read_json(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.splitlines()]


def test_a_file_holds_what_its_suffix_says(tmp_path):
    """For all suffixes; compressed files have the same bytes each time."""
    for name in ("a.csv", "a.CSV", "plain", "a.csv.gz", "a.jsonl.gz", "a.ndjson", "a.pq", "a.feather"):
        write_predictions(tmp_path / name, TABLE)
    assert [(tmp_path / name).read_bytes() for name in ("a.csv", "a.CSV", "plain")] == [CSV] * 3
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == CSV
    rows = [
        {"src": "ann", "dst": "bob", "score": 0.25},
        {"src": "=cmd()", "dst": "cid", "score": 0.333333333},
    ]
    assert read_json(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())) == rows
    assert read_json((tmp_path / "a.ndjson").read_bytes()) == rows
    assert parquet.read_table(tmp_path / "a.pq").equals(TABLE)
    assert feather.read_table(tmp_path / "a.feather").equals(TABLE)
    write_predictions(tmp_path / "b.csv.gz", TABLE)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_a_workbook_holds_text_and_numbers_and_no_formula(tmp_path):
    """Text stays text, also an id that looks like a formula or has more than 15 digits."""
    table = pa.table(
        {"src": ["=1+1", " <a> & \x01", None], "n": [1, 2**60, -3], "score": [0.1, 1e-9, math.nan]}
    )
    write_table(tmp_path / "a.xlsx", table)
    (sheet,) = load_workbook(tmp_path / "a.xlsx").worksheets
    assert [[(cell.data_type, cell.value) for cell in row] for row in sheet.rows] == [
        [("s", "src"), ("s", "n"), ("s", "score")],
        [("s", "=1+1"), ("n", 1), ("n", 0.1)],
        [("s", " <a> & \ufffd"), ("s", str(2**60)), ("n", 1e-9)],
        [("n", None), ("n", -3), ("s", "nan")],
    ]
    long = pa.table({"src": pa.nulls(1_048_576)})
    with raises("too-many-rows"):
        write_table(tmp_path / "c.xlsx", long)
    with raises("cell-too-long"):
        write_table(tmp_path / "c.xlsx", pa.table({"src": ["x" * 40_000]}))
    assert not (tmp_path / "c.xlsx").exists()


def test_a_workbook_without_openpyxl_is_refused_at_once(tmp_path, monkeypatch):
    """Before a run is opened; the message names the extra."""
    monkeypatch.setattr("dygmamba.data.storage.locations.find_spec", lambda name: None)
    request = PredictRequest(run=Path("none"), pairs=Path("pairs.csv"), out=tmp_path / "a.xlsx")
    with raises("package-missing", ConfigError) as error:
        request.check()
    assert "pip install 'dyg-mamba[xlsx]'" in str(error.value)


@pytest.mark.parametrize("name", ["a.xls", "a.json", "a.parquet.gz", "a.txt", "a.gz", "a.zip"])
def test_a_suffix_that_says_something_else_is_refused(tmp_path, name):
    """At once, before a run is opened, and no file is written."""
    with raises("unknown-file-suffix"):
        write_table(tmp_path / name, TABLE)
    with raises("unknown-file-suffix"):
        PredictRequest(run=Path("none"), pairs=Path("pairs.csv"), out=tmp_path / name).check()
    assert not list(tmp_path.iterdir())


def test_the_help_shows_the_default_of_candidates():
    """`evaluate` draws 100, `predict` ranks all unless they are many."""
    commands = typer.main.get_command(app).commands
    for command, default in (("evaluate", "100"), ("predict", "all; of more than 20,000 a shortlist")):
        (option,) = (one for one in commands[command].params if one.name == "candidates")
        assert option.show_default == default
