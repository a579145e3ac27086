"""Each anomaly is found, and an ordinary stream has none."""

import pytest

import dygmamba as dm
from dygmamba.data.events.anomalies import find_anomalies

DAY = 86_400
NOW = 1_700_000_000


def rows(count: int = 60, **columns) -> dict:
    plain = {
        "src": [f"u{k % 7}" for k in range(count)],
        "dst": [f"u{(k + 1 + k % 3) % 7}" for k in range(count)],
        "time": [NOW + k * DAY for k in range(count)],
        "x": [float(k) for k in range(count)],
    }
    return plain | columns


def kinds(table: dict) -> list[str]:
    return [anomaly.kind for anomaly in find_anomalies(dm.read(table, features="x"))]


def test_an_ordinary_stream_has_no_anomalies():
    assert kinds(rows()) == []


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("same time", {"time": [NOW] * 60}),
        ("early", {"time": [NOW + k * DAY for k in range(59)] + [1000]}),
        ("future", {"time": [NOW + k * DAY for k in range(59)] + [4_000_000_000]}),
        ("silence", {"time": [NOW + k * DAY + (k > 30) * 100 * DAY for k in range(60)]}),
        ("self-loops", {"dst": [f"u{k % 7}" for k in range(60)]}),
        ("ties", {"time": [NOW + k // 3 * DAY for k in range(60)]}),
        ("duplicates", {name: [row] * 58 + [other] * 2 for name, row, other in (
            ("src", "u1", "u2"), ("dst", "u2", "u3"), ("time", NOW, NOW + DAY))}),
        ("one node", {"src": ["root"] * 40 + [f"u{k % 7}" for k in range(20)]}),
        ("two kinds", {"dst": [f"i{k % 7}" for k in range(60)]}),
        ("which side", {"src": [f"s{k % 3}" for k in range(60)], "dst": [f"u{k // 2}" for k in range(60)]}),
        ("like ids", {"src": ["Ann", "ann "[:3]] * 30}),
        ("constant features", {"x": [1.0] * 60}),
    ],
)  # fmt: skip
def test_each_anomaly_is_found(kind, columns):
    assert kind in kinds(rows(**columns))
