"""A run compared with heuristics: the same evaluation sets, and a verdict by the spread over blocks."""

import json

import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.view import PairBatch
from dygmamba.report.comparison import compare_runs
from dygmamba.report.results import build_rank_table, build_results_document
from dygmamba.runs.baselines import BASELINES, RANKING_BASELINES
from dygmamba.runs.evaluation import Queries, Scored
from dygmamba.runs.final_evaluation import compare_ranks, compare_with_baseline
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS
from trained import TREES, generate_stream

# with random negatives, which keep the source, its recency tells no pair apart
TELLING = [rule for rule in BASELINES if rule != "source-recency"]


def test_heuristics_are_evaluated_on_the_same_sets(trees_run):
    """For all sets: a row per heuristic, as `evaluate` gives it, apart from the results of the run."""
    evaluation_sets = {(row["split"], row["setting"]) for row in trees_run.results.to_pylist()}
    rules = trees_run.rules.to_pylist()
    assert {(row["model"], row["split"], row["setting"]) for row in rules} == {
        (rule, *evaluation_set) for rule in TELLING for evaluation_set in evaluation_sets
    }
    assert set(trees_run.results["model"].to_pylist()) == {"trees"}
    for rule in TELLING:
        kept = [row for row in rules if row["model"] == rule and row["split"] == "test"]
        asked = dm.evaluate(generate_stream(), rule).to_pylist()
        assert [(row["setting"], row["ap"], row["auc_pooled"]) for row in kept] == [
            (row["setting"], row["ap"], row["auc_pooled"]) for row in asked
        ]


def test_the_verdict_is_about_the_best_heuristic_of_the_test(trees_run):
    """Its difference is that of the two rows; the sentence names the heuristic."""
    verdict = RunDirectory(trees_run.path).verdict()
    test = [
        row
        for row in trees_run.rules.to_pylist()
        if (row["split"], row["setting"]) == ("test", "transductive")
    ]
    best = max(test, key=lambda row: row["ap"])
    own = next(
        row
        for row in trees_run.results.to_pylist()
        if (row["split"], row["setting"]) == ("test", "transductive")
    )
    assert verdict["rule"] == best["model"]
    assert verdict["difference"] == own["ap"] - best["ap"]
    assert best["model"] in verdict["sentence"]


def test_ranks_among_all_destinations_stand_beside_those_of_baselines(run_ranked):
    """Each row is what `evaluate` gives; the sentence names the best baseline; the page has the table."""
    own, *others = run_ranked.ranking.to_pylist()
    assert (own["model"], own["candidates"], own["n"]) == ("trees", "all", 45)
    assert {row["model"] for row in others} == set(RANKING_BASELINES)
    everything = {"metrics": "mrr,hits@10", "candidates": "all", "setting": "transductive"}
    (again,) = run_ranked.evaluate(**everything).to_pylist()
    for row in others:
        (asked,) = dm.evaluate(generate_stream(), row["model"], **everything).to_pylist()
        assert (row["mrr"], row["hits@10"], row["n"]) == (asked["mrr"], asked["hits@10"], asked["n"])
    assert (own["mrr"], own["mrr_se"], own["by_type"]) == (again["mrr"], again["mrr_se"], again["by_type"])
    verdict, best = RunDirectory(run_ranked.path).ranking_verdict(), others[0]
    assert best["mrr"] == max(row["mrr"] for row in others)
    assert (verdict["rule"], verdict["metric"]) == (best["model"], "mrr")
    assert verdict["difference"] == pytest.approx(own["mrr"] - best["mrr"])
    assert "45 of 45 test events among all 29 destinations" in verdict["sentence"]
    page = (run_ranked.path / "report.html").read_text()
    assert verdict["sentence"].rpartition("(")[2] in page


def test_a_baseline_that_ranks_better_is_recommended():
    """For all ranks: the sign of the difference of MRR decides, and the sentence names the baseline to use."""
    own, other = (
        Scored(Queries(build_set(100)), torch.zeros(200), rank=ranks, about={"split": "test", "setting": "x"})
        for ranks in (torch.full((100,), 5.0), torch.arange(100) % 3 + 1.0)
    )
    worse = compare_ranks(own, other, "association", 40)
    assert (worse["stands"], compare_ranks(other, own, "association", 40)["stands"]) == ("below", "above")
    assert worse["sentence"].startswith("a baseline is better: use `association`")


@pytest.fixture(scope="module")
def run_ranked(rank_all_events, tmp_path_factory):
    (run,) = dm.train(generate_stream(), "trees", out=tmp_path_factory.mktemp("ranked"), **TREES)
    return run


