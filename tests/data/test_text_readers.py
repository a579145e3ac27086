"""Text files as they are found in the wild: however the same events are written, the same events are read."""

import gzip
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import DygError
from dygmamba.data.readers import ReadOptions, bad_rows, read_dataset
from dygmamba.data.readers import delimited as csv_format
from dygmamba.data.storage.dataset import Dataset
from raising import raises
from tables import table

Events = list[tuple[int, int, int]]


def stamp(second: int, form: str, zone: int = 0) -> str:
    return datetime.fromtimestamp(second, timezone(timedelta(hours=zone))).strftime(form)


def lines(rows: Events, form: str) -> str:
    return "".join(form.format(u=u, v=v, t=t, k=k) + "\n" for k, (u, v, t) in enumerate(rows))


def dated(rows: Events, form: str, zone: int = 0) -> str:
    return "".join(f"{u},{v},{stamp(t, form, zone)}\n" for u, v, t in rows)


FORMS = {  # file name: its content; each is read without options
    "snap.txt": lambda rows: "# a graph\n# FromNodeId ToNodeId\n" + lines(rows, "{u} {v} {t}"),
    "runs-of-blanks.txt.gz": lambda rows: lines(rows, "{u}   {v}\t {t}  "),
    "tabs": lambda rows: lines(rows, "{u}\t{v}\t{t}"),
    "otc.csv": lambda rows: lines(rows, "{u},{v},-3,{t}.0"),
    "out.konect": lambda rows: f"% asym weighted\n% {len(rows)} 9 9\n" + lines(rows, "{u} {v} 1\t{t}"),
    "named-comment.txt": lambda rows: "#src dst w timestamp\n" + lines(rows, "{u} {v} 7 {t}"),
    "semicolons.csv": lambda rows: "von;date;source;target\n" + lines(rows, "x;{t};{u};{v}"),
    "floats.csv": lambda rows: "src,dst,time\n" + lines(rows, "{u}.0,{v}.0,{t}"),
    "milliseconds.csv": lambda rows: "src,dst,time\n" + lines(rows, "{u},{v},{t}000"),
    "nanoseconds.csv": lambda rows: "src,dst,time\n" + lines(rows, "{u},{v},{t}000000000"),
    "iso.csv": lambda rows: "src,dst,time\n" + dated(rows, "%Y-%m-%dT%H:%M:%SZ"),
    "zones.csv": lambda rows: "src,dst,time\n" + dated(rows, "%Y-%m-%d %H:%M:%S%z", 5),
    "slashes.csv": lambda rows: "src,dst,time\n" + dated(rows, "%Y/%m/%d %H:%M:%S"),
    "german.csv": lambda rows: "src,dst,time\n" + dated(rows, "%d.%m.%Y %H:%M:%S"),
    "american.csv": lambda rows: "src,dst,time\n" + dated([(9, 9, NEW_YEAR), *rows], "%m/%d/%Y %I:%M:%S %p"),
    "compact.csv": lambda rows: "src,dst,time\n" + dated(rows, "%Y%m%d%H%M%S"),
    "headerless-dates.csv": lambda rows: dated(rows, "%Y-%m-%d %H:%M:%S"),
    "objects.jsonl": lambda rows: lines(rows, '{{"from": {u}, "to": {v}, "ts": {t}}}'),
    "objects.ndjson.gz": lambda rows: lines(
        rows, '{{"ts": "{t}", "user": "{u}", "item": {v}.0, "more": [1]}}'
    ),
}
NEW_YEAR = int(datetime(2023, 12, 31, tzinfo=UTC).timestamp())  # only a day can be 31


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def list_events(dataset: Dataset) -> list[tuple]:
    store = dataset.store
    users = [dataset.ids.to_user(column.numpy()).to_pylist() for column in (store.src, store.dst)]
    return list(zip(*users, store.time.tolist(), strict=True))


