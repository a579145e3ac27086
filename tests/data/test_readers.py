"""CSV and Parquet readers: events come back sorted by time, exact, under the user's own ids."""

import gzip
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dygmamba as dm
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.id_values import MISSING_ID_WORDS
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.data.readers import delimited as csv_format
from dygmamba.data.storage.dataset import Dataset
from raising import raises
from tables import table, write_csv

words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=4).filter(
    lambda word: word.lower() not in MISSING_ID_WORDS
)
events = st.lists(
    st.tuples(
        words,
        words,
        st.floats(-1e12, 1e12).map(lambda t: t + 0.0),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    min_size=1,
    max_size=25,
)


def seconds(folder: Path, values: list, **options) -> list[float]:
    """Read a CSV file with these values in its time column; return the parsed times in file order."""
    rows = [[k, k, value] for k, value in enumerate(values)]
    dataset = read_dataset(write_csv(folder / "t.csv", ["src", "dst", "time"], rows), ReadOptions(**options))
    return dataset.store.time[torch.argsort(dataset.store.src)].tolist()


def list_events(dataset: Dataset) -> list[tuple]:
    """Return the events with the user's ids."""
    store = dataset.store
    src, dst = (dataset.ids.to_user(column.numpy()).to_pylist() for column in (store.src, store.dst))
    return list(zip(src, dst, store.time.tolist(), store.features.edge.flatten().tolist(), strict=True))


@given(rows=events, parquet=st.booleans())
def test_a_table_comes_back_sorted_and_exact(tmp_path_factory, rows, parquet):
    """Ids, 64-bit times and 32-bit features survive exactly; ties keep their order."""
    path = tmp_path_factory.mktemp("t") / "t"
    if parquet:
        columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
        pq.write_table(pa.table(columns, ["src", "dst", "time", "x"]), path)
    else:
        write_csv(path, ["src", "dst", "time", "x"], [[u, v, repr(t), repr(x)] for u, v, t, x in rows])
    dataset = read_dataset(path, ReadOptions(features=("x",)))
    shown = [(str(u), str(v), t, x) for u, v, t, x in list_events(dataset)]
    assert shown == sorted(rows, key=lambda row: row[2])
    assert dataset.origin.out_of_order == sum(
        row[2] < max(before[2] for before in rows[: k + 1]) for k, row in enumerate(rows)
    )


@given(
    moments=st.lists(
        st.datetimes(datetime(1900, 1, 1), datetime(2240, 1, 1)).flatmap(
            lambda t: st.sampled_from([None, 0, 330, -60]).map(
                lambda m: t if m is None else t.replace(tzinfo=timezone(timedelta(minutes=m)))
            )
        ),
        min_size=1,
        max_size=10,
    )
)
def test_dates_are_exact_to_the_microsecond(tmp_path_factory, moments):
    """Seconds as float64 round to the exact microsecond, with mixed zones; no zone means UTC."""
    found = seconds(tmp_path_factory.mktemp("t"), [moment.isoformat() for moment in moments])
    for moment, second in zip(moments, found, strict=True):
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert round(Fraction(second) * 10**6) == exact


def test_dates_in_the_usual_spellings(tmp_path):
    """Date only, minutes only, blank or T, Z, offsets, UTC in words, nanoseconds."""
    spellings = {
        "2024-05-01": 0,
        "2024-05-01 10:30": 37_800,
        "2024-05-01T10:30:00Z": 37_800,
        " 2024-05-01T10:30:00+02:00": 30_600,
        "2024-05-01 10:30:00-0130": 43_200,
        "2024-05-01 10:30:00.25 UTC": 37_800.25,
        "2024-05-01T10:30:00.000000500": 37_800 + 5e-7,
    }
    origin = datetime(2024, 5, 1, tzinfo=UTC).timestamp()
    assert seconds(tmp_path, list(spellings)) == [origin + offset for offset in spellings.values()]
    assert seconds(tmp_path, list(spellings)[:1]) == [origin]


@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_epoch_ticks_become_the_nearest_seconds(tmp_path, unit, ticks):
    """Seconds are ticks / ticks per second to the last bit of a float64; without a unit numbers stay."""
    values = [1_700_000_000 * ticks + 123, -5 * ticks - 1, 0]
    found = seconds(tmp_path, values, time_unit=unit)
    for value, second in zip(values, found, strict=True):
        assert abs(Fraction(second) - Fraction(value, ticks)) <= Fraction(np.spacing(abs(second)))
    assert seconds(tmp_path, ["1.5e3", "-2"], time_unit=unit) == [1500 / ticks, -2 / ticks]
    assert seconds(tmp_path, ["1.25", "3", "-1e-3"]) == [1.25, 3.0, -0.001]


@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_the_unit_of_epoch_times_is_detected_by_their_size(tmp_path, unit, ticks):
    """Whole numbers that are dates in some unit become seconds; `plain` leaves them alone."""
    values = [1_700_000_000 * ticks, 1_600_000_000 * ticks]
    assert seconds(tmp_path, values) == [1.7e9, 1.6e9]
    origin = read_dataset(tmp_path / "t.csv").origin
    assert (origin.clock, origin.guessed, origin.time_unit) == (f"{unit} since 1970", True, "s")
    if ticks <= 10**6:
        assert seconds(tmp_path, values, time_unit="plain") == [float(value) for value in values]


def test_times_too_large_for_a_float64_need_a_unit(tmp_path):
    """Rounding would merge distinct times."""
    with raises("bad-rows") as caught:
        seconds(tmp_path, [9_000_000_000_000_000_001])
    assert "data row 1, column 'time' is 9000000000000000001" in str(caught.value)
    with raises("conflicting-time-options", kind=ConfigError):
        seconds(tmp_path, ["2024-05-01"], time_unit="ms")


def test_parquet_types_decide_how_values_are_read(tmp_path):
    """Timestamps of any unit and zone, dates, booleans, decimals, dictionaries and big unsigned ids."""
    stamp = datetime(2024, 5, 1, 12, tzinfo=UTC)
    times = {
        "ns": pa.array([stamp], pa.timestamp("ns", "Europe/Paris")),
        "s": pa.array([stamp.replace(tzinfo=None)], pa.timestamp("s")),
        "text": pa.array(["2024-05-01T12:00:00Z"], pa.large_string()),
        "ms": pa.array([int(stamp.timestamp() * 1000)]),
        "day": pa.array([date(2024, 5, 1)]),
        "real": pa.array([stamp.timestamp()]),
    }
    columns = {
        "src": pa.array([2**64 - 1], pa.uint64()),
        "dst": pa.array(["x"]).dictionary_encode(),
        "yes": pa.array([True]),
        "sum": pa.array([Decimal("2.50")]),
    } | times
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for name in times:
        unit = "ms" if name == "ms" else "auto"
        options = ReadOptions(time=name, features=("yes", "sum"), time_unit=unit)
        dataset = read_dataset(tmp_path / "t.parquet", options)
        assert float(dataset.store.time[0]) == stamp.timestamp() - (43_200 if name == "day" else 0)
        assert dataset.store.features.edge.tolist() == [[1.0, 2.5]]
        assert dataset.ids.to_user(dataset.store.src.numpy()).to_pylist() == ["18446744073709551615"]


def test_features_labels_and_missing_values(tmp_path):
    """Booleans are 0 and 1; a missing value is an error with its row and column, or replaced by `fill`."""
    text = "src,dst,time,a,b,c\n1,2,1,TRUE,3,\n2,3,2,false,4.5,1\n"
    path = table(tmp_path / "t.csv", text)
    dataset = read_dataset(path, ReadOptions(features=("b", "a"), label="a"))
    assert dataset.store.features.edge.tolist() == [[3.0, 1.0], [4.5, 0.0]]
    assert dataset.store.label is not None
    assert dataset.store.label.tolist() == [1.0, 0.0]
    assert dataset.origin.features == ("b", "a")
    with raises("bad-rows") as caught:
        read_dataset(path, ReadOptions(features=("c",)))
    assert "data row 1, column 'c'" in str(caught.value)
    filled = read_dataset(path, ReadOptions(features=("c",), fill=-1))
    assert filled.store.features.edge.flatten().tolist() == [-1.0, 1.0]


def test_reading_in_blocks_changes_nothing(tmp_path, monkeypatch):
    """A file read in many blocks equals the file read in one; errors name the same row."""
    rows = [[f"n{k * 7919 % 500}", f"n{k * 31 % 500}", k * 7 % 1000, k] for k in range(3000)]
    path = write_csv(tmp_path / "t.csv", ["src", "dst", "time", "x"], rows)
    whole = read_dataset(path, ReadOptions(features=("x",)))
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 1000)
    parts = read_dataset(path, ReadOptions(features=("x",)))
    assert (parts.digest, parts.ids, parts.origin) == (whole.digest, whole.ids, whole.origin)
    rows[2500][2] = "noon"
    write_csv(path, ["src", "dst", "time", "x"], rows)
    with raises("bad-rows") as caught:
        read_dataset(path)
    assert "data row 2501, column 'time' is 'noon'" in str(caught.value)
    rows[2500] = [1, 2]
    write_csv(path, ["src", "dst", "time", "x"], rows)
    with raises("bad-rows") as caught:
        read_dataset(path)
    assert "data row 2501 has 2 columns instead of 4" in str(caught.value)


