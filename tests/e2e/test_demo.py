"""`dygmamba demo`, as a new user meets it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser import find_browser
from torture_cases import SECONDS

pytestmark = pytest.mark.e2e

MODELS = {"edgebank", "popularity", "recency", "dyg-mamba"}


def command(*words: str) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    environment = os.environ | {"COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    line = [sys.executable, "-m", "dygmamba", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=280)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The JSON answer of a demo of one epoch."""
    out = tmp_path_factory.mktemp("runs")
    done = command("demo", "--out", str(out), "--epochs", "1", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_epoch_already_beats_what_needs_no_training(told):
    """Four models on the same test events, all figures finite; DyG-Mamba leads by several points of AP."""
    rows = told["results"]
    assert {(row["model"], row["setting"]) for row in rows} == {
        (model, setting) for model in MODELS for setting in ("transductive", "inductive")
    }
    for setting, events in (("transductive", 1_800), ("inductive", 267)):
        own = [row for row in rows if row["setting"] == setting]
        assert {(row["n"], row["negatives"], row["split"]) for row in own} == {(events, "random", "test")}
        assert all(0 < row[key] < 1 for row in own for key in ("ap", "auc", "ap_pooled", "auc_pooled"))
        ap = {row["model"]: row["ap"] for row in own}
        assert ap["dyg-mamba"] > 0.04 + max(value for model, value in ap.items() if model != "dyg-mamba")


def test_the_forgetting_is_measured_against_the_law(told):
    """Both curves over the same spans, finite, the true law beside them, and how close they come."""
    found = told["forgetting"]
    assert found["law"] == "exponential"
    for name in ("span", "learned", "error", "true"):
        assert len(found[name]) == 10
        assert all(map(math.isfinite, found[name]))
    assert all(len(curve) == 10 for curve in found["retention"].values())
    assert found["learned"][0] == found["true"][0] == 1
    close = found["closeness"]
    assert -1 <= close["correlation"] <= 1
    assert 0 <= close["mean_gap"] <= close["max_gap"]
    assert close["true_half_life"] == pytest.approx(7_200, rel=0.01)


def test_the_run_folder_is_whole(told, tmp_path):
    """Settings, metrics, results, weights, curves and the page are there; `dygmamba report` builds it again."""
    run = Path(told["run"])
    for name in (
        "config.toml",
        "metrics.jsonl",
        "results.json",
        "forgetting.json",
        "checkpoint/best.safetensors",
    ):
        assert (run / name).stat().st_size > 0
    assert json.loads((run / "results.json").read_text())["results"] == told["results"]
    page = Path(told["report"])
    assert page == run / "report.html"
    done = command("report", str(run), "--out", str(tmp_path / "again.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
    dom, console = find_browser(tmp_path / "profile").dom(page)
    assert console == []
    assert dom.count('class="chart"') >= 9
    assert "Comparison with baselines" in dom


@pytest.mark.slow
@pytest.mark.skipif(not SECONDS, reason="a minute; `make torture` runs it")
def test_the_whole_demo_comes_close_to_the_law(tmp_path):
    """Ten points of AP above the best heuristic, a forgetting curve near the true one: in a table and two sentences."""
    done = command("demo", "--out", str(tmp_path), "--epochs", "9")
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("*/*/*/results.json")
    rows = json.loads(run.read_text())["results"]
    assert all(f"{100 * row['ap']:.2f}" in done.stdout for row in rows)
    ap = {row["model"]: row["ap"] for row in rows if row["setting"] == "transductive"}
    assert ap["dyg-mamba"] > 0.90
    assert ap["dyg-mamba"] > 0.1 + max(value for model, value in ap.items() if model != "dyg-mamba")
    close = json.loads(run.with_name("forgetting.json").read_text())["closeness"]
    assert close["correlation"] > 0.93
    assert close["mean_gap"] < 0.15
    assert "learned decay against the true exponential law: correlation" in done.stdout
    assert "report: " in done.stdout