@settings(max_examples=8)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1_400_000_000, 1_700_000_000)),
        min_size=3,
        max_size=12,
    )
)
def test_events_are_the_same_in_every_spelling(tmp_path_factory, rows):
    """Sources, destinations and times are equal to the bit, for every spelling of the same events."""
    folder = tmp_path_factory.mktemp("forms")
    wanted = sorted(rows, key=lambda row: row[2])
    for name, form in FORMS.items():
        dataset = read_dataset(write(folder, name, form(rows)))
        found = list_events(dataset)
        if name == "american.csv":
            found.remove((9, 9, float(NEW_YEAR)))
        assert found == [(u, v, float(t)) for u, v, t in wanted], name
    columns = [pa.array([row[k] for row in rows]) for k in range(3)]
    columns[2] = columns[2].cast(pa.timestamp("s", "UTC"))
    pq.write_table(pa.table(columns, ["src", "dst", "time"]), folder / "t.parquet")
    plain = read_dataset(folder / "iso.csv")
    assert (
        read_dataset(folder / "t.parquet").digest == plain.digest == read_dataset(folder / "snap.txt").digest
    )


def test_a_real_dataset_as_a_snap_file(tmp_path, real_data):
    """UCI written as a compressed SNAP file has the digest of the archive."""
    uci = read_dataset(real_data / "uci.npz")
    store = uci.store
    rows = zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    text = "# Directed\n" + "".join(f"{u} {v} {t:.0f}\n" for u, v, t in rows)
    snap = read_dataset(write(tmp_path, "uci.txt.gz", text), ReadOptions(time_unit="plain"))
    assert (snap.digest, snap.ids) == (uci.digest, uci.ids)


def test_the_origin_records_how_a_file_was_read(tmp_path):
    """Column names or positions, delimiter, comments, kind of times, date order and zone."""
    path = table(
        tmp_path / "k.tsv", "% x\n" + "".join(f"{k}\t{k + 1}\t1\t{1_400_000_000 + k}\n" for k in range(5))
    )
    origin = read_dataset(path).origin
    assert (origin.header, origin.delimiter, origin.comments) == (False, "\t", 1)
    assert (origin.src, origin.dst, origin.time) == ("0", "1", "3")
    assert (origin.clock, origin.guessed) == ("s since 1970", True)
    path = table(tmp_path / "d.csv", "src,dst,time\na,b,31/01/2024\nb,c,01/02/2024 10:00+01:00\n")
    origin = read_dataset(path).origin
    assert (origin.clock, origin.order, origin.zone) == ("dates", "dmy", "mixed")


def test_columns_can_be_given_by_position(tmp_path):
    """A number is a position unless a column has it as its name."""
    named = table(tmp_path / "a.csv", "when,who,whom,x\n5,a,b,1\n6,b,c,2\n")
    dataset = read_dataset(named, ReadOptions(src="1", dst="2", time="0", features=("3",)))
    assert (list_events(dataset), dataset.origin.features) == ([("a", "b", 5.0), ("b", "c", 6.0)], ("x",))
    bare = table(tmp_path / "b.csv", "5,a,b,1\n6,b,c,2\n")
    dataset = read_dataset(bare, ReadOptions(src="1", dst="2", time="0", label="3"))
    assert list_events(dataset) == [("a", "b", 5.0), ("b", "c", 6.0)]
    numbered = table(tmp_path / "c.csv", "src,dst,time,7,8\n1,2,3,4,5\n")
    assert read_dataset(numbered, ReadOptions(features=("8",))).store.features.edge.tolist() == [[5.0]]


def test_a_first_event_is_not_taken_for_column_names(tmp_path):
    """Files without a header keep their first line; numbers are names if the rows below are words."""
    assert len(read_dataset(table(tmp_path / "a.csv", "ann,bob,2024-05-01\nbob,cid,2024-05-02\n"))) == 2
    assert len(read_dataset(table(tmp_path / "b.csv", "4,5,6\n"))) == 1
    pandas = table(tmp_path / "c.csv", "0,1,2\nann,bob,17\nbob,cid,18\n")
    assert list_events(read_dataset(pandas, ReadOptions(src="0", dst="1", time="2")))[0] == (
        "ann",
        "bob",
        17.0,
    )
    vague = table(tmp_path / "d.csv", "0,1,2\n3,4,5\n")
    with raises("ambiguous-header"):
        read_dataset(vague)
    assert len(read_dataset(vague, ReadOptions(header=False))) == 2
    assert len(read_dataset(vague, ReadOptions(header=True, src="0", dst="1", time="2"))) == 1


