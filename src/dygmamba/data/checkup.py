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
        gaps = np.diff(time)
        longest = int(gaps.argmax())
        if gaps[longest] > SILENCE * (time[-1] - time[0]):
            span = as_duration(gaps[longest]) if dated else f"{gaps[longest]:.6g}"
            since = as_date(time[longest]) if dated else f"{time[longest]:.12g}"
            yield Odd(
                "silence", f"nothing happens for {span} after {since}, over a quarter of the whole time"
            )


def _events(store: EventStore, time: np.ndarray) -> Iterator[Odd]:
    events = len(store)
    src, dst = store.src.numpy(), store.dst.numpy()
    loops = int((src == dst).sum())
    if loops > LOOPS * events:
        yield Odd("self-loops", f"{_share(loops, events)} of the events lead from a node to itself")
    if events < FEW or time[0] == time[-1]:
        return
    starts = np.concatenate([[True], time[1:] != time[:-1]])
    runs = np.diff(np.append(np.flatnonzero(starts), events))
    tied = int(runs[runs > 1].sum())
    if tied > TIED * events:
        yield Odd(
            "ties", f"{_share(tied, events)} of the events share their time with another; is it rounded?"
        )
    if tied > SAME * events:  # only tied events can be the same
        keys = np.stack([np.cumsum(starts), src, dst], axis=1)
        again = events - len(np.unique(keys, axis=0))
        if again > SAME * events:
            yield Odd(
                "duplicates", f"{_share(again, events)} of the events repeat another: same pair, same time"
            )


def _nodes(dataset: Dataset) -> Iterator[Odd]:
    store, events = dataset.store, len(dataset.store)
    src, dst = (np.bincount(column.numpy(), minlength=store.num_nodes) for column in (store.src, store.dst))
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
    constant = np.flatnonzero((edge.amin(0) == edge.amax(0)).numpy())
    if len(constant):
        names = dataset.origin.features
        told = ", ".join(names[k] if k < len(names) else str(k) for k in constant[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        yield Odd("constant features", f"features with one value throughout tell nothing: {told}{more}")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
