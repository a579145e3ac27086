"""Import of several files, of more events into a dataset, of zipped text, decimal commas and unusual column names."""

import json
import zipfile

import pytest

import dygmamba as dm
from commands import call
from raising import raises

HEAD = "who;whom;when;amount;kind\n"
ROWS = f"""{HEAD}a;b;2024-01-01 10:00;1.097,23;mail
b;c;2024-01-02 10:00;3,5;call
b;c;2024-01-02 10:00;3,5;call
b;c;2024-01-02 10:00;3,5;mail
"""


def test_files_are_merged_appended_and_cleaned_of_duplicates(tmp_path, monkeypatch, capsys):
    """Two files become one dataset; `--append` adds a third, read in the encoding, columns and marks of the first."""
    files = [tmp_path / name for name in ("first.csv", "second.csv", "third.csv")]
    files[0].write_text(ROWS.replace("a;b", "\xe4;b"), "latin-1")
    files[1].write_text(f"{HEAD}c;d;2023-12-31 09:00;2,0;fax\n", "latin-1")
    files[2].write_text(f"{HEAD}\xe4;e;2024-02-01 09:00;1.097;mail\n", "latin-1")
    words = ("import", "--data-dir", str(tmp_path / "data"), "--json")
    code, out, _ = call(monkeypatch, capsys, *words, *map(str, files[:2]), "--encoding", "latin-1")
    found = json.loads(out)
    assert (code, found["name"], found["events"], found["duplicates"]) == (0, "first", 5, 1)
    code, out, _ = call(monkeypatch, capsys, *words, str(files[2]), "--append", "first", "--drop-duplicates")
    found = json.loads(out)
    assert (code, found["events"], found["duplicates"], found["saved"]) == (0, 5, 1, "newer")
    data = dm.load("first", data_dir=tmp_path / "data")
    assert data.store.features.edge[:, 0].tolist() == pytest.approx([2, 1097.23, 3.5, 3.5, 1097])
    assert data.to_pandas()["kind"].tolist() == ["fax", "mail", "call", "mail", "mail"]
    assert data.ids.to_user(data.store.src.numpy()).to_pylist() == ["c", "\xe4", "b", "b", "\xe4"]
    files[2].write_text(f"{HEAD.replace('amount', 'price')}\xe4;e;2024-02-01 09:00;1.097;mail\n", "latin-1")
    code, _, err = call(monkeypatch, capsys, *words, str(files[2]), "--append", "first")
    assert code == 2
    assert "amount" in err


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["1.097,23", "1.000"], [1097.23, 1000]),
        (["1.097,23", "", "NA"], [1097.23, 0, 0]),
        (["1,5", "1.5"], None),
        (["1,097.23", "2,000"], [1097.23, 2000]),
        (["1,5", "2"], [1.5, 2]),
        (["1.5", "1.097"], [1.5, 1.097]),
        (["1,097", "2"], None),
    ],
)
def test_marks_of_decimals_and_thousands_are_told_apart(values, numbers):
    """By the values of a column; "1,097" alone may be either and is an error unless `decimal` says which."""
    columns = {"src": list("abc"), "dst": list("bca"), "time": [1, 2, 3], "x": values}
    columns = {name: values[: len(columns["x"])] for name, values in columns.items()}
    if numbers is None:
        with raises("bad-rows"):
            dm.read(columns, features=["x"])
        return
    chosen = dm.read(columns, features=["x"], fill=0)
    assert chosen.store.features.edge[:, 0].tolist() == pytest.approx(numbers)
    assert dm.read(columns, fill=0).digest == chosen.digest  # a column that was not named is no text


def test_the_decimal_mark_applies_to_all_rows_of_a_file():
    """A number such as 1,097 is ambiguous, unless `decimal` or another value of the column says which mark it has."""
    columns = {"src": ["a", "b"], "dst": ["b", "a"], "time": [1, 2], "x": ["1,097", "2"]}
    for mark, number in ((",", 1.097), (".", 1097)):
        data = dm.read(columns, features=["x"], decimal=mark)
        assert data.store.features.edge[:, 0].tolist() == pytest.approx([number, 2])
    with raises("bad-rows"):
        dm.read(columns | {"x": ["1.5", "2"]}, features=["x"], decimal=",")


def test_a_zipped_file_is_read_and_several_are_refused(tmp_path):
    """A zip archive of one CSV file reads as that file."""
    plain, zipped = tmp_path / "log.csv", tmp_path / "log.zip"
    plain.write_text(ROWS)
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(plain, "log.csv")
    assert dm.read(zipped).digest == dm.read(plain).digest
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.write(plain, "more.csv")
    with raises("unsupported-file"):
        dm.read(zipped)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("item.u,item.v,item.t", ("item.u", "item.v", "item.t")),
        ("k1,stamp_x,k2", ("k1", "k2", "stamp_x")),
    ],
)
def test_columns_are_found_by_prefixed_names_or_by_content(tmp_path, header, columns):
    """A usual name behind a prefix counts; else the only column of dates is the time, and the two others are nodes."""
    rows = [("a", "b", "2024-01-01"), ("c", "d", "2024-01-02")]
    order = (0, 1, 2) if columns[2] == "item.t" else (0, 2, 1)
    path = tmp_path / "log.csv"
    path.write_text("\n".join([header, *(",".join(row[at] for at in order) for row in rows)]))
    origin = dm.read(path).origin
    assert (origin.src, origin.dst, origin.time) == columns
