"""Reference: last destinations by sorting, ages and numbers of events by scanning a source's times."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.transitions import SourceHistories


def extend_histories(
    histories: "SourceHistories", src: Tensor, dst: Tensor, time: Tensor
) -> tuple["SourceHistories", Tensor]:
    """Write all histories again; the last destinations are those with the largest (time, number)."""
    from dygmamba.ops.transitions import SourceHistories

    lags = histories.recent.shape[1]
    # for each source its times, and for each of them the last (time, destination) up to it
    listed = [_entries(histories, node) for node in range(len(histories.start))]
    previous = torch.full((len(src), lags), -1)
    for i, (u, v, t) in enumerate(zip(src.tolist(), dst.tolist(), time.tolist(), strict=True)):
        earlier = [last for at, last in listed[u] if at < t]
        if earlier:
            previous[i] = _pad([node for _, node in earlier[-1]], lags)
        known = listed[u][-1][1] if listed[u] else []
        listed[u].append((t, sorted([*known, (t, v)], reverse=True)[:lags]))
    size = torch.tensor([len(entries) for entries in listed], dtype=torch.int64)
    entries = [entry for own in listed for entry in own]
    times = torch.tensor([at for at, _ in entries], dtype=torch.float64)
    recent = torch.full((len(entries), lags), -1)
    for k, (_, last) in enumerate(entries):
        recent[k] = _pad([node for _, node in last], lags)
    return SourceHistories(size.cumsum(0) - size, size, size.clone(), times, recent, len(times)), previous


def _entries(histories: "SourceHistories", node: int) -> list[tuple[float, list[tuple[float, int]]]]:
    """Return the times of a source, each with the (time, destination) of the last events up to it."""
    begin = int(histories.start[node])
    time = histories.time[begin : begin + int(histories.size[node])].tolist()
    recent = histories.recent[begin : begin + len(time)].tolist()
    # the j-th last destination belongs to the j-th last time
    return [
        (at, [(time[k - j], other) for j, other in enumerate(last[: k + 1])])
        for k, (at, last) in enumerate(zip(time, recent, strict=True))
    ]


def _pad(nodes: list[int], lags: int) -> Tensor:
    return torch.tensor([*nodes, *[-1] * lags][:lags])


def last_destinations(histories: "SourceHistories", source: Tensor, time: Tensor) -> Tensor:
    found = torch.full((len(source), histories.recent.shape[1]), -1)
    for i, (u, t) in enumerate(zip(source.tolist(), time.tolist(), strict=True)):
        past = _past(histories, u, t)
        if len(past):
            found[i] = histories.recent[int(histories.start[u]) + len(past) - 1]
    return found


def last_ages(histories: "SourceHistories", source: Tensor, time: Tensor, count: int) -> Tensor:
    found = torch.full((len(source), count), -1.0, dtype=torch.float64)
    for i, (u, t) in enumerate(zip(source.tolist(), time.tolist(), strict=True)):
        newest = _past(histories, u, t).flip(0)[:count]
        found[i, : len(newest)] = t - newest
    return found


def count_between(histories: "SourceHistories", source: Tensor, since: Tensor, time: Tensor) -> Tensor:
    asked = zip(source.tolist(), since.tolist(), time.tolist(), strict=True)
    numbers = [int((_past(histories, u, t) > after).sum()) for u, after, t in asked]
    return torch.tensor(numbers, dtype=torch.int64)


def _past(histories: "SourceHistories", node: int, time: float) -> Tensor:
    """Return the times of a source strictly before a time, oldest first; of node -1 none."""
    begin, size = (int(histories.start[node]), int(histories.size[node])) if node >= 0 else (0, 0)
    own = histories.time[begin : begin + size]
    return own[own < time]
