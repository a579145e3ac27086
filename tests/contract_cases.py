"""Every registered model in a tiny size, streams of snapshots, and the ways a score is asked for.

Legend: T the time of a question, c cell.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dygmamba.config import build_config, find_preset, load_presets
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.view import LabelledView, NeighborRequest, PairBatch
from dygmamba.models import MODELS, find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.models.lagging_heuristics import MEMORIES
from dygmamba.ops.key_slots import KeySlots
from dygmamba.tasks.base import EvaluationSet
from dygmamba.testing import EVENT_TYPES, sample_stream
from streams import unsplit

Case = tuple[str, dict[str, Any]]  # a model's name and settings

TINY: dict[str, dict[str, Any]] = {
    "dyg-mamba": {"length": 6, "width": 4, "states": 4, "out": 8, "time_dim": 6, "blocks": 2, "dropout": 0.0},
    "mamba": {"length": 6, "width": 4, "states": 4, "out": 8, "time_dim": 6, "blocks": 2, "dropout": 0.0},
    "dyg-mamba-counts": {
        "length": 6,
        "associations": 4,
        "width": 5,  # of narrower encodings, all hidden units may be inactive
        "states": 4,
        "out": 8,
        "time_dim": 6,
        "blocks": 1,
        "dropout": 0.0,
        "table_dropout": 0.0,
        "scales": 3,
        "walk_layers": 2,
        "walk_dim": 7,
        "walk_decays": 2,
        "relation_dropout": 0.0,
    },
    "tgat": {"neighbors": 4, "out": 8, "time_dim": 6, "dropout": 0.0},
    "graphmixer": {"neighbors": 5, "window": 9, "out": 8, "time_dim": 6, "dropout": 0.0},
    "tcl": {"neighbors": 5, "out": 8, "time_dim": 6, "dropout": 0.0},
    "dygformer": {"length": 7, "patch": 2, "width": 4, "out": 8, "time_dim": 6, "dropout": 0.0},
    "cawn": {"walks": 5, "heads": 2, "out": 8, "time_dim": 6, "dropout": 0.0},
    "freedyg": {"length": 5, "out": 8, "time_dim": 6, "count_dim": 4, "dropout": 0.0},
    "jodie": {"out": 8, "time_dim": 6, "dropout": 0.0},
    "dyrep": {"neighbors": 4, "out": 8, "time_dim": 6, "dropout": 0.0},
    "tgn": {"neighbors": 4, "out": 8, "time_dim": 6, "dropout": 0.0},
    "tpnet": {"neighbors": 5, "dim": 7, "layers": 2, "out": 8, "time_dim": 6, "dropout": 0.0},
    "trees": {"trees": 6, "least": 3, "rate": 0.5, "columns": 1.0, "scales": 3, "neighbors": 5},
    "walk-trees": {
        "trees": 6,
        "least": 3,
        "rate": 0.5,
        "columns": 1.0,
        "scales": 3,
        "neighbors": 5,
        "walks": 2,
        "walk_dim": 9,
        "walk_decays": 2,
    },
}
# trees, a network and a memory as one: each asks for walks or neighbours of its own
BLENDED: Case = (
    "blend",
    {
        "parts": ["walk-trees", "dyg-mamba-counts", "tgn"],
        "settings": [json.dumps(TINY[name]) for name in ("walk-trees", "dyg-mamba-counts", "tgn")],
        "sources": ["", "", ""],
        "weights": [0.2, 0.5, 0.3],
    },
)
# the paper's encodings with categorical columns
PAPER = {"channels": ["node", "edge", "time", "cooccurrence"], "pair_features": [], "tables": "concat"}
TYPED: Case = ("dyg-mamba-counts", PAPER | {"channels": [*PAPER["channels"], "event-types"]})
# and with node features and the columns of earlier events in its head
COLUMNED: Case = ("dyg-mamba-counts", PAPER | {"pair_features": ["node-features", "columns"]})
TRAINABLE = [name for name, spec in MODELS.items() if spec.trainable]


def other_samplings(name: str) -> list[str]:
    """How a model chooses neighbours on some dataset, other than by default."""
    datasets = [key for key, value in load_presets()[name].items() if isinstance(value, dict)]
    chosen = {find_preset(name, dataset).get("sampling") for dataset in datasets}
    return sorted(chosen - {None, getattr(MODELS[name].config(), "sampling", None)})


DRAWN: list[Case] = [(name, {"sampling": way}) for name in TRAINABLE for way in other_samplings(name)]
UNTRAINED: list[Case] = [
    (name, more)
    for name, spec in MODELS.items()
    if not spec.trainable
    for more in ([{"memory": memory} for memory in MEMORIES] if name == "edgebank" else [{}])
]


def build(case: Case, store: EventStore, lessons: EventStore | None = None) -> Any:
    """The model in its tiny size, as made: with random weights and nothing observed.

    One that learns in rounds has no random weights: it learns a little, by default from a stream that no test asks
    about.
    """
    name, more = case
    spec = find_model(name)
    torch.manual_seed(0)
    scorer = spec.build(build_config(spec.config, TINY.get(name, {}) | more), DatasetFacts.of(store))
    for part in getattr(scorer, "parts", [scorer]):
        if part.rounds_per_epoch:
            schooled(part, lessons)
    return scorer.eval() if isinstance(scorer, nn.Module) else scorer


def schooled(scorer: Any, lessons: EventStore | None = None) -> None:
    """A few rounds on events and random pairs of a stream, by default one of its own."""
    store = sample_store(240, nodes=9, seed=3) if lessons is None else lessons
    rng = torch.Generator().manual_seed(4)
    src, dst = (torch.randint(store.num_nodes - 1, (len(store),), generator=rng) for _ in range(2))
    label = (torch.arange(2 * len(store)) < len(store)).float()
    ends = torch.cat([store.src, src]), torch.cat([store.dst, dst])
    pairs = PairBatch.from_pairs(*ends, store.time.repeat(2)).with_labels(label)
    lesson = scorer.study([LabelledView(unsplit(store).view(pairs, scorer.requests), pairs)])
    for _ in range(6):
        scorer.learn(lesson)


def sample_store(events: int = 60, **sizes: int) -> EventStore:
    """The stream of the contract, shorter by default."""
    return sample_stream(events, **sizes)


CELL = 7
SIZES = (13, 9, 15, 11, 12, 10)  # each longer than a cell, so that its ties cross borders of cells


def snapshots(sizes: Sequence[int] = SIZES, gap: float = 40.0, seed: int = 0) -> EventStore:
    """A few instants with many events each, among eight nodes; the last one never occurs."""
    store = sample_store(sum(sizes), nodes=9, seed=seed)
    instant = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return replace(store, time=1.08e9 + gap * instant.double())


def change_events(store: EventStore, begin: int, stop: int | None = None, seed: int = 7) -> EventStore:
    """Replace the ends and columns of the events from `begin` up to `stop` by random ones."""
    rng, row = torch.Generator().manual_seed(seed), torch.arange(len(store))
    here = (row >= begin) & (row < (len(store) if stop is None else stop))
    src, dst = (torch.randint(store.num_nodes, (len(store),), generator=rng) for _ in range(2))
    edge = torch.where(
        here[:, None], 3 * torch.randn(store.features.edge.shape, generator=rng), store.features.edge
    )
    kinds = torch.randint(len(EVENT_TYPES), (len(store), 1), generator=rng, dtype=torch.int32)
    codes = torch.where(here[:, None], kinds, store.features.codes)
    features = replace(store.features, edge=edge, codes=codes)
    return replace(
        store,
        src=torch.where(here, src, store.src),
        dst=torch.where(here, dst, store.dst),
        features=features,
    )


def other_futures(store: EventStore, begin: int) -> list[EventStore]:
    """Streams with the same events before `begin`: others after it, later, in another order, none, or more."""
    time = float(store.time[begin])
    late, more = change_events(store, begin), change_events(store, 0)
    late = replace(late, time=torch.where(torch.arange(len(store)) < begin, store.time, late.time + 1.5))
    turned = torch.cat([torch.arange(begin), torch.arange(len(store) - 1, begin - 1, -1)])
    grown = joined(store[:begin], replace(more, time=torch.full_like(more.time, time)), store[begin:])
    return [change_events(store, begin), late, selected(store, turned), store[:begin], grown]


def selected(store: EventStore, rows: Tensor) -> EventStore:
    """These events, brought into the order of time, ties as given."""
    features = store.features.select_events(rows)
    return EventStore.from_unsorted(
        store.src[rows], store.dst[rows], store.time[rows], features=features, num_nodes=store.num_nodes
    )


def joined(*parts: EventStore) -> EventStore:
    """Streams one after the other."""
    src, dst, time = (torch.cat([getattr(part, name) for part in parts]) for name in ("src", "dst", "time"))
    edge = torch.cat([part.features.edge for part in parts])
    codes = torch.cat([part.features.codes for part in parts])
    features = replace(parts[0].features, edge=edge, codes=codes)
    return EventStore.from_columns(src, dst, time, features=features, num_nodes=parts[0].num_nodes)


@dataclass(frozen=True, slots=True)
class Questions:
    """Pairs, their time, and the row of the event that each is asked beside."""

    src: Tensor
    dst: Tensor
    time: Tensor
    row: Tensor

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: Tensor) -> "Questions":
        return Questions(self.src[rows], self.dst[rows], self.time[rows], self.row[rows])


PERIODS = (22, 37)  # where validation and test begin, in rows: with the third and the fourth instant


def questions(store: EventStore, begin: int = PERIODS[-1], seed: int = 1) -> Questions:
    """Each event of the test period, then a random pair at its time."""
    rng, row = torch.Generator().manual_seed(seed), torch.arange(begin, len(store))
    src, dst = (torch.randint(store.num_nodes, (len(row),), generator=rng) for _ in range(2))
    ends = torch.cat([store.src[row], src]), torch.cat([store.dst[row], dst])
    return Questions(*ends, store.time[row].repeat(2), row.repeat(2))


def build_evaluation_set(
    store: EventStore, asked: Questions, periods: tuple[int, ...] = PERIODS
) -> EvaluationSet:
    """Build the evaluation set of the events from the last border on; some training events are held out."""
    ids = torch.arange(len(store))
    parts = [ids[a:b] for a, b in pairwise((0, *periods))]
    parts[0] = parts[0][parts[0] % 6 != 5]
    pairs = PairBatch.from_pairs(asked.src, asked.dst, asked.time).with_labels(torch.ones(len(asked.src)))
    return EvaluationSet({}, ids[periods[-1] :], tuple(parts), pairs, asked.row - periods[-1])


def by_rule(visible: Any, cell: int = CELL) -> "Way":
    """Evaluation under a rule, with small cells."""
    return lambda scorer, store, asked: score_evaluation_set(
        scorer, unsplit(store), build_evaluation_set(store, asked), VisibilityRule(visible, cell)
    )


def by_prediction(scorer: Any, store: EventStore, asked: Questions) -> Tensor:
    """Prediction, with small cells."""
    return Ranker(scorer, unsplit(store), 0, batch_size=CELL).logits(asked.src, asked.dst, asked.time)


Way = Callable[[Any, EventStore, Questions], Tensor]
WAYS: dict[str, Way] = {
    "strict": by_rule("strict"),
    "prediction": by_prediction,
    "batch": by_rule("batch"),
}
CASES: list[Case] = [*((name, {}) for name in TRAINABLE), BLENDED, TYPED, COLUMNED, *DRAWN, *UNTRAINED]
STATEFUL = [case for case in CASES if build(case, sample_store()).stateful]
TABLED = [
    case
    for case in CASES
    if not all(isinstance(request, NeighborRequest) for request in build(case, sample_store()).requests)
]
# a score is a function of what is strictly earlier, but for what lags under the published rule: a memory, and tables
KEPT = [(case, way) for case in CASES for way in WAYS if way != "batch" or case not in (*STATEFUL, *TABLED)]


def label_of(value: Any) -> str | None:
    """A case in a test's name."""
    for case, label in ((BLENDED, "blend"), (TYPED, "event-types"), (COLUMNED, "columns")):
        if value == case:
            return label
    if isinstance(value, tuple) and isinstance(value[0], str):
        return "-".join([value[0], *map(str, value[1].values())])
    return None


def contents(thing: Any) -> dict[str, Any]:
    """All that a scorer holds, bit for bit: parameters and buffers, or every attribute, down to arrays."""
    if isinstance(thing, nn.Module):
        held = [*thing.named_parameters(), *thing.named_buffers()]
        return {name: value.detach().numpy().tobytes() for name, value in held}
    found: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(value, np.ndarray):
            found[name] = value.shape, value.tobytes()
        elif isinstance(value, KeySlots):  # its table has places that were never written to
            found[name] = value.count, value.slots(np.arange(200)).tobytes()
        elif hasattr(value, "__dict__") and not callable(value):
            found |= {f"{name}.{key}": inner for key, inner in contents(value).items()}
        else:
            found[name] = repr(value)
    return found
