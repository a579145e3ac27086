"""The memory of a live state is what the manual says."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dygmamba.config import build_config
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.history.index import Index
from dygmamba.live.array_file import list_arrays
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, build_scorer

MANUAL = Path(__file__).parents[2] / "docs" / "how-to" / "live.md"
EVENTS, REPLICAS = 20_000, 2
EVENT_BYTES = 3 * 8  # source, destination and time


def measure_bytes(store: EventStore) -> float:
    """Bytes of an event in the tables of `trees` with the default settings, without spare room."""
    spec = find_model("trees")
    scorer = build_scorer(spec.build, build_config(spec.config, {}), DatasetFacts.of(store))
    tables = {"index": Index(store, is_growing=True).prepare(scorer.requests)}
    used = [getattr(owner, name)[:rows].nbytes for _, owner, name, rows in list_arrays(tables)]
    return sum(used) / len(store)


def test_an_event_takes_the_memory_that_the_manual_says():
    """Of `trees`, without columns and with a number and a type, to a twentieth."""
    text = re.search(
        r"plan for ([\d.]+) KB of memory per event with `trees`, ([\d.]+) KB if", MANUAL.read_text()
    )
    assert text is not None
    store, draw = generate_stream(GeneratorConfig(seed=1, nodes=600, events=EVENTS)), np.random.default_rng(0)
    columns = FeatureTable(
        torch.zeros(store.num_nodes, 0),
        torch.from_numpy(draw.random((EVENTS, 1), np.float32)),
        torch.from_numpy(draw.integers(0, 5, (EVENTS, 1)).astype(np.int32)),
        ("amount",),
        (Category("type", tuple("abcde")),),
    )
    for said, events in zip(text.groups(), (store, store.derive(features=columns)), strict=True):
        expected = REPLICAS * (measure_bytes(events) + EVENT_BYTES) / 1000
        assert float(said) == pytest.approx(expected, rel=0.05)
