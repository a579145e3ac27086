"""A run beside simple rules: the same exams, and a verdict that goes by the spread of the test."""

import pytest
import torch

import dygmamba as dm
from dygmamba.engine.folder import RunFolder
from dygmamba.runs.final import RULES, compared
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import Exam

TREES = {"trees": 6, "rounds": 3, "epochs": 1, "least": 5, "scales": 2, "neighbors": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = dm.generate(nodes=40, events=900, communities=4)
    (run,) = dm.train(data, "trees", out=tmp_path_factory.mktemp("runs"), **TREES)
    return data, run


def test_rules_answer_the_same_exams_and_stand_apart_from_the_results(run):
    """For all exams of the run: a row per rule, as `evaluate` finds it; the results are the run's own alone."""
    data, trained = run
    exams = {(row["split"], row["setting"]) for row in trained.results.to_pylist()}
    rules = trained.rules.to_pylist()
    assert {(row["model"], row["split"], row["setting"]) for row in rules} == {
        (rule, *exam) for rule in RULES for exam in exams
    }
    assert set(trained.results["model"].to_pylist()) == {"trees"}
    for rule in RULES:
        kept = [row for row in rules if row["model"] == rule and row["split"] == "test"]
        asked = dm.evaluate(data, rule).to_pylist()
        assert [(row["setting"], row["ap"], row["auc_pooled"]) for row in kept] == [
            (row["setting"], row["ap"], row["auc_pooled"]) for row in asked
        ]


def test_the_verdict_is_about_the_best_rule_of_the_test(run):
    """Its difference is that of the two rows; the sentence names the rule."""
    _, trained = run
    verdict = RunFolder(trained.path).verdict()
    test = [
        row for row in trained.rules.to_pylist() if (row["split"], row["setting"]) == ("test", "transductive")
    ]
    best = max(test, key=lambda row: row["ap"])
    own = next(
        row
        for row in trained.results.to_pylist()
        if (row["split"], row["setting"]) == ("test", "transductive")
    )
    assert verdict["rule"] == best["model"]
    assert verdict["difference"] == own["ap"] - best["ap"]
    assert best["model"] in verdict["sentence"]


def exam_of(count):
    ends = torch.zeros(2 * count, dtype=torch.int64)
    label = (torch.arange(2 * count) < count).float()
    number = torch.arange(count).repeat(2)
    pairs = PairBatch.of(ends, ends, number.double(), label, number)
    return Exam({"split": "test"}, torch.arange(count), (), pairs, number)


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_level_and_more_than_chance_is_not(seed):
    """Two scores of the same quality are level; one that knows the answer is above, and below the other way round."""
    exam, rng = exam_of(600), torch.Generator().manual_seed(seed)
    one, other = (torch.randn(1200, generator=rng) + exam.pairs.label for _ in range(2))
    knows = one + 2 * exam.pairs.label
    assert compared(one, one.clone(), exam, 0.0, "recency")["stands"] == "level"
    assert compared(one, other, exam, 0.001, "recency")["stands"] == "level"
    assert "use `recency`" in compared(one, other, exam, 0.001, "recency")["sentence"]
    above = compared(knows, one, exam, 0.1, "recency")
    assert (above["stands"], above["blocks"]) == ("above", 30)
    assert above["sentence"].startswith("10.0 points above the best simple rule, recency")
    assert compared(one, knows, exam, -0.1, "recency")["stands"] == "below"


def test_a_test_of_a_few_events_says_nothing():
    """Fewer than two blocks have no spread."""
    found = compared(torch.rand(60), torch.rand(60), exam_of(30), 0.2, "recency")
    assert (found["stands"], found["spread"]) == ("unknown", None)
    assert "too few" in found["sentence"]
