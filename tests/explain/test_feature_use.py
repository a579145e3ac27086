"""What boosted trees use, by column of the dataset and by kind of count."""

from dataclasses import replace

import pytest
import torch

import dygmamba as dm
from contract_cases import build, questions, snapshots
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Ranker
from dygmamba.explain.feature_use import (
    FEATURE_USE_FILE,
    add_up_groups,
    load_feature_use,
    measure_feature_use,
)
from dygmamba.explain.shapley import attribute_trees
from dygmamba.history.table_request import EVENT_COLUMN, HISTORY, NODE_COLUMN
from dygmamba.history.view import PairBatch
from dygmamba.report.run_sections import build_feature_section
from dygmamba.runs.opening import open_run
from dygmamba.runs.stored_predictions import load_predictions
from purchases import generate_purchases, generate_residents
from streams import unsplit
from trained import copy_run

SMALL = {"trees": 20, "rounds": 20, "epochs": 1, "leaves": 15, "rate": 0.2, "neighbors": 4, "device": "cpu"}
STREAM = {"customers": 40, "shops": 150, "events": 1000, "categories": 4}


@pytest.fixture(scope="module")
def purchase_run(tmp_path_factory):
    """Trees that know the amount and the type of the event in question, which decide who meets whom."""
    out = tmp_path_factory.mktemp("runs")
    return dm.train(generate_purchases(**STREAM), "trees", out=out, query_columns=True, **SMALL)[0]


def copy_trees_run(run, out):
    """Return a copy, opened."""
    return open_run(RunDirectory(copy_run(run, out).path), torch.device("cpu"))


@pytest.mark.parametrize("walks", [0, 2])
def test_the_groups_add_up_to_the_logit(walks):
    """For each pair: the signed contributions of all groups are the logit minus the average logit, up to rounding."""
    store = snapshots()
    scorer, asked = build(("trees", {"walks": walks}), store), questions(store)
    pairs = PairBatch.from_pairs(asked.src, asked.dst, asked.time)
    found = attribute_trees(scorer, unsplit(store), pairs)
    groups = [unit.group for unit in scorer.units]
    assert len(groups) == len(scorer.names)
    added = add_up_groups(found.contribution, groups)
    logit = Ranker(scorer, unsplit(store), 0).logits(asked.src, asked.dst, asked.time)
    torch.testing.assert_close(sum(added.values()), logit - found.base, rtol=1e-9, atol=1e-9)
    assert ("temporal walks" in {group.name for group in added}) == (walks > 0)
    for name, group in zip(
        scorer.names, groups, strict=True
    ):  # a count of one end is not in the group of the other
        if group.name in ("source's events", "destination's events"):
            assert group.name.split("'")[0] in name


def test_columns_that_decide_come_first(purchase_run):
    """Where amount and type decide by construction, they are used most, and tell real events from random pairs."""
    use = load_feature_use(RunDirectory(purchase_run.path))
    assert {(group.kind, group.name) for group in use.groups[:2]} == {
        (EVENT_COLUMN, "amount"),
        (EVENT_COLUMN, "type"),
    }
    assert use.groups[0].separation > sum(
        abs(group.separation) for group in use.groups if group.kind == HISTORY
    )
    assert [group.size for group in use.groups] == sorted((group.size for group in use.groups), reverse=True)


def test_the_separations_add_up_to_the_difference_of_the_stored_logits(purchase_run):
    """Of all groups together, real events minus random pairs: the mean logits of the predictions."""
    run = RunDirectory(purchase_run.path)
    use, stored = load_feature_use(run), load_predictions(run)
    assert use.events == stored.events == 150  # the whole test period
    real = stored.label > 0
    expected = float(stored.logit[real].mean() - stored.logit[~real].mean())
    assert sum(group.separation for group in use.groups) == pytest.approx(expected, rel=1e-6)


def test_node_features_are_groups_by_name(tmp_path):
    """A numeric and a categorical node feature, and the age of both, are apart from the counts."""
    run = dm.train(generate_residents(**STREAM), "trees", out=tmp_path, **SMALL)[0]
    use = load_feature_use(RunDirectory(run.path))
    named = {group.name for group in use.groups if group.kind == NODE_COLUMN}
    assert named == {"level", "region", "age of the features"}
    section = build_feature_section(use, "trees", "my data")
    assert section.command == "dygmamba train 'my data' --model trees --set node_columns=0"


def test_a_report_measures_what_is_missing_or_damaged(purchase_run, tmp_path):
    """Without the file, or with a damaged one, the report writes the same again; an intact one stays as it is."""
    run = copy_run(purchase_run, tmp_path)
    path = run.path / FEATURE_USE_FILE
    stored = path.read_text()
    path.unlink()
    for damaged in (None, "[" * 100_000, "{}", stored.replace('"events": 150', '"events": "many"')):
        if damaged is not None:
            path.write_text(damaged)
        assert load_feature_use(RunDirectory(run.path)) is None
        page = run.report()
        assert path.read_text() == stored
    assert "What the model uses" in page.read_text()
    assert "--set numeric_columns=0 --set event_types=0" in page.read_text()
    written = path.stat().st_mtime_ns
    run.report()
    assert path.stat().st_mtime_ns == written


def test_other_models_have_no_such_section(network_runs):
    """A network has no exact values: there is no file and no section."""
    run = RunDirectory(network_runs[0].path)
    assert not (run.path / FEATURE_USE_FILE).exists()
    assert "What the model uses" not in (run.path / "report.html").read_text()


def test_without_columns_the_section_says_so(trees_run):
    """Counts only: no command, and no claim about columns."""
    opened = open_run(RunDirectory(trees_run.path), torch.device("cpu"))
    use = measure_feature_use(opened, load_predictions(opened.folder))
    assert {group.kind for group in use.groups} == {HISTORY}
    section = build_feature_section(use, "trees", "generated")
    assert section.command == ""
    assert "The model reads no columns" in section.text
    assert build_feature_section(None, "trees", "generated") is None
    unused = replace(use, groups=tuple(replace(group, size=0.0) for group in use.groups))
    assert build_feature_section(unused, "trees", "generated") is None
