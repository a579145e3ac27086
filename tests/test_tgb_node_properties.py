"""The example of node properties: NDCG equals scikit-learn and TGB, forecasts and periods equal TGB."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

import dygmamba as dm
from board_cases import tgb_folder, write_table

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "tgb_node_properties.py"))
ndcg = EXAMPLE["ndcg"]
# rows of truth and of forecasts with ties, and what py-tgb 2.3.0's evaluator of tgbn-trade made of both together
TRUTH = ((0.5, 0.25, 0.25, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0, 0.0), (0.1, 0.2, 0.3, 0.4, 0.0))
FORECAST = ((0.5, 0.0, 0.0, 0.5, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0), (0.4, 0.3, 0.2, 0.1, 0.0))
TGB_NDCG = 0.7133481793804058


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 5), c=st.integers(2, 14), seed=st.integers(0, 2**31))
def test_ndcg_equals_scikit_learn(n, c, seed):
    """For all forecasts and labels with ties and empty rows: equal to 1e-12, row by row."""
    rng = np.random.default_rng(seed)
    score, truth = rng.integers(0, 4, (n, c)) / 4, rng.integers(0, 3, (n, c)) / 2
    theirs = [ndcg_score(truth[k : k + 1], score[k : k + 1], k=EXAMPLE["TOP"]) for k in range(n)]
    assert np.abs(ndcg(score, truth) - theirs).max() < 1e-12


def test_evaluator_equals_tgb():
    """Equal to the stored figure of py-tgb to 1e-12, and to its evaluator if it is installed."""
    ours = ndcg(np.array(FORECAST), np.array(TRUTH)).mean()
    assert abs(ours - TGB_NDCG) < 1e-12
    evaluate = pytest.importorskip("tgb.nodeproppred.evaluate", reason="py-tgb is not installed")
    asked = {"y_true": np.array(TRUTH), "y_pred": np.array(FORECAST), "eval_metric": ["ndcg"]}
    assert abs(evaluate.Evaluator(name="tgbn-trade").eval(asked)["ndcg"] - TGB_NDCG) < 1e-12


def labelled(folder, name, seed=0):
    """A dataset with labels at every fifth instant, including the last of each period."""
    events, _ = tgb_folder(folder, name)
    rng, users = np.random.default_rng(seed), sorted({row[1] for row in events})
    kinds = sorted({row[2] for row in events} | (set(users) if name == "tgbn-trade" else set()))
    rows = []
    for when in sorted({row[0] for row in events})[::5]:
        for user in rng.permutation(users)[: 1 + rng.integers(len(users))]:
            weight = rng.integers(1, 4, 3)
            rows += [
                [when, user, kind, share]
                for kind, share in zip(rng.permutation(kinds)[:3], weight / weight.sum(), strict=True)
            ]
    write_table(folder / f"{name}_node_labels.csv", "ts,src,dst,weight", rows)
    return events, rows, kinds


def as_tgb(events, rows, kinds, average):
    """TGB's loop over its loaders, one event at a time, with dictionaries."""
    times = np.array([row[0] for row in events])
    val, test = np.quantile(times, [0.7, 0.85])
    loaders = (times[times <= val], times[(times > val) & (times <= test)], times[times > test])
    labels, known, results = {}, {}, []
    for when, user, kind, weight in rows:
        labels.setdefault(when, {}).setdefault(user, np.zeros(len(kinds)))[kinds.index(kind)] = weight
    waiting = sorted(labels)
    for loader in loaders:
        scores = []
        for now in loader:
            if waiting and now > waiting[0]:
                moment = labels[waiting.pop(0)]
                forecast = [known.get(user, np.zeros(len(kinds))) for user in moment]
                for user, truth in moment.items():
                    known[user] = (known[user] * 6 + truth) / 7 if average and user in known else truth
                scores.append(ndcg_score(np.array(list(moment.values())), np.array(forecast), k=10))
        results.append(np.mean(scores))
    return dict(zip(("train", "val", "test"), results, strict=True))


@pytest.mark.parametrize("name", ["tgbn-trade", "tgbn-genre", "tgbn-reddit", "tgbn-token"])
def test_forecasts_equal_tgb(tmp_path, name):
    """For all four datasets: equal to TGB to 1e-12, and the state space to its two special cases."""
    events, rows, kinds = labelled(tmp_path / name, name)
    data = dm.read(tmp_path / name)
    labels = EXAMPLE["read_labels"](tmp_path / name / f"{name}_node_labels.csv", data)
    for forecast, decay in (("PersistentForecast", 0.0), ("MovingAverageForecast", EXAMPLE["AVERAGE_DECAY"])):
        theirs = as_tgb(events, rows, kinds, decay > 0)
        special = EXAMPLE["StateSpaceForecast"](labels, data, EXAMPLE["single_state"](decay))
        for ours in (EXAMPLE[forecast](labels), special):
            assert EXAMPLE["score_forecast"](ours, labels) == pytest.approx(theirs, abs=1e-9)
