"""Converting or exporting a dataset and reading it back is the identity."""

import json
from datetime import UTC, datetime
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dygmamba as dm
from commands import call, fail
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.untrusted import FORMULA_PREFIXES
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.storage.dataset import Dataset
from letters import COLUMNS, make_letters
from raising import raises

TABLES = ("to_arrow", "to_pandas")
FILES = (".csv", ".jsonl", ".parquet", ".arrow", ".npz")
FEW = settings(max_examples=8, deadline=None)
LETTERS = st.text(
    st.characters(blacklist_categories=("C", "Z"), blacklist_characters="\\"), min_size=1, max_size=4
)
WORDS = ("nan", "null", "none", "n/a", "#n/a", "<na>")
EPOCH = "1970-01-01T00:00:00Z"


@st.composite
def tables(draw, raw: bool = False):
    """What `read` makes of columns: ids of either kind, times of any kind, ties, features, labels, two sides."""
    ids = draw(
        st.sampled_from(
            [
                st.integers(-(2**63), 2**63 - 1),
                st.integers(0, 5),
                LETTERS.map(lambda word: f"{word}~").filter(lambda word: word not in WORDS),
            ]
        )
    )
    pool = draw(st.lists(ids, min_size=1, max_size=5, unique=True))
    count = draw(st.integers(1, 12))
    times = draw(
        st.sampled_from(
            [
                st.floats(-1e15, 1e15),
                st.integers(0, 6).map(float),
                st.datetimes(datetime(1903, 1, 1), datetime(2300, 1, 1)).map(
                    lambda at: at.replace(tzinfo=UTC)
                ),
            ]
        )
    )

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    figures = st.floats(width=32, allow_nan=False, allow_infinity=False)
    table = {"who": column(st.sampled_from(pool)), "whom": column(st.sampled_from(pool))}
    table |= {"when": column(times), "w": column(figures), "v, w": column(figures), "bad": column(figures)}
    return dm.read(
        table,
        src="who",
        dst="whom",
        time="when",
        features=draw(st.sampled_from([(), ("w",), ("w", "v, w")])),
        label=draw(st.sampled_from([None, "bad"])),
        bipartite=draw(st.booleans()),
        time_unit="auto" if isinstance(table["when"][0], datetime) else "plain",
    )


@st.composite
def streams(draw):
    """Datasets that no table makes: nodes without events and with features, ids in any order, sides in any order."""
    nodes, count = draw(st.integers(2, 6)), draw(st.integers(1, 8))
    kind = draw(st.sampled_from([st.integers(-9, 9), LETTERS]))
    names = draw(st.lists(kind, min_size=nodes, max_size=nodes, unique=True))
    values = pa.array(names, pa.int64() if isinstance(names[0], int) else pa.large_string())
    is_source = draw(st.none() | st.lists(st.booleans(), min_size=nodes, max_size=nodes).filter(both))
    ends = (range(nodes),) * 2 if is_source is None else split(is_source)
    src, dst = (draw(st.lists(st.sampled_from(side), min_size=count, max_size=count)) for side in ends)
    ids = NodeIds(values) if is_source is None else NodeIds(values, sum(is_source), pa.array(is_source))
    if is_source is not None and draw(st.booleans()):  # both sides use the same ids
        numbers = [sum(one == mine for one in is_source[:k]) for k, mine in enumerate(is_source)]
        ids = NodeIds(pa.array(numbers, pa.int64()), sum(is_source), pa.array(is_source))
    width = draw(st.integers(0, 2))
    store = EventStore.from_unsorted(
        torch.tensor(src),
        torch.tensor(dst),
        torch.tensor(draw(st.lists(st.floats(0, 9), min_size=count, max_size=count)), dtype=torch.float64),
        features=FeatureTable(torch.randn(nodes, width), torch.zeros(count, 0)),
        num_nodes=nodes,
        bipartite=is_source is not None,
    )
    return Dataset.from_events("drawn", store, ids, Origin(time_origin=draw(st.sampled_from(["", EPOCH]))))


def both(sides):
    return len(set(sides)) == 2


def split(is_source):
    return [k for k, one in enumerate(is_source) if one], [k for k, one in enumerate(is_source) if not one]


def same(found: Dataset, given: Dataset) -> bool:
    """The same bits, the same owners, and times that are dates where they were."""
    assert found.origin.time_origin == given.origin.time_origin
    return found.digest == given.digest and found.content == given.content


@FEW
@given(data=tables())
def test_a_dataset_survives_every_conversion(data):
    """For all d that `read` creates: read(convert(d)) = d, in every bit of events, ids and features."""
    for how in TABLES:
        assert same(dm.read(getattr(data, how)()), data), how


@FEW
@given(data=tables())
def test_a_dataset_survives_every_file_format(data, tmp_path_factory):
    """For all d that `read` creates: reading the exported file with the returned options gives d."""
    folder = tmp_path_factory.getbasetemp()
    for ending in FILES:
        done = data.export(folder / f"drawn{ending}", raw=True)
        found = dm.read(done.path, **done.options)
        assert found.digest == data.digest, ending
        assert found.content == data.content, ending


