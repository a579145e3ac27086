"""`dygmamba data import` and `describe`, as a new user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from commands import call, run
from torture_cases import SECONDS

pytestmark = pytest.mark.e2e

LOG = """\
when,who,whom,euros,flagged
2024-05-01T08:00:00Z,ann,bob,12.5,no
2024-05-02T09:30:00+02:00,bob,cid,3,no
2024-04-30 23:59:59.5,cid,ann,7,yes
2024-05-03,ann,bob,1,no
"""


def test_a_new_user_imports_and_describes_a_log(monkeypatch, capsys, tmp_path):
    """String ids and ISO dates, out of order: two commands, an answer in words and a picture."""
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    columns = ("--src", "who", "--dst", "whom", "--time", "when", "--features", "euros")
    done = run("import", str(log), *columns, "--out", "payments", folder=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "payments: 3 nodes, 4 events, 2024-04-30 23:59:59 UTC to 2024-05-03 00:00:00 UTC" in done.stdout
    assert str(tmp_path / "data" / "payments.safetensors") in done.stdout
    assert "next: dygmamba data describe payments" in done.stdout
    assert "1 rows were out of order" in done.stderr
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    code, shown, errors = call(monkeypatch, capsys, "describe", "payments")
    assert code == 0, errors
    for words in ("events", "2 d 0 h", "25.00 % of the events repeat", "0 per node, 1 per event", "█"):
        assert words in shown
    facts = json.loads(call(monkeypatch, capsys, "describe", "payments", "--json")[1])
    assert (facts["nodes"], facts["events"], facts["repeats"], facts["duration"]) == (3, 4, 0.25, 172_800.5)
    assert facts["gap"]["max"] == 144_000.0


def test_json_is_one_object_and_replaces_the_words(monkeypatch, capsys, tmp_path):
    """With --json stdout holds exactly one JSON object; the note about order stays on stderr."""
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    words = (
        "import",
        str(log),
        "--src",
        "who",
        "--dst",
        "whom",
        "--time",
        "when",
        "--data-dir",
        str(tmp_path),
    )
    code, out, err = call(monkeypatch, capsys, *words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["name"], facts["nodes"], facts["events"], facts["out_of_order"]) == ("log", 3, 4, 1)
    assert Path(facts["path"]) == tmp_path / "log.safetensors"
    assert "out of order" in err


def test_one_row_is_a_dataset(monkeypatch, capsys, tmp_path):
    """The smallest file that says anything is accepted and described."""
    (tmp_path / "one.csv").write_text("u,v,t\na,b,3")
    assert call(monkeypatch, capsys, "import", str(tmp_path / "one.csv"), "--data-dir", str(tmp_path))[0] == 0
    code, out, _ = call(monkeypatch, capsys, "describe", "one", "--data-dir", str(tmp_path))
    assert code == 0
    assert "surprise" in out


def test_the_real_process_shows_no_traceback(tmp_path):
    """In a process of its own, too: exit code 2 and one sentence."""
    (tmp_path / "bad.csv").write_text("src,dst,time\n1,2,soon\n")
    done = run("import", str(tmp_path / "bad.csv"), folder=tmp_path / "data")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


MEASURED = """
import resource, sys
from dygmamba.cli import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss  # a child begins with its parent's, so Linux is asked for what this program held itself
    if sys.platform == "linux":
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    sys.stderr.write(f"{used.ru_utime + used.ru_stime} {peak}")
"""


# rows, and the most seconds and kilobytes that their import may take: two million rows in `make torture`
ROWS, MOST_SECONDS, MOST_KILOBYTES = (2_000_000, 40, 1_000_000) if SECONDS else (300_000, 15, 600_000)


def test_two_million_rows_take_seconds_and_a_gigabyte(tmp_path):
    """String ids, dates and two features: no loop over rows, and at most 1 GB, torch included.

    Two million take about 5 s on an idle core; neighbours on the machine double that, processor time or not, and a
    slower machine doubles it again. A loop over rows in Python would take minutes, and this limit tells the two apart.
    """
    rows, people = ROWS, 300_000
    draw = np.random.default_rng(0)
    names = pa.array([f"customer-{k:07d}" for k in range(people)])
    stamps = 1_500_000_000_000_000 + np.sort(draw.integers(0, 10**14, rows))
    text = pa.array(stamps).cast(pa.timestamp("us")).cast(pa.string())
    columns = [names.take(pa.array(draw.integers(0, people, rows))) for _ in range(2)]
    columns += [text, draw.random(rows), draw.integers(0, 99, rows)]
    path = tmp_path / "big.csv"
    pyarrow.csv.write_csv(pa.table(columns, ["src", "dst", "time", "a", "b"]), path)
    words = ["data", "import", str(path), "--features", "a,b", "--data-dir", str(tmp_path), "--json"]
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == rows
    seconds, kilobytes = (float(word) for word in done.stderr.split()[-2:])
    assert seconds < MOST_SECONDS
    assert kilobytes < MOST_KILOBYTES
