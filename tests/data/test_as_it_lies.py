"""A file as it lies: whatever form the same events are written in, the same events come out."""

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

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers import ReadOptions, read_dataset, values
from dygmamba.data.readers import delimited as csv_format
from dygmamba.data.storage.dataset import Dataset
from tables import table

Events = list[tuple[int, int, int]]


def stamp(second: int, form: str, zone: int = 0) -> str:
    return datetime.fromtimestamp(second, timezone(timedelta(hours=zone))).strftime(form)


def lines(rows: Events, form: str) -> str:
    return "".join(form.format(u=u, v=v, t=t, k=k) + "\n" for k, (u, v, t) in enumerate(rows))


def dated(rows: Events, form: str, zone: int = 0) -> str:
    return "".join(f"{u},{v},{stamp(t, form, zone)}\n" for u, v, t in rows)


FORMS = {  # name of the file -> its content; each is read by one call without a word about it
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
NEW_YEAR = int(datetime(2023, 12, 31, tzinfo=UTC).timestamp())  # a 31st settles what is a day


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def told(dataset: Dataset) -> list[tuple]:
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
def test_one_stream_in_every_form_is_one_stream(tmp_path_factory, rows):
    """For all streams and forms: the same sources, destinations and times, to the bit."""
    folder = tmp_path_factory.mktemp("forms")
    wanted = sorted(rows, key=lambda row: row[2])
    for name, form in FORMS.items():
        dataset = read_dataset(write(folder, name, form(rows)))
        found = told(dataset)
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


def test_a_real_stream_as_snap_and_as_a_table(tmp_path, real_data):
    """UCI as SNAP publishes such files, packed: the digest of the archive's own events."""
    uci = read_dataset(real_data / "uci.npz")
    store = uci.store
    rows = zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    text = "# Directed\n" + "".join(f"{u} {v} {t:.0f}\n" for u, v, t in rows)
    snap = read_dataset(write(tmp_path, "uci.txt.gz", text), ReadOptions(time_unit="plain"))
    assert (snap.digest, snap.ids) == (uci.digest, uci.ids)


def test_what_was_understood_is_remembered(tmp_path):
    """Names or places, delimiter, comments, clock, order and zone are in the origin."""
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


def test_columns_by_place_with_and_without_names(tmp_path):
    """A number is a place where no column bears it as a name; given places are taken as they are."""
    named = table(tmp_path / "a.csv", "when,who,whom,x\n5,a,b,1\n6,b,c,2\n")
    dataset = read_dataset(named, ReadOptions(src="1", dst="2", time="0", features=("3",)))
    assert (told(dataset), dataset.origin.features) == ([("a", "b", 5.0), ("b", "c", 6.0)], ("x",))
    bare = table(tmp_path / "b.csv", "5,a,b,1\n6,b,c,2\n")
    dataset = read_dataset(bare, ReadOptions(src="1", dst="2", time="0", label="3"))
    assert told(dataset) == [("a", "b", 5.0), ("b", "c", 6.0)]
    numbered = table(tmp_path / "c.csv", "src,dst,time,7,8\n1,2,3,4,5\n")
    assert read_dataset(numbered, ReadOptions(features=("8",))).store.features.edge.tolist() == [[5.0]]


def test_a_first_event_is_never_taken_for_names(tmp_path):
    """Headerless files keep their first line; numbers as names are names where the rows are words."""
    assert len(read_dataset(table(tmp_path / "a.csv", "ann,bob,2024-05-01\nbob,cid,2024-05-02\n"))) == 2
    assert len(read_dataset(table(tmp_path / "b.csv", "4,5,6\n"))) == 1
    pandas = table(tmp_path / "c.csv", "0,1,2\nann,bob,17\nbob,cid,18\n")
    assert told(read_dataset(pandas, ReadOptions(src="0", dst="1", time="2")))[0] == ("ann", "bob", 17.0)
    vague = table(tmp_path / "d.csv", "0,1,2\n3,4,5\n")
    with pytest.raises(FileError, match="`header=True` or `header=False`"):
        read_dataset(vague)
    assert len(read_dataset(vague, ReadOptions(header=False))) == 2
    assert len(read_dataset(vague, ReadOptions(header=True, src="0", dst="1", time="2"))) == 1


def test_hash_tags_are_events(tmp_path):
    """A line that begins with a mark and is cut like the others is no comment."""
    path = table(tmp_path / "tags.csv", "#a,#b,1400000000\n#b,c,1400000001\nc,#a,1400000002\n")
    assert [row[0] for row in told(read_dataset(path))] == ["#a", "#b", "c"]


def test_bad_rows_are_left_out_and_counted(tmp_path, monkeypatch):
    """For any blocks: torn, undecodable, empty and odd rows are numbered as in the file and gone with skip_bad."""
    rows = [f"n{k},m{k},{k}" for k in range(400)]
    rows[10], rows[50], rows[51], rows[300], rows[399] = "n10", "null,x,3", "x,y,soon", "a,b,inf", "é,1,2,3,4"
    content = ("src,dst,time\n" + "\n".join(rows) + "\n").encode("latin-1")
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for block in (1 << 20, 700):
        monkeypatch.setattr(csv_format, "BLOCK_BYTES", block)
        dataset = read_dataset(path, ReadOptions(skip_bad=True))
        assert (len(dataset), dataset.store.num_nodes, dataset.origin.skipped) == (395, 790, 5)
        said = " ".join(dataset.origin.skipped_first)
        for row in (11, 51, 52, 301, 400):
            assert f"data row {row}" in said
    with pytest.raises(FileError, match=r"no UTF-8|no character"):
        read_dataset(path)


def test_mostly_bad_is_not_a_few_bad_rows(tmp_path, monkeypatch):
    """A wrong column is refused early, even where bad rows may be left out."""
    monkeypatch.setattr(values, "MAX_BAD_ROWS", 50)
    path = table(tmp_path / "t.csv", "src,dst,time,x\n" + "a,b,word,1\n" * 200 + "a,b,1,1\n" * 10)
    with pytest.raises(FileError, match="most rows are bad"):
        read_dataset(path, ReadOptions(skip_bad=True, time="time"))
    with pytest.raises(FileError, match=r"more than 50 bad rows.*and 46 more"):
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
def test_a_stated_format_is_read_exactly(tmp_path, form, value):
    """Plain formats and all that strptime knows; a date that is none is a bad row."""
    moment = datetime(2024, 5, 3, 12, 30, tzinfo=UTC).timestamp()
    path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value}\n")
    assert read_dataset(path, ReadOptions(time_format=form)).store.time.tolist() == [moment]
    path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value.replace('03', '33')}\n")
    with pytest.raises(FileError, match=r"data row 1, column 'time' is .* not a date like"):
        read_dataset(path, ReadOptions(time_format=form))


def test_formats_that_leave_the_day_open_are_refused():
    """A format without a year, or that is none, is a sentence before anything is read."""
    for form in ("%H:%M", "%d.%m.", "%Q", "%", ""):
        with pytest.raises(ConfigError, match="time format"):
            ReadOptions(time_format=form)


def test_days_beyond_the_month_do_not_roll_over(tmp_path):
    """31 February is a bad row in every spelling."""
    for value, form in (("31.02.2024", None), ("2024/02/30", None), ("31.02.2024", "%d.%m.%Y")):
        path = table(tmp_path / "t.csv", f"src,dst,time\na,b,{value}\n")
        with pytest.raises(FileError, match="not a date"):
            read_dataset(path, ReadOptions(time_format=form))


def test_null_ids_of_a_frame_are_bad_rows(tmp_path):
    """NaN among integers that became floats is an empty id, not a node."""
    columns = {"src": np.array([1.0, np.nan]), "dst": np.array([2.0, 3.0]), "time": [1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(FileError, match="data row 2, column 'src' is empty"):
        read_dataset(tmp_path / "t.parquet")
    dataset = read_dataset(tmp_path / "t.parquet", ReadOptions(skip_bad=True))
    assert torch.equal(dataset.store.src, torch.tensor([0]))