def test_hash_tags_are_events(tmp_path):
    """A line that starts with a comment mark but has the fields of an event is an event."""
    path = table(tmp_path / "tags.csv", "#a,#b,1400000000\n#b,c,1400000001\nc,#a,1400000002\n")
    assert [row[0] for row in list_events(read_dataset(path))] == ["#a", "#b", "c"]


def test_bad_rows_are_skipped_and_counted(tmp_path, monkeypatch):
    """Malformed, undecodable, empty and bad rows have the file's row numbers and are left out with `skip_bad`."""
    rows = [f"n{k},m{k},{k}" for k in range(400)]
    rows[10], rows[50], rows[51], rows[300], rows[399] = "n10", "null,x,3", "x,y,soon", "a,b,inf", "é,1,2,3,4"
    content = ("src,dst,time\n" + "\n".join(rows) + "\n").encode("latin-1")
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for block in (1 << 20, 700):
        monkeypatch.setattr(csv_format, "BLOCK_BYTES", block)
        dataset = read_dataset(path, ReadOptions(skip_bad=True))
        assert (len(dataset), dataset.store.num_nodes, dataset.origin.skipped) == (395, 790, 5)
        shown = " ".join(dataset.origin.skipped_first)
        for row in (11, 51, 52, 301, 400):
            assert f"data row {row}" in shown
    with raises("bad-rows") as caught:
        read_dataset(path)
    assert "data row 400 is not UTF-8" in str(caught.value)


def test_a_file_of_mostly_bad_rows_is_rejected(tmp_path, monkeypatch):
    """A wrong column is reported early, even with `skip_bad`."""
    monkeypatch.setattr(bad_rows, "MAX_BAD_ROWS", 50)
    path = table(tmp_path / "t.csv", "src,dst,time,x\n" + "a,b,word,1\n" * 200 + "a,b,1,1\n" * 10)
    with raises("mostly-bad-rows"):
        read_dataset(path, ReadOptions(skip_bad=True, time="time"))
    with raises("bad-rows"):
        read_dataset(path)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("%d.%m.%Y %H:%M", "03.05.2024 12:30"),
        ("%Y%m%d%H%M", "202405031230"),
        ("%a %b %d %H:%M:%S %z %Y", "Fri May 03 14:30:00 +0200 2024"),
        ("%d/%b/%Y:%H:%M:%S %z", "03/May/2024:12:30:00 +0000"),
        ("%y-%m-%d %I:%M %p", "24-05-03 12:30 PM"),
    ],
)
def test_a_given_time_format_is_parsed_exactly(tmp_path, form, value):
    """Any strptime format works; a date that does not match is a bad row."""
    moment = datetime(2024, 5, 3, 12, 30, tzinfo=UTC).timestamp()
    path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value}\n")
    assert read_dataset(path, ReadOptions(time_format=form)).store.time.tolist() == [moment]
    path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value.replace('03', '33')}\n")
    with raises("bad-rows") as caught:
        read_dataset(path, ReadOptions(time_format=form))
    assert "data row 1, column 'time'" in str(caught.value)
    assert form in str(caught.value)


def test_days_beyond_the_month_do_not_roll_over(tmp_path):
    """31 February is a bad row in every spelling of dates."""
    for value, form in (("31.02.2024", None), ("2024/02/30", None), ("31.02.2024", "%d.%m.%Y")):
        path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value}\n")
        with raises("bad-rows") as caught:
            read_dataset(path, ReadOptions(time_format=form))
        assert f"is {value!r}, not a date" in str(caught.value)


