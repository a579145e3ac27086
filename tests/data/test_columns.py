"""Columns of a log beside source, destination and time: kept by name and kind, stored, extended and exported."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.data.events.columns import compute_moments
from dygmamba.data.readers import ReadOptions, delimited, other_columns, read_dataset
from dygmamba.data.storage.dataset import load_dataset, save_dataset
from dygmamba.data.storage.extension import extend_dataset
from raising import raises

ROWS = 40
LOG = {
    "src": [f"u{k % 5}" for k in range(ROWS)],
    "dst": [f"v{k % 7}" for k in range(ROWS)],
    "time": [1_700_000_000 + 60 * k for k in range(ROWS)],
    "amount": [k % 9 + 0.5 for k in range(ROWS)],
    "kind": [("card", "wire", None)[k % 3] for k in range(ROWS)],
    "paid": [("true", "false")[k % 2] for k in range(ROWS)],
    "row": list(range(ROWS)),
    "memo": [f"text {k}" for k in range(ROWS)],
    "day": [f"2024-01-{k % 9 + 10}" for k in range(ROWS)],
    "unit": ["EUR"] * ROWS,
    "gaps": [None if k == 30 else k % 4 for k in range(ROWS)],
    "label": [k % 2 for k in range(ROWS)],
    "sent": [1_700_000_001 + 60 * k for k in range(ROWS)],
}
REASONS = {
    "row": "rises from row to row, like a row number",
    "memo": "has 40 different values in 40 rows, like text or ids",
    "day": "holds dates",
    "unit": "is constant",
    "gaps": "has missing values, which `fill` replaces",
    "label": "may be a label (`label` reads it)",
    "sent": "may be another source, destination or time",
}


def write(path, log):
    """The log as a file of the format that the suffix names."""
    table = pa.table(log)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        lines = [
            ",".join("" if cell is None else str(cell) for cell in row.values()) for row in table.to_pylist()
        ]
        path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "dict"])
def test_usable_columns_are_kept_and_the_others_named_with_the_reason(tmp_path, suffix):
    """In every format: numbers become edge features, text becomes codes with sorted values, a missing one is ''."""
    memory = ReadOptions().memory if suffix == "parquet" else 3000  # the others are sorted on disk
    if suffix == "dict":
        data = dm.read(LOG)
    else:
        data = read_dataset(
            write(tmp_path / f"log.{suffix}", LOG), ReadOptions(memory=memory, scratch=tmp_path)
        )
    table = data.store.features
    assert table.names == data.origin.features == ("amount", "paid")
    assert table.edge.T.tolist() == [LOG["amount"], [float(word == "true") for word in LOG["paid"]]]
    assert [category.name for category in table.categories] == list(data.origin.types)
    kind = table.categories[0]
    assert kind.values == ("", "card", "wire")
    assert [kind.values[code] for code in table.codes[:, 0]] == [word or "" for word in LOG["kind"]]
    assert dict(zip(data.origin.unused_columns, data.origin.unused_reasons, strict=True)) == REASONS


def test_chosen_columns_are_exactly_these(tmp_path):
    path = write(tmp_path / "log.csv", LOG)
    some = read_dataset(path, ReadOptions(types=("unit",), features=("row",)))
    assert (some.origin.features, some.origin.types) == (("row",), ("unit",))
    none = read_dataset(path, ReadOptions(columns=False))
    assert not none.store.features.has_columns
    assert set(none.origin.unused_reasons) == {"is not among the chosen columns"}
    with raises("columns-not-distinct", ConfigError):
        read_dataset(path, ReadOptions(types=("row",), features=("row",)))
    with raises("bad-rows", FileError):  # a column that was asked for must be complete
        read_dataset(path, ReadOptions(features=("gaps",)))
    filled = read_dataset(path, ReadOptions(fill=0.0))
    assert "gaps" in filled.origin.features


def test_columns_are_stored_and_damage_is_found(tmp_path):
    """A dataset file holds names, codes and values; a code without a value is refused; old files have no codes."""
    data = dm.read(LOG, name="log")
    opened = load_dataset(save_dataset(data, tmp_path))
    assert opened.store.features.categories == data.store.features.categories
    assert torch.equal(opened.store.features.codes, data.store.features.codes)
    assert (opened.digest, opened.version) == (data.digest, data.version)
    renamed = dm.read(LOG | {"kind": [word and word.upper() for word in LOG["kind"]]}, name="log")
    assert renamed.digest == data.digest  # the same codes
    assert renamed.version != data.version
    data.store.features.codes[0, 0] = 7
    broken = type(data).from_events("log", data.store, data.ids, data.origin)
    with raises("file-damaged", FileError):
        load_dataset(save_dataset(broken, tmp_path / "broken"))


def test_new_events_extend_the_vocabulary():
    """Known values keep their codes, new ones get the next; other columns than the stream's are refused."""
    data = dm.read(LOG, types="kind", features="amount")
    later = {
        "src": ["u0"] * 2,
        "dst": ["v9"] * 2,
        "time": [2e9, 2e9],
        "amount": [1.0, 2.0],
        "kind": ["gift", "card"],
    }
    more = extend_dataset(data, dm.read(later, types="kind", features="amount"))
    (kind,) = more.store.features.categories
    assert kind.values == ("", "card", "wire", "gift")
    assert more.store.features.codes[-2:, 0].tolist() == [3, 1]
    with raises("feature-count", EventError):
        extend_dataset(data, dm.read(later, features="amount"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "frame"])