@FEW
@given(data=streams())
def test_an_npz_file_holds_every_node(data, tmp_path_factory):
    """For all d: read(npz(d)) = d; for a table of events the result lists what is lost."""
    folder = tmp_path_factory.getbasetemp()
    assert dm.read(data.export(folder / "drawn.npz").path).content == data.content
    lost = " ".join(data.export(folder / "drawn.parquet").lost)
    events = {*data.store.src.tolist(), *data.store.dst.tolist()}
    assert ("without events" in lost) == (len(events) < data.store.num_nodes)
    assert ("node features" in lost) == (data.store.features.node.shape[1] > 0)


def test_a_graph_of_ones_own_is_read_by_its_attributes():
    """Directed or not, with one edge per pair or several: an edge is an event; isolated nodes have none."""
    graph = nx.MultiGraph([("bob", "ann", {"when": 2, "w": 0.5}), ("ann", "cid", {"when": 1, "w": 1.5})])
    graph.add_node("nobody")
    data = dm.read(graph, time="when", features="w")
    assert data.ids.values.to_pylist() == ["ann", "bob", "cid"]
    assert data.store.features.edge.flatten().tolist() == [1.5, 0.5]
    several = nx.MultiDiGraph([(1, 2, {"t": 5}), (1, 2, {"t": 6}), (2, 1, {"t": 4})])
    assert dm.read(several).store.src.tolist() == [1, 0, 0]
    with raises("bad-rows", FileError):
        dm.read(nx.DiGraph([(1, 2, {"t": 1, "w": 1.0}), (2, 3, {"t": 1})]), features="w")


def test_sides_of_an_undirected_graph_are_its_nodes():
    """Where every edge joins a node of side 0 and one of side 1, the first is the source, however it is stored."""
    graph = nx.MultiGraph()
    graph.add_nodes_from(["film", "book"], bipartite=1)
    graph.add_nodes_from(["ann", "bob"], bipartite=0)
    graph.add_edge("film", "ann", time=1)
    graph.add_edge("bob", "book", time=2)
    data = dm.read(graph)
    assert data.store.bipartite
    assert [data.ids.values[k].as_py() for k in data.store.src] == ["ann", "bob"]
    assert not dm.read(graph, bipartite=False).store.bipartite


def test_conversions_use_the_users_ids_dates_and_names():
    data = dm.read(make_letters(), **COLUMNS, features=["words"], label="bad")
    frame = data.to_pandas()
    assert list(frame.columns) == ["src", "dst", "time", "label", "words"]
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"
    assert frame["src"].tolist() == data.ids.to_user(data.store.src.numpy()).to_pylist()


def test_a_missing_package_is_an_error(monkeypatch):
    """The message names the package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    data = dm.read([("ann", "bob", 1)])
    with raises("package-missing", ConfigError) as caught:
        data.to_pandas()
    assert "pip install pandas" in str(caught.value)


def test_the_export_command_prints_how_to_import_the_file(monkeypatch, capsys, tmp_path):
    """The printed command restores the same digest; a target that cannot be written is refused at once."""
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "data"))
    dm.save(dm.read(make_letters(), **COLUMNS, features=["words"], label="bad", name="mail"))
    before = dm.load("mail").digest
    for name in ("mail.csv", "mail.jsonl", "mail.feather"):
        _, out, _ = call(monkeypatch, capsys, "export", "mail", "--to", str(tmp_path / name), "--json")
        words = json.loads(out)["import"].split()[2:]
        code, _, err = call(monkeypatch, capsys, *words, "--out", "again")
        assert (code, dm.load("again").digest) == (0, before), err
    for place, expected in (
        (tmp_path, "is-a-folder"),
        (tmp_path / "x.ods", "unknown-file-suffix"),
        (tmp_path / "x.xlsx", "unknown-file-suffix"),
    ):
        assert fail(monkeypatch, capsys, "data", "export", "mail", "--to", place)[0] == expected


def test_formulas_are_escaped_unless_raw(monkeypatch, capsys, tmp_path):
    """No spreadsheet runs a text cell of a CSV file; --raw writes cells as they are."""
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "data"))
    dm.save(dm.read([("=cmd", "@b", 1), ("-c", '"q', 2)], name="risky"))
    file = tmp_path / "risky.csv"
    _, _, err = call(monkeypatch, capsys, "export", "risky", "--to", str(file))
    assert "3 ids" in err
    assert "--raw" in err
    cells = [cell.strip('"') for line in file.read_text().splitlines() for cell in line.split(",")]
    assert not any(cell.startswith(FORMULA_PREFIXES) for cell in cells)
    call(monkeypatch, capsys, "export", "risky", "--to", str(file), "--raw")
    assert dm.read(Path(file)).content == dm.load("risky").content


def test_npz_with_wrong_ids_is_an_error(tmp_path):
    """Too few ids, or the same id twice."""
    arrays = {"src": np.array([0, 1]), "dst": np.array([1, 2]), "t": np.array([1.0, 2.0])}
    for ids, code in (([1, 2], "node-out-of-range"), ([1, 1, 2], "node-ids-not-unique")):
        np.savez(tmp_path / "x.npz", **arrays, ids=np.array(ids))
        with raises(code, FileError):
            dm.read(tmp_path / "x.npz")
