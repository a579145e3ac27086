"""What looks odd about a stream, in plain words: nothing here is an error, all of it is worth a look."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import time as wall
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.events import EventStore
from dygmamba.data.ids import NodeIds
from dygmamba.data.pages import cuts, pieces, release
from dygmamba.data.statistics import as_date, as_duration
from dygmamba.data.store import Dataset

OLD = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
DAY = 86_400
CROWD = 0.5  # share of events of one node
SAME = 0.9  # share of events that repeat another in every respect
TIED = 0.5  # share of events that share their time with another
LOOPS = 0.1
SILENCE = 0.25  # share of the whole time without an event
FEW = 20  # events below which shares say nothing


@dataclass(frozen=True, slots=True)
class Odd:
    """One thing to look at: its kind, for programs, and a sentence."""

    kind: str
    said: str


def check(dataset: Dataset) -> list[Odd]:
    """Everything that looks odd; a few passes over the columns, none of which sorts them."""
    store, dated = dataset.store, bool(dataset.origin.time_origin)
    if not len(store):
        return []
    time = store.time.numpy()
    return [
        *_times(time, dated),
        *_events(store, time),
        *_nodes(dataset),
        *_ids(dataset.ids),
        *_features(dataset),
    ]


def _times(time: np.ndarray, dated: bool) -> Iterator[Odd]:
    if len(time) > 1 and time[0] == time[-1]:
        yield Odd("same time", "all events have the same time; is it the right column?")
        return
    if dated and time[0] < OLD:
        early = int(np.searchsorted(time, OLD))
        yield Odd(
            "early", f"{early:,} events are before 1990, the first at {as_date(time[0])}; check time and unit"
        )
    now = wall.time() + DAY
    if dated and time[-1] > now:
        late = len(time) - int(np.searchsorted(time, now))
        yield Odd(
            "future",
            f"{late:,} events are in the future, the last at {as_date(time[-1])}; check time and unit",
        )
    if len(time) >= FEW:
        longest, gap = _longest_gap(time)
        if gap > SILENCE * (time[-1] - time[0]):
            span = as_duration(gap) if dated else f"{gap:.6g}"
            since = as_date(time[longest]) if dated else f"{time[longest]:.12g}"
            yield Odd(
                "silence", f"nothing happens for {span} after {since}, over a quarter of the whole time"
            )


def _longest_gap(time: np.ndarray) -> tuple[int, float]:
    """Behind which event nothing happens for longest, and for how long; some rows at a time."""
    longest, gap = 0, -1.0
    for rows in cuts(len(time) - 1, 8):
        gaps = np.diff(time[rows.start : rows.stop + 1])
        if gaps.max() > gap:
            longest, gap = rows.start + int(gaps.argmax()), float(gaps.max())
        release(time[rows])
    return longest, gap


def _events(store: EventStore, time: np.ndarray) -> Iterator[Odd]:
    events = len(store)
    src, dst = store.src.numpy(), store.dst.numpy()
    loops = 0
    for rows in cuts(events, 8):
        loops += int((src[rows] == dst[rows]).sum())
        release(src[rows]), release(dst[rows])
    if loops > LOOPS * events:
        yield Odd("self-loops", f"{_share(loops, events)} of the events lead from a node to itself")
    if events < FEW or time[0] == time[-1]:
        return
    tied = sum(_tied(time[rows]) for rows in _whole_instants(time))
    if tied > TIED * events:
        yield Odd(
            "ties", f"{_share(tied, events)} of the events share their time with another; is it rounded?"
        )
    if tied > SAME * events:  # only tied events can be the same
        again = sum(_repeated(time[rows], src[rows], dst[rows]) for rows in _whole_instants(time))
        if again > SAME * events:
            yield Odd(
                "duplicates", f"{_share(again, events)} of the events repeat another: same pair, same time"
            )


def _whole_instants(time: np.ndarray) -> Iterator[slice]:
    """Runs of rows that cut no instant in two."""
    start = 0
    for rows in cuts(len(time), 8):
        stop = len(time) if rows.stop == len(time) else int(np.searchsorted(time, time[rows.stop]))
        if stop > start:
            yield slice(start, stop)
            release(time[start:stop])
            start = stop


def _tied(time: np.ndarray) -> int:
    """Events that share their time with another."""
    runs = np.diff(np.append(np.flatnonzero(np.concatenate([[True], time[1:] != time[:-1]])), len(time)))
    return int(runs[runs > 1].sum())


def _repeated(time: np.ndarray, src: np.ndarray, dst: np.ndarray) -> int:
    """Events that are another's in every respect."""
    instant = np.cumsum(np.concatenate([[True], time[1:] != time[:-1]]))
    return len(time) - len(np.unique(np.stack([instant, src, dst], axis=1), axis=0))


def _nodes(dataset: Dataset) -> Iterator[Odd]:
    store, events = dataset.store, len(dataset.store)
    src, dst = (_occurrences(column.numpy(), store.num_nodes) for column in (store.src, store.dst))
    if events >= FEW:
        busiest = int((src + dst).argmax())
        of = max(int(src[busiest]), int(dst[busiest]))
        if of > CROWD * events and min(np.count_nonzero(src), np.count_nonzero(dst)) > 1:
            name = str(dataset.ids.to_user([busiest])[0])[:40]
            yield Odd(
                "one node",
                f"{name!r} is in {_share(of, events)} of the events; is it a person, or a default?",
            )
    if not store.bipartite and events >= FEW and not (src.astype(bool) & dst.astype(bool)).any():
        yield Odd(
            "two kinds",
            "no node is both a source and a destination; give `bipartite=True` if they are of two kinds",
        )


def _occurrences(column: np.ndarray, nodes: int) -> np.ndarray:
    count = np.zeros(nodes, np.int64)
    for piece in pieces(column):
        count += np.bincount(piece, minlength=nodes)
    return count


def _ids(ids: NodeIds) -> Iterator[Odd]:
    if ids.kind != "string":
        return
    plain = pc.replace_substring_regex(pc.utf8_lower(ids.values), r"\s+", "")
    if ids.is_source is not None:  # the sides are two name spaces
        side = pc.if_else(ids.is_source, "s", "d").cast(plain.type)
        plain = pc.binary_join_element_wise(side, plain, pa.scalar("", plain.type))
    alike = len(plain) - len(pc.unique(plain))
    if alike:
        code = plain.dictionary_encode().indices.to_numpy()
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        twin = int((first[inverse] != np.arange(len(code))).argmax())
        pair = [str(ids.values[k])[:40] for k in (int(first[inverse][twin]), twin)]
        yield Odd(
            "like ids",
            f"{alike:,} ids differ from another in case or blanks only, such as {pair[0]!r} and {pair[1]!r}",
        )


def _features(dataset: Dataset) -> Iterator[Odd]:
    edge = dataset.store.features.edge
    if len(edge) < 2 or not edge.shape[1]:
        return
    first = edge[0].numpy()
    constant = np.flatnonzero(np.all([(piece == first).all(0) for piece in pieces(edge.numpy())], axis=0))
    if len(constant):
        names = dataset.origin.features
        told = ", ".join(names[k] if k < len(names) else str(k) for k in constant[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        yield Odd("constant features", f"features with one value throughout tell nothing: {told}{more}")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