def test_missing_ids_of_a_data_frame_are_bad_rows(tmp_path):
    """NaN in a column of integers that became floats is a missing id, not a node."""
    columns = {"src": np.array([1.0, np.nan]), "dst": np.array([2.0, 3.0]), "time": [1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with raises("bad-rows") as caught:
        read_dataset(tmp_path / "t.parquet")
    assert "data row 2, column 'src' is empty" in str(caught.value)
    dataset = read_dataset(tmp_path / "t.parquet", ReadOptions(skip_bad=True))
    assert torch.equal(dataset.store.src, torch.tensor([0]))


@pytest.mark.parametrize(
    "odd",
    [
        '{"src": "ann", "dst": 7, "time": 5, "x": 0.5}',
        '{"src": "ann", "dst": -0, "time": 5, "x": 0.5}',
        '{"src": "a\\u00e9", "dst": 9999999999999999999, "time": 5, "x": 1}',
        '{"src": "ann", "dst": 7, "time": 5, "x": null, "src": "bob"}',
        '{"src": "ann", "dst": 7.0, "time": 5.5, "x": "0.25"}',
        '{"src": "ann", "dst": true, "time": 5, "x": 0.5}',
        '{"src": "ann", "dst": 7, "time": 5, "x": [1]}',
        '{"src": "ann", "dst": 7, "time": 5}{"src": "ann", "dst": 8, "time": 5}',
        '{"src": "ann", "dst": 7,\n"time": 5, "x": 0.5}',
        '{"src": "ann", "dst": 7, "time": NaN, "x": 0.5}',
    ],
)
def test_arrow_and_python_read_the_same_json(tmp_path, monkeypatch, odd):
    """Lines that Arrow would read in another way, or not at all, are parsed by Python: the same events or errors."""
    rows = [f'{{"src": "u{k % 3}", "dst": {k % 4}, "time": {k}, "x": {k / 4}}}' for k in range(120)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*rows, odd]))

    def read() -> tuple[str, list[str]]:
        try:
            data = read_dataset(path)
        except DygError as error:
            return str(error), []
        return data.digest, data.ids.values.to_pylist()

    first = read()
    monkeypatch.setattr("dygmamba.data.readers.json_lines._detect_schema", lambda *_: None)
    assert read() == first


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
@pytest.mark.parametrize("later", ["{}.25", "{}.0", "{}", "{}123456789", "{}e3", "null"])
def test_fractions_of_ticks_are_read_the_same(tmp_path, monkeypatch, unit, later):
    """Arrow reads times with fractions; whole ones in later blocks stay as they are written, to be divided exactly."""
    monkeypatch.setattr("dygmamba.data.readers.json_lines.BLOCK_BYTES", 1 << 12)
    times = [f"{1_600_000_000_000 + k}.{k % 9}" for k in range(200)]
    times += [later.format(1_700_000_000_001 + k) for k in range(200)]
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(f'{{"src": {k % 5}, "dst": 7, "time": {time}}}\n' for k, time in enumerate(times))
    )

    def read() -> str:
        try:
            return read_dataset(path, ReadOptions(time_unit=unit)).digest
        except DygError as error:
            return str(error)

    first = read()
    monkeypatch.setattr("dygmamba.data.readers.json_lines._detect_schema", lambda *_: None)
    assert read() == first


@pytest.mark.parametrize(("skip", "code"), [(False, "bad-rows"), (True, "mostly-bad-rows")])
def test_thousands_of_rows_of_wrong_width_are_one_sentence(tmp_path, capfd, skip, code):
    """Reading stops with the error about these rows, and prints nothing else."""
    path = tmp_path / "wide.csv"
    path.write_text("src,dst,time,x\n" + "1,2,3\n" * 3000)
    with raises(code):
        read_dataset(path, ReadOptions(skip_bad=skip))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("suffix", "rows"), [("csv", 100), ("csv", 3000), ("jsonl", 3000)])
def test_a_wrong_encoding_is_named_with_skip_bad_too(tmp_path, capfd, suffix, rows):
    """Where hardly a row can be decoded, the encoding is the mistake, not the rows."""
    first, line = "src,dst,time\n", "é,b,5\n"
    if suffix == "jsonl":
        first, line = '{"src": "a", "dst": "b", "time": 5}\n', '{"src": "é", "dst": "b", "time": 5}\n'
    path = tmp_path / f"log.{suffix}"
    path.write_bytes((first + line * rows).encode("latin-1"))
    with raises("wrong-encoding") as caught:
        read_dataset(path, ReadOptions(skip_bad=True))
    assert "`encoding='latin-1'`" in str(caught.value)
    assert capfd.readouterr() == ("", "")
