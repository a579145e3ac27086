"""Measure on which datasets the two known leaks of published programs carry information about the label.

`python -m research.leak_channels DATA_DIR` measures the datasets with published values that the folder holds and
writes report/leak_channels.json, from which report/published_leaks.py decides which published values are free of leaks.
"""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from dygmamba.core.choices import PUBLISHED_NEGATIVES, SCOPES
from dygmamba.core.files.writing import write_text
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.stream import Stream
from dygmamba.report.published_leaks import CHANNELS_FILE, list_padded_calls
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import PUBLISHED_BATCH, roc_auc

DATASETS = ("uci", "wikipedia", "enron", "CanParl", "USLegis", "mooc")  # with published values and at hand
COMMAND = "python -m research.leak_channels DATA_DIR"
DIGITS = 4


def measure_channels(dataset: str, data_dir: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the shares of one dataset by setting, and ROC-AUCs by setting, negatives, length and batch size."""
    store = open_dataset(dataset, data_dir).store
    stream = Stream(store, chronological_split(store), torch.device("cpu"))
    own_time: dict[str, float] = {}
    padding: dict[str, list[float]] = {}
    for setting in SCOPES:
        for negatives in PUBLISHED_NEGATIVES:
            evaluation_set = build_link_set(store, stream.split, "test", setting, negatives)
            if negatives == "random":
                own_time[setting] = round(_share_that_follows_its_own_time(evaluation_set), DIGITS)
            for length, batch in list_padded_calls(dataset, negatives):
                aucs = _measure_padded_length(stream, evaluation_set, length, batch)
                padding[f"{setting} {negatives} {length} {batch}"] = [round(auc, DIGITS) for auc in aucs]
    return {"own_time": own_time, "padding": padding}


def _share_that_follows_its_own_time(evaluation_set: EvaluationSet) -> float:
    """Return the share of events for which an earlier batch of the evaluation holds events with their timestamp."""
    time = evaluation_set.pairs.time[: len(evaluation_set.events)].contiguous()
    first = torch.searchsorted(time, time)
    batch_start = torch.arange(len(time)) // PUBLISHED_BATCH * PUBLISHED_BATCH
    return float((first < batch_start).double().mean())


def _measure_padded_length(
    stream: Stream, evaluation_set: EvaluationSet, length: int, batch: int
) -> tuple[float, float]:
    """Return the ROC-AUC of the padded length of destinations and of sources, positives and negatives in two calls."""
    pairs, half = evaluation_set.pairs, len(evaluation_set.events)
    aucs = []
    for node in (pairs.dst, pairs.src):
        read = stream.index.past(node, pairs.time)[1].clamp(max=length - 1)  # one place is the query node's
        padded = [part.max().expand(len(part)) for side in read.split(half) for part in side.split(batch)]
        aucs.append(roc_auc(torch.cat(padded).double(), pairs.label))
    return aucs[0], aucs[1]


if __name__ == "__main__":
    channels = {name: measure_channels(name, Path(sys.argv[1])) for name in DATASETS}
    text = json.dumps({"command": COMMAND, "datasets": channels}, indent=1)
    text = re.sub(r"\[\s+(\S+)\s+(\S+)\s+\]", r"[\1 \2]", text)  # a pair of numbers per line
    write_text(Path(str(files("dygmamba.report").joinpath(CHANNELS_FILE))), text + "\n")
