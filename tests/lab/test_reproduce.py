"""A study by one command: planned, run by workers, killed and resumed, cached by content, and a page in a browser."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from browser import find_browser
from commands import invoke
from dygmamba.cli.study_view import show_sheet
from dygmamba.core.errors import FileError, LockedError
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.lab import job_runners
from dygmamba.lab.job import Results
from dygmamba.lab.reproduction import gather_results, write_study_page
from dygmamba.lab.studies import STUDIES, GeneratedDataset, StudyRequest, plan
from dygmamba.report.document import (
    Cell,
    Document,
    ReportTable,
    Section,
    format_csv,
    format_latex,
    format_markdown,
)
from dygmamba.report.result_records import StudyResults
from dygmamba.runs.link_training import evaluate_link_scorer
from dygmamba.runs.opening import open_run

SIZES = {"length": 6, "width": 4}
SMALL = ("--set", "length=6", "--set", "width=6", "--set", "blocks=1", "--set", "batch=300", "--epochs", "2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    made = [sys.executable, "-m", "dygmamba", "data", "generate", "--nodes", "40", "--events", "1200"]
    made += ["--communities", "4", "--out", "tiny", "--data-dir", str(folder)]
    subprocess.run(made, check=True, capture_output=True)
    return folder


def command(data, out, *more):
    words = ["reproduce", "link", "--datasets", "tiny", "--models", "recency,dyg-mamba", "--seeds", "0"]
    return [*words, *SMALL, "--workers", "1", "--data-dir", str(data), "--out", str(out), *more]


def figures(out):
    book = StudyResults.read(out / "link" / "results.json")
    return {(one.model, one.seed, i): row for one in book.records for i, row in enumerate(one.rows)}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The study, done by one command."""
    out = tmp_path_factory.mktemp("whole")
    subprocess.run([sys.executable, "-m", "dygmamba", *command(data, out)], check=True, capture_output=True)
    return out


