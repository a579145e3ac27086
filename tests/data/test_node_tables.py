"""Tables of node features: read with the events, stored by name, kept when a dataset grows or is numbered anew."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors import safe_open

import dygmamba as dm
from commands import call
from dygmamba.core.errors import ConfigError, EventError, FileError, NotFoundError
from dygmamba.data.events.node_rows import STATIC_TIME
from dygmamba.data.storage.dataset import load_dataset, save_dataset
from dygmamba.data.storage.extension import align_dataset, extend_dataset
from raising import raises

EVENTS = {"src": ["ann", "bob", "ann", "cid"], "dst": ["bob", "cid", "cid", "ann"], "time": [1, 2, 5, 9]}
NODES = {
    "node": ["ann", "zoe", "bob", "ann", "ann"],
    "time": [4, 1, 0, 2, 8],
    "city": ["bonn", "köln", None, "köln", "bonn"],
    "income": [20.0, 1.0, 30.5, None, 50.0],
}


def read(nodes=NODES, events=EVENTS, **options):
    return dm.read(events, name="mail", node_features=nodes, **options)


def listed(dataset):
    """The rows by the user's ids: node, time, income, city."""
    rows = dataset.store.features.node_rows
    income, city = rows.names.index("income"), rows.categories[0]
    return [
        (
            dataset.ids.to_user([int(rows.node[k])]).to_pylist()[0],
            float(rows.time[k]),
            float(rows.value[k, income]) if bool(rows.known[k, income]) else None,
            city.values[rows.codes[k, 0]],
        )
        for k in range(len(rows))
    ]


