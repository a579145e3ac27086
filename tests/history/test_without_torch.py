"""The tables of the host need numpy and Numba only."""

import subprocess
import sys

FEATURES = """
import sys
sys.modules["torch"] = None  # importing it is an error
import numpy as np
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.history.block_lists import EventRows
from dygmamba.history.columns import ColumnFeatures, ColumnTable
from dygmamba.history.counts import CountFeatures, EventCounts, PairNeighbors
from dygmamba.history.node_values import NodeValueFeatures, NodeValueTable
from dygmamba.history.transitions import TransitionFeatures, TransitionTable

src, dst, time = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([0.0, 1.0, 2.0])
edge, codes = np.ones((3, 1), np.float32), np.zeros((3, 1), np.int32)
rows = EventRows(src, dst, time, 3, edge=edge, codes=codes)
facts = ColumnFacts((NumericColumn(0, "amount", 0.0, 1.0),), (TypeColumn(0, "kind", (0,), ("a",)),))
near = PairNeighbors(np.array([[1], [2], [-1]]), np.ones((3, 1)), time + 3, (np.arange(3), np.arange(3)))
for request, kind, more in (
    (CountFeatures((1.0,), 1), lambda request: EventCounts(request.scales), (near,)),
    (ColumnFeatures(facts, (1.0,)), ColumnTable, ()),
    (NodeValueFeatures((1.0,), (0,)), NodeValueTable, ()),
    (TransitionFeatures((1.0,), window=2, column=facts.types[0]), TransitionTable, ()),
):
    table = kind(request)
    table.append_rows(rows)
    found = table.compute_features(src, dst, time + 3, *more)
    assert found.shape == (3, len(request.names)) and found.dtype == np.float32 and found.any()
"""


def test_features_are_computed_without_torch():
    """In a process of its own, in which importing torch is an error."""
    done = subprocess.run([sys.executable, "-c", FEATURES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
