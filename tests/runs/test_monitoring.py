"""Evaluation of a run on events after its dataset: right figures by period, limits as exit codes."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

import dygmamba as dm
from commands import invoke
from dygmamba.api.evaluation import run_monitoring
from dygmamba.api.requests.evaluation import LOWER_LIMITS, UPPER_LIMITS, MonitorRequest
from dygmamba.history.view import PairBatch
from dygmamba.runs.evaluation import Queries, Scored
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.statistics import MIN_BLOCK_EVENTS
from raising import raises

DAY, START = 86_400, 1_704_067_200  # 2024-01-01, a Monday
COLUMNS = ("who", "whom", "when", "weight")


def write_log(path, first_day, days, shift=0.0, extra=()):
    """Write 20 events a day between ten people; `extra` are more rows."""
    rng = np.random.default_rng(first_day)
    lines = [",".join(COLUMNS)]
    for number in range(20 * days):
        src, time = int(rng.integers(10)), START + first_day * DAY + number * DAY // 20
        dst = (src + 1) % 10 if rng.random() < 0.8 else int(rng.integers(10))
        lines.append(f"p{src},p{dst},{time},{rng.normal() + shift:.3f}")
    path.write_text("\n".join([*lines, *extra]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitoring")
    old = write_log(folder / "old.csv", 0, 20)
    data = dm.read(old, src="who", dst="whom", time="when", features=["weight"])
    (run,) = dm.train(data, "trees", epochs=1, out=folder / "runs")
    last = START + 33 * DAY
    new = write_log(folder / "new.csv", 20, 14, 3.0, [f"p0,stranger,{last + n},0" for n in range(7)])
    return run, new


def test_new_events_are_judged_by_week_beside_the_test_and_a_rule(trained):
    """A row for the test as it was stored, one for all new events, and one per week, which starts on Monday."""
    run, new = trained
    rows = run.evaluate(events=new).to_pylist()
    assert [row["period"] for row in rows] == ["test", "new", "2024-01-15", "2024-01-22", "2024-01-29"]
    test, total, *weeks = rows
    assert test["events"] == 60
    assert total["events"] == 287 == sum(row["events"] for row in weeks)
    assert total["unknown_share"] == pytest.approx(7 / 287)
    assert [row["unknown_share"] > 0 for row in weeks] == [False, False, True]
    assert test["rate"] == pytest.approx(20, rel=0.05)
    assert total["rule_ap"] >= 0.5
    stored = run.results.filter(run.results["split"].to_numpy() == "test").to_pylist()[0]
    assert test["ap"] == pytest.approx(stored["ap_pooled"])
    assert test["ece"] == pytest.approx(stored["ece"])


def test_figures_are_those_of_scikit_learn():
    """AP, AUC and log loss of the same scores and labels."""
    score = torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = (torch.rand(400, generator=torch.Generator().manual_seed(1)) < score).float()
    ends, number = torch.zeros(400, dtype=torch.int64), torch.arange(400)
    pairs = PairBatch.from_pairs(ends, ends, number.double()).with_labels(label, number)
    scored = Scored(Queries(EvaluationSet({}, number, (), pairs, number)), score, score)
    figures = scored.row(("ap_pooled", "auc_pooled", "log_loss"))
    assert figures["ap_pooled"] == pytest.approx(average_precision_score(label, score))
    assert figures["auc_pooled"] == pytest.approx(roc_auc_score(label, score))
    assert figures["log_loss"] == pytest.approx(log_loss(label, score))


def test_the_command_fails_at_a_limit_and_shows_moved_columns(trained, monkeypatch, capsys):
    """Exit code 1 below a limit, 0 above it; the feature whose mean moved by three deviations is listed."""
    run, new = trained
    words = ("evaluate", str(run.path), "--events", str(new))
    code, out, err = invoke(monkeypatch, capsys, *words, "--fail-below", "ap=20", "--json")
    found = json.loads(out)
    assert (code, found["crossed"]) == (0, [])
    assert found["columns"][0]["column"] == "weight"
    assert found["columns"][0]["shift"] == pytest.approx(3, abs=0.5)
    code, out, err = invoke(monkeypatch, capsys, *words, "--fail-below", "ap=99.9", "--fail-above", "ece=0")
    assert code == 1
    assert "failed: ap is" in err
    assert "failed: ece is" in err
    assert "weight" in out
    assert f"dygmamba train {run.config['run']['data']} --from {run.path}" in " ".join(err.split())
    assert " ± " in out


def test_errors_are_those_of_a_result_row(trained):
    """Over blocks of events, and of the paired difference to the baseline; a period of few events has none."""
    run, new = trained
    rows = {row["period"]: row for row in run.evaluate(events=new, period="day").to_pylist()}
    for name in ("test", "new"):
        assert all(0 < rows[name][f"{metric}_se"] < 0.2 for metric in ("ap", "auc", "log_loss"))
    assert rows["new"]["lead_se"] > 0
    few = [row for row in rows.values() if row["events"] < 2 * MIN_BLOCK_EVENTS]
    assert few
    assert all(row[name] is None for row in few for name in ("ap_se", "auc_se", "lead_se"))


def test_limits_have_the_units_of_the_table(trained):
    """A limit just beside a printed figure is crossed on one side only, for every metric."""
    run, new = trained
    total = run_monitoring(MonitorRequest(run=run.path, events=new)).monitoring.total
    shares = total | {"lead": total["ap"] - total["rule_ap"]}
    for option, names, sign in (("fail_below", LOWER_LIMITS, 1), ("fail_above", UPPER_LIMITS, -1)):
        printed = {name: shares[name] * (1 if name == "log_loss" else 100) for name in names}
        for gap, count in ((0.1, len(names)), (-0.1, 0)):
            limits = [f"{name}={value + sign * gap}" for name, value in printed.items()]
            request = MonitorRequest(run=run.path, events=new, **{option: limits}).check()
            assert len(run_monitoring(request).crossed) == count


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"events": [("p1", "p2", START)]}, "no-new-events"),
        ({"events": [("p1", "p2", START + 99 * DAY)], "period": "year"}, "unknown-period"),
        ({"src": "who"}, "option-without-events"),
    ],
)
def test_wrong_requests_are_named(trained, options, code):
    rows = options.get("events")
    if rows is not None:
        src, dst, time = zip(*rows, strict=True)
        options = options | {"events": {"who": src, "whom": dst, "when": time, "weight": [0.0]}}
    with raises(code):
        trained[0].evaluate(**options)


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--sources", "p1", "--top", "1"),
        ("explain", "--pair", "p1,p2", "--orders", "1"),
        ("evaluate",),
    ],
    ids=lambda words: words[0],
)
def test_commands_read_new_events_with_the_options_of_an_import(
    trained, tmp_path, monkeypatch, capsys, words
):
    """Other names, marks, encoding and a bad row; each option is needed."""
    path, day = tmp_path / "more.txt", "2024-02-10"
    rows = [f"p1|p\xfc|{day} 10:{minute}|1.097,5" for minute in range(10, 30)]
    path.write_text("\n".join(["a|b|c|weight", *rows, f"p1|p2|{day} 10:45|x"]), "latin-1")
    command, *rest = words
    options = {"src": "a", "dst": "b", "time": "c", "decimal": ",", "encoding": "latin-1", "delimiter": "|"}
    typed = [text for name, value in options.items() for text in (f"--{name}", value)]
    call = (command, str(trained[0].path), *rest, "--events", str(path), *typed)
    assert invoke(monkeypatch, capsys, *call)[0] == 2
    assert invoke(monkeypatch, capsys, *call, "--skip-bad")[0] == 0
    if command == "predict":
        data = trained[0].observe(path, **options, skip_bad=True).data
        assert data.store.features.edge[-20:, 0].tolist() == [1097.5] * 20