def test_text_files_of_many_kinds(tmp_path):
    """Tabs, semicolons, gzip, a byte-order mark, blanks around values, quotes, latin-1 and UTF-16."""
    plain = "src,dst,time\nå,b,1\nb,c,2\n"
    wanted = [("å", "b", 1.0), ("b", "c", 2.0)]
    kinds = {
        "a.csv": (plain.encode(), {}),
        "b.tsv": (plain.replace(",", "\t").encode(), {}),
        "c.csv": (plain.replace(",", ";").encode(), {"delimiter": ";"}),
        "d.csv.gz": (gzip.compress(plain.encode()), {}),
        "e.csv": (b"\xef\xbb\xbf" + plain.encode(), {}),
        "f.csv": (plain.replace(",", " , ").encode(), {}),
        "g.csv": (plain.encode("latin-1"), {"encoding": "latin-1"}),
        "h.csv": (plain.encode("utf-16"), {"encoding": "utf-16"}),
        "i.csv": (b"\n\n" + plain.replace("\n", "\r\n").encode(), {}),
        "j.csv": ('"src","dst","time","say"\n"å","b",1,"two\nlines, ""quoted"""\n"b","c",2,\n'.encode(), {}),
        "k.csv": (plain.rstrip("\n").encode(), {}),
    }
    for name, (content, options) in kinds.items():
        (tmp_path / name).write_bytes(content)
        dataset = read_dataset(tmp_path / name, ReadOptions(**options))
        store = dataset.store
        users = [dataset.ids.to_user(column.numpy()).to_pylist() for column in (store.src, store.dst)]
        assert list(zip(*users, store.time.tolist(), strict=True)) == wanted, name
        assert dataset.name == name[0]


