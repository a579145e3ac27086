"""Live states of every model in a tiny size, and what they must equal: a predictor with the same events at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from contract_cases import DRAWN, TRAINABLE, Case, build
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.splits import Split
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import extend_dataset
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.run_section import RunSection
from dygmamba.engine.stream import Stream
from dygmamba.history.view import PairView
from dygmamba.models.blend import Blend
from dygmamba.models.classifiers import NodeClassifier
from dygmamba.runs.predictor import Predictor, build_ranker
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.run_config import RunConfig
from dygmamba.tasks.node_targets import BinaryTarget
from numbering import number_nodes

Event = tuple[str | int, str | int, float, float, str]  # source, destination, time, amount, type

MEMORIES = ("jodie", "dyrep", "tgn")
STATELESS: list[Case] = [
    *((name, {}) for name in TRAINABLE if name not in MEMORIES),
    *((name, more) for name, more in DRAWN if name not in MEMORIES),
]
TABLES: list[Case] = [  # they ask for every kind of table
    case for case in STATELESS if case in ((name, {}) for name in ("walk-trees", "dyg-mamba-counts", "cawn"))
]
STATEFUL: list[Case] = [(name, {}) for name in MEMORIES]
BEGIN = 1000.0
KNOWN = [str(number) for number in range(6)]
TYPES = ("a", "b", "c")


def make_dataset(events: Sequence[Event], bipartite: bool = False) -> Dataset:
    """These events in the order of their times, with ids as readers number them."""
    events = sorted(events, key=lambda event: event[2])
    columns = list(zip(*events, strict=True)) or [(), (), (), (), ()]
    names = [[pa.array([str(value) for value in column]).dictionary_encode()] for column in columns[:2]]
    src, dst, ids = number_nodes(*names, bipartite)
    kinds = tuple(dict.fromkeys(columns[4]))
    codes = torch.tensor([[kinds.index(kind)] for kind in columns[4]], dtype=torch.int32).view(-1, 1)
    features = FeatureTable(
        torch.zeros(len(ids), 0),
        torch.tensor(columns[3]).float().view(-1, 1),
        codes,
        ("amount",),
        (Category("type", kinds),),
    )
    store = EventStore.from_columns(
        torch.from_numpy(src),
        torch.from_numpy(dst),
        torch.tensor(columns[2], dtype=torch.float64),
        features=features,
        num_nodes=len(ids),
        bipartite=bipartite,
    )
    return Dataset.from_events("tiny", store, ids)


def first_events(count: int = 60, seed: int = 0) -> list[Event]:
    """Events of the dataset: repeated pairs, ties, loops, a node that occurs once."""
    rng = np.random.default_rng(seed)
    times = BEGIN + np.cumsum(rng.integers(0, 3, count))
    ends = rng.integers(0, len(KNOWN), (count, 2))
    amounts, kinds = rng.normal(size=count).round(2), rng.integers(0, 2, count)
    return [
        (KNOWN[a], KNOWN[b], float(t), float(x), TYPES[k])
        for (a, b), t, x, k in zip(
            ends.tolist(), times.tolist(), amounts.tolist(), kinds.tolist(), strict=True
        )
    ]


class AllModels(Blend):
    """Several models as one: the logits of each, side by side, so that one stream and one index serve all of them."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__(parts, (1.0,) * len(parts))
        self.elastic = False

    def forward(self, view: PairView) -> Tensor:
        return torch.stack([part(view).double() for part in self._scorers], dim=1)


def build_all(cases: Sequence[Case], store: EventStore) -> AllModels:
    """These models in their tiny sizes as one."""
    return AllModels([build(case, store, store) for case in cases]).eval()


class UntrainedRun(RunDirectory):
    """The directory of a run that was never written."""

    def config(self) -> dict[str, dict[str, Any]]:
        return {"run": {"model": "tiny", "seed": 3}, "train": {}, "model": {}}


def predictor_of(scorer: Any, dataset: Dataset) -> Predictor:
    """A predictor of an untrained model on a dataset; a memory observes seven events at once."""
    store = dataset.store
    events = torch.arange(len(store))
    stream = Stream(
        store,
        Split(events, events[:0], events[:0], torch.zeros(store.num_nodes, dtype=torch.bool)),
        torch.device("cpu"),
    )
    target = BinaryTarget((0.0, 1.0)) if isinstance(scorer, NodeClassifier) else None
    about = RunSection(data=dataset.name, digest=dataset.digest, model="tiny", seed=3)
    config = RunConfig(about, LinkFitConfig(batch=7), {}, folder=UntrainedRun(Path("untrained")))
    run = OpenRun(config, dataset, stream, scorer, target)
    return Predictor(run, dataset, build_ranker(run, dataset, None))


def with_dataset(predictor: Predictor, dataset: Dataset) -> Predictor:
    return replace(predictor, dataset=dataset, ranker=build_ranker(predictor.run, dataset, None))


def with_all(predictor: Predictor, dataset: Dataset, events: Sequence[Event]) -> Predictor:
    """What the state must equal: the predictor that reads all events at once."""
    more = make_dataset(events, dataset.store.bipartite) if events else None
    return with_dataset(predictor, dataset if more is None else extend_dataset(dataset, more))
