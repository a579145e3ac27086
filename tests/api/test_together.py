"""Runs from beginning to end by several ranks: one folder each, whole, written and spoken of by the first."""

from pathlib import Path

import torch

from dygmamba.api.pipeline import TrainingPlan, train_node_run
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
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


def test_two_ranks_make_one_backbone_and_one_classifier(tmp_path, monkeypatch):
    """Every file of both runs is there once, and of a rank that does not lead there is nothing."""
    monkeypatch.setattr("dygmamba.runs.final_evaluation.MAX_RANKED_EVENTS", 2)  # events that are ranked
    store = labelled_stream(events=200)
    dataset, said = Dataset.from_events("labelled", store, NodeIds.identity(store.num_nodes)), []

    class Heard(Progress):
        def message(self, text: str) -> None:
            said.append(text)

    def trained(ranks):
        plan = TrainingPlan(SMALL, torch.device("cpu"), tmp_path, "graphmixer")
        return train_node_run(dataset, plan, 0, Heard() if ranks.is_first else SILENT).run.path

    path, same = act(2, trained)
    assert path == same
    runs = set(tmp_path.glob("*/*/*-seed0*"))
    assert runs == {path, Path(RunDirectory(path).config()["run"]["backbone"])}
    for run in runs:
        assert {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()} >= WHOLE
        assert RunDirectory(run).config()["made_with"]["processes"] == 2
    assert sum("finished" in sentence for sentence in said) == 2
