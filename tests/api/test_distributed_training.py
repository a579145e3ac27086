"""Training by several processes from start to finish, and errors on their way to the parent process."""

import json
from pathlib import Path

import pytest
import torch

from dygmamba.api.processes import _decode_error, _parse_report, encode_error
from dygmamba.api.reports import write_run_page
from dygmamba.core.errors import ConfigError, Interrupted
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.distributed import PeerLostError
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.pipeline import FinishOptions, TrainingPlan, train_node_run
from node_cases import labelled_stream
from ranks_cases import act

SMALL = {"neighbors": 2, "time_dim": 4, "out": 4, "blocks": 1, "batch": 50, "epochs": 1}
WHOLE = {
    "config.toml",
    "metrics.jsonl",
    "results.json",
    "calibration.json",
    "answers.safetensors",
    "report.html",
}
WHOLE |= {"checkpoint/last.safetensors", "checkpoint/best.safetensors"}


@pytest.mark.parametrize(
    "error", [Interrupted("stopped"), ConfigError("no", code="x"), PeerLostError("gone")]
)
def test_an_error_keeps_message_code_and_exit_code(error):
    """An error of a worker is the same to the caller; its class too, if it is one of `core.errors`."""
    again = _decode_error(json.loads(json.dumps(encode_error(error))))
    assert (str(again), again.code, again.exit_code) == (str(error), error.code, error.exit_code)
    assert isinstance(again, Interrupted) is isinstance(error, Interrupted)
    assert isinstance(again, ConfigError) is isinstance(error, ConfigError)


@pytest.mark.parametrize("line", ["", "cut of{", "[1]", '"text"'])
def test_a_report_that_is_not_an_object_is_empty(line):
    """A worker that was killed may have printed nothing, or half a line."""
    assert _parse_report(line) == {}


def test_two_processes_write_one_backbone_and_one_classifier(tmp_path, monkeypatch):
    """Every file of both runs exists once, written by the first process; only the first one reports."""
    monkeypatch.setattr(
        "dygmamba.runs.final_evaluation.count_affordable_events", lambda scorer, destinations=None: 2
    )
    store = labelled_stream(events=200)
    dataset, messages = Dataset.from_events("labelled", store, NodeIds.identity(store.num_nodes)), []

    class Recorder(Progress):
        def message(self, text: str) -> None:
            messages.append(text)

    def train(ranks):
        finish = FinishOptions(write_page=write_run_page)
        plan = TrainingPlan(SMALL, torch.device("cpu"), tmp_path, "graphmixer", finish=finish)
        return train_node_run(dataset, plan, 0, Recorder() if ranks.is_first else SILENT).run.path

    path, same = act(2, train)
    assert path == same
    runs = set(tmp_path.glob("*/*/*-seed0*"))
    assert runs == {path, Path(RunDirectory(path).config()["run"]["backbone"])}
    for run in runs:
        assert {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()} >= WHOLE
        assert RunDirectory(run).config()["made_with"]["processes"] == 2
    assert sum("finished" in text for text in messages) == 2
