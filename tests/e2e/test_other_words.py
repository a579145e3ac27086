"""Names, ids, paths and settings are other people's words: shown, never obeyed, never run, never a way out."""

import csv
import io
import os
import random
import re
import stat
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import call, invoke
from dygmamba.cli.console import print_document, print_line, print_note, stderr
from dygmamba.cli.messages import escape_text
from dygmamba.cli.progress import make_bars
from dygmamba.core.errors import ConfigError
from dygmamba.core.files.untrusted import FORMULA_PREFIXES, escape_formula
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import Document, ReportTable, Section
from dygmamba.runs.link_training import start_link_run
from raising import raises

pytestmark = pytest.mark.e2e

TINY = {"length": 4, "width": 4, "blocks": 1, "states": 2, "out": 4, "epochs": 1}
STEERING = "\x1b[2J\x1b]0;t\x07\r\x9b\u202e\u2066\x7f\x00\u2028\n"
MARKUP = "[red]a[/red] [link=http://x]b[/link] :smile: [/]"
HOSTILE = STEERING.replace("\x00", "").replace("\n", "") + MARKUP.replace("/", "-")  # can name a file
IDS = ["=1+1", "+2", "-3", "@x", "\tt", "\rr", "plain", "é", f"\x1b[2J{MARKUP}"]
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def _even():
    """Whatever the tests write is for the owner and the group."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_all_that_is_printed_is_text(capsys, monkeypatch):
    """Lines, cells, headings, titles and bars: control characters are escapes, markup is itself."""
    monkeypatch.setenv("COLUMNS", "400")
    words = STEERING + MARKUP
    table = ReportTable.of_rows(words, words, (words, words), [(words, words)])
    print_document(Document("", "", (Section("", "", (table,)),)))
    print_line(words)
    print_note(words)
    bar = make_bars(stderr())
    bar.add_task(words)
    stderr().print(bar.get_renderable())
    for said, times in zip(capsys.readouterr(), (7, 2), strict=True):
        assert not OBEYED.search(said)
        assert said.count(escape_text(STEERING)) == times
        assert said.count(MARKUP) == times


@given(st.text())
def test_what_is_shown_is_one_line_and_plain_text_stays(text):
    """For all texts: nothing a terminal obeys is left, and what it would not obey is unchanged."""
    assert not OBEYED.search(escape_text(text))
    assert len(escape_text(text).splitlines()) <= 1
    if text.isprintable():
        assert escape_text(text) == text


@pytest.mark.parametrize(
    "words",
    [
        [STEERING[:-5]],
        ["train", f"--x{HOSTILE}"],
        ["train", "x", "--epochs", HOSTILE],
        ["train", "x", HOSTILE],
        ["data", "describe", f"x{HOSTILE}"],
        ["train", "x", "--negatives", HOSTILE],
        ["data", "fetch", HOSTILE],
        ["report", HOSTILE],
    ],
)
def test_what_was_typed_is_shown_in_an_error(monkeypatch, capsys, words):
    """Typer's own errors and this program's: exit code 2, and nothing that a terminal obeys."""
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert not OBEYED.search(err)
    assert "\\x1b" in err or "valid integer" in err


@given(st.text())
def test_no_cell_of_text_is_a_formula(text):
    """For all ids: no cell begins as a formula does, and what does not is as it was."""
    assert not escape_formula(text).startswith(FORMULA_PREFIXES)
    assert escape_formula(text) in (text, f"'{text}")
    assert text.startswith(FORMULA_PREFIXES) or escape_formula(text) == text


CLIMBING = ["", ".", "..", "...", "../x", "/x", "a/b", "a\\b", " a", "a ", "a.", "a:b", "a*"]
STEERING_NAMES = ["a\0", "a\n", "a\x1b", "a\u202e", "a\udcff", "é" * 101]


@pytest.mark.parametrize("name", CLIMBING + STEERING_NAMES)
@pytest.mark.parametrize("which", ["dataset", "model"])
def test_no_name_leads_a_run_out_of_its_folder(tmp_path, name, which):
    """What climbs, hides, steers or is too long: a sentence, and nothing is made."""
    names = {"dataset": "d", "model": "m"} | {which: name}
    with raises("invalid-name", ConfigError):
        RunDirectory.create(tmp_path / "runs", **names, seed=0)
    assert list(tmp_path.iterdir()) == []
    assert RunDirectory.create(tmp_path / "runs", "my data é", "a-b_c.2", 0).path.is_dir()


@pytest.fixture(scope="module")
def place(tmp_path_factory, _even) -> Path:
    """A folder whose own name is hostile, with a table of hostile ids."""
    folder, draw = tmp_path_factory.mktemp("words") / HOSTILE, random.Random(0)
    folder.mkdir()
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["=src", "-dst", "time"])
        writer.writerows([*draw.sample(IDS, 2), k] for k in range(200))
    return folder


def test_hostile_ids_in_a_hostile_folder_harm_nobody(place, monkeypatch, capsys):
    """Import, training, prediction and report: text on the terminal, harmless cells, files of even permissions."""
    store = ["--data-dir", str(place / "data")]
    columns = ["--src", "=src", "--dst", "-dst", "--time", "time", "--out", "log"]
    said = [call(monkeypatch, capsys, "import", str(place / "log.csv"), *columns, *store)]
    said.append(call(monkeypatch, capsys, "describe", "log", *store))
    sizes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    words = ["log", "--device", "cpu", "--out", str(place / "runs"), *sizes, *store]
    said.append(invoke(monkeypatch, capsys, "train", *words))
    (run,) = (path.parent for path in place.glob("runs/*/*/*/config.toml"))
    said.append(invoke(monkeypatch, capsys, "report", str(run), *store))
    ask = ["predict", str(run), "--sources", "plain,\x1b[2Jx", "--top", "9", *store, "--device", "cpu"]
    said.append(invoke(monkeypatch, capsys, *ask, "--out", str(place / "scores.csv")))
    for code, out, err in said:
        assert code == 0, err
        assert not OBEYED.search(out + err)
    rows = list(csv.reader(io.StringIO((place / "scores.csv").read_bytes().decode())))
    raw = invoke(monkeypatch, capsys, *ask, "--raw")[1]
    kept = list(csv.reader(io.StringIO(raw, newline="")))
    assert not any(cell.startswith(FORMULA_PREFIXES) for row in rows for cell in row[:2])
    assert {row[1] for row in kept} >= {"=1+1", "+2", "-3", "@x"}
    assert {row[1] for row in rows} >= {"'=1+1", "'+2", "'-3", "'@x", "é"}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert not OBEYED.search(invoke(monkeypatch, capsys, *ask, "--raw")[1])
    for path in place.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


def test_no_command_replaces_a_device_or_a_pipe(place, tmp_path, monkeypatch, capsys):
    """For all commands that write: a sentence, and what was there is still there."""
    store, out = ["--data-dir", str(place / "data")], tmp_path / "out"
    columns = ("--src", "=src", "--dst", "-dst")
    dataset = read_dataset(place / "log.csv", ReadOptions(src="=src", dst="-dst"), name="other")
    save_dataset(dataset, place / "data")
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY, torch.device("cpu"), place / "runs")
    fit()
    run = str(fit.run.path)
    to = ["--out", str(out)]
    commands = [
        ["predict", run, "--sources", "plain", "--top", "2", "--device", "cpu", *store, *to],
        ["report", run, *store, *to],
        ["train", "generated", "--epochs", "1", *to],
        ["evaluate", "other", "--store-negatives", str(out), *store],
        ["data", "import", str(place / "log.csv"), *columns, "--out", "x", "--data-dir", str(out)],
        ["data", "generate", "--events", "300", "--nodes", "30", "--out", "x", "--data-dir", str(out)],
        ["data", "fetch", "uci", "--data-dir", str(out)],
    ]
    for make in (lambda: out.symlink_to("/dev/null"), lambda: os.mkfifo(out)):
        make()
        before = out.lstat()
        for words in commands:
            code, _, err = invoke(monkeypatch, capsys, *words)
            assert code == 2, err
            assert err.splitlines()[-1].startswith("error: ")
            assert os.path.samestat(out.lstat(), before)
        out.unlink()
