"""Reproduction of a study: planned, run by workers, killed and resumed, cached by content, and shown on a page."""

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
from dygmamba.cli import app
from dygmamba.cli.console import print_document
from dygmamba.core.errors import ConfigError, FileError, Interrupted, LockedError
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.data.storage.library import generate_dataset
from dygmamba.report.document import (
    Cell,
    Document,
    ReportTable,
    Section,
    format_csv,
    format_latex,
    format_markdown,
)
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.runs.evaluation import evaluate_link_scorer
from dygmamba.runs.opening import open_run
from dygmamba.studies import job_runners, pool, studies
from dygmamba.studies.job import CODE_VERSION, ResultCache
from dygmamba.studies.paper_plan import PAPER_PLAN, PlannedStudy
from dygmamba.studies.reproduction import ExecutionOptions, gather_results, prepare_jobs, write_study_page
from dygmamba.studies.studies import STUDIES, GeneratedDataset, StudyRequest, plan_jobs
from dygmamba.studies.study_report import build_study_document
from raising import raises
from thread_worker import use_thread_workers

SIZES = {"length": 6, "width": 4}
SMALL = ("--set", "length=6", "--set", "width=6", "--set", "blocks=1", "--set", "batch=300", "--epochs", "2")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Workers are threads, except those of the command that is killed; few steps are timed."""
    with pytest.MonkeyPatch.context() as patch:
        use_thread_workers(patch)
        patch.setattr(job_runners, "CPU_STEPS", job_runners.MIN_STEPS)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    made = ["data", "generate", "--nodes", "40", "--events", "1200", "--communities", "4", "--out", "tiny"]
    app([*made, "--data-dir", str(folder)], standalone_mode=False)
    return folder


def command(data, out, *more):
    words = ["reproduce", "link", "--datasets", "tiny", "--models", "recency,dyg-mamba", "--seeds", "0"]
    return [*words, *SMALL, "--workers", "1", "--data-dir", str(data), "--out", str(out), *more]


def result_rows(out):
    results = StudyResults.read(out / "link" / "results.json")
    return {
        (record.model, record.seed, at): row
        for record in results.records
        for at, row in enumerate(record.rows)
    }


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory, rank_all_events):
    """A study that one command ran without interruption."""
    out = tmp_path_factory.mktemp("whole")
    app(command(data, out), standalone_mode=False)
    return out


def test_a_killed_study_ends_with_the_same_results_when_repeated(data, whole, tmp_path, monkeypatch, capsys):
    broken = tmp_path / "broken"
    line = [sys.executable, "-m", "dygmamba", *command(data, broken)]
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while (
        not list(broken.glob("jobs/*/result.json")) and time.monotonic() < deadline and first.poll() is None
    ):
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = len(list(broken.glob("jobs/*/result.json")))
    code, _, errors = invoke(monkeypatch, capsys, *command(data, broken))
    assert code == 0, errors
    kept = re.search(r"(\d+) of them done already", errors)  # a worker may have ended what it had begun
    assert (kept is not None and int(kept[1]) >= done) or first.returncode == 0
    assert result_rows(broken) == result_rows(whole)


def test_sigterm_ends_the_command_as_ctrl_c_does(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool.Pool, "_follow_jobs", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = invoke(monkeypatch, capsys, *command(data, tmp_path))
    assert code == Interrupted.exit_code
    assert "repeat the same command" in err


def test_finished_jobs_are_cached_by_their_settings(data, tmp_path, monkeypatch, capsys):
    request = StudyRequest(["tiny"], ["dyg-mamba"], (0,), None, {"length": 6}, data)
    (job,) = plan_jobs("link", request)
    (other,) = plan_jobs("link", StudyRequest(["tiny"], ["dyg-mamba"], (0,), None, {"length": 7}, data))
    (ablated,) = plan_jobs("ablation", StudyRequest(["tiny"], None, (0,), ["full"], {"length": 6}, data))
    assert job.key != other.key
    assert job.key == ablated.key  # two studies share the run
    results = ResultCache(tmp_path)
    results.save(job, {"rows": []})
    assert results.select_missing([job, other]) == [other]
    (results.folder(job.key) / "result.json").write_text("{ not json")
    assert results.select_missing([job]) == [job]
    code, out, _ = invoke(monkeypatch, capsys, *command(data, tmp_path, "--dry-run", "--json"))
    assert code == 0
    assert json.loads(out)["runs"] == 2


def test_a_failing_run_is_reported_and_the_others_are_kept(data, tmp_path, monkeypatch, capsys):
    # a learning rate that diverges: one line, exit code 2, and the row of the heuristic is printed
    words = command(data, tmp_path, "--set", "lr=1e5")
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert code == 2
    assert "1 of 2 runs failed; the first is tiny dyg-mamba" in err
    assert "recency" in out


@pytest.mark.parametrize("study", [name for name in STUDIES if name not in ("large", "paper")])
def test_every_study_has_a_plan(study, data):
    jobs = plan_jobs(study, StudyRequest(["tiny"], None, (0,), None, {}, data))
    assert jobs
    assert all(job.needs is None or job.needs in {one.key for one in jobs} for job in jobs)


def test_a_node_page_says_where_the_paper_has_no_value():
    """The column of published AUC is there for Wikipedia; MOOC has a sentence instead."""
    row = {"split": "test", "auc": 0.8, "ap": 0.1, "visible": "strict", "batch": 200}
    records = [
        ResultRecord("node", data, "jodie", 0, {"model": "jodie"}, [row]) for data in ("wikipedia", "mooc")
    ]
    wikipedia, mooc = build_study_document(StudyResults("node", "dygmamba", tuple(records))).sections
    assert "88.99 ± 1.05" in format_markdown(wikipedia.tables[0])
    assert "published" not in format_markdown(mooc.tables[0])
    assert "no AUC" in mooc.text


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
def test_every_study_yields_rows_and_a_page(study, variants, data, tmp_path_factory):
    """Every kind of work is run once, in this process."""
    small = {"batch": 300, "epochs": 1} | ({"width": 4} if study in ("efficiency", "length") else SIZES)
    request = StudyRequest(["tiny"], ["dyg-mamba"], (0,), variants, small, data)
    folder = tmp_path_factory.getbasetemp()
    results = ResultCache(folder / "studies")
    jobs = plan_jobs(study, request)
    for job in results.select_missing(jobs):
        results.save(
            job, job_runners.JOB_RUNNERS[job.work](job, job_runners.JobContext(results, "cpu", data))
        )
    gathered = gather_results(study, jobs, results, "dygmamba")
    assert all(record.rows for record in gathered.records)
    assert len(gathered.records) == len(jobs)
    assert write_study_page(gathered, folder / "pages")[0].stat().st_size > 3_000
    for record in gathered.records:  # the lengths of `efficiency` are measured as published
        assert record.changed.get("width", [4])[0] == 4
        assert record.changed or (study, "length" in record.about) == ("efficiency", True)


def test_changed_settings_are_labelled_and_not_compared_with_published_values(tmp_path, monkeypatch, capsys):
    """A rule's own setting and the protocol; a setting of the paper's value has no label and a difference."""
    save_dataset(
        generate_dataset("uci", GeneratorConfig(nodes=40, events=1_200, communities=4)), tmp_path / "data"
    )
    labels = {
        ("--set", "memory=window"): "memory window (set)",
        ("--protocol", "benchmark"): "protocol benchmark, published time",
        (): None,
    }
    for number, (more, label) in enumerate(labels.items()):
        places = ("--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / str(number)))
        words = ("reproduce", "link", "--datasets", "uci", "--models", "edgebank", *more, *places)
        assert invoke(monkeypatch, capsys, *words)[0] == 0
        _, out, _ = invoke(monkeypatch, capsys, *words, "--json")
        assert all(("changed" in row) == bool(label) for row in json.loads(out)["rows"])
        page = tmp_path / str(number) / "link"
        record = json.loads((page / "results.json").read_text("utf-8"))["records"][0]
        assert ("changed" in record) == bool(label)
        text = (page / "link.csv").read_text("utf-8")
        assert (label or "edgebank") in text
        assert ("vs. published" in text) == (label is None)


def test_a_memory_is_replayed_with_noise_at_every_rate(data, tmp_path):
    """At rate 0 too, so that rates are comparable: the memory that training left has seen no noise."""
    request = StudyRequest(
        ["tiny"], ["jodie"], (0,), ["insert"], {"batch": 100, "epochs": 2, "out": 8, "lr": 0.01}, data
    )
    context, found = job_runners.JobContext(ResultCache(tmp_path), "cpu", data), {}
    for job in plan_jobs("robustness", request):
        found[job.work] = job_runners.JOB_RUNNERS[job.work](job, context)
        context.results.save(job, found[job.work])
    (path,) = tmp_path.glob("jobs/*/*/*/*/config.toml")
    run = open_run(path.parent, torch.device("cpu"), data)
    evaluation = (run.stream, {"seed": 0}, [("random", "test", "transductive")], run.rule)
    with_saved_memory = evaluate_link_scorer(run.scorer, *evaluation)[0]["ap"]
    run.scorer.delete_saved_memory()
    assert found["link"]["rows"][0]["ap"] == with_saved_memory
    assert (
        found["robustness"]["rows"][0]["ap"]
        == evaluate_link_scorer(run.scorer, *evaluation)[0]["ap"]
        != with_saved_memory
    )


def test_a_study_generates_a_missing_dataset_once(tmp_path, monkeypatch, capsys):
    """A dry run names the dataset and writes nothing."""
    few = GeneratedDataset("many", GeneratorConfig(nodes=40, events=1_200, communities=4))
    monkeypatch.setitem(STUDIES, "large", replace(STUDIES["large"], dataset=few))
    monkeypatch.setattr("dygmamba.studies.studies.COIN_SIZED", "many")
    small = ("--set", "length=6", "--set", "width=4", "--set", "batch=300", "--device", "cpu")
    places = ("--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    code, out, err = invoke(monkeypatch, capsys, "reproduce", "large", *small, *places, "--dry-run")
    assert (code, out) == (0, "")
    assert "many, 1,200 events among 40 nodes" in err
    assert not list(tmp_path.iterdir())
    for may_generate in (True, False):
        monkeypatch.setattr(GeneratedDataset, "generate", GeneratedDataset.generate if may_generate else None)
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
        ("reproduce", "link", "--datasets", "generated", "--models", "edgebank", "--set", "nonsense=3"),
        ("reproduce", "link", "--datasets", "generated", "--models", "edgebank", "--set", "memory=foo"),
        ("reproduce", "link", "--datasets", "generated", "--models", "edgebank", "--epochs", "3"),
        ("reproduce", "length", "--datasets", "generated", "--variants", "4,8", "--set", "length=6"),
        ("reproduce", "efficiency", "--datasets", "generated", "--set", "length=6"),
        ("reproduce", "sensitivity", "--datasets", "generated", "--set", "blocks=3"),
        ("reproduce", "ablation", "--datasets", "generated", "--variants", "no-skip", "--set", "skip=none"),
    ],
)
def test_an_invalid_argument_is_reported_in_one_line(words, tmp_path, monkeypatch, capsys):
    code, out, err = invoke(monkeypatch, capsys, *words, "--dry-run", "--out", str(tmp_path))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_the_page_opens_in_a_browser_at_phone_and_desktop_width(whole, tmp_path):
    browser = find_browser(tmp_path / "profile")
    page = whole / "link" / "link.html"
    assert page.stat().st_size < 100_000
    text, console = browser.dom(page)
    assert console == []
    assert "<script" not in text
    assert "dyg-mamba" in text
    for width in (400, 1200):
        shot = browser.screenshot(page, tmp_path / f"{width}.png", f"--window-size={width},1400")
        assert len(shot) > 10_000


def test_a_table_as_markdown_csv_and_latex():
    table = ReportTable(
        "t", "n", ("model", "AP"), ((Cell("a_b"), Cell("97.1 ± 0.2", "best")), (Cell("c"), Cell("")))
    )
    assert format_markdown(table).splitlines()[2] == "| a_b | **97.1 ± 0.2** |"
    assert format_csv(table).splitlines() == ["model,AP", "a_b,97.1 ± 0.2", "c,"]
    assert r"a\_b & \textbf{97.1 $\pm$ 0.2} \\" in format_latex(table)


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_a_table_fits_the_terminal_by_dropping_columns(width, monkeypatch, capsys):
    """No cell is truncated, and dropped columns are named."""
    monkeypatch.setenv("COLUMNS", str(width))
    columns = (
        "model",
        "AP",
        "rank",
        "vs. best other",
        "published AP",
        "vs. published",
        "AUC",
        "AP pooled",
    )
    optional = ("AP pooled", "AUC", "rank", "vs. published", "published AP")
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
    print_document(
        Document(
            "",
            "",
            (Section("", tables=(ReportTable("all", "", columns, (tuple(map(Cell, words)),), optional),)),),
        )
    )
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    left = err.partition(": ")[2].strip().split(", ") if err else []
    for name, word in zip(columns, words, strict=True):
        assert (word in out) == (name not in left)
    assert bool(left) == (width < 100)


def test_a_run_that_another_process_still_writes_is_waited_for(monkeypatch):
    answers = [LockedError("process 1 is writing it"), LockedError("process 1 is writing it"), "fit"]

    def resume():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(job_runners.time, "sleep", lambda seconds: None)
    assert job_runners._resume_or_none(resume) == "fit"
    monkeypatch.setattr(job_runners, "LOCK_TIMEOUT", -1.0)
    answers[:] = [LockedError("process 1 is writing it")]
    with pytest.raises(LockedError):
        job_runners._resume_or_none(resume)
    answers[:] = [FileError("damaged")]
    assert job_runners._resume_or_none(resume) is None


def test_a_job_that_fails_for_want_of_a_gpu_keeps_the_run_it_would_resume(planned, tmp_path, monkeypatch):
    """Once a machine loses its GPU, trainings of hours must not start anew."""
    job, *_ = plan_jobs("paper", planned)
    context = job_runners.JobContext(ResultCache(tmp_path), "cpu", planned.data_dir, stop=lambda: True)
    with raises("interrupted", Interrupted):
        job_runners.run_link(job, context)
    (run,) = context.list_runs(job.key)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with raises("no-gpu", ConfigError):
        job_runners.run_link(job, replace(context, device="cuda"))
    assert context.list_runs(job.key) == [run]
    assert list((run / "checkpoint").iterdir())


@pytest.fixture
def planned(data, monkeypatch):
    """A plan of two entries, the second of which contains the trainings of the first."""
    entries = (
        PlannedStudy("link", "tiny", 2, settings=dict(SIZES)),
        PlannedStudy("ablation", "tiny", 2, variants=("full", "no-floor"), settings=dict(SIZES)),
    )
    monkeypatch.setattr(studies, "PAPER_PLAN", entries)
    return StudyRequest(data_dir=data)


def test_the_plan_of_the_paper_is_in_its_own_order_and_trains_each_run_once(planned, tmp_path):
    jobs, missing = prepare_jobs("paper", planned, ExecutionOptions(tmp_path, "cpu"))
    titles = [(job.about["study"], job.about.get("variant"), job.seed) for job in missing]
    expected = [
        ("link", None, 0),
        ("link", None, 1),
        ("ablation", "no-floor", 0),
        ("ablation", "no-floor", 1),
    ]
    assert titles == expected
    assert len(jobs) == 6
    selected = replace(planned, seeds=(1,), models=("dyg-mamba",))
    assert [job.seed for job in plan_jobs("paper", selected)] == [1, 1, 1]
    with raises("empty-plan", ConfigError):
        plan_jobs("paper", replace(planned, models=("mamba",)))


def test_results_of_the_paper_outlive_changes_of_the_code_and_new_settings(planned, monkeypatch):
    """Their key depends on the settings that are given and on the version of the plan alone."""
    job, *_ = plan_jobs("paper", planned)
    assert replace(job, settings=job.settings | {"new": 1}).key == job.key
    assert replace(job, given=job.given | {"length": 7}).key != job.key
    assert replace(job, version="2").key != job.key
    other = replace(job, version=CODE_VERSION)
    assert replace(other, settings=other.settings | {"new": 1}).key != other.key


def test_an_interrupted_training_is_not_resumed_by_another_version_of_the_code(
    planned, tmp_path, monkeypatch
):
    """It starts anew, so that no result comes of two versions; the same version resumes it."""
    job, *_ = plan_jobs("paper", planned)
    context = job_runners.JobContext(ResultCache(tmp_path), "cpu", planned.data_dir, stop=lambda: True)

    def train_a_step():
        """Return whether a run was resumed."""
        with raises("interrupted", Interrupted):
            job_runners.run_link(job, context)
        (run,) = context.list_runs(job.key)
        resumed = (run / "seen").exists()
        (run / "seen").touch()
        return resumed

    assert [train_a_step(), train_a_step()] == [False, True]
    monkeypatch.setattr(job_runners, "CODE_VERSION", "another")
    assert [train_a_step(), train_a_step()] == [False, True]


@pytest.mark.parametrize("batch", [50, 300])
def test_trainings_of_studies_are_evaluated_in_published_batches(data, batch):
    job, *_ = plan_jobs("link", StudyRequest(["tiny"], ["tgn"], settings={"batch": batch}, data_dir=data))
    assert (job.settings["batch"], job.settings["evaluation_batch"]) == (batch, 200)


def test_every_entry_of_the_plan_of_the_paper_is_valid(data):
    """Studies, models, variants and settings of the plan exist; its datasets are replaced by a small one."""
    for entry in PAPER_PLAN:
        request = StudyRequest(
            ["tiny"], entry.models, range(entry.seeds), entry.variants, entry.settings, data
        )
        assert plan_jobs(entry.study, request)
