"""A logger is told what a run does, and cannot end it."""

import sys

import pytest

import dygmamba as dm
from commands import fail, invoke
from dygmamba.core.errors import ConfigError
from dygmamba.runs import loggers
from raising import raises

DATA = dm.generate(nodes=40, events=300, communities=4)
SMALL = {"neighbors": 4, "window": 9, "device": "cpu"}


class Spy:
    """Writes down what it is told."""

    told: list

    def __init__(self, run):
        self.told.append(("begin", run.config()["run"]["model"]))

    def epoch(self, entry):
        self.told.append(
            ("epoch", entry["epoch"], set(loggers.get_numbers(entry)) >= {"loss", "val_ap", "seconds"})
        )

    def results(self, rows):
        self.told.append(("results", [loggers.get_final_metrics(row) for row in rows]))

    def close(self, whole):
        self.told.append(("close", whole))


@pytest.fixture
def spy(monkeypatch):
    """In mlflow's place, whose package is taken to be there."""
    kind = type("Spy", (Spy,), {"told": []})
    monkeypatch.setitem(loggers.LOGGERS, "mlflow", kind)
    monkeypatch.setattr("dygmamba.api.requests.training.find_spec", lambda name: name)
    return kind


def test_a_logger_is_told_from_beginning_to_end(spy, tmp_path):
    """Begin, every epoch, the results, the end."""
    (run,) = dm.train(DATA, "graphmixer", epochs=2, out=tmp_path / "a", log="mlflow", **SMALL)
    begin, *epochs, results, close = spy.told
    assert (begin, close) == (("begin", "graphmixer"), ("close", True))
    assert epochs == [("epoch", 0, True), ("epoch", 1, True)]
    tests = [
        row for row in run.results.to_pylist() if (row["split"], row["setting"]) == ("test", "transductive")
    ]
    assert results[1][-2]["test/transductive/random/ap"] == tests[0]["ap"]


def test_a_logger_that_fails_is_told_no_more(spy, tmp_path, monkeypatch, capsys):
    """A server that goes away ends no training; one that never answered is one sentence before the first step."""

    def gone(self, entry):
        raise OSError("the server is away")

    monkeypatch.setattr(spy, "epoch", gone)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    dm.save(DATA)
    words = (
        "train",
        "generated",
        "--model",
        "graphmixer",
        "--epochs",
        "1",
        "--log",
        "mlflow",
        "--out",
        str(tmp_path),
    )
    more = ("--set", "neighbors=4", "--set", "window=9", "--device", "cpu")
    code, _, err = invoke(monkeypatch, capsys, *words, *more)
    assert code == 0, err
    assert err.count("mlflow failed and gets no more of") == 1
    assert [kind for kind, *_ in spy.told] == ["begin"]
    monkeypatch.setattr(spy, "__init__", lambda self, run: gone(self, run))
    with raises("logger-failed", ConfigError) as error:
        dm.train(DATA, "graphmixer", epochs=1, out=tmp_path / "c", log=("mlflow",), **SMALL)
    assert "the server is away" in str(error.value)


def test_a_missing_package_is_a_sentence_before_the_training(monkeypatch, capsys, tmp_path):
    """Exit code 2, no run folder."""
    monkeypatch.setattr("dygmamba.api.requests.training.find_spec", lambda name: None)
    for log, package in (("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny")):
        code, err = fail(monkeypatch, capsys, "train", "generated", "--log", log, "--out", tmp_path / "r")
        assert (code, f"pip install {package}" in err) == ("package-missing", True), err
    assert not (tmp_path / "r").exists()


@pytest.mark.filterwarnings("ignore")  # its own
def test_tensorboards_own_reader_finds_the_curves(tmp_path):
    """What was written is what metrics.jsonl and results.json hold."""
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = dm.train(DATA, "graphmixer", epochs=2, out=tmp_path, log="tensorboard", **SMALL)
    found = EventAccumulator(str(run.path))
    found.Reload()
    assert [one.value for one in found.Scalars("loss")] == pytest.approx(run.metrics["loss"].to_pylist())
    assert "test/transductive/random/ap" in found.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")  # its own
def test_mlflows_own_client_finds_the_run(tmp_path, monkeypatch):
    """Parameters, metrics by epoch, finished; resumed, it is the same MLflow run."""
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = dm.train(DATA, "graphmixer", epochs=1, out=tmp_path, log="mlflow", **SMALL)
    dm.resume(run.path, epochs=2, log="mlflow")
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("generated").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["model.neighbors"] == "4"
    assert [one.step for one in client.get_metric_history(found.info.run_id, "loss")] == [0, 1]
    assert "mlflow" in sys.modules


def test_a_library_call_logs_and_prints_nothing(tmp_path, capsys, caplog):
    with caplog.at_level("DEBUG", logger="dygmamba"):
        dm.train(DATA, "trees", epochs=1, rounds=1, out=tmp_path, device="cpu")
    assert "run: " in caplog.text
    assert "epoch {" in caplog.text
    assert capsys.readouterr() == ("", "")
