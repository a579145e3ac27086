"""For all public functions, parameters and wrong values: an answer, or an error of one sentence with a code."""

import inspect
import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import dygmamba as dm
from dygmamba.api import training, tuning
from dygmamba.core.argument_types import describe, fits
from dygmamba.core.errors import DygError, DygWarning
from raising import raises

WRONG = (None, object(), 1.5, -1, math.nan, True, "", "\0", "no such", [], {}, b"x", (None,), lambda: None)
METHODS = (
    "score",
    "rank",
    "embed",
    "classify",
    "explain",
    "observe",
    "evaluate",
    "export",
    "inputs",
    "report",
    "save",
)
FUNCTIONS = sorted(
    name for name in dir(dm) if inspect.isfunction(getattr(dm, name)) and name not in ("ops", "models")
)
# values that are right for these parameters, and take long
RIGHT = {"reproduce": ("datasets", "models", "seeds", "variants"), "datasets": ("runs", "data_dir")}


class ReachedError(DygError):
    """Raised instead of a training: all arguments were accepted."""

    code = "reached"


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=20, events=200, communities=2)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return dm.train(data, "trees", epochs=1, rounds=1, out=tmp_path_factory.mktemp("runs"))[0]


@pytest.fixture
def good(data, run, tmp_path, monkeypatch):
    """Arguments of each function that work; trainings only begin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "data"))

    def reach(*_, **__):
        raise ReachedError("reached")

    for name in ("train_link_run", "train_node_run", "resume_run", "refit_link_run", "blend_runs"):
        monkeypatch.setattr(training, name, reach)
    monkeypatch.setattr("dygmamba.models.REGISTERED", {})  # of models that are registered here
    monkeypatch.setattr(training, "run_in_processes", reach)
    monkeypatch.setattr(training, "enable_determinism", lambda: None)
    monkeypatch.setattr(tuning, "choose_device", reach)
    monkeypatch.setattr("dygmamba.api.backtesting.run_backtest", reach)
    monkeypatch.setattr("dygmamba.api.studies.run_study", reach)
    monkeypatch.setattr("dygmamba.api.studies.audit_stream", reach)
    monkeypatch.setattr("dygmamba.api.sharing.download_files", reach)
    monkeypatch.setattr("dygmamba.api.sharing.upload_folder", reach)
    monkeypatch.setattr("dygmamba.runs.contract.check_model", reach)
    table = [("a", "b", 1), ("b", "c", 2)]
    return {
        "audit": {"data": data},
        "backtest": {"data": data, "model": "trees", "every": "1d"},
        "batches": {"data": data},
        "blend": {"runs": [run.path, run.path]},
        "check_model": {"name": "trees"},
        "compare": {"runs": [run.path]},
        "datasets": {},
        "evaluate": {"data": data, "model": "recency"},
        "evaluate_scores": {"scores": [0.5] * 60, "data": data},
        "generate": {"nodes": 20, "events": 50, "communities": 2},
        "list_queries": {"data": data},
        "list_runs": {},
        "load": {"name": "generated"},
        "load_program": {"path": tmp_path / "none.onnx"},
        "open": {"folder": run.path},
        "pull": {"source": "./none"},
        "push": {"run": run, "target": "./shared"},
        "read": {"source": table},
        "refit": {"folder": run.path},
        "register": {"name": "x", "config": type(run), "build": lambda config, facts: None},
        "remove": {"name": "none"},
        "reproduce": {"study": "link"},
        "restore": {"backup": "./none", "path": "./state"},
        "resume": {"folder": run.path},
        "save": {"dataset": data},
        "train": {"data": data, "model": "trees"},
        "tune": {"data": data, "model": "trees"},
    }


def answers(function, arguments) -> str:
    """An empty string for an answer or an error of one sentence, else what went wrong."""
    try:
        result = function(**arguments)
        if inspect.isgenerator(result):
            next(result)
    except DygError as error:
        return (
            "" if error.code != "error" and str(error) and "\n" not in str(error) else f"bad error {error!r}"
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_of_a_function_is_a_sentence(good, name):
    function, raw = getattr(dm, name), {}
    for parameter in inspect.signature(function).parameters:
        for value in WRONG if parameter not in RIGHT.get(name, ()) else ():
            if problem := answers(function, good[name] | {parameter: value}):
                raw[parameter, repr(value)[:20]] = problem
    assert not raw


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
@pytest.mark.parametrize("name", METHODS)
def test_a_wrong_argument_of_a_method_is_a_sentence(good, run, name):
    method, raw = getattr(run, name), {}
    first = {
        "score": [(1, 2)],
        "explain": (1, 2),
        "observe": [(1, 2, 2e9)],
        "inputs": [(1, 2)],
        "export": "x.pt2",
        "save": "x.safetensors",
    }
    arguments = {next(iter(inspect.signature(method).parameters)): first[name]} if name in first else {}
    arguments = {"sources": [1]} if name == "rank" else {"nodes": [1]} if name == "embed" else arguments
    for parameter in inspect.signature(method).parameters:
        for value in WRONG:
            if problem := answers(method, arguments | {parameter: value}):
                raw[parameter, repr(value)[:20]] = problem
    assert not raw


@pytest.mark.parametrize("ids", [[None], [math.nan], [1.5], [b"x"], [True], 1.5, object()])
def test_what_is_no_id_is_not_ranked_under_its_name(run, ids):
    """`str(None)` would be an id like any other."""
    with raises("wrong-argument-type"):
        run.rank(ids)
    with raises("wrong-argument-type"):
        run.rank([1], candidates=ids)


def test_a_table_is_taken_where_a_dataset_is():
    """`evaluate` and `batches` read a data frame, a dict or rows as `read` does; `train` uses the same function."""
    events = dm.generate(nodes=20, events=200, communities=2)
    frame, rows = events.to_pandas(), [tuple(row.values()) for row in events.to_arrow().to_pylist()]
    expected = dm.evaluate(events, "recency", protocol="time").column("ap").to_pylist()
    for table in (frame, {"src": frame.src, "dst": frame.dst, "time": frame.time}, [row[:3] for row in rows]):
        assert dm.evaluate(table, "recency").column("ap").to_pylist() == expected
    assert next(dm.batches(frame, 10, device="cpu")).label.sum() == 10


def test_what_is_pulled_from_the_hub_is_announced(good, monkeypatch):
    """`user/name` looks like a folder."""
    monkeypatch.setattr("dygmamba.api.sharing.require_hub_client", lambda: None)
    with pytest.warns(DygWarning, match="Hugging Face Hub"), raises("reached"):
        dm.pull("user/name")


def test_numbers_of_numpy_fit_and_strings_are_no_lists():
    assert fits(np.int64(3), int)
    assert fits(np.float32(3), float)
    assert not fits(np.bool_(True), int)
    assert not fits("abc", Sequence[str])
    assert not fits([1, "a"], Sequence[int])
    assert describe(int | Sequence[int] | None) == "an integer or a list of integers or None"


def test_a_used_run_can_be_pickled(run):
    """The copy answers the same; what was only observed is not in the run directory, and says so."""
    scores = run.score([(1, 2)])
    assert pickle.loads(pickle.dumps(run)).score([(1, 2)]) == scores
    with raises("run-not-picklable"):
        pickle.dumps(run.observe([(1, 2, 2e9)]))


def test_batches_have_the_queries_of_an_evaluation(data):
    """Other negatives give other pairs for the same events; the training split has its own negatives."""
    found = [
        next(dm.batches(data, 20, "test", device="cpu", negatives=name)).view.pairs
        for name in ("random", "historical")
    ]
    assert torch.equal(found[0].src[:20], found[1].src[:20])
    assert not torch.equal(found[0].dst[20:], found[1].dst[20:])
    with raises("unknown-negatives"):
        dm.batches(data, split="test", negatives="hard")
    with raises("option-of-evaluation"):
        dm.batches(data, negatives="historical")


def test_a_library_call_logs_and_prints_nothing(data, tmp_path, capsys, caplog):
    with caplog.at_level("DEBUG", logger="dygmamba"):
        dm.train(data, "trees", epochs=1, rounds=1, out=tmp_path, device="cpu")
    assert "run: " in caplog.text
    assert "epoch {" in caplog.text
    assert capsys.readouterr() == ("", "")


LIVE_ARGUMENTS = {
    "append": {"events": [(1, 2, 1e12)]},
    "score": {"pairs": [(1, 2)], "timeout": 0.0},
    "rank": {"sources": [1], "timeout": 0.0},
    "switch": {"run": "none"},
    "backup": {"to": "saved.zip"},
}


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
def test_a_wrong_argument_of_a_live_run_is_a_sentence(run, tmp_path, monkeypatch):
    """For all methods of a live run, and for opening one."""
    monkeypatch.chdir(tmp_path)
    raw = {}
    with dm.live(run, "state") as live:
        calls = {name: (getattr(live, name), own) for name, own in LIVE_ARGUMENTS.items()}
        calls["live"] = (dm.live, {"run": run, "path": "state"})  # which is locked
        for name, (function, own) in calls.items():
            parameters = set(inspect.signature(function).parameters) - {"timeout", "path"}
            for parameter in parameters:
                for value in WRONG:
                    if problem := answers(function, own | {parameter: value}):
                        raw[name, parameter, repr(value)[:20]] = problem
    assert not raw
