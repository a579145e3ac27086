"""Node properties: NDCG equals scikit-learn, forecasts and periods equal TGB."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

import dygmamba as dm
from board_cases import table_rows, tgb_folder, write_table
from commands import invoke
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.storage.leaderboard import load_leaderboard
from dygmamba.tasks.node_properties import NDCG_TOP, ndcg
from raising import raises

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
    theirs = [ndcg_score(truth[k : k + 1], score[k : k + 1], k=NDCG_TOP) for k in range(n)]
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
        results.append((np.mean(scores), len(scores)))
    return dict(zip(("train", "val", "test"), results, strict=True))


@pytest.mark.parametrize("name", ["tgbn-trade", "tgbn-genre", "tgbn-reddit", "tgbn-token"])
def test_forecasts_equal_tgb(tmp_path, name):
    """For all four datasets, both forecasts, validation and test: equal to TGB to 1e-12."""
    events, rows, kinds = labelled(tmp_path / name, name)
    data = dm.read(tmp_path / name)
    assert load_leaderboard(data).sizes == (84, 18, 18)
    for model in ("persistent", "moving-average"):
        theirs = as_tgb(events, rows, kinds, model == "moving-average")
        found = dm.evaluate(data, model, metrics="ndcg@10", split="val,test").to_pylist()
        assert [row["split"] for row in found] == ["val", "test"]
        for row in found:
            figure, moments = theirs[row["split"]]
            assert abs(row["ndcg@10"] - figure) < 1e-12
            assert (row["moments"], row["visible"], row["board"]) == (moments, "strict", "tgb")


def test_property_evaluation_by_command_and_its_errors(monkeypatch, capsys, tmp_path):
    """Evaluated by name; a wrong model, a link metric and missing labels exit with code 2."""
    labelled(tmp_path / "tgbn_trade", "tgbn-trade")
    dm.save(dm.read(tmp_path / "tgbn_trade"), data_dir=tmp_path / "data")
    where = ("--data-dir", str(tmp_path / "data"))
    words = ("evaluate", "tgbn-trade", "--metrics", "ndcg@10", "--model", "persistent", *where)
    code, out, _ = invoke(monkeypatch, capsys, *words)
    assert code == 0
    assert "NDCG@10" in out
    code, out, _ = invoke(monkeypatch, capsys, *words, "--json")
    assert json.loads(out)["results"][0]["task"] == "property"
    for bad in (
        ("evaluate", "tgbn-trade", "--metrics", "ndcg@10", *where),
        ("evaluate", "tgbn-trade", "--metrics", "ndcg@10,mrr", "--model", "persistent", *where),
        (
            "evaluate",
            "tgbn-trade",
            "--metrics",
            "ndcg@10",
            "--model",
            "persistent",
            "--candidates",
            "5",
            *where,
        ),
    ):
        code, _, error = invoke(monkeypatch, capsys, *bad)
        assert (code, error.count("\n")) == (2, 1)
    tgb_folder(tmp_path / "plain", "tgbn-genre")
    with raises("no-node-labels", EventError):
        dm.evaluate(dm.read(tmp_path / "plain"), "persistent", metrics="ndcg@10")
    with raises("no-leaderboard", ConfigError):
        dm.evaluate(dm.generate(nodes=20, events=100, communities=2), "persistent", metrics="ndcg@10")


def test_invalid_labels_have_one_line_messages(monkeypatch, capsys, tmp_path):
    """An invalid node, kind, time or weight: exit code 2 and one line that names the file."""
    tgb_folder(tmp_path / "trade", "tgbn-trade")
    own = table_rows("tgbn-trade", 2)[0]
    for row in (
        ["0x99", own[2], 1],
        [own[1], "moon", 1],
        [own[1], own[2], "much"],
        [own[1], own[2], -1],
        [own[1], own[2], "inf"],
    ):
        write_table(tmp_path / "trade" / "tgbn-trade_node_labels.csv", "ts,src,dst,weight", [[own[0], *row]])
        words = ("data", "import", str(tmp_path / "trade"), "--data-dir", str(tmp_path / "data"))
        code, _, error = invoke(monkeypatch, capsys, *words)
        assert (code, error.count("\n")) == (2, 1)
        assert "tgbn-trade_node_labels.csv" in error