EXPECTED = [("ann", 2, None, "köln"), ("ann", 4, 20, "bonn"), ("ann", 8, 50, "bonn"), ("bob", 0, 30.5, "")]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl", "dict", "frame"])
def test_rows_are_sorted_by_node_and_time(suffix, tmp_path):
    """The same table from any source; rows of nodes without events are left out."""
    table, path = pa.table(NODES), tmp_path / f"nodes.{suffix}"
    if suffix == "csv":
        table.to_pandas().to_csv(path, index=False)
    elif suffix == "parquet":
        parquet.write_table(table, path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    source = {"dict": NODES, "frame": pd.DataFrame(NODES)}.get(suffix, path)
    assert listed(read(source)) == EXPECTED


def test_without_times_features_are_known_from_the_start():
    static = {"id": ["ann", "cid"], "city": ["bonn", "köln"], "income": [1, 2]}
    rows = read(static).store.features.node_rows
    assert rows.is_static
    assert set(rows.time.tolist()) == {STATIC_TIME}


@pytest.mark.parametrize("column", ["since", None])
def test_several_rows_of_a_node_without_times_give_a_warning(tmp_path, monkeypatch, capsys, caplog, column):
    """It names how many nodes, and the column of dates that changes; with that column or one row each there is none."""
    events = EVENTS | {"time": ["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-09"]}
    nodes = {
        "node": ["ann", "bob", "ann", "bob", "cid", "zoe", "zoe"],
        "born": [
            "1990-01-01",
            "1991-02-02",
            "1990-01-01",
            "1991-02-02",
            "1992-03-03",
            "1990-01-01",
            "1990-01-01",
        ],
        "since": [
            "2023-01-01",
            "2023-01-01",
            "2024-01-03",
            "2024-01-04",
            "2023-01-01",
            "2023-01-01",
            "2024-01-01",
        ],
        "city": ["bonn", "köln", "köln", "bonn", "bonn", "bonn", "köln"],
    }
    if column is None:
        del nodes["since"]
    read(nodes, events)
    (line,) = caplog.messages
    assert line.startswith("2 nodes have several rows in ")
    assert f"`node_time={column or 'COLUMN'!r}`" in line
    caplog.clear()
    read({name: values[:2] for name, values in nodes.items()}, events)
    if column is not None:
        read(nodes, events, node_time=column)
    assert not caplog.messages
    pd.DataFrame(events).to_csv(tmp_path / "mail.csv", index=False)
    pd.DataFrame(nodes).to_csv(tmp_path / "nodes.csv", index=False)
    words = ("import", str(tmp_path / "mail.csv"), "--node-features", str(tmp_path / "nodes.csv"))
    code, out, _ = call(monkeypatch, capsys, *words, "--data-dir", str(tmp_path / "data"))
    assert code == 0
    assert f"--node-time {column or 'COLUMN'}" in " ".join(out.split())


def test_a_named_column_of_times_is_used():
    """Dates are read on the scale of the events; other scales, and a column without a table, are errors."""
    events = EVENTS | {"time": ["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-09"]}
    since = {"node": ["ann", "bob"], "moved": ["2024-01-03", "2024-01-01"], "city": ["bonn", "köln"]}
    rows = read(since, events, node_time="moved").store.features.node_rows
    assert rows.time.tolist() == [1704240000.0, 1704067200.0]
    with raises("dates-for-plain-times", FileError):
        read(since, node_time="moved")
    with raises("unknown-column", NotFoundError):
        read(since, node_time="move")
    with raises("option-not-applicable", ConfigError):
        dm.read(EVENTS, node_time="moved")


def test_columns_that_are_not_usable_are_left_out_or_refused():
    """Dates are not used; a table without any feature, without a known node or without rows is an error."""
    mixed = NODES | {"born": ["1990-01-01", "1991-02-02", "1992-03-03", "1990-01-01", "1990-01-01"]}
    assert read(mixed, node_time="time").store.features.node_rows.names == ("income",)
    with raises("no-node-features", FileError):
        read({"node": ["ann", "bob"], "born": ["1990-01-01", "1991-02-02"]}, node_time=None)
    with raises("unknown-nodes", FileError):
        read({"node": ["x", "y"], "city": ["a", "b"]})
    with raises("no-rows", FileError):
        read({"node": ["ann"]})


def test_sides_of_a_bipartite_stream_are_told_apart():
    """An id on both sides needs the name of its side; ids on one side do not."""
    events = {"user": [7, 8], "item": [7, 9], "time": [1, 2]}
    options = {"src": "user", "dst": "item", "bipartite": True}
    with raises("ambiguous-node", ConfigError):
        read({"node": [7], "income": [1.0], "city": ["x"]}, events, **options)
    for column, expected in (("user", 0), ("item", 2)):
        rows = read({column: [7, 7], "income": [1.0, 2.0]}, events, **options).store.features.node_rows
        assert rows.node.tolist() == [expected] * 2
    rows = read({"node": [8, 9], "income": [1.0, 2.0]}, events, **options).store.features.node_rows
    assert rows.node.tolist() == [1, 3]


def test_a_dataset_file_holds_them(tmp_path):
    """Saved and loaded they are the same; such a file has a version of its own, one without them the old one."""
    with_rows, without = read(), dm.read(EVENTS, name="mail")
    assert with_rows.digest != without.digest
    loaded = load_dataset(save_dataset(with_rows, tmp_path))
    assert (loaded.digest, loaded.version, listed(loaded)) == (with_rows.digest, with_rows.version, EXPECTED)
    versions = {}
    for name, dataset in (("new", with_rows), ("old", without)):
        with safe_open(save_dataset(dataset, tmp_path / name), "pt") as file:
            versions[name] = file.metadata()["version"], {key for key in file.keys() if "rows" in key}  # noqa: SIM118
    assert versions["old"] == ("1", set())
    assert versions["new"][0] == "2"
    assert len(versions["new"][1]) == 5


def test_names_and_values_count_for_the_version():
    """Two tables with the same numbers under other names are two versions."""
    renamed = {("wage" if name == "income" else name): column for name, column in NODES.items()}
    assert read().digest == read(renamed).digest
    assert read().version != read(renamed).version


def test_new_events_leave_them_as_they_are():
    more = dm.read({"src": ["new"], "dst": ["ann"], "time": [12]})
    grown = extend_dataset(read(), more)
    assert listed(grown) == EXPECTED
    assert grown.store.num_nodes == 4


def test_an_aligned_dataset_has_them_under_the_earlier_numbers():
    """Nodes and values are numbered as in the earlier dataset; other columns are an error."""
    earlier = read()
    events = {name: column[1:] for name, column in EVENTS.items()} | {"src": ["aaa", "ann", "cid"]}
    nodes = NODES | {"city": ["aachen", "köln", None, "köln", "bonn"]}
    aligned = align_dataset(read(nodes, events), earlier)
    assert aligned.store.features.node_rows.categories[0].values[:3] == ("", "bonn", "köln")
    expected = [("ann", 2, None, "köln"), ("ann", 4, 20, "aachen"), ("ann", 8, 50, "bonn")]
    # bob has no event any more and keeps its number, but the new table has no row of a known bob
    assert listed(aligned) == expected
    assert aligned.ids.to_user([0, 1, 2]).to_pylist() == ["ann", "bob", "cid"]
    with raises("other-columns", EventError):
        align_dataset(dm.read(EVENTS), earlier)


def test_the_command_line_reads_and_shows_them(tmp_path, monkeypatch, capsys):
    """Import notes what was left out; describe and JSON name the columns; export says that they are lost."""
    pd.DataFrame(EVENTS).to_csv(tmp_path / "mail.csv", index=False)
    pd.DataFrame(NODES).to_csv(tmp_path / "nodes.csv", index=False)
    where = ("--data-dir", str(tmp_path / "data"))
    words = ("import", str(tmp_path / "mail.csv"), "--node-features", str(tmp_path / "nodes.csv"), *where)
    code, out, err = call(monkeypatch, capsys, *words)
    assert code == 0
    assert "income, city" in out
    assert "1 rows of node features were left out" in err
    _, out, _ = call(monkeypatch, capsys, "describe", "mail", *where)
    assert "that change over time" in " ".join(out.split())
    _, out, _ = call(monkeypatch, capsys, "describe", "mail", *where, "--json")
    found = json.loads(out)["node_columns"]
    assert (found["numeric"], found["rows"], found["static"]) == (["income"], 4, False)
    _, _, err = call(monkeypatch, capsys, "export", "mail", "--to", str(tmp_path / "x.csv"), *where)
    assert "node features (income, city)" in err
    code, _, err = call(monkeypatch, capsys, "import", str(tmp_path / "mail.csv"), "--node-time", "x", *where)
    assert code == 2
    assert "--node-features" in err


def test_damaged_rows_are_found(tmp_path):
    """A file whose codes stand for no value, or whose rows are not sorted, is not loaded."""
    dataset = read()
    rows = dataset.store.features.node_rows
    for name, column in (("codes", rows.codes + 9), ("node", rows.node.flip(0))):
        broken = load_dataset(save_dataset(read(), tmp_path))
        object.__setattr__(broken.store.features.node_rows, name, column)
        fresh = type(broken).from_events("mail", broken.store, broken.ids, broken.origin)
        with raises("file-damaged", FileError):
            load_dataset(save_dataset(fresh, tmp_path / name))
    assert torch.equal(rows.codes, read().store.features.node_rows.codes)