def test_columns_survive_an_export(tmp_path, suffix):
    data = dm.read(LOG, name="log")
    if suffix == "frame":
        again = dm.read(data.to_pandas())
    else:
        result = data.export(tmp_path / f"out.{suffix}")
        again = dm.read(tmp_path / f"out.{suffix}", **result.options)
    assert (again.digest, again.version) == (data.digest, data.version)
    assert data.export(tmp_path / "out.npz").lost  # arrays have no place for values


def write_amounts(path, bad, value="lots", rows=1000, delimiter=",", decimal="."):
    """Write a log whose amounts are numbers, but for some rows, numbered from 1."""
    amounts = [f"{k % 700 + 0.25}".replace(".", decimal) for k in range(rows)]
    for row in bad:
        amounts[row - 1] = value
    cells = [(f"u{k % 5}", f"v{k % 7}", str(1_700_000_000 + 60 * k), amounts[k]) for k in range(rows)]
    path.write_text(
        "\n".join(delimiter.join(line) for line in [("src", "dst", "time", "amount"), *cells]) + "\n"
    )
    return path


@pytest.mark.parametrize("row", [3, 812])
@pytest.mark.parametrize(("delimiter", "decimal"), [(",", "."), (";", ",")])
def test_a_few_bad_cells_do_not_cost_a_numeric_column(tmp_path, row, delimiter, decimal):
    """They are an error that names the first with its row and the remedies; each remedy works."""
    path = write_amounts(tmp_path / "log.csv", [row, 900], delimiter=delimiter, decimal=decimal)
    with raises("bad-rows", FileError) as error:
        read_dataset(path, ReadOptions(skip_bad=False))
    assert (
        f"column 'amount' has 2 values that are not finite numbers, the first is 'lots' in data row {row};"
        in str(error.value)
    )
    assert "`skip_bad=True`" in str(error.value)
    assert "`types='amount'`" in str(error.value)
    skipped = read_dataset(path, ReadOptions(skip_bad=True))
    assert (len(skipped), skipped.origin.skipped, skipped.origin.features) == (998, 2, ("amount",))
    assert float(skipped.store.features.edge[-1, 0]) == 299.25
    assert read_dataset(path, ReadOptions(types=("amount",))).origin.types == ("amount",)
    assert len(read_dataset(path, ReadOptions(columns=False))) == 1000