def test_bipartite_sources_and_destinations_are_different_nodes(tmp_path):
    """User 1 and item 1 are two nodes with `bipartite`, one node without."""
    path = table(tmp_path / "t.csv", "user,item,ts\n1,1,0\n2,1,1\n")
    assert read_dataset(path).store.num_nodes == 2
    both = read_dataset(path, ReadOptions(bipartite=True))
    assert (both.store.bipartite, both.store.num_nodes, both.ids.sources) == (True, 3, 2)
    assert both.store.dst.tolist() == [2, 2]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_who_whom_when_are_source_destination_and_time(tmp_path, suffix):
    """The words that describe a log are usual names of its columns."""
    path = tmp_path / f"log.{suffix}"
    if suffix == "csv":
        table(path, "who,whom,when\nann,bob,5\nbob,cid,6\n")
    elif suffix == "jsonl":
        table(path, '{"who": "ann", "whom": "bob", "when": 5}\n{"who": "bob", "whom": "cid", "when": 6}\n')
    else:
        pq.write_table(pa.table({"who": ["ann", "bob"], "whom": ["bob", "cid"], "when": [5, 6]}), path)
    dataset = read_dataset(path)
    assert (dataset.origin.src, dataset.origin.dst, dataset.origin.time) == ("who", "whom", "when")
    assert dataset.ids.to_user(dataset.store.src.numpy()).to_pylist() == ["ann", "bob"]


def test_unused_columns_are_recorded(tmp_path):
    """The origin lists columns that were not read with the reasons, except a row number without a name."""
    path = table(tmp_path / "t.csv", ",src,dst,time,rating,amount,y\n0,1,2,3,4,5,6\n1,2,1,4,5,6,7\n")
    assert read_dataset(path).origin.unused_columns == ("y",)
    some = read_dataset(path, ReadOptions(features=("amount",), label="y"))
    assert some.origin.unused_columns == ("rating",)
    by_position = read_dataset(
        table(tmp_path / "bare.csv", "a,b,1400000000,7\nb,c,1400000001,8\n"), ReadOptions(columns=False)
    )
    assert by_position.origin.unused_columns == ("3",)
    every = read_dataset(path, ReadOptions(features=("rating", "amount"), label="y"))
    assert every.origin.unused_columns == ()
    in_memory = dm.read({"src": [1], "dst": [2], "time": [3], "rating": [4.0]})
    assert (in_memory.origin.unused_columns, in_memory.origin.unused_reasons) == (
        ("rating",),
        ("is constant",),
    )
    saved = dm.load(dm.save(some, data_dir=tmp_path / "data").stem, tmp_path / "data")
    assert saved.origin == some.origin


