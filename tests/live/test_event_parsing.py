"""Events of users: every spelling that `observe` takes gives the same rows, and a bad row spoils no other."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dygmamba as dm
from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.data.storage.extension import AddedEvents
from dygmamba.live import event_parsing
from dygmamba.live.event_log import LogEvent
from dygmamba.live.event_parsing import EventLayout, EventParser, collect_events
from dygmamba.runs.predictor import Predictor
from live_run_cases import last_time
from raising import raises
from trained import load_trees_run


@pytest.fixture(scope="module")
def parser():
    return EventParser(Predictor.open(load_trees_run().path, "cpu"))


class Scorer:
    stateful = False
    requests = ()


def make_parser(data, fill=None):
    """A parser for a stream; no run is needed."""

    class Opened:
        dataset, scorer, model = data, Scorer, "none"

    return EventParser(Predictor(Opened, data, None), fill)


def column_parser(fill=None, bipartite=False):
    """A parser of a stream with an amount and a kind, whose times are plain numbers."""
    rows = [
        {"u": f"a{k % 3}", "v": f"b{k % 2}", "t": k, "amount": k * 5 % 11 / 7, "kind": "xy"[k % 2]}
        for k in range(30)
    ]
    data = dm.read(pa.Table.from_pylist(rows), src="u", dst="v", time="t", bipartite=bipartite)
    return make_parser(data, fill)


def test_every_form_of_events_is_read_alike(parser, tmp_path):
    """Dicts, tuples, frames, Arrow tables, columns, files: the same rows, in their order."""
    time = round(last_time()) + 60
    rows = [{"src": 7, "dst": 3, "time": time}, {"src": 1, "dst": 40, "time": time - 5}]
    expected = [LogEvent(None, "7", "3", float(time)), LogEvent(None, "1", "40", float(time - 5))]
    dates = [datetime.fromtimestamp(row["time"], UTC) for row in rows]
    (tmp_path / "new.csv").write_text(
        "src,dst,time\n" + "".join(f"{r['src']},{r['dst']},{r['time']}\n" for r in rows)
    )
    forms = [
        rows,
        [tuple(row.values()) for row in rows],
        [{"source": str(row["src"]), "target": f" {row['dst']}.0 ", "ts": str(row["time"])} for row in rows],
        [row | {"time": date.isoformat()} for row, date in zip(rows, dates, strict=True)],
        [row | {"time": date} for row, date in zip(rows, dates, strict=True)],
        [row | {"time": 1000 * row["time"]} for row in rows],
        [rows[0], rows[1] | {"time": 1000 * rows[1]["time"], "src": "1"}],  # each row stands for itself
        [rows[0] | {"time": dates[0].isoformat()}, rows[1]],
        pd.DataFrame(rows),
        pd.DataFrame(rows).assign(time=pd.to_datetime([1e9 * row["time"] for row in rows])),
        pa.Table.from_pylist(rows),
        {"src": np.array([7, 1]), "dst": [3.0, 40.0], "time": [row["time"] for row in rows]},
        tmp_path / "new.csv",
        str(tmp_path / "new.csv"),
    ]
    for form in forms:
        parsed = parser.parse(form)
        assert (parsed.events, parsed.problems) == (expected, {}), form


BAD = {
    "no source": {"src": None},
    "no destination": {"dst": ...},
    "a word for none": {"src": " NaN "},
    "a boolean": {"src": True},
    "a list": {"src": [1]},
    "half a character": {"src": "\ud800"},
    "a long id": {"src": "x" * 20_000},
    "no time": {"time": ...},
    "an empty time": {"time": None},
    "not a date": {"time": "soon"},
    "not finite": {"time": float("inf")},
    "not a time": {"time": {}},
    "beyond the calendar": {"time": 10**30},
    "an id of no kind": {"id": 2.5},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_spoils_no_other(parser, name):
    """For all bad values: the row is invalid with a sentence, its neighbors are as they would be alone."""
    good = {"id": "a", "src": 1, "dst": 2, "time": last_time()}
    bad = {key: value for key, value in (good | BAD[name]).items() if value is not ...}
    parsed = parser.parse([good, bad, good | {"id": 7}])
    assert parsed.events == [
        LogEvent("a", "1", "2", last_time()),
        None,
        LogEvent("7", "1", "2", last_time()),
    ]
    (problem,) = parsed.problems.values()
    assert list(parsed.problems) == [1]
    assert problem
    assert "\n" not in problem
    assert parser.parse([bad]).problems == {0: problem}  # the same alone


def test_a_row_without_any_known_column_is_invalid_and_no_error(parser):
    """One odd object in a file or a topic does not end the source that it came from."""
    for rows in ([{}], [{"foo": 1}, {}], [{"src": 1}]):
        parsed = parser.parse(rows)
        assert parsed.events == [None] * len(rows)
        assert list(parsed.problems) == list(range(len(rows)))


def test_columns_are_kept_as_the_stream_has_them():
    """Numbers as 32-bit floats, categories as text; a missing number is filled or invalid."""
    good = {"u": "a1", "v": "new", "t": 31, "amount": 0.1, "kind": "z"}
    rows = [
        good,
        good | {"amount": "2"},
        good | {"kind": None},
        good | {"amount": None},
        {**good, "amount": "x"},
    ]
    without = {key: value for key, value in good.items() if key != "kind"}
    parsed = column_parser().parse([*rows, without])
    number = repr(float(np.float32(0.1)))
    assert [event and event.columns for event in parsed.events] == [
        f'[{number},"z"]',
        '[2.0,"z"]',
        f'[{number},""]',
        *[None] * 3,
    ]
    assert "'amount' has no value" in parsed.problems[3]
    filled = column_parser(fill=0.5).parse([*rows[3:4], without])
    assert [event and event.columns for event in filled.events] == ['[0.5,"z"]', f'[{number},""]']
    assert column_parser().parse([("a", "b", 31, 2)]).problems  # no kind
    with raises("row-lengths-differ", FileError):
        column_parser().parse([("a", "b", 31, 2, "z", 1)])
    with raises("unknown-column", NotFoundError):
        column_parser().parse({"u": ["a"], "v": ["b"], "t": [31]})
    assert column_parser().parse([{"left": 1, "right": 2}]).problems == {
        0: "column 'src' is missing, or has a name that is not recognized; add it"
    }
    assert (
        column_parser().parse([good | {"t": 1.7e9}]).events[0].time == 1.7e9
    )  # a plain number in this stream
    assert column_parser().parse([good | {"t": "2024-05-31"}]).problems


def test_each_row_may_name_its_columns_in_its_own_way():
    good = {"amount": 2, "kind": "x"}
    rows = [
        {"src": "a", "dst": "b", "time": 31} | good,
        {"u": "a", "v": "b", "t": 31} | good,
        {"source": "a", "target": "b", "ts": 31} | good,
        {"u": "a", "v": "b"} | good,
    ]
    parsed = column_parser().parse(rows)
    assert parsed.events == [LogEvent(None, "a", "b", 31.0, '[2.0,"x"]')] * 3 + [None]
    assert list(parsed.problems) == [3]


def test_numbers_are_read_as_in_the_file_of_the_dataset(tmp_path):
    """Its decimal mark and its fill value; a column that events lack altogether is filled only on demand."""
    (tmp_path / "a.csv").write_text("u;v;t;amount\na;b;1;1,5\nb;c;2;\n")
    data = dm.read(
        tmp_path / "a.csv",
        src="u",
        dst="v",
        time="t",
        features="amount",
        decimal=",",
        fill=9,
        time_unit="plain",
    )
    parser, row = make_parser(data), {"src": "a", "dst": "b", "time": 3}
    parsed = parser.parse([row | {"amount": value} for value in ("2,5", "", None, 2.5)] + [row])
    assert [event.columns for event in parsed.events] == ["[2.5]", "[9.0]", "[9.0]", "[2.5]", "[9.0]"]
    with raises("unknown-column", NotFoundError):
        parser.parse({"src": ["a"], "dst": ["b"], "time": [3]})


@pytest.mark.parametrize("bipartite", [False, True])
def test_rows_of_the_log_are_the_events_that_observe_reads(bipartite):
    """For all rows: ids, times, numbers and categories of `read` with the same table, sorted by time, ties in order."""
    rows = [
        {"u": u, "v": v, "t": t, "amount": t / 3, "kind": kind}
        for u, v, t, kind in [
            ("c", "a", 40, "x"),
            ("a", "b", 35, "z"),
            ("a", "a", 40, ""),
            ("b", "c", 35, "x"),
        ]
    ]
    parser = column_parser(bipartite=bipartite)
    built = collect_events(parser.parse(rows).events, parser.layout)
    table = pa.Table.from_pylist(rows)
    read = dm.read(
        table, src="u", dst="v", time="t", features=["amount"], types=["kind"], bipartite=bipartite
    )
    read = AddedEvents.from_dataset(read)
    assert (built.src, built.dst) == (read.src, read.dst)
    assert np.array_equal(built.time, read.time)
    assert np.array_equal(built.edge, read.edge)
    words = [[events.categories[0].values[code] for code in events.codes[:, 0]] for events in (built, read)]
    assert words[0] == words[1]
    assert parser.layout == EventLayout(("amount",), ("kind",), bipartite)


def test_many_values_are_parsed_at_once_and_mean_what_each_means_alone(parser, monkeypatch):
    """For all rows, bad ones among them: the result of the row alone, with a call for each way of writing."""
    written = [
        *("soon", "", "2024-03-05", "13/01/2024", "01/13/2024", "01/02/2024", "20240105", "1e3"),
        *(1_700_009_999, 1_700_009_999_000, "1700009999", 1.7e9, 1e30, True, None, datetime(2024, 1, 1)),
    ]
    times = [*written, *(time for k in range(50) for time in (last_time() + k, f"2024-03-05T10:00:{k:02d}"))]
    rows = [{"src": 1, "dst": 2, "time": time} for time in times]
    alone = [parser.parse([row]) for row in rows]
    calls = []
    choose = event_parsing.choose_time_parser
    monkeypatch.setattr(
        event_parsing,
        "choose_time_parser",
        lambda *given, **options: calls.append(1) or choose(*given, **options),
    )
    parsed = parser.parse(rows)
    assert parsed.events == [one.events[0] for one in alone]
    assert parsed.problems == {row: one.problems[0] for row, one in enumerate(alone) if one.problems}
    assert len(calls) <= len(written)