def test_an_infinite_number_is_a_bad_cell(tmp_path):
    with raises("bad-rows", FileError) as error:
        read_dataset(write_amounts(tmp_path / "log.csv", [7], "inf"), ReadOptions())
    assert "has 1 value that is not a finite number, 'inf' in data row 7; correct it" in str(error.value)
    assert "skip_bad" not in str(error.value)  # a caller without this option


@pytest.mark.parametrize("skip", [False, True])
def test_a_column_with_many_bad_cells_is_left_out(tmp_path, skip):
    """More than one value in twenty: text, or numbers that end; no row is left out for it."""
    for bad in (range(1, 1000, 15), range(500, 600)):
        data = read_dataset(write_amounts(tmp_path / "log.csv", bad), ReadOptions(skip_bad=skip))
        assert len(data) == 1000
        assert data.origin.unused_columns == () if data.origin.types else ("amount",)
        assert data.origin.features == ()


def test_a_column_with_gaps_and_bad_cells_is_left_out_for_its_gaps(tmp_path):
    """As with gaps alone; with `fill` its bad cells count."""
    path = write_amounts(tmp_path / "log.csv", [7])
    path.write_text(path.read_text().replace(",5.25\n", ",\n"))
    assert read_dataset(path, ReadOptions()).origin.unused_reasons == (REASONS["gaps"],)
    with raises("bad-rows", FileError):
        read_dataset(path, ReadOptions(fill=0.0))


def test_the_limit_of_values_is_higher_for_a_named_column(tmp_path, monkeypatch):
    """1,000 for a column that nobody named; the reason names the limit that applies."""
    rows = 4000
    log = {
        "src": [f"u{k % 5}" for k in range(rows)],
        "dst": [f"v{k % 7}" for k in range(rows)],
        "time": list(range(rows)),
        "code": [f"c{k % 1500}" for k in range(rows)],
    }
    path = write(tmp_path / "log.csv", log)
    assert read_dataset(path, ReadOptions()).origin.unused_reasons == (
        "has more than 1,000 different values, like text or ids",
    )
    (code,) = read_dataset(path, ReadOptions(types=("code",))).store.features.categories
    assert len(code.values) == 1500
    monkeypatch.setattr(other_columns, "MAX_CHOSEN_VALUES", 1200)
    assert read_dataset(path, ReadOptions(types=("code",))).origin.unused_reasons == (
        "has more than 1,200 different values, like text or ids",
    )


def write_log(path, rows=60, bad=(), **columns):
    """Write a log of these columns, each a function of the row; the time of the bad rows, numbered from 1, is none."""
    lines = [",".join(("src", "dst", "time", *columns))]
    for k in range(rows):
        time = "soon" if k + 1 in bad else str(1_700_000_000 + 60 * k)
        lines.append(
            ",".join((f"u{k % 5}", f"v{k % 7}", time, *(str(value(k)) for value in columns.values())))
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_skipped_row_does_not_change_the_columns(tmp_path):
    """A row number and text that hardly repeats are left out, with a bad row among sixty as without it."""
    columns = {
        "number": lambda k: k,
        "note": lambda k: f"note {k // 2 * 2 if k < 6 else k}",
        "kind": lambda k: "ab"[k % 2],
    }
    whole = read_dataset(write_log(tmp_path / "a.csv", **columns), ReadOptions()).origin
    skipped = read_dataset(
        write_log(tmp_path / "b.csv", bad=[31], **columns), ReadOptions(skip_bad=True)
    ).origin
    assert skipped.skipped == 1
    assert skipped.features == whole.features == ()
    assert skipped.types == whole.types == ("kind",)
    assert skipped.unused_columns == whole.unused_columns == ("number", "note")


def test_bad_rows_are_as_many_as_are_left_out(tmp_path):
    """Bad cells of a numeric column count with the other bad rows, before and after `skip_bad`."""
    path = write_log(
        tmp_path / "log.csv", 400, bad=range(101, 121), amount=lambda k: "lots" if k < 5 else k % 70 + 0.5
    )
    with raises("bad-rows", FileError) as error:
        read_dataset(path, ReadOptions(skip_bad=False))
    assert "has 25 bad rows: data row 1, column 'amount' is 'lots', not a number" in str(error.value)
    assert read_dataset(path, ReadOptions(skip_bad=True)).origin.skipped == 25


@pytest.mark.parametrize("block", [2500, 1 << 20])
@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (lambda k: f"{k % 9},25" if k > 300 else k % 9, (("late",), (), ",")),
        (lambda k: f"word {k % 9}" if k > 120 else ("word" if k % 50 == 0 else k % 9), ((), ("late",), "")),
        (lambda k: k % 9 + 0.5 if k > 120 else "", ((), (), "")),
        (lambda k: "word" if k == 7 else k % 9, (("late",), (), "")),
    ],
)
def test_all_rows_decide_what_a_column_is(tmp_path, monkeypatch, block, late, expected):
    """However the file is cut into batches: decimals, words and gaps that begin late, and a word at the start."""
    path = write_log(tmp_path / "log.tsv", 400, late=late)
    path.write_text("\n".join("\t".join(line.split(",", 3)) for line in path.read_text().splitlines()))
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
    origin = read_dataset(path, ReadOptions(skip_bad=True)).origin
    assert (origin.features, origin.types, origin.decimal) == expected
    assert origin.skipped == (expected[0] == ("late",) and not origin.decimal)


