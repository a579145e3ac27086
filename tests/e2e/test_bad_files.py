"""`dygmamba data import` reports whatever is wrong with a file in one line."""

import gzip
import io
import json
import re
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import call
from dygmamba.core.errors import DygError

pytestmark = pytest.mark.e2e


def corrupt_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, src=np.arange(99), dst=np.arange(99), t=np.arange(99.0))
    content = bytearray(buffer.getvalue())
    content[len(content) // 2] ^= 255
    return bytes(content)


def pickled_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, src=np.array([{}], dtype=object))
    return buffer.getvalue()


def parquet(**columns) -> bytes:
    """One event, some of its columns replaced."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"src": [1], "dst": [2], "time": [3]} | columns), buffer)
    return buffer.getvalue()


def npz(**arrays) -> bytes:
    """Two events, some of their arrays replaced."""
    buffer = io.BytesIO()
    np.savez(buffer, **{"src": np.arange(2), "dst": np.arange(2), "t": np.arange(2.0)} | arrays)
    return buffer.getvalue()


def half_gzip() -> bytes:
    rows = "".join(f"{k * 7919 % 99991},{k},{k}\n" for k in range(150_000))
    content = gzip.compress(("src,dst,time\n" + rows).encode(), 1)
    return content[: len(content) * 3 // 4]


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return buffer.getvalue()


BAD = {  # name: file content, options, code of the error, what the message shows (a pattern)
    "empty": (b"", "", "empty-file", ""),
    "blank": (b"\n\n  \n", "", "empty-file", ""),
    "header only": (b"src,dst,time\n", "", "no-rows", ""),
    "header without newline": (b"src,dst,time", "", "no-rows", ""),
    "missing column": (
        b"who,dst,time\n1,2,3\n",
        "--src whoo",
        "unknown-column",
        "'whoo'.*'who', 'dst', 'time'.*did you mean 'who'",
    ),
    "no usual column": (
        b"a,b,time\n1,2,3\n",
        "",
        "column-not-recognized",
        "--src .*'a', 'b'",
    ),
    "missing feature": (b"src,dst,time,w\n1,2,3,4\n", "--features weight", "unknown-column", "'weight'"),
    "missing label": (b"src,dst,time\n1,2,3\n", "--label y", "unknown-column", "'y'"),
    "duplicate names": (b"src,dst,time,time\n1,2,3,4\n", "", "duplicate-column", "'time'"),
    "one column twice": (b"a,b,time\n1,2,3\n", "--src a --dst a", "columns-not-distinct", "'a'"),
    "no header, two columns": (b"1,2\n4,5\n", "", "too-few-columns", "2 columns"),
    "wrong delimiter": (b"src;dst;time\n1;2;3\n", "--delimiter ,", "column-not-recognized", "--delimiter"),
    "nan time": (b"src,dst,time\n1,2,1\n1,2,nan\n", "", "bad-rows", "data row 2, column 'time' is nan"),
    "infinite time": (b"src,dst,time\n1,2,inf\n", "", "bad-rows", "data row 1, column 'time' is inf"),
    "empty time": (b"src,dst,time\n1,2,1\n1,2,\n", "", "bad-rows", "data row 2, column 'time' is empty"),
    "empty first time": (b"src,dst,time\n1,2,\n", "", "bad-rows", "data row 1, column 'time' is empty"),
    "bad date": (
        b"src,dst,time\n1,2,2024-02-28\n1,2,2024-02-30\n",
        "",
        "bad-rows",
        "data row 2, .*'2024-02-30'",
    ),
    "date among numbers": (
        b"src,dst,time\n1,2,5\n1,2,2024-02-28\n",
        "",
        "bad-rows",
        "data row 2, .*'2024-02-28'",
    ),
    "number among dates": (b"src,dst,time\n1,2,2024-02-28\n1,2,x5\n", "", "bad-rows", "data row 2, .*'x5'"),
    "empty id": (b"src,dst,time\n1,2,1\n,2,2\n", "", "bad-rows", "data row 2, column 'src' is empty"),
    "feature of words": (
        b"src,dst,time,w\n1,2,1,3\n1,2,2,red\n",
        "--features w",
        "bad-rows",
        "column 'w' is 'red'",
    ),
    "feature missing": (
        b"src,dst,time,w\n1,2,1,3\n1,2,2,\n",
        "--features w",
        "bad-rows",
        "data row 2, column 'w'",
    ),
    "feature infinite": (
        b"src,dst,time,w\n1,2,1,1e99\n",
        "--features w",
        "bad-rows",
        "data row 1, column 'w' is 1e.99",
    ),
    "latin-1": (
        "src,dst,time\n1,2,1\né,2,1\n".encode("latin-1"),
        "",
        "wrong-encoding",
        r"byte 19 \(line 3\).*--encoding",
    ),
    "latin-1 header": (
        "src,dst,time,é\n1,2,1,1\n".encode("latin-1"),
        "",
        "wrong-encoding",
        "byte 13 .line 1.*iconv",
    ),
    "utf-16": ("src,dst,time\n1,2,1\n".encode("utf-16"), "", "wrong-encoding", "--encoding utf-16"),
    "unknown encoding": (b"src,dst,time\n1,2,1\n", "--encoding klingon", "unknown-encoding", "'klingon'"),
    "ragged": (b"src,dst,time\n1,2,1\n1,2\n", "", "bad-rows", "data row 2 has 2 columns instead of 3"),
    "binary": (bytes(range(256)) * 9, "", "unsupported-file", ""),
    "zipped prose": (other_zip(), "", "no-rows", "no data rows|no rows|header"),
    "corrupt npz": (corrupt_npz(), "", "file-damaged", "npz"),
    "pickled npz": (pickled_npz(), "", "missing-array", "'dst'"),
    "npz of high numbers": (
        npz(src=np.array([0, 200_000_000])),
        "",
        "node-numbers-too-sparse",
        "200,000,000",
    ),
    "npz of empty rows": (
        npz(node_feat=np.empty((10**12, 0), "f4")),
        "",
        "node-numbers-too-sparse",
        "up to 999,999,999,999",
    ),
    "npz of empty columns": (
        npz(edge_feat=np.empty((10**12, 0), "f4")),
        "",
        "row-count-differs",
        "1000000000000 rows for 2",
    ),
    "complex times": (npz(t=np.ones(2, complex)), "", "wrong-array-type", "t is complex128.2."),
    "structured times": (npz(t=np.zeros(2, [("a", "f8")])), "", "wrong-array-type", "t is "),
    "labels in a matrix": (npz(label=np.ones((2, 2))), "", "wrong-array-type", "label is float64.2, 2."),
    "dyglib of high numbers": (
        b",u,i,ts,label,idx\n0,1,200000000,1,0,1\n",
        "",
        "node-numbers-too-sparse",
        "up to 199,999,999",
    ),
    "half parquet": (parquet()[:-40], "", "file-damaged", "Parquet"),
    "long truncated gzip": (half_gzip(), "", "file-unreadable", "Truncated"),
    "fractional id": (parquet(src=[1.5]), "", "column-not-ids", "'src'.*1.5"),
    "odd id": (parquet(src=[True]), "", "column-not-ids", "'src' has type bool"),
    "odd time": (parquet(time=[True]), "", "column-not-times", "'time' has type bool"),
    "null time": (parquet(time=[None]), "", "bad-rows", "data row 1, column 'time' is empty"),
    "null feature": (
        parquet(w=pa.array([None], pa.int8())),
        "--features w",
        "bad-rows",
        "data row 1, column 'w'",
    ),
    "feature list": (parquet(w=[[1]]), "--features w", "column-not-numeric", "'w' has type list"),
    "no rows": (
        parquet(src=pa.array([], pa.int64()), dst=pa.array([], pa.int64()), time=[]),
        "",
        "no-rows",
        "",
    ),
    "null id": (
        parquet(src=pa.array([None], pa.int64())),
        "",
        "bad-rows",
        "data row 1, column 'src' is empty",
    ),
    "text as parquet": (b"src,dst,time\n1,2,1\n", "--format parquet", "file-damaged", "Parquet"),
    "text as npz": (b"src,dst,time\n1,2,1\n", "--format npz", "file-damaged", "npz"),
    "text as dyglib": (b"src,dst,time\n1,2,1\n", "--format dyglib", "wrong-columns", "u, i, ts, label, idx"),
    "text as jodie": (b"src,dst,time\n1,2,1\n", "--format jodie", "too-few-columns", "at least 4"),
    "unknown format": (b"src,dst,time\n1,2,1\n", "--format excel", "unknown-format", "--format .*'excel'"),
    "unknown unit": (b"src,dst,time\n1,2,1\n", "--time-unit h", "unknown-time-unit", "--time-unit .*'h'"),
    "unit with dates": (
        b"src,dst,time\n1,2,2024-01-01\n",
        "--time-unit ms",
        "conflicting-time-options",
        "--time-unit",
    ),
    "bad name": (b"src,dst,time\n1,2,1\n", "--out ../up", "invalid-dataset-name", ""),
    "comments only": (b"# a\n# b\n", "", "empty-file", ""),
    "names or an event": (b"0,1,2\n3,4,5\n", "", "ambiguous-header", "--header or --no-header"),
    "which time": (b"1,2,9,8\n3,4,7,9\n5,6,8,7\n", "", "ambiguous-time-column", "--time 2 or --time 3"),
    "two times": (
        b"1,2,1400000000,1500000000\n3,4,1400000001,1500000001\n",
        "",
        "ambiguous-time-column",
        "--time 2 or --time 3",
    ),
    "no such place": (b"1,2,3\n4,5,6\n", "--src 7", "unknown-column", "no column '7', .*--header"),
    "name without names": (
        b"1,2,3\n4,5,6\n",
        "--src who",
        "unknown-column",
        "no column 'who', .*give --header",
    ),
    "day or month": (
        b"src,dst,time\n1,2,03/01/2024\n",
        "",
        "ambiguous-date-order",
        "--time-format %d/%m/%Y or --time-format %m/%d/%Y",
    ),
    "days and months": (
        b"src,dst,time\n1,2,13/01/2024\n1,2,01/13/2024\n",
        "",
        "mixed-date-order",
        "day first .'13/01/2024'. and with the month first .'01/13/2024'.; write them alike",
    ),
    "no format": (b"src,dst,time\n1,2,1\n", "--time-format %Q", "bad-time-format", "'%Q'"),
    "format without a year": (b"src,dst,time\n1,2,1\n", "--time-format %H:%M", "bad-time-format", "'%H:%M'"),
    "another format": (
        b"src,dst,time\n1,2,2024-01-01\n",
        "--time-format %d.%m.%Y",
        "bad-rows",
        "data row 1, .*'2024-01-01'.*%d.%m.%Y",
    ),
    "format and unit": (
        b"src,dst,time\n1,2,1\n",
        "--time-format %d.%m.%Y --time-unit ms",
        "conflicting-time-options",
        "--time-format .*--time-unit",
    ),
    "short year": (b"src,dst,time\n1,2,01.03.24\n", "", "bad-rows", "data row 1, .*'01.03.24'"),
    "no such day": (b"src,dst,time\n1,2,31.02.2024\n", "", "bad-rows", "data row 1, .*'31.02.2024'"),
    "no such hour": (b"src,dst,time\n1,2,13.02.2024 13:00 PM\n", "", "bad-rows", "data row 1, .*13:00 PM"),
    "nan id": (b"src,dst,time\n1,2,1\nNaN,2,2\n", "", "bad-rows", "data row 2, column 'src' is 'NaN'"),
    "null id of text": (b"src,dst,time\nann,NULL,1\n", "", "bad-rows", "data row 1, column 'dst' is 'NULL'"),
    "blank id": (b'src,dst,time\nann,"  ",1\n', "", "bad-rows", "data row 1, column 'dst' is empty"),
    "six bad rows": (
        b"src,dst,time\n" + b"a,b,\n" * 6,
        "",
        "bad-rows",
        "has 6 bad rows: data row 1, .*data row 5, .*and 1 more; .*--skip-bad",
    ),
    "all rows bad": (b"src,dst,time\na,b,\n", "--skip-bad", "no-rows", "data row 1"),
    "ragged among blanks": (
        b"1 2 1400000000\n1 2\n3 4 1400000001\n",
        "",
        "bad-rows",
        "data row 2 has 2 columns instead of 3",
    ),
    "too many columns": (
        b"src,dst,time\n1,2,1\n1,2,3,4\n",
        "",
        "bad-rows",
        "data row 2 has 4 columns instead of 3",
    ),
    "jsonl broken": (b'{"src":1,"dst":2,"time":3}\n{"src":1\n', "--format jsonl", "bad-rows", "data row 2 "),
    "jsonl list": (b'{"src":1,"dst":2,"time":3}\n[1,2,3]\n', "", "bad-rows", "data row 2 "),
    "jsonl nested": (b'{"src":{"a":1},"dst":2,"time":3}\n', "", "bad-rows", "data row 1 has .*'src'"),
    "jsonl without id": (
        b'{"src":1,"dst":2,"time":3}\n{"dst":2,"time":3}\n',
        "",
        "bad-rows",
        "data row 2, column 'src' is empty",
    ),
    "jsonl no object": (b"hello\n", "--format jsonl", "no-json-objects", ""),
    "jsonl nan": (b'{"src":1,"dst":2,"time":NaN}\n', "", "bad-rows", "data row 1, column 'time' is nan"),
    "jsonl delimiter": (
        b'{"src":1,"dst":2,"time":3}\n',
        "--delimiter ,",
        "option-not-applicable",
        "--delimiter",
    ),
    "jsonl latin-1": (
        b'{"src":1,"dst":2,"time":3}\n{"src":"\xe9","dst":2,"time":3}\n',
        "",
        "bad-rows",
        "data row 2 .*UTF-8",
    ),
    "packed rubbish gzip": (gzip.compress(bytes(range(256)) * 9), "", "unsupported-file", ""),
    "DyGLib with semicolons": (b";u;i;ts;label;idx\n0;1;2;3.0;0;1\n", "", "file-damaged", "DyGLib"),
    "column names that are no text": (
        parquet().replace(b"src", b"s\xedc"),
        "",
        "file-damaged",
        "Parquet",
    ),
    "a database": (b"SQLite format 3\x00" + b"x" * 50, "", "file-damaged", "SQLite"),
    "a document": (b"%PDF-1.7 rubbish", "", "unsupported-file", "PDF"),
    "quote as delimiter": (b"src,dst,time\n1,2,1\n", '--delimiter "', "bad-delimiter", "'\"'"),
    "header of numbers": (b"5,6,7\n1,2,3\n", "--header", "column-not-recognized", "--src.*'5', '6', '7'"),
    "truncated gzip": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01", "", "file-unreadable", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_line_and_exit_code_two(monkeypatch, capsys, tmp_path, case):
    """Exit code 2, one line on stderr that names the problem, nothing written."""
    content, options, code, shown = BAD[case]
    path = tmp_path / ("bad.csv.gz" if "gzip" in case else "bad.csv")
    path.write_bytes(content)
    errors = record_errors(monkeypatch)
    words = ("import", str(path), "--out", "x", "--data-dir", str(tmp_path / "data"), *options.split())
    exit_code, out, err = call(monkeypatch, capsys, *words)
    assert (exit_code, out, errors[-1].code) == (2, "", code)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(shown, err), err
    assert not (tmp_path / "data").exists()


def record_errors(monkeypatch) -> list[DygError]:
    """Record every error of the package from now on; the command prints the last one."""
    errors, create = [], DygError.__init__

    def record(self, *args, **options):
        create(self, *args, **options)
        errors.append(self)

    monkeypatch.setattr(DygError, "__init__", record)
    return errors


GUARD = """
import contextlib, io, json, sys
from dygmamba.cli import main
for name, words in json.load(sys.stdin):
    sys.argv = ["dygmamba", *words]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    if "torch" in sys.modules:
        sys.exit(f"torch was imported for: {name}")
"""


def test_no_bad_file_imports_torch(tmp_path):
    """No bad file makes the command import torch, which takes a second."""
    listed = []
    for number, (case, (content, options, *_)) in enumerate(BAD.items()):
        path = tmp_path / f"bad{number}.csv{'.gz' if 'gzip' in case else ''}"
        path.write_bytes(content)
        words = ("data", "import", str(path), "--out", "x", "--data-dir", str(tmp_path / "data"))
        listed.append((case, (*words, *options.split())))
    done = subprocess.run(
        [sys.executable, "-c", GUARD], input=json.dumps(listed), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
