"""The demo: a small DyG-Mamba on a generated stream with a known law of forgetting, next to heuristics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dygmamba.api.reports import write_run_page
from dygmamba.core.choices import SCOPES
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.storage.library import generate_default_dataset
from dygmamba.explain.forgetting import Forgetting, find_known_law, measure_forgetting, save_forgetting
from dygmamba.report.document import Document
from dygmamba.report.results import build_results_document
from dygmamba.report.run_sections import describe_closeness
from dygmamba.runs.default_model import DEFAULT_NETWORK
from dygmamba.runs.opening import open_run
from dygmamba.runs.pipeline import TrainingPlan, train_link_run

# a small model that learns the stream in about a minute on two cores; its channels are those the stream fills
DEMO_SETTINGS: dict[str, Any] = {
    "length": 24,
    "channels": ["time", "cooccurrence"],
    "width": 16,
    "time_dim": 32,
    "blocks": 1,
    "states": 4,
    "out": 32,
    "dropout": 0.0,
    "lr": 0.005,
    "epochs": 14,
}
DEMO_HEURISTICS = ("edgebank", "recency", "pair-recency")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Results of the demo."""

    run: Path
    page: Path
    rows: list[dict[str, Any]]
    forgetting: Forgetting

    @property
    def document(self) -> Document:
        """The results beside the heuristics, and how close the learned decay is to the true law."""
        own = [row for row in self.rows if row["model"] not in DEMO_HEURISTICS]
        others = [row for row in self.rows if row["model"] in DEMO_HEURISTICS]
        return build_results_document(own, others, [describe_closeness(self.forgetting)])


def run_demo(out: Path, seed: int, epochs: int, progress: Progress = SILENT) -> DemoResult:
    """Train DyG-Mamba on the CPU and compare it with heuristics on the same events and negatives.

    The protocol is that of benchmarks: every node of the stream occurs in the training period, so without nodes held
    out of training there would be no new nodes to show.
    """
    dataset = generate_default_dataset()
    plan = TrainingPlan(DEMO_SETTINGS | {"epochs": epochs}, torch.device("cpu"), out, protocol="benchmark")
    folder = train_link_run(dataset, plan, seed, progress).run
    test = [row for row in (*folder.rules(), *folder.results()) if row["split"] == "test"]
    found = {(row["model"], row["setting"]): row for row in test}
    rows = [found[model, kind] for model in (*DEMO_HEURISTICS, DEFAULT_NETWORK) for kind in SCOPES]
    folder.write_results(rows)
    run = open_run(folder.path, torch.device("cpu"), dataset=dataset)
    found = measure_forgetting(run.scorer, run.stream, find_known_law(dataset))
    save_forgetting(folder, found)
    return DemoResult(folder.path, write_run_page(run), rows, found)
