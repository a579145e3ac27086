"""What an evaluation reveals without a model."""

import torch

from dygmamba.data.events.event_store import EventStore
from research.evaluation_leaks import measure_row_order
from streams import tied_stream


def test_sorted_rows_are_detected():
    """Rows of each timestamp sorted by source have an AUC of 1; shuffled rows one of about 0.5."""
    store = tied_stream()
    everything = torch.arange(len(store))
    by_source = torch.argsort(store.time * 100 + store.src, stable=True)
    ordered = EventStore.from_columns(store.src[by_source], store.dst[by_source], store.time, num_nodes=12)
    assert measure_row_order(ordered, everything).source == 1.0
    assert (
        measure_row_order(ordered, everything).neighbors
        > 0.4
        > measure_row_order(store, everything).neighbors
    )
    assert abs(measure_row_order(store, everything).source - 0.5) < 0.05
