import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from dygmamba.core.errors import ScoreError
from dygmamba.tasks.metrics import (
    average_precision,
    count_ranked_above,
    link_metrics,
    rank_metrics,
    roc_auc,
)
from raising import raises

SCORES = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60)


@given(pairs=SCORES)
def test_ap_and_auc_equal_scikit_learn(pairs):
    """For all scores with ties and labels of both classes, AP and AUC equal scikit-learn."""
    score, label = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    if 0 < label.sum() < len(label):
        assert average_precision(score, label) == pytest.approx(
            average_precision_score(label, score), abs=1e-12
        )
        assert roc_auc(score, label) == pytest.approx(roc_auc_score(label, score), abs=1e-12)


def test_metrics_of_one_class_are_nan():
    """AP without positives and AUC without either class are nan."""
    score = torch.tensor([0.1, 0.2])
    assert np.isnan(average_precision(score, torch.zeros(2)))
    assert np.isnan(roc_auc(score, torch.ones(2)))


@given(pairs=SCORES, batch=st.integers(1, 7))
def test_published_ap_is_the_mean_over_batches(pairs, batch):
    """link_metrics averages AP over groups of `batch` positives, each with its negative, and pools the rest."""
    k = len(pairs)
    score = torch.tensor([float(a) for a, _ in pairs] + [float(b) * 3 for _, b in pairs])
    label = torch.cat([torch.ones(k), torch.zeros(k)])
    group = torch.arange(k).repeat(2)
    metrics = link_metrics(score, label, group, batch)
    parts = [(group // batch) == part for part in range(-(-k // batch))]
    expected = np.mean([average_precision_score(label[part], score[part]) for part in parts])
    assert metrics["ap"] == pytest.approx(expected, abs=1e-12)
    assert metrics["ap_pooled"] == pytest.approx(average_precision_score(label, score), abs=1e-12)
    assert metrics["n"] == k


def test_rank_follows_tgb_tie_rule():
    """The rank is the mean of the optimistic and the pessimistic rank: two ties and nothing above give rank 2."""
    positive, negative = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    assert (1 + count_ranked_above(positive, negative)).tolist() == pytest.approx([1.0, 2.0, 2.5])


def test_mrr_equals_py_tgb():
    """The mean equals the MRR of TGB's own evaluator on random scores with many ties."""
    evaluate = pytest.importorskip("tgb.linkproppred.evaluate", reason="py-tgb is not installed")
    rng = np.random.default_rng(0)
    positive = rng.integers(0, 9, 50).astype(np.float64)
    negative = rng.integers(0, 9, (50, 20)).astype(np.float64)
    judge = evaluate.Evaluator(name="tgbl-wiki")
    expected = [
        judge.eval({"y_pred_pos": positive[i : i + 1], "y_pred_neg": negative[i], "eval_metric": ["mrr"]})[
            "mrr"
        ]
        for i in range(50)
    ]
    rank = 1 + count_ranked_above(torch.from_numpy(positive), torch.from_numpy(negative))
    assert rank_metrics(rank, ["mrr"])["mrr"] == pytest.approx(float(np.mean(expected)), abs=1e-7)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 3])
def test_scores_that_are_not_finite_are_an_error(bad, at):
    """For all metrics: NaN and infinities are an error; sorted to one end they would rank perfectly."""
    score, label = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    score[at] = bad
    for metric in (average_precision, roc_auc):
        with raises("not-finite", ScoreError):
            metric(score, label)
    with raises("not-finite", ScoreError):
        link_metrics(score, label, torch.tensor([0, 0, 1, 1]))
    with raises("no-scores", ScoreError):
        roc_auc(torch.zeros(0), torch.zeros(0))


@given(st.lists(st.floats(1, 200), min_size=2, max_size=60))
def test_standard_errors_are_those_of_the_mean_over_events(ranks):
    """Of the reciprocal ranks and of the hits, by the formula; unknown for one event."""
    rank = torch.tensor(ranks, dtype=torch.float64)
    names = ("mrr", "hits@10")
    found = rank_metrics(rank, ["mrr_se", "hits@10_se"])
    for name, values in zip(
        names, ([1 / one for one in ranks], [float(one <= 10) for one in ranks]), strict=True
    ):
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        assert rank_metrics(rank, [name])[name] == pytest.approx(mean, abs=1e-12)
        assert found[f"{name}_se"] == pytest.approx((variance / len(values)) ** 0.5, abs=1e-9)
    assert rank_metrics(rank[:1], list(found)) == {"mrr_se": None, "hits@10_se": None}
