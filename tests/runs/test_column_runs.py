"""Runs of trees on streams with amounts and types: they learn from them, and ask for them where they read them."""

from functools import cache

import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, NotFoundError
from dygmamba.data.events.splits import chronological_split
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.history.view import LabelledView
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import TreesConfig
from dygmamba.models.trees import BoostedTrees
from dygmamba.tasks.link import LinkTask, build_link_set
from purchases import generate_purchases
from raising import raises
from streams import split_stream

SMALL = {"trees": 20, "rounds": 20, "epochs": 1, "leaves": 15, "rate": 0.2, "neighbors": 4, "transitions": 0}


@cache
def purchases():
    return generate_purchases(customers=40, shops=150, events=1000, categories=4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that reads columns of earlier events, and one that also reads those of the query."""
    out = tmp_path_factory.mktemp("runs")
    return {
        name: dm.train(
            purchases(), "trees", out=out / name, device="cpu", **SMALL, query_columns=name == "query"
        )[0]
        for name in ("history", "query")
    }


def fit_trees(**settings):
    """Test AP of a few trees, fitted without a run directory."""
    stream = split_stream(purchases().store)
    facts = DatasetFacts.of(stream.store, stream.split.train)
    scorer = BoostedTrees(
        TreesConfig(**{key: SMALL[key] for key in SMALL if key != "epochs"}, **settings), facts
    )
    task = LinkTask.create(stream.store, stream.split, stream.device)
    pairs = task.build_queries(stream.store.select(stream.split.train), task.draw_negatives(0, 0))
    table = scorer.study([LabelledView(stream.training_view(pairs, scorer.requests), pairs)])
    for _ in range(scorer.config.trees):
        scorer.learn(table)
    test = build_link_set(stream.store, stream.split, "test")
    return task.metrics(score_evaluation_set(scorer, stream, test), test)["ap"]


def test_columns_lift_the_test_ap_by_ten_points():
    """Where amounts and types decide by construction, earlier columns give 10 points, those of the query 25."""
    counts = fit_trees(numeric_columns=0, event_types=0)
    assert fit_trees() > counts + 0.10
    assert fit_trees(query_columns=True) > counts + 0.25


def test_negatives_carry_the_columns_of_their_positive():
    """In training and evaluation the columns of a query say nothing about its label."""
    store = purchases().store
    split = chronological_split(store)
    task = LinkTask.create(store, split, torch.device("cpu"))
    events = store.select(split.train[:50])
    built = task.build_queries(events, task.draw_negatives(0, 0)[:50])
    for pairs in (built, build_link_set(store, split, "test").pairs, task.validation.pairs):
        own = pairs.columns.edge[pairs.columns.row]
        true, other = (
            own[pairs.label == label][pairs.group[pairs.label == label].argsort()] for label in (1, 0)
        )
        assert torch.equal(true, other)
        assert torch.equal(store.features.edge[pairs.columns.row], own)


def test_candidates_of_a_ranked_event_carry_its_columns():
    """Where MRR chooses the best epoch, every candidate of an event has the columns of the event."""
    store = purchases().store
    split = chronological_split(store)
    task = LinkTask.create(store, split, torch.device("cpu"), best_metric="mrr")
    pairs = task.validation.pairs
    assert len(pairs) > 2 * len(split.val)
    assert torch.equal(pairs.columns.row, split.val[pairs.group])


def test_a_query_brings_the_columns_that_the_run_reads(runs, tmp_path):
    """Scores depend on the given columns if and only if the run reads them; a missing one is an error."""
    store = purchases().store
    ends = {"src": store.src[-2:].tolist(), "dst": (store.dst[-2:] - 0).tolist()}
    ends["dst"] = purchases().ids.to_user(store.dst[-2:].numpy()).to_pylist()
    true = {"amount": store.features.edge[-2:, 0].tolist()}
    names = purchases().store.features.categories[0].values
    true["type"] = [names[code] for code in store.features.codes[-2:, 0]]
    odd = {"amount": [1e-3, 1e6], "type": ["unheard of"] * 2}
    fits, misfits = (runs["query"].score(ends | given)["score"].to_pylist() for given in (true, odd))
    assert min(fits) > max(misfits)
    assert runs["history"].score(ends | true)["score"].equals(runs["history"].score(ends | odd)["score"])
    with raises("query-columns-missing", ConfigError):
        runs["query"].score(ends)
    with raises("query-columns-missing", NotFoundError):
        runs["query"].score(ends | {"amount": true["amount"]})
    with raises("query-columns-missing", ConfigError):
        runs["query"].rank([ends["src"][0]], k=2)
    file = tmp_path / "pairs.csv"
    rows = zip(*(column for column in (ends | true).values()), strict=True)
    file.write_text("src,dst,amount,type\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    assert runs["query"].score(file)["score"].to_pylist() == pytest.approx(fits)


def test_new_events_need_the_columns_or_a_value_to_fill_in(runs):
    later = {"src": [0], "dst": [40], "time": [1.9e9]}
    with raises("unknown-column", NotFoundError) as caught:
        runs["history"].observe(later)
    assert "fill" in str(caught.value)
    filled = runs["history"].observe(later, fill=3.0).data.store.features
    assert float(filled.edge[-1, 0]) == 3.0
    assert filled.categories[0].values[filled.codes[-1, 0]] == ""
    given = runs["history"].observe(later | {"amount": [5.0], "type": ["type001"]}).data.store.features
    assert (float(given.edge[-1, 0]), int(given.codes[-1, 0])) == (5.0, 1)


def test_every_way_to_score_reads_the_columns_of_a_query(runs, tmp_path):
    """Evaluation, rank metrics, a blend and the checks of a model work on a run that reads query columns."""
    rows = runs["query"].evaluate("historical", "val", "transductive").to_pylist()
    assert [(row["negatives"], row["query_columns"]) for row in rows] == [("historical", True)]
    assert "query_columns" not in runs["history"].results.column_names
    assert runs["query"].results["query_columns"].to_pylist()[0]
    (ranked,) = (
        runs["query"].evaluate(split="val", setting="transductive", metrics="mrr", candidates=3).to_pylist()
    )
    assert ranked["query_columns"]
    assert ranked["mrr"] > 0.5
    blended = dm.blend([run.path for run in runs.values()], out=tmp_path)
    assert blended.results.to_pylist()[0]["query_columns"]
    checks = dm.check_model("trees", query_columns=True, trees=2, rounds=2, neighbors=4, transitions=0)
    assert all(checks["holds"].to_pylist())