def test_results_report_and_tables_have_the_query_types(trees_run, monkeypatch, capsys):
    """Counts add up to the events; `evaluate` gives the same AP; report, terminal and comparison show all types."""
    stored = json.loads((trees_run.path / "results.json").read_text())
    for row in stored["results"] + stored["rules"]:
        assert sum(values["n"] for values in row["by_type"].values()) == row["n"]
    test = next(row for row in stored["results"] if row["split"] == "test")
    assert sum(values["ranked"] for values in test["by_type"].values()) == test["ranked"]
    parts = [values for values in test["by_type"].values() if values["ranked"]]
    assert sum(one["ranked"] * one["mrr"] for one in parts) / test["ranked"] == pytest.approx(test["mrr"])
    code, out, _ = invoke(
        monkeypatch, capsys, "evaluate", str(trees_run.path), "--negatives", "random", "--json"
    )
    again = json.loads(out)["results"][0]["by_type"]
    assert code == 0
    assert {name: values["ap"] for name, values in again.items()} == {
        name: values["ap"] for name, values in test["by_type"].items()
    }
    (section,) = build_results_document(stored["results"]).sections
    (table,) = [one.title for one in section.tables if "query type" in one.title]
    assert "all nodes" in table
    page = (trees_run.path / "report.html").read_text()
    assert "Results by query type" in page
    assert all(label in page for label in QUERY_TYPE_LABELS.values())
    (tables,) = [section.tables for section in compare_runs([trees_run.path]).sections if section.tables]
    assert "by query type" in tables[-1].title
    assert f"{100 * test['by_type']['new_pair']['mrr']:.2f}" in [cell.text for cell in tables[-1].rows[0]]


def compare(own, other, evaluation_set):
    """The verdict of two scores of the same pairs."""
    return compare_with_baseline(*(Scored(Queries(evaluation_set), one) for one in (own, other)), "recency")


def build_set(count):
    ends = torch.zeros(2 * count, dtype=torch.int64)
    label = (torch.arange(2 * count) < count).float()
    number = torch.arange(count).repeat(2)
    pairs = PairBatch.from_pairs(ends, ends, number.double()).with_labels(label, number)
    return EvaluationSet({"split": "test"}, torch.arange(count), (), pairs, number)


@pytest.mark.parametrize("seed", range(3))
def test_equal_scores_are_level_and_better_ones_are_above(seed):
    """Two scores of the same quality are level; one that knows the label is above, and the other one below."""
    evaluation_set, rng = build_set(600), torch.Generator().manual_seed(seed)
    one, other = (torch.randn(1200, generator=rng) + evaluation_set.pairs.label for _ in range(2))
    knows = one + 2 * evaluation_set.pairs.label
    assert compare(one, one.clone(), evaluation_set)["stands"] == "level"
    level = compare(one, other, evaluation_set)
    assert level["stands"] == "level"
    assert "use `recency`" in level["sentence"]
    above = compare(knows, one, evaluation_set)
    assert (above["stands"], above["blocks"]) == ("above", 30)
    points = f"{100 * above['difference']:.1f} points"
    assert above["sentence"].startswith(f"{points} above the best baseline, recency")
    below = compare(one, knows, evaluation_set)
    assert (below["stands"], below["difference"]) == ("below", -above["difference"])
    assert f"use `recency`, {points} above this run" in below["sentence"]


def test_a_short_test_period_has_no_verdict():
    """Fewer than two blocks have no spread."""
    found = compare(torch.rand(60), torch.rand(60), build_set(30))
    assert (found["stands"], found["spread"]) == ("unknown", None)
    assert "too few" in found["sentence"]


def test_a_row_of_ranks_is_one_run_whatever_negatives_it_was_evaluated_against():
    """For all numbers of kinds of negatives: the ranks of one run have its standard error, no spread over the kinds."""
    row = {"split": "test", "setting": "transductive", "mrr": 0.5, "mrr_se": 0.02, "ranked": 300, "n": 300}
    rows = [row | {"candidates": 100, "negatives": kind} for kind in ("random", "historical")]
    one, both = (build_rank_table(own) for own in (rows[:1], rows))
    assert both == one
    assert both.rows[0][1].text == "50.00 ± 2.00"


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ((), ""),
        (("--protocol", "benchmark"), "; protocol benchmark"),
        (("--seed", "0"), "; drawn with seed 0"),
        (("--set", "window=0.5"), "; window=0.5"),
        (
            ("--negatives", "historical", "--split", "val", "--activity"),
            "; with the activity rate of the source",
        ),
    ],
    ids=str,
)
def test_every_table_says_what_was_changed(options, label, tmp_path, monkeypatch, capsys):
    """For all options of `evaluate` that change the usual evaluation: a label in every table, none without them."""
    data = generate_stream()
    dm.save(data, data_dir=tmp_path)
    words = ("evaluate", data.name, "--model", "edgebank", "--data-dir", str(tmp_path))
    ranks = () if "--activity" in options else ("--metrics", "ap,mrr")
    code, out, err = invoke(monkeypatch, capsys, *words, *options, *ranks, "--json")
    assert code == 0, err
    (section,) = build_results_document(json.loads(out)["results"]).sections
    assert len(section.tables) == (4 if ranks else 2)
    assert all(table.note.endswith(f"events are visible{label}") for table in section.tables)
