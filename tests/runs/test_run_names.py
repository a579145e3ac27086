"""Runs by name: the newest finished one of a dataset, of a folder, or of all; and the list of runs."""

import json
from pathlib import Path

import pytest

import dygmamba as dm
from commands import invoke
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.run_list import find_comparable_runs
from dygmamba.runs.run_names import find_run
from dygmamba.tasks.metric_names import NODE_METRICS

RUNS = [  # dataset, stamp, split, AP on validation; None: not finished
    ("mail", "20240101", "a", 0.7),
    ("mail", "20240102", "a", 0.9),
    ("mail", "20240201", "b", 0.6),
    ("mail", "20240301", "a", None),
    ("chat", "20240202", "c", 0.5),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data, stamp, split, ap in RUNS:
        run = RunDirectory(tmp_path / "runs" / data / "trees" / f"{stamp}-120000-seed0")
        run.path.mkdir(parents=True)
        run.write_config({"run": {"data": data, "digest": "0", "split": split, "model": "trees", "seed": 0}})
        if ap is not None:
            rows = [
                {"split": part, "setting": "transductive", "negatives": "random"} for part in ("val", "test")
            ]
            run.write_results([row | {"ap": ap - 0.1 * (row["split"] == "test")} for row in rows])
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.toml").write_text("no TOML")
    return tmp_path


def test_names_are_the_newest_finished_run(folder):
    """`latest` and the name of a dataset prefer finished runs; paths and unknown names stay as they are."""
    assert find_run("mail").name == "20240201-120000-seed0"
    assert find_run("mail", prefer_finished=False).name == "20240301-120000-seed0"
    assert find_run("latest").parent.parent.name == "chat"
    assert find_run("runs/chat").parent.parent.name == "chat"
    assert find_run(run := find_run("mail")) == run
    for name in ("nothing", "a\0b", "runs/nothing"):
        assert str(find_run(name)) == name
    assert [path.name[:8] for path in find_comparable_runs("mail")] == ["20240201"]


def test_a_run_has_one_path_wherever_it_is_named_from(folder, monkeypatch):
    """By a name, a relative path, "." and "..", inside or outside of it: the same absolute path."""
    run = find_run("mail")
    assert run.is_absolute()
    assert find_run(run.relative_to(folder.resolve())) == run
    (run / "checkpoint").mkdir()
    for place, name in ((run, "."), (run / "checkpoint", ".."), (run.parent, run.name)):
        monkeypatch.chdir(place)
        assert find_run(name) == run
        assert find_comparable_runs(name) == [Path(name)]


def test_runs_are_listed_with_the_best_of_each_split(folder, monkeypatch, capsys):
    """The newest first; a broken directory is left out; `--best` keeps one run per split of a dataset."""
    listed = dm.list_runs().select(["started", "val", "test", "finished", "best"]).to_pylist()
    assert [row["started"][:10] for row in listed] == [
        "2024-03-01", "2024-02-02", "2024-02-01", "2024-01-02", "2024-01-01"
    ]  # fmt: skip
    assert [row["best"] for row in listed] == [False, True, True, True, False]
    assert listed[0]["val"] is None
    assert not listed[0]["finished"]
    assert listed[3]["test"] == pytest.approx(0.8)
    code, out, _ = invoke(monkeypatch, capsys, "runs", "mail", "--best", "--json")
    assert code == 0
    assert [row["val"] for row in json.loads(out)["runs"]] == [0.6, 0.9]
    code, out, _ = invoke(monkeypatch, capsys, "runs", "--limit", "1")
    assert "not finished" in out
    assert "4 older runs" in out


@pytest.mark.parametrize(
    ("target", "metric", "title", "values", "shown"),
    [
        ("binary", "auc", "AUC", [0.6, 0.8], "80.00"),
        ("classes", "macro_f1", "macro-F1", [0.3, 0.5], "50.00"),
        ("regression", "mae", "MAE", [84.34, 8.43], "8.43"),
    ],
)
def test_node_runs_are_listed_by_the_metric_of_their_target(
    tmp_path, monkeypatch, capsys, target, metric, title, values, shown
):
    """The second run is the better one, of numbers by the lower error; runs of another target are not compared."""
    monkeypatch.chdir(tmp_path)
    other = "classes" if target == "regression" else "regression"
    for day, (kind, value) in enumerate([*((target, value) for value in values), (other, 1.0)], 1):
        run = RunDirectory(tmp_path / "runs" / "mail" / "trees-node" / f"2024010{day}-120000-seed0")
        run.path.mkdir(parents=True)
        about = {"data": "mail", "digest": "0", "split": "a", "model": "trees", "seed": 0, "task": "node"}
        run.write_config({"run": about | {"target": kind}})
        name = NODE_METRICS[kind][0]
        run.write_results([{"split": part, "target": kind, name: value} for part in ("val", "test")])
    listed = dm.list_runs("mail").to_pylist()
    assert [(row["metric"], row["val"], row["best"]) for row in listed[1:]] == [
        (metric, values[1], True),
        (metric, values[0], False),
    ]
    assert listed[0]["best"]
    _, out, _ = invoke(monkeypatch, capsys, "runs", "mail", "--best")
    assert title in out
    assert shown in out
    assert [path.name[:8] for path in find_comparable_runs("mail")] == ["20240103"]