def test_ids_and_classes_of_bad_rows_are_left_out(tmp_path):
    """Neither a node nor a class of a row that is skipped is in the dataset; a missing label is a bad row."""
    rows = [("a", "b", 1, "yes"), ("c", "d", None, "maybe"), ("b", "a", 2, "no"), ("a", "b", 3, None)]
    columns = dict(zip(("src", "dst", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
    data = dm.read(columns, label="label", skip_bad=True)
    assert data.origin.classes == ("no", "yes")
    assert data.ids.values.to_pylist() == ["a", "b"]
    assert data.origin.skipped == 2


@pytest.mark.parametrize("block", [2500, 1 << 20])
@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (lambda k: f"{k % 9},25" if k > 300 else k % 9, (0, 3.25)),
        (lambda k: f"1.{100 + k % 9}" if k < 300 else f"1.{100 + k % 9},5", (0, 1103.5)),
        (lambda k: "lots" if k == 7 else f"{k % 9},25", (1, 3.25)),
        (lambda k: "3,14" if k == 300 else k % 9 + 0.25, (1, 3.25)),
    ],
)
def test_all_rows_decide_the_decimal_mark_of_a_chosen_column(tmp_path, monkeypatch, block, amount, expected):
    """However the file is cut into batches: decimals that begin late, and a typing error on either side."""
    path = write_log(tmp_path / "log.tsv", 400, amount=amount)
    path.write_text("\n".join("\t".join(line.split(",", 3)) for line in path.read_text().splitlines()))
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
    data = read_dataset(path, ReadOptions(features=("amount",), skip_bad=True))
    assert (data.origin.skipped, float(data.store.features.edge[-1, 0])) == expected


def test_a_column_with_the_other_decimal_mark_is_left_out(tmp_path):
    path = write_log(tmp_path / "log.csv", amount=lambda k: k % 9 + 0.5)
    origin = read_dataset(path, ReadOptions(decimal=",")).origin
    assert origin.unused_columns == ("amount",)
    assert origin.unused_reasons == ("is '0.5', not a number with the decimal mark ','",)


def test_moments_have_the_same_bits_with_any_number_of_threads() -> None:
    """A run that is opened on a machine with more cores reads the same features."""
    value = torch.randn(100_003, generator=torch.Generator().manual_seed(0)).double().exp()
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(compute_moments(value))
    torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
    assert found[0] == pytest.approx((float(value.mean()), float(value.std(correction=0))), rel=1e-12)
    assert compute_moments(value[:0]) == (0.0, 0.0)
