"""Checks for suspicious data in a stream. Nothing found here is an error, but each finding deserves a look."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import time as wall
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.statistics import compute_run_lengths
from dygmamba.data.events.times import EPOCH_RANGE, format_date, format_duration
from dygmamba.data.storage.mapped_columns import iterate_chunks, iterate_slices, release_pages

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

DAY = 86_400
MAX_NODE_SHARE = 0.5  # of events with the same source or destination
MAX_DUPLICATE_SHARE = 0.9  # of events that repeat another with the same pair and time
MAX_TIED_SHARE = 0.5  # of events that share their timestamp with another
MAX_SELF_LOOP_SHARE = 0.1
MAX_GAP_SHARE = 0.25  # of the duration that a single gap takes
FEW_SOURCES, RARE_EVENTS = 5, 2  # destinations per source and events of the median one, of a swapped stream
MIN_EVENTS = 20  # with fewer events shares mean nothing


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A suspicious property of a stream: its kind, for programs, and a message."""

    kind: str
    message: str


@dataclass(slots=True)
class _StreamCounts:
    """Counts of one pass over the events."""

    sent: np.ndarray  # events by source
    received: np.ndarray  # events by destination
    self_loops: int = 0
    tied: int = 0  # events that share their timestamp with another
    longest_gap: float = 0.0
    gap_start: float = 0.0


def find_anomalies(dataset: "Dataset") -> list[Anomaly]:
    """Return everything suspicious about a dataset, in a pass over its columns and without sorting."""
    store = dataset.store
    if not len(store):
        return []
    counts = _count_events(store)
    return [
        *_check_times(store.time.numpy(), counts, bool(dataset.origin.time_origin)),
        *_check_events(store, counts),
        *_check_nodes(dataset, counts),
        *_check_ids(dataset.ids),
        *_check_features(dataset),
    ]


def _count_events(store: EventStore) -> _StreamCounts:
    nodes = store.num_nodes
    counts, last = _StreamCounts(np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)), store.time.numpy()[:1]
    for time, src, dst in _iterate_whole_instants(store):
        counts.sent += np.bincount(src, minlength=nodes)
        counts.received += np.bincount(dst, minlength=nodes)
        counts.self_loops += int((src == dst).sum())
        runs = compute_run_lengths(time)
        counts.tied += int(runs[runs > 1].sum())
        distinct = np.concatenate([last, time[np.cumsum(runs) - runs]])
        gaps, last = np.diff(distinct), distinct[-1:]
        if gaps.max() > counts.longest_gap:
            counts.longest_gap, counts.gap_start = float(gaps.max()), float(distinct[gaps.argmax()])
    return counts