def test_killed_half_way_and_given_again_the_same_table_comes_out(data, whole, tmp_path):
    broken, line = tmp_path / "broken", [sys.executable, "-m", "dygmamba"]
    first = subprocess.Popen(
        [*line, *command(data, broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while (
        not list(broken.glob("jobs/*/result.json")) and time.monotonic() < deadline and first.poll() is None
    ):
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = len(list(broken.glob("jobs/*/result.json")))
    again = subprocess.run([*line, *command(data, broken)], check=True, capture_output=True, text=True)
    kept = re.search(r"(\d+) of them done already", again.stderr)  # a worker may have ended what it had begun
    assert (kept is not None and int(kept[1]) >= done) or first.returncode == 0
    assert figures(broken) == figures(whole)


def test_what_is_done_is_not_done_again_and_other_settings_are(data, tmp_path, monkeypatch, capsys):
    ask = StudyRequest(["tiny"], ["dyg-mamba"], (0,), None, {"length": 6}, data)
    (job,) = plan("link", ask)
    (other,) = plan("link", StudyRequest(["tiny"], ["dyg-mamba"], (0,), None, {"length": 7}, data))
    (ablated,) = plan("ablation", StudyRequest(["tiny"], None, (0,), ["full"], {"length": 6}, data))
    assert job.key != other.key
    assert job.key == ablated.key  # two studies share the run
    results = Results(tmp_path)
    results.keep(job, {"rows": []})
    assert results.missing([job, other]) == [other]
    (results.folder(job.key) / "result.json").write_text("{ not json")
    assert results.missing([job]) == [job]
    code, out, _ = invoke(monkeypatch, capsys, *command(data, tmp_path, "--dry-run", "--json"))
    assert code == 0
    assert json.loads(out)["runs"] == 2


def test_a_failing_run_is_named_and_the_others_are_kept(data, tmp_path, monkeypatch, capsys):
    # a rate that diverges: one sentence, exit code 2, and the heuristic's row is there
    words = command(data, tmp_path, "--set", "lr=1e5")
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert code == 2
    assert "runs failed, the first: tiny dyg-mamba" in err
    assert "recency" in out


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "large"])
def test_every_study_has_a_plan(study, data):
    jobs = plan(study, StudyRequest(["tiny"], None, (0,), None, {}, data))
    assert jobs
    assert all(job.needs is None or job.needs in {one.key for one in jobs} for job in jobs)


@pytest.mark.parametrize(
    ("study", "variants"),
    [
        ("ablation", ["no-timespan"]),
        ("length", ["5"]),
        ("efficiency", ["5"]),
        ("convergence", None),
        ("robustness", None),
        ("sensitivity", ["blocks"]),
        ("case-study", None),
    ],
)
def test_every_study_comes_to_rows_and_a_page(study, variants, data, tmp_path_factory):
    """Each kind of work done once, in this process: what no study of links would notice."""
    small = {"batch": 300, "epochs": 1} | ({"width": 4} if study == "efficiency" else SIZES)
    ask, place = (
        StudyRequest(["tiny"], ["dyg-mamba"], (0,), variants, small, data),
        tmp_path_factory.getbasetemp(),
    )
    results = Results(place / "studies")
    jobs = plan(study, ask)
    for job in results.missing(jobs):
        results.keep(
            job, job_runners.JOB_RUNNERS[job.work](job, job_runners.JobContext(results, "cpu", data))
        )
    book = gather_results(study, jobs, results, "dygmamba")
    assert all(one.rows for one in book.records)
    assert len(book.records) == len(jobs)
    assert write_study_page(book, place / "pages")[0].stat().st_size > 3_000


def test_noise_is_in_all_that_a_memory_was_told(data, tmp_path):
    """Without noise too a memory is replayed, so that rates compare: not what training left, which has none."""
    ask = StudyRequest(
        ["tiny"], ["jodie"], (0,), ["insert"], {"batch": 100, "epochs": 2, "out": 8, "lr": 0.01}, data
    )
    place, found = job_runners.JobContext(Results(tmp_path), "cpu", data), {}
    for job in plan("robustness", ask):
        found[job.work] = job_runners.JOB_RUNNERS[job.work](job, place)
        place.results.keep(job, found[job.work])
    (path,) = tmp_path.glob("jobs/*/*/*/*/config.toml")
    run = open_run(path.parent, torch.device("cpu"), data)
    asked = (run.stream, {"seed": 0}, [("random", "test", "transductive")], run.rule)
    carried = evaluate_link_scorer(run.scorer, *asked)[0]["ap"]
    run.scorer.let_go()
    assert found["link"]["rows"][0]["ap"] == carried
    assert (
        found["robustness"]["rows"][0]["ap"] == evaluate_link_scorer(run.scorer, *asked)[0]["ap"] != carried
    )


def test_a_study_makes_its_stream_once_and_not_for_a_plan(tmp_path, monkeypatch, capsys):
    """Where nobody has it; a plan says what would be made, and writes nothing."""
    few = GeneratedDataset("many", GeneratorConfig(nodes=40, events=1_200, communities=4))
    monkeypatch.setitem(STUDIES, "large", replace(STUDIES["large"], made=few))
    monkeypatch.setattr("dygmamba.lab.studies.COIN_SIZED", "many")
    small = ("--set", "length=6", "--set", "width=4", "--set", "batch=300", "--device", "cpu")
    places = ("--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    code, out, err = invoke(monkeypatch, capsys, "reproduce", "large", *small, *places, "--dry-run")
    assert (code, out) == (0, "")
    assert "many, 1,200 events among 40 nodes" in err
    assert not list(tmp_path.iterdir())
    for made in (True, False):
        monkeypatch.setattr(GeneratedDataset, "make", GeneratedDataset.make if made else None)
        code, out, _ = invoke(monkeypatch, capsys, "reproduce", "large", *small, *places, "--json")
        assert code == 0
    (row,) = json.loads(out)["rows"]
    assert row["epoch_seconds"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "nothing"),
        ("reproduce", "link", "--datasets", "nowhere"),
        ("reproduce", "link", "--models", "nobody"),
        ("reproduce", "ablation", "--datasets", "generated", "--variants", "no-nothing"),
        ("reproduce", "length", "--datasets", "generated", "--variants", "long"),
        ("reproduce", "robustness", "--datasets", "generated", "--variants", "loud"),
        ("reproduce", "sensitivity", "--datasets", "generated", "--variants", "colour"),
        ("reproduce", "convergence", "--datasets", "generated", "--variants", "full"),
        ("reproduce", "link", "--datasets", "generated", "--set", "lenght=3"),
    ],
)
def test_a_mistake_is_one_sentence(words, tmp_path, monkeypatch, capsys):
    code, out, err = invoke(monkeypatch, capsys, *words, "--dry-run", "--out", str(tmp_path))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_the_page_reads_on_a_phone_and_a_desk(whole, tmp_path):
    browser = find_browser(tmp_path / "profile")
    page = whole / "link" / "link.html"
    assert page.stat().st_size < 100_000
    text, said = browser.dom(page)
    assert said == []
    assert "<script" not in text
    assert "dyg-mamba" in text
    for width in (400, 1200):
        shot = browser.screenshot(page, tmp_path / f"{width}.png", f"--window-size={width},1400")
        assert len(shot) > 10_000


