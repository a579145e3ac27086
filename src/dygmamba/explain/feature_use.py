"""Use of features by boosted trees: exact Shapley values over a sample of the test, added up by group.

A group is a column of the dataset by its name, or a kind of feature that needs no column, such as the counts of the
source's events.

Legend: p pairs, f features, g groups.
"""

import json
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import load
from dygmamba.data.storage.tensor_file import read_seal
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.shapley import attribute_trees
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.table_request import FeatureGroup
from dygmamba.history.view import PairBatch
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.stored_predictions import StoredPredictions

FEATURE_USE_FILE, FEATURE_USE_VERSION = "feature_use.json", 1  # a file of another version is replaced
MAX_EVENTS = 150  # of the test, each with its random pair: exact Shapley values take about 2 ms a pair


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How much a group of features adds to the logit; the fields are keys of feature_use.json."""

    kind: str
    name: str
    size: float  # mean absolute contribution
    separation: float  # mean contribution to real events minus that to random pairs


@dataclass(frozen=True, slots=True)
class FeatureUse:
    """The groups of a model's features, the most used first, and the number of real events in the sample."""

    events: int
    groups: tuple[GroupUse, ...]


def add_up_groups(
    contribution: Float64[Tensor, "p f"], groups: list[FeatureGroup]
) -> dict[FeatureGroup, Float64[Tensor, "p"]]:
    """Add up the contributions of the features of each group, with their signs."""
    distinct = list(dict.fromkeys(groups))
    index = torch.tensor([distinct.index(group) for group in groups])
    total = contribution.new_zeros(len(contribution), len(distinct)).index_add_(1, index, contribution)
    return dict(zip(distinct, total.unbind(1), strict=True))


def measure_feature_use(run: OpenRun, predictions: StoredPredictions) -> FeatureUse | None:
    """Measure the contributions to the logits of test events at even distances and of their random pairs.

    None for models other than boosted trees, and without test events.
    """
    events = torch.unique(predictions.event)
    if not isinstance(run.scorer, BoostedTrees) or not len(events):
        return None
    count = min(MAX_EVENTS, len(events))
    chosen = events[torch.linspace(0, len(events) - 1, count, dtype=torch.float64).long()]
    rows = torch.isin(predictions.event, chosen).nonzero()[:, 0]
    event, store = predictions.event[rows], run.dataset.store
    pairs = PairBatch.from_pairs(predictions.src[rows], predictions.dst[rows], store.time[event])
    pairs = pairs.with_columns(QueryColumns.of_events(store.features, event)).to(run.stream.device)
    groups, real = [unit.group for unit in run.scorer.units], predictions.label[rows] > 0
    added = add_up_groups(attribute_trees(run.scorer, run.stream, pairs).contribution, groups)
    uses = [
        GroupUse(
            *group, size=float(value.abs().mean()), separation=float(value[real].mean() - value[~real].mean())
        )
        for group, value in added.items()
    ]
    return FeatureUse(count, tuple(sorted(uses, key=lambda use: -use.size)))


def save_feature_use(run: RunDirectory, use: FeatureUse) -> None:
    """Store the contributions in the run directory, together with the checksum of the weights."""
    values = {"version": FEATURE_USE_VERSION, "weights": read_seal(run.best), "use": asdict(use)}
    run.write_file(FEATURE_USE_FILE, json.dumps(values, indent=1) + "\n")


def load_feature_use(run: RunDirectory) -> FeatureUse | None:
    """Return the stored contributions; None if there are none, or if they are damaged or of other weights."""
    try:
        values = json.loads((run.path / FEATURE_USE_FILE).read_text("utf-8"))
        if (values["version"], values["weights"]) != (FEATURE_USE_VERSION, read_seal(run.best)):
            return None
        return load(FeatureUse, values["use"])
    except (ConfigError, OSError, KeyError, TypeError, ValueError, RecursionError):
        return None
