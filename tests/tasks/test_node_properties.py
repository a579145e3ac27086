"""Node properties: NDCG equals scikit-learn, forecasts and periods equal TGB."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

import dygmamba as dm
from board_cases import HEADERS, table_rows, tgb_folder, write_table
from commands import invoke
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.storage.leaderboard import load_leaderboard
from dygmamba.tasks.metric_names import FORECAST_NAMES
from dygmamba.tasks.node_properties import FORECASTS, NDCG_TOP, NodePropertyLabels, ndcg
from dygmamba.tasks.state_space_forecast import (
    EVENT_SPANS,
    LABEL_DECAYS,
    PropertyEvents,
    StateSpaceForecast,
    special_weights,
)
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


def preference_folder(folder, users=12, kinds=15, weeks=24, seed=0):
    """A folder of tgbn-genre whose users keep their tastes: a label is the share of each kind in the week after it."""
    rng, rows, labels = np.random.default_rng(seed), [], []
    taste = rng.dirichlet(np.full(kinds, 0.4), users)
    for week in range(weeks):
        for user in range(users):
            drawn, count = np.unique(rng.choice(kinds, 6, p=taste[user]), return_counts=True)
            days = rng.integers(1, 7, len(drawn))
            rows += [
                [10 * week + day, f"u{user}", f"k{kind}", float(number)]
                for day, kind, number in zip(days, drawn, count, strict=True)
            ]
            labels += [
                [10 * week, f"u{user}", f"k{kind}", number / 6]
                for kind, number in zip(drawn, count, strict=True)
                if week
            ]
    folder.mkdir(parents=True)
    write_table(
        folder / "tgbn-genre_edgelist.csv", HEADERS["tgbn-genre"], sorted(rows, key=lambda row: row[0])
    )
    write_table(folder / "tgbn-genre_node_labels.csv", "ts,src,dst,weight", labels)
    return folder


def property_labels(data):
    return NodePropertyLabels.from_board(data.store, load_leaderboard(data))


def test_baselines_are_special_cases_of_the_state_space(tmp_path):
    """With all weight on one label state: the forecasts and the NDCG of persistence and of the moving average."""
    labelled(tmp_path / "genre", "tgbn-genre")
    data = dm.read(tmp_path / "genre")
    labels = property_labels(data)
    events = PropertyEvents.from_labels(data.store, labels)
    for name, kind in FORECASTS.items():
        ours = StateSpaceForecast(labels, events, special_weights(name))
        theirs, every = kind(labels.nodes, labels.kinds), np.arange(labels.nodes)
        for _, time, rows, truth in labels.moments():
            ours.advance(time)
            assert np.abs(ours(every) - theirs(every)).max() < 1e-12
            ours.learn(rows, truth)
            theirs.learn(rows, truth)
        found = labels.score_forecast(StateSpaceForecast(labels, events, special_weights(name)))
        expected = labels.score_forecast(kind(labels.nodes, labels.kinds))
        for period, scores in expected.items():
            assert np.abs(np.array(found[period]) - np.array(scores)).max(initial=0) < 1e-9


def test_event_states_are_decayed_shares_of_strictly_earlier_events(tmp_path):
    """At each label time: by hand over all events before it, on both time scales, of numbers and of weights."""
    data = dm.read(preference_folder(tmp_path / "genre", users=3, kinds=4, weeks=8))
    labels = property_labels(data)
    events = PropertyEvents.from_labels(data.store, labels)
    forecast, every = StateSpaceForecast(labels, events, np.ones(9)), np.arange(labels.nodes)
    for _, time, rows, truth in labels.moments():
        forecast.advance(time)
        states = forecast.read_states(every)[..., len(LABEL_DECAYS) :]
        for place, span in enumerate(EVENT_SPANS):
            earlier = events.time < time
            decay = np.exp(-(time - events.time[earlier]) / (10 * span))
            for k, amount in enumerate((decay, decay * events.weight[earlier])):
                counts = np.zeros((labels.nodes, labels.kinds))
                np.add.at(counts, (events.row[earlier], events.column[earlier]), amount)
                expected = counts / np.maximum(counts.sum(1, keepdims=True), 1e-300)
                assert np.abs(states[..., 2 * place + k] - expected).max() < 1e-9
        forecast.learn(rows, truth)


def test_the_state_space_beats_its_special_cases_where_tastes_last(tmp_path):
    """Labels with sampling noise: on the test above persistence and not below the average; the choice is reported."""
    data = dm.read(preference_folder(tmp_path / "genre"))
    found = {
        model: dm.evaluate(data, model, metrics="ndcg@10", split="test").to_pylist()[0]
        for model in FORECAST_NAMES
    }
    scores = {model: row["ndcg@10"] for model, row in found.items()}
    assert scores["state-space"] > scores["persistent"] + 0.03
    assert scores["state-space"] >= scores["moving-average"] - 0.005
    assert found["state-space"]["chosen"] in ("fit", "moving-average")
    assert set(found["persistent"]) | {"chosen", "weights"} >= set(found["state-space"])


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