def save_log(columns, path):
    """Save columns as the suffix says; without a known one they stay in memory."""
    rows = pa.table(columns).to_pylist()
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".csv":
        write_csv(path, list(columns), [list(row.values()) for row in rows])
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        return columns
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "memory"])
@pytest.mark.parametrize("name", ["booked_at", "order_ts"])
def test_a_single_column_of_times_is_found_by_its_values(tmp_path, suffix, name):
    """Whatever its name, if the nodes have usual names; two such columns are still a question."""
    path, rows = tmp_path / f"log.{suffix}", range(20)
    times = [f"2024-05-{1 + k:02d}" if name == "booked_at" else 1_700_000_000 + 3600 * k for k in rows]
    columns = {
        "src": [f"u{k % 3}" for k in rows],
        "dst": [f"v{k % 4}" for k in rows],
        "amount": [k % 7 for k in rows],
        name: times,
    }
    data = dm.read(save_log(columns, path), name="log")
    assert (data.origin.time, data.origin.features, len(data)) == (name, ("amount",), 20)
    with raises("column-not-recognized"):
        dm.read(save_log(columns | {"changed": times}, path), name="log")


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("latin-1", "Zo\u00e9"),
        ("cp1252", "Zo\u00e9\u2019s"),
        ("cp1251", "\u041c\u043e\u0441\u043a\u0432\u0430"),
        ("gb18030", "\u5317\u4eac\u5927\u5b66"),
        ("shift_jis", "\u6771\u4eac\u30bf\u30ef\u30fc"),
    ],
)
def test_the_likely_encoding_is_in_the_hint(tmp_path, encoding, word):
    path = tmp_path / "log.csv"
    path.write_bytes(("src,dst,time\n" + "".join(f"a{k},{word},{k}\n" for k in range(30))).encode(encoding))
    with raises("wrong-encoding") as caught:
        dm.read(path)
    assert f"`encoding='{encoding}'`" in str(caught.value)
    assert len(dm.read(path, encoding=encoding)) == 30


LATE_TIMES = {  # times by row, and what the clock and the order of dates are by all rows
    "a day above twelve comes late": (lambda k: f"0{k % 9 + 1}/0{k % 8 + 1}/2024" if k < 300 else "25/01/2024", "dmy"),
    "the year comes first later": (lambda k: "1" if k < 9 else f"2024-01-{k % 28 + 1:02d}", "ymd"),
    "no time at first": (lambda k: "" if k < 200 else f"2024-01-{k % 28 + 1:02d}", "ymd"),
    "milliseconds after small numbers": (lambda k: k if k < 9 else 1_700_000_000_000 + k, "ms since 1970"),
    "a number like a date at first": (lambda k: 20_240_101 if k < 150 else k, "numbers"),
}  # fmt: skip


@pytest.mark.parametrize("block", [300, 1 << 20])
@pytest.mark.parametrize("case", LATE_TIMES)
def test_all_rows_decide_how_times_are_written(tmp_path, monkeypatch, block, case):
    """However the file is cut into batches; rows that are written otherwise are bad rows."""
    times, expected = LATE_TIMES[case]
    lines = [f"u{k % 5},v{k % 7},{times(k)}" for k in range(400)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["src,dst,time", *lines]) + "\n")
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", block)
    origin = read_dataset(path, ReadOptions(skip_bad=True)).origin
    assert expected in (origin.order, origin.clock)
    assert origin.skipped == {"the year comes first later": 9, "no time at first": 200}.get(case, 0)


@pytest.mark.parametrize("block", [300, 1 << 20])
def test_dates_in_two_orders_are_refused(tmp_path, monkeypatch, block):
    """Also where the second order begins late: a row must not be read with day and month exchanged."""
    lines = [f"u{k % 5},v{k % 7},{'01/13/2024' if k < 200 else '13/01/2024'}" for k in range(400)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["src,dst,time", *lines]) + "\n")
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", block)
    with raises("mixed-date-order"):
        read_dataset(path, ReadOptions(skip_bad=True))