def test_a_grid_is_the_same_in_three_forms():
    grid = ReportTable(
        "t", "n", ("model", "AP"), ((Cell("a_b"), Cell("97.1 ± 0.2", "best")), (Cell("c"), Cell("")))
    )
    assert format_markdown(grid).splitlines()[2] == "| a_b | **97.1 ± 0.2** |"
    assert format_csv(grid).splitlines() == ["model,AP", "a_b,97.1 ± 0.2", "c,"]
    assert r"a\_b & \textbf{97.1 $\pm$ 0.2} \\" in format_latex(grid)


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_no_table_is_wider_than_the_terminal_and_no_cell_is_cut(width, monkeypatch, capsys):
    """What has no room is left out whole, and said."""
    monkeypatch.setenv("COLUMNS", str(width))
    columns = (
        "model",
        "AP",
        "rank",
        "against the best other",
        "published AP",
        "difference",
        "AUC",
        "AP pooled",
    )
    words = (
        "dyg-mamba",
        "96.90 ± 0.14",
        "first",
        "-0.66 (p 0.001)",
        "96.79 ± 0.08",
        "+0.11",
        "96.1 ± 0.1",
        "97.0 ± 0.1",
    )
    show_sheet(
        Document(
            "", "", (Section("", tables=(ReportTable("all", "", columns, (tuple(map(Cell, words)),)),)),)
        )
    )
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    left = err.partition(": ")[2].strip().split(", ") if err else []
    for name, word in zip(columns, words, strict=True):
        assert (word in out) == (name not in left)
    assert bool(left) == (width < 100)


def test_where_nothing_can_be_left_out_cells_break(monkeypatch, capsys):
    """Streams side by side in a narrow terminal: every figure is there, on two lines."""
    monkeypatch.setenv("COLUMNS", "60")
    names = ("model", "uci", "enron", "USLegis", "CanParl", "wikipedia")
    row = (Cell("trees"), *(Cell(f"{90 + at}.12 ± 0.34") for at in range(5)))
    show_sheet(Document("", "", (Section("", tables=(ReportTable("streams", "", names, (row,)),)),)))
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) <= 60
    assert all(word in out for word in (*names, *(f"{90 + at}.12" for at in range(5))))
    assert out.count("0.34") == 5


def test_a_run_that_another_process_still_saves_is_waited_for_not_deleted(monkeypatch):
    answers = [LockedError("process 1 is writing it"), LockedError("process 1 is writing it"), "fit"]

    def go_on():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(job_runners.time, "sleep", lambda seconds: None)
    assert job_runners._resume_or_none(go_on) == "fit"
    monkeypatch.setattr(job_runners, "LOCK_TIMEOUT", -1.0)
    answers[:] = [LockedError("process 1 is writing it")]
    with pytest.raises(LockedError):
        job_runners._resume_or_none(go_on)
    answers[:] = [FileError("damaged")]
    assert job_runners._resume_or_none(go_on) is None
