"""Classification of nodes by a node run: of all nodes or some, at any time."""

import json
import sys

import pytest
import torch

from dygmamba.cli import main
from dygmamba.core.errors import NotFoundError
from dygmamba.runs.calibration import load_saved_calibration
from dygmamba.runs.opening import open_run
from dygmamba.tasks.calibration import fit_calibration
from letters import PEOPLE
from raising import raises

LATE = {"who": ["newcomer", "ann"], "whom": ["ann", "bob"], "when": ["2024-05-20", "2024-05-21"]}


@pytest.fixture
def ask(node_run, monkeypatch, capsys):
    """`dygmamba predict RUN` in this process: exit code, stdout, stderr."""

    def call(*words):
        monkeypatch.setattr(
            sys, "argv", ["dygmamba", "predict", *map(str, (node_run.path, *words)), "--device", "cpu"]
        )
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


def test_all_sources_are_ranked_by_their_score(node_run):
    """Each source once; k keeps the first of them; given nodes keep their order."""
    found = node_run.classify().to_pandas()
    assert sorted(found["node"]) == sorted(PEOPLE)
    assert found["score"].is_monotonic_decreasing
    assert found["rank"].tolist() == list(range(1, 9))
    assert node_run.classify(k=3).to_pylist() == node_run.classify().to_pylist()[:3]
    some = node_run.classify(["eve", "ann"])
    assert (some["node"].to_pylist(), some.column_names) == (["eve", "ann"], ["node", "time", "score"])
    best = node_run.classify(["eve", "ann", "bob"], k=1).to_pylist()
    assert best[0]["score"] == max(
        row["score"] for row in node_run.classify(["eve", "ann", "bob"]).to_pylist()
    )


def test_nothing_at_or_after_the_time_is_seen(node_run):
    """Sources and scores at T do not depend on events at T or later; a node first seen then is missing."""
    more = node_run.observe(LATE, fill=0.0)  # without the column of the other events
    for at in ("2024-05-05", "2024-05-20"):
        before, after = (one.classify(at=at).to_pandas() for one in (node_run, more))
        assert before["node"].tolist() == after["node"].tolist()
        assert before["score"].tolist() == pytest.approx(after["score"].tolist(), abs=1e-6)
    later = more.classify(at="2024-05-20T00:00:01").to_pandas()
    assert set(later["node"]) == {*PEOPLE, "newcomer"}
    with raises("no-source-yet", NotFoundError):
        node_run.classify(at="2020-01-01")


def test_the_prior_is_that_of_the_validation_period(node_run):
    """Fitted on its labels; the diagrams and the errors in the rows are those of the test period."""
    fit, kept = (
        open_run(node_run.path, torch.device("cpu"), task="node").build_trainer(),
        load_saved_calibration(node_run._folder),
    )
    evaluation_set = fit.task.evaluation_set("val")
    assert kept.calibration == fit_calibration(fit.score(evaluation_set), evaluation_set.pairs.label)
    assert kept.calibration.prior == pytest.approx(float(evaluation_set.pairs.label.mean()))
    (test,) = [row for row in node_run.results.to_pylist() if row["split"] == "test"]
    assert sum(kept.after.count) == test["n"]
    assert test["ece"] == pytest.approx(kept.after.ece)


def test_the_command_gives_the_same(node_run, ask, tmp_path):
    """`predict RUN` with --top, --nodes as ids or a file, --at: the same as in Python, in the user's ids."""
    code, out, err = ask("--top", 2, "--json")
    assert code == 0, err
    assert [row["node"] for row in json.loads(out)["predictions"]] == node_run.classify(k=2)[
        "node"
    ].to_pylist()
    (tmp_path / "who.txt").write_text("eve\nann\n")
    (tmp_path / "who.csv").write_text("who,when\neve,2024-05-05\nann,2024-05-05\n")
    expected = node_run.classify(["eve", "ann"], "2024-05-05")["score"].to_pylist()
    for words in (
        ("--nodes", "eve,ann", "--at", "2024-05-05"),
        ("--nodes", tmp_path / "who.txt", "--at", "2024-05-05"),
        ("--nodes", tmp_path / "who.csv"),
    ):
        code, out, err = ask(*words, "--json")
        assert code == 0, err
        found = json.loads(out)["predictions"]
        assert [row["node"] for row in found] == ["eve", "ann"]
        assert [row["score"] for row in found] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("words", ["--pairs x.csv", "--sources ann --top 3", "--candidates ann --top 3"])
def test_a_node_run_takes_no_pairs(ask, tmp_path, words):
    """Exit code 2, and one line that says what to leave out."""
    (tmp_path / "x.csv").write_text("src,dst\nann,bob\n")
    code, out, err = ask(*words.replace("x.csv", str(tmp_path / "x.csv")).split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"leave out {words.split()[0]}" in err
