"""Verdicts about the paper's claims: open until every planned seed is trained, then by the written rule."""

from dataclasses import replace

import pytest

from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.studies.paper_plan import STEPS, PlannedStudy
from research import paper_claims

ROW = {"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict", "auc": 0.5}


def record(ap, seed, study="link", **about):
    about = {"model": "dyg-mamba", "study": study} | about
    rows = [ROW | {"ap": ap / 100}]
    return ResultRecord("link", "uci", "dyg-mamba", seed, about, rows, cost={"epochs": 30})


def write(folder, records):
    StudyResults("paper", "dygmamba", tuple(records)).write(folder / "paper.json")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((96.7, 96.8, 96.9), "reproduced"),
        ((97.7, 97.8, 97.9), "reproduced"),
        ((95.7, 95.8, 95.9), "contradicted"),
        ((95.7, 95.8), "open"),
    ],
)
def test_a_published_value_is_judged_when_every_seed_is_trained(values, verdict, tmp_path, monkeypatch):
    """The published AP of UCI is 96.79 ± 0.08."""
    monkeypatch.setattr(paper_claims, "PAPER_PLAN", (PlannedStudy("link", "uci", 3),))
    write(tmp_path, [record(value, seed) for seed, value in enumerate(values)])
    line = paper_claims.build_main_table(tmp_path).splitlines()[-1]
    assert f"| {verdict}" in line
    assert f"| {len(values)} of 3 |" in line


def test_trainings_with_other_settings_are_no_evidence(tmp_path, monkeypatch):
    """Another length, a change by the user and another study do not fill the cell."""
    monkeypatch.setattr(paper_claims, "PAPER_PLAN", (PlannedStudy("link", "uci", 3),))
    other = [record(96.8, 0, cell="length 64"), record(96.8, 1, study="length", length=32)]
    write(tmp_path, [*other, replace(record(96.8, 2), changed={"epochs": [3, 100]})])
    assert "| 0 of 3 |" in paper_claims.build_main_table(tmp_path)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ((1.0, 1.1, 0.9), "default better"),
        ((-1.0, -1.1, -0.9), "variant better"),
        ((1.0, -1.0, 0.1), "no effect shown"),
        ((1.0, 1.1), "open"),
    ],
)
def test_a_difference_is_shown_if_its_interval_excludes_zero(gaps, verdict, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_claims, "PAPER_PLAN", (PlannedStudy("ablation", "uci", 3, variants=STEPS),))
    records = [record(95 + seed, seed, "ablation", variant="full") for seed in range(3)]
    records += [
        record(95 + seed - gap, seed, "ablation", variant="no-timespan") for seed, gap in enumerate(gaps)
    ]
    write(tmp_path, records)
    (line,) = [line for line in paper_claims.build_step_table(tmp_path).splitlines() if "no-timespan" in line]
    assert line.endswith(f"| {verdict} |")


def test_what_is_missing_has_a_cost(tmp_path):
    write(tmp_path, [record(96.8, 0)])
    table = paper_claims.build_progress_table(tmp_path)
    assert "| 1 of 5 |" in table
    assert "takes about" in table
