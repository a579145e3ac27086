"""Every statistic is what a loop over the events would count."""

from datetime import UTC, datetime

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.statistics import Quantiles, compute_statistics, sparkline
from dygmamba.data.events.times import (
    EPOCH_RANGE,
    format_date,
    format_duration,
    looks_like_epoch_seconds,
    to_utc_date,
)
from dygmamba.data.readers import read_dataset
from strategies import event_streams


def brute_force(store: EventStore) -> dict:
    """The definitions, one event at a time."""
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    seen, repeats, last, gaps = set(), 0, {}, []
    degree = [0] * store.num_nodes
    for u, v, t in events:
        repeats += (u, v) in seen
        seen.add((u, v))
        for node in {u, v}:
            degree[node] += 1
            gaps += [t - last[node]] if node in last else []
            last[node] = t
    times = [t for _, _, t in events]
    boundary = np.quantile(times, 0.85) if times else 0
    before, after = ({(u, v) for u, v, t in events if (t > boundary) == late} for late in (False, True))
    return {
        "unique_times": len(set(times)),
        "ties": sum(times.count(t) > 1 for t in times),
        "repeats": repeats / len(events) if events else None,
        "surprise": len(after - before) / len(after) if after else None,
        "self_loops": sum(u == v for u, v, _ in events),
        "degree": Quantiles.from_values(np.array(degree)),
        "gap": Quantiles.from_values(np.array(gaps)),
        "degree_histogram": tuple(histogram(degree)),
    }


def histogram(degree: list[int]) -> list[int]:
    bins = [d.bit_length() for d in degree]
    return [bins.count(k) for k in range(max(bins) + 1)]


@given(stream=event_streams())
def test_statistics_equal_their_definitions(stream):
    """For all streams: the sorts count what a loop over the events counts."""
    found = compute_statistics(stream)
    for name, value in brute_force(stream).items():
        if isinstance(value, float):
            assert getattr(found, name) == pytest.approx(value), name
        else:
            assert getattr(found, name) == value, name
    assert (found.events, found.nodes) == (len(stream), stream.num_nodes)
    assert sum(found.activity) == len(stream)
    assert sum(found.degree_histogram) == stream.num_nodes


def test_labels_features_and_times_are_reported():
    """Shares are None where there is nothing to count; a label counts when it is not zero."""
    src, time = torch.tensor([0, 1, 2, 2]), torch.tensor([1e9, 1e9, 1e9 + 1e-6, 1e9 + 3], dtype=torch.float64)
    found = compute_statistics(EventStore.from_columns(src, src, time, label=torch.tensor([0.0, 0, 2, 0])))
    assert (found.label_share, found.duration, found.edge_features) == (0.25, 3.0, 0)
    empty = compute_statistics(EventStore.from_columns(src[:0], src[:0], time[:0]))
    assert (empty.repeats, empty.duration, empty.gap, empty.activity) == (None, None, None, ())
    near = compute_statistics(
        EventStore.from_columns(
            src[:2], src[:2], torch.tensor([1e9, np.nextafter(1e9, 2e9)], dtype=torch.float64)
        )
    )
    assert sum(near.activity) == 2


@pytest.mark.parametrize(
    ("name", "nodes", "events", "unique_times", "self_loops"),
    [
        ("wikipedia", 9_227, 157_474, 152_757, 0),
        ("enron", 184, 125_235, 22_632, 16_410),
        ("uci", 1_899, 59_835, 58_911, 0),
        ("CanParl", 734, 74_478, 14, 380),
        ("USLegis", 225, 60_396, 12, 0),
    ],
)
def test_real_streams_have_their_published_counts(real_data, name, nodes, events, unique_times, self_loops):
    """Nodes, links, times and self-loops of the paper's sets are those of its table."""
    dataset = read_dataset(real_data / f"{name}.npz")
    found = compute_statistics(dataset.store)
    assert (found.nodes, found.events, found.unique_times, found.self_loops) == (
        nodes,
        events,
        unique_times,
        self_loops,
    )
    assert found.bipartite == (name == "wikipedia")
    assert found.edge_features == (name in {"CanParl", "USLegis"})


def test_sparklines_are_as_high_as_the_counts():
    """The largest count fills its cell, zero is blank, anything else is visible; ASCII on request."""
    assert sparkline([0, 1, 50, 100]) == " ▁▄█"
    assert sparkline([0, 1, 50, 100], unicode=False) == " .=@"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""
    assert sparkline([0, 1, 10, 100], log=True) == " ▂▅█"


@given(st.floats(-6e10, 2e11))
def test_a_date_is_that_of_the_standard_library(seconds):
    """For all times within the calendar; unlike `datetime.fromtimestamp`, also before 1970 on Windows."""
    assert to_utc_date(seconds) == datetime.fromtimestamp(seconds, UTC)


def test_times_are_formatted_for_people():
    """Dates for seconds since 1970, two units for durations, the number itself beyond the calendar."""
    assert format_date(0.0) == "1970-01-01 00:00:00 UTC"
    assert format_date(1e18) == "1e+18 s"
    spans = {0.25: "0.25 s", 59: "59 s", 3_600: "1 h 0 min", 90_061: "1 d 1 h", 63_115_200: "2 y 0 d"}
    assert {span: format_duration(span) for span in spans} == spans
    assert looks_like_epoch_seconds(1.08e9, 1.7e9)
    assert not looks_like_epoch_seconds(0, 1.7e9)
    assert [datetime.fromtimestamp(end, UTC).year for end in EPOCH_RANGE] == [1980, 2100]