def _iterate_whole_instants(store: EventStore) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield times, sources and destinations in parts that never separate events of the same time."""
    columns, start = [column.numpy() for column in (store.time, store.src, store.dst)], 0
    time = columns[0]
    for rows in iterate_slices(len(time), 8):
        stop = len(time) if rows.stop == len(time) else int(np.searchsorted(time, time[rows.stop]))
        if stop > start:
            time_part, src, dst = (column[start:stop] for column in columns)
            yield time_part, src, dst
            for part in (time_part, src, dst):
                release_pages(part)
            start = stop


def _check_times(time: np.ndarray, counts: _StreamCounts, dated: bool) -> Iterator[Anomaly]:
    if len(time) > 1 and time[0] == time[-1]:
        yield Anomaly("same time", "all events have the same timestamp; check the time column")
        return
    if dated and time[0] < EPOCH_RANGE[0]:
        early = int(np.searchsorted(time, EPOCH_RANGE[0]))
        yield Anomaly(
            "early",
            f"{early:,} events are before 1980, the first at {format_date(time[0])}; check the column and its unit",
        )
    now = wall.time() + DAY
    if dated and time[-1] > now:
        late = len(time) - int(np.searchsorted(time, now))
        yield Anomaly(
            "future",
            f"{late:,} events are in the future, the last at {format_date(time[-1])}; check the column and its unit",
        )
    if len(time) >= MIN_EVENTS and counts.longest_gap > MAX_GAP_SHARE * (time[-1] - time[0]):
        span = format_duration(counts.longest_gap) if dated else f"{counts.longest_gap:.6g}"
        since = format_date(counts.gap_start) if dated else f"{counts.gap_start:.12g}"
        yield Anomaly(
            "silence", f"there is no event for {span} after {since}, more than a quarter of the duration"
        )


def _check_events(store: EventStore, counts: _StreamCounts) -> Iterator[Anomaly]:
    events = len(store)
    if counts.self_loops > MAX_SELF_LOOP_SHARE * events:
        yield Anomaly("self-loops", f"{_format_share(counts.self_loops, events)} of events are self-loops")
    if events < MIN_EVENTS or store.time[0] == store.time[-1]:
        return
    if counts.tied > MAX_TIED_SHARE * events:
        yield Anomaly(
            "ties",
            f"{_format_share(counts.tied, events)} of events share a timestamp; timestamps may be rounded",
        )
    if counts.tied > MAX_DUPLICATE_SHARE * events:  # only events of the same time can be equal
        again = sum(_count_repeated(*part) for part in _iterate_whole_instants(store))
        if again > MAX_DUPLICATE_SHARE * events:
            yield Anomaly(
                "duplicates",
                f"{_format_share(again, events)} of events repeat another event with the same pair and timestamp",
            )


def _count_repeated(time: np.ndarray, src: np.ndarray, dst: np.ndarray) -> int:
    """Count events beyond the first of the same source, destination and time."""
    instant = np.cumsum(np.concatenate([[True], time[1:] != time[:-1]]))
    return len(time) - len(np.unique(np.stack([instant, src, dst], axis=1), axis=0))


def _check_nodes(dataset: "Dataset", counts: _StreamCounts) -> Iterator[Anomaly]:
    src, dst, events = counts.sent, counts.received, len(dataset.store)
    if events < MIN_EVENTS:
        return
    busiest = int((src + dst).argmax())
    count = max(int(src[busiest]), int(dst[busiest]))
    if count > MAX_NODE_SHARE * events and min(np.count_nonzero(src), np.count_nonzero(dst)) > 1:
        name = str(dataset.ids.to_user([busiest])[0])[:40]
        yield Anomaly(
            "one node", f"{name!r} is in {_format_share(count, events)} of events; it may be a default value"
        )
    if not dataset.store.bipartite and not (src.astype(bool) & dst.astype(bool)).any():
        yield Anomaly(
            "two kinds",
            "no node is both a source and a destination; give `bipartite=True` if they are different things",
        )

    if side := describe_rare_destinations(src[src > 0], dst[dst > 0]):
        yield Anomaly("which side", side)


def describe_rare_destinations(sent: np.ndarray, received: np.ndarray) -> str:
    """Say that the question may be the other one, where most destinations have one or two events; "" elsewhere.

    Args:
        sent: Events of each source.
        received: Events of each destination.
    """
    if len(received) < FEW_SOURCES * len(sent) or np.median(received) > RARE_EVENTS:
        return ""
    return (
        f"most of the {len(received):,} destinations have one or two events, and there are only {len(sent):,} sources; "
        "given a source, the destination is predicted, so swap the two columns if you ask which source a new "
        "destination gets"
    )


def _check_ids(ids: NodeIds) -> Iterator[Anomaly]:
    if ids.kind != "string":
        return
    plain = pc.replace_substring_regex(pc.utf8_lower(ids.values), r"\s+", "")
    if ids.is_source is not None:  # source 7 and destination 7 are different nodes
        side = pc.if_else(ids.is_source, "s", "d").cast(plain.type)
        plain = pc.binary_join_element_wise(side, plain, pa.scalar("", plain.type))
    alike = len(plain) - len(pc.unique(plain))
    if alike:
        code = plain.dictionary_encode().indices.to_numpy()
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        twin = int((first[inverse] != np.arange(len(code))).argmax())
        pair = [str(ids.values[k])[:40] for k in (int(first[inverse][twin]), twin)]
        yield Anomaly(
            "like ids",
            f"{alike:,} ids differ from another only in case or blanks, such as {pair[0]!r} and {pair[1]!r}",
        )


def _check_features(dataset: "Dataset") -> Iterator[Anomaly]:
    edge = dataset.store.features.edge
    if len(edge) < 2 or not edge.shape[1]:
        return
    first = edge[0].numpy()
    constant = np.flatnonzero(
        np.all([(piece == first).all(0) for piece in iterate_chunks(edge.numpy())], axis=0)
    )
    if len(constant):
        names = dataset.origin.features
        shown = ", ".join(names[k] if k < len(names) else str(k) for k in constant[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        yield Anomaly(
            "constant features", f"features with a single value carry no information: {shown}{more}"
        )


def _format_share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
