"""`dygmamba demo`, as a new user meets it: on a part of its stream in this process, and whole in `make torture`."""

import io
import json
import math
import os
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial

import pytest

from dygmamba.cli import app
from dygmamba.data.generate import stream
from dygmamba.explain import forgetting
from dygmamba.runs import final_evaluation
from torture_cases import SECONDS

pytestmark = pytest.mark.e2e

MODELS = {"edgebank", "recency", "pair-recency", "dyg-mamba"}
# events of the stream, and those of the test period: all, and with new nodes
EVENTS, TESTED = (12_000, (1_800, 267)) if SECONDS else (3_000, (450, 69))


def command(*words: str) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    environment = os.environ | {"COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    line = [sys.executable, "-m", "dygmamba", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=280)


def call(*words: str) -> str:
    """What the command prints: in a process of its own, or in this one on a short stream."""
    if SECONDS:
        done = command(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout
    short = partial(stream.GeneratorConfig, events=EVENTS)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(stream, "GeneratorConfig", short)
        patch.setattr(forgetting, "GeneratorConfig", short)
        patch.setattr(final_evaluation, "count_affordable_events", lambda scorer, destinations=None: 20)
        app(list(words), standalone_mode=False)
    return printed.getvalue()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The JSON answer of a demo of one epoch."""
    return json.loads(call("demo", "--out", str(tmp_path_factory.mktemp("runs")), "--epochs", "1", "--json"))


def test_one_epoch_already_beats_what_needs_no_training(told):
    """Four models on the same test events, all figures finite; DyG-Mamba leads in AP."""
    rows = told["results"]
    assert {(row["model"], row["setting"]) for row in rows} == {
        (model, setting) for model in MODELS for setting in ("transductive", "inductive")
    }
    for setting, events in zip(("transductive", "inductive"), TESTED, strict=True):
        own = [row for row in rows if row["setting"] == setting]
        assert {(row["n"], row["negatives"], row["split"]) for row in own} == {(events, "random", "test")}
        assert all(0 < row[key] < 1 for row in own for key in ("ap", "auc", "ap_pooled", "auc_pooled"))
        ap = {row["model"]: row["ap"] for row in own}
        assert ap["dyg-mamba"] > max(value for model, value in ap.items() if model != "dyg-mamba")


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
    assert ap["dyg-mamba"] > 0.02 + max(value for model, value in ap.items() if model != "dyg-mamba")
    close = json.loads(run.with_name("forgetting.json").read_text())["closeness"]
    assert close["correlation"] > 0.93
    assert close["mean_gap"] < 0.15
    assert "The stream was generated with a known law of decay" in done.stdout
    assert "report: " in done.stdout
