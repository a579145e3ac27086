"""Scores of another program are evaluated as those of a model of the package."""

import numpy as np
import pytest
import torch

import dygmamba as dm
from raising import raises


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=800, communities=4, name="mail")


@pytest.mark.parametrize("negatives", ["random", "historical"])
def test_scores_of_a_rule_have_the_results_of_the_rule(data, negatives):
    """EdgeBank, computed from the table of queries and the events, equals the one of the package."""
    queries = dm.list_queries(data, negatives=negatives).to_pylist()
    first: dict[tuple[int, int], object] = {}
    for event in data.to_arrow().to_pylist():
        first.setdefault((event["src"], event["dst"]), event["time"])
    scores = [
        float(first.get(key, query["time"]) < query["time"])
        for query in queries
        for key in [(query["src"], query["dst"])]
    ]
    own, *rules = dm.evaluate_scores(scores, data, negatives=negatives).to_pylist()
    edgebank = next(row for row in rules if row["model"] == "edgebank")
    assert own["model"] == "own scores"
    assert {name: own[name] for name in ("ap", "auc", "ap_pooled", "n", "by_type")} == {
        name: edgebank[name] for name in ("ap", "auc", "ap_pooled", "n", "by_type")
    }
    assert own["ap"] == pytest.approx(
        dm.evaluate(data, "edgebank", negatives=negatives, setting="transductive")["ap"][0].as_py()
    )
    assert [row["ap"] for row in rules] == sorted((row["ap"] for row in rules), reverse=True)


def test_scores_come_as_lists_arrays_tensors_and_tables(data):
    """One finite number per query, in their order; everything else is an error."""
    queries = dm.list_queries(data, split="val")
    scores = np.random.default_rng(0).random(queries.num_rows)
    table = queries.append_column("score", [scores])
    found = [
        dm.evaluate_scores(kind, data, split="val")["ap"][0].as_py()
        for kind in (
            scores,
            scores.tolist(),
            torch.from_numpy(scores),
            table,
            table.to_pandas(),
            table["score"],
        )
    ]
    assert len(set(found)) == 1
    for wrong in (scores[1:], [float("nan")] * len(scores), ["x"] * len(scores)):
        with raises("scores-do-not-fit"):
            dm.evaluate_scores(wrong, data, split="val")
    with raises("unknown-column"):
        dm.evaluate_scores(queries, data)


@pytest.mark.parametrize("candidates", [7, "all"])
def test_scores_of_candidates_give_the_ranks_of_the_rule(data, candidates):
    """EdgeBank's scores of pairs and candidates have its MRR and Hits@10; without candidates there are no ranks."""
    queries = dm.list_queries(data, candidates=candidates)
    first: dict[tuple[int, int], object] = {}
    for event in data.to_arrow().to_pylist():
        first.setdefault((event["src"], event["dst"]), event["time"])
    scores = [
        float(first.get((row["src"], row["dst"]), row["time"]) < row["time"]) for row in queries.to_pylist()
    ]
    is_candidate = np.array(queries["candidate"])
    plain = dm.list_queries(data)
    assert queries.filter(~is_candidate).drop_columns("candidate") == plain
    own, *rules = dm.evaluate_scores(scores, data, candidates=candidates).to_pylist()
    edgebank = next(row for row in rules if row["model"] == "edgebank")
    ranks = dm.evaluate(
        data, "edgebank", metrics="mrr,hits@10", candidates=candidates, setting="transductive"
    ).to_pylist()[0]
    for name in ("mrr", "hits@10", "mrr_se", "hits@10_se", "candidates", "by_type"):
        assert own[name] == edgebank[name]
    assert (own["mrr"], own["hits@10"], own["ranked"]) == (ranks["mrr"], ranks["hits@10"], ranks["n"])
    assert "mrr" not in dm.evaluate_scores(scores[: plain.num_rows], data).column_names
    with raises("scores-do-not-fit"):
        dm.evaluate_scores(scores[: plain.num_rows], data, candidates=candidates)
    with raises("unknown-candidates"):
        dm.list_queries(data, candidates="some")
