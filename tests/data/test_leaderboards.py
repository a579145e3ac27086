"""TGB and TGB-Seq folders: TGB's own numbers and features, its split, its negatives, and what is wrong."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import dygmamba as dm
from board_cases import HEADERS, VERSION, seq_folder, tgb_folder, write_table
from commands import invoke
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers import ReadOptions, delimited, read_dataset
from dygmamba.data.storage.leaderboard import (
    load_leaderboard,
    load_leaderboard_file,
    load_leaderboard_split,
    save_leaderboard,
)
from dygmamba.tasks.candidates import BoardCandidates
from raising import raises

LINKS = [name for name in HEADERS if name.startswith("tgbl")]


def triples(store):
    return list(zip(store.src.tolist(), store.dst.tolist(), store.time.long().tolist(), strict=True))


def require_lists(board, rows, negatives):
    """Every event of both periods has the nodes that the dictionary has of it."""
    for period, known in negatives.items():
        lists, first = board.negatives[period], board.first(period)
        assert len(lists) == board.sizes[1 + (period == "test")] > 0
        for k in range(len(lists)):
            found = lists.node[lists.start[k] : lists.start[k + 1]].tolist()
            assert found == known[rows[first + k]].astype(int).tolist()


@pytest.mark.parametrize("name", LINKS)
def test_a_link_set_has_tgbs_numbers_split_and_negatives(tmp_path, name):
    """For all five: nodes as TGB numbers them, periods by its quantiles, and to each event its own negatives."""
    rows, negatives = tgb_folder(tmp_path / name, name)
    data = dm.read(tmp_path / name)
    assert data.name == name
    assert triples(data.store) == rows
    board = load_leaderboard(data)
    time = np.array([row[2] for row in rows])
    val, test = np.quantile(time, [0.7, 0.85])
    assert board.sizes == ((time <= val).sum(), ((time > val) & (time <= test)).sum(), (time > test).sum())
    split = board.split.split(data.store)
    assert (len(split.train), len(split.val), len(split.test)) == board.sizes  # nobody is held out
    require_lists(board, rows, negatives)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TGB leaves its files open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", HEADERS)
def test_features_are_those_of_tgbs_loaders(tmp_path, name):
    """For all nine: numbers and edge features as py-tgb makes them of the same file."""
    pre = pytest.importorskip("tgb.utils.pre_process", reason="py-tgb is not installed")
    tgb_folder(tmp_path, name)
    table = str(tmp_path / f"{name}_edgelist{VERSION.get(name, '')}.csv")
    loaders = {
        "tgbl-wiki": pre.load_edgelist_wiki,
        "tgbl-coin": pre.csv_to_pd_data_sc,
        "tgbl-review": pre.csv_to_pd_data_sc,
        "tgbl-comment": pre.csv_to_pd_data_rc,
        "tgbl-flight": pre.csv_to_pd_data,
        "tgbn-trade": pre.load_edgelist_trade,
        "tgbn-genre": pre.load_edgelist_datetime,
        "tgbn-reddit": pre.load_edgelist_sr,
        "tgbn-token": pre.load_edgelist_token,
    }
    frame, features, *_ = loaders[name](table)
    if name in ("tgbl-coin", "tgbl-review"):
        features = frame["w"].to_numpy()[:, None]
    if name == "tgbl-comment":  # TGB repeats the words
        features = np.column_stack([features[:, 0], frame["w"]])
    if name == "tgbn-token":  # TGB takes the logarithm when it loads the file again
        features[:, 0] = np.log(np.where(features[:, 0] > 0, features[:, 0], 1))
    store = dm.read(tmp_path).store
    assert torch.allclose(store.features.edge, torch.from_numpy(np.asarray(features, np.float32)), rtol=1e-6)
    if name.startswith("tgbl"):
        assert store.src.tolist() == frame["u"].astype(int).tolist()
        assert store.dst.tolist() == frame["i"].astype(int).tolist()
    if name == "tgbl-flight":
        known = pre.csv_to_pd_data(table)[2]
        assert store.features.node.shape == (len(known), 2 + 2 + 7 + 2)
        row = store.features.node[known["B3"]].tolist()
        assert row == [0, 1, 0, 1, *pre.convert_str2int("US-NY!!").tolist(), -73.75, 40.5]


def test_tgb_seq_keeps_its_own_periods(tmp_path):
    """The split is the file's, also inside ties; a row of the array per event of the test, nothing of validation."""
    rows, drawn = seq_folder(tmp_path)
    data = dm.read(tmp_path, format="tgb-seq")
    board = load_leaderboard(data)
    assert (data.name, board.sizes, data.store.bipartite) == ("GoogleLocal", (70, 15, 15), True)
    assert triples(data.store) == [(a, b, int(t)) for a, b, t, _ in rows]
    lists = board.negatives["test"]
    assert torch.equal(lists.node.view(15, -1), torch.from_numpy(drawn).int())
    path = dm.save(data, data_dir=tmp_path / "data")
    again = dm.load("GoogleLocal", tmp_path / "data")
    assert load_leaderboard_split(again) == board.split
    with raises("no-board-candidates", ConfigError):
        BoardCandidates.create(load_leaderboard(again), "val", torch.arange(70, 85))
    assert path.exists()


def test_a_folder_of_ones_own_may_have_candidates_for_validation(tmp_path):
    """In TGB-Seq's layout a folder of one's own has an array for each period; as many rows as events."""
    seq_folder(tmp_path, "mine")
    np.save(tmp_path / "mine_val_ns.npy", drawn := np.random.default_rng(5).integers(8, 14, (15, 3)))
    data = dm.read(tmp_path)
    board = load_leaderboard(data)
    assert torch.equal(board.negatives["val"].node.view(15, 3), torch.from_numpy(drawn).int())
    assert BoardCandidates.create(board, "val", torch.arange(70, 85)).width == 3
    np.save(tmp_path / "mine_val_ns.npy", drawn[1:])
    with raises("row-count-differs", FileError):
        load_leaderboard(data)


def test_no_event_of_tgb_seq_is_left_out(monkeypatch, capsys, tmp_path):
    """Its split and negatives are given by row: without a repeated event they would belong to other events."""
    seq_folder(tmp_path / "seq")
    table = tmp_path / "seq" / "GoogleLocal.csv"
    names, first, *rows = table.read_text().splitlines()
    table.write_text("\n".join([names, first, first, *rows]) + "\n")
    words = ("data", "import", str(tmp_path / "seq"), "--data-dir", str(tmp_path / "data"))
    code, _, error = invoke(monkeypatch, capsys, *words, "--drop-duplicates")
    assert (code, error.count("\n")) == (2, 1)
    assert "without --drop-duplicates" in error
    assert not list(tmp_path.glob("data/*"))
    assert invoke(monkeypatch, capsys, *words)[0] == 0
    assert len(load_leaderboard(dm.load("GoogleLocal", tmp_path / "data")).negatives["test"]) == 15


def test_a_leaderboard_is_saved_with_its_dataset(monkeypatch, capsys, tmp_path):
    """One command imports both; removing the dataset removes its leaderboard."""
    tgb_folder(tmp_path / "tgbl_wiki")
    words = ("data", "import", str(tmp_path / "tgbl_wiki"), "--data-dir", str(tmp_path / "data"))
    code, out, error = invoke(monkeypatch, capsys, *words)
    assert (code, error) == (0, "")
    assert "tgbl-wiki: 16 nodes" in out
    data = dm.load("tgbl-wiki", tmp_path / "data")
    (file,) = (tmp_path / "data").glob("*.board")
    board = load_leaderboard(data)
    assert file.name == f"tgbl-wiki@{data.version}.board"
    assert load_leaderboard_split(data) == board.split
    imported_before = replace(data, origin=replace(data.origin, format="relbench"))
    assert load_leaderboard_split(imported_before) == board.split
    assert load_leaderboard_split(dm.generate(nodes=20, events=100, communities=2)) is None
    other = replace(data, digest="0" * 64)
    with raises("leaderboard-mismatch", FileError):
        load_leaderboard_file(file, other)
    save_leaderboard(board, data, tmp_path / "data")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with raises("file-damaged", FileError):
        load_leaderboard(data)
    dm.remove("tgbl-wiki", data_dir=tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.board"))


OWN = "src,time,dst,amount"


def own_folder(folder, header=OWN):
    """A folder of one's own in TGB's layout: the rows and negatives of a TGB dataset, with numbers as ids."""
    rows, negatives = tgb_folder(folder, "tgbl-coin")
    write_table(folder / "deals_edgelist.csv", header, [[a, t, b, k / 2] for k, (a, b, t) in enumerate(rows)])
    for file in folder.glob("tgbl-coin*"):
        period = next((part for part in ("val", "test") if f"_{part}_" in file.name), None)
        file.rename(folder / f"deals_{period}_ns.pkl") if period else file.unlink()
    return rows, negatives


def test_a_folder_of_ones_own_is_imported_with_its_negatives(monkeypatch, capsys, tmp_path):
    """Any name: nodes keep the numbers of the table, the split is TGB's, and events are ranked among the negatives."""
    rows, negatives = own_folder(tmp_path / "deals")
    words = ("data", "import", str(tmp_path / "deals"), "--data-dir", str(tmp_path / "data"))
    code, out, error = invoke(monkeypatch, capsys, *words)
    assert (code, error) == (0, "")
    assert "deals: " in out
    data = dm.load("deals", tmp_path / "data")
    assert triples(data.store) == rows
    assert (data.origin.features, data.origin.format) == (("amount",), "tgb")
    board = load_leaderboard(data)
    require_lists(board, rows, negatives)
    events = torch.arange(board.first("test"), len(rows))
    assert BoardCandidates.create(board, "test", events).width == 5


def test_what_a_folder_of_ones_own_lacks_is_named(tmp_path):
    """A file of negatives, a column, numbers, one table: each is an error that says so."""
    own_folder(tmp_path / "a")
    (tmp_path / "a" / "deals_val_ns.pkl").unlink()
    own_folder(tmp_path / "b", "from,time,to,amount")
    own_folder(tmp_path / "c")
    write_table(tmp_path / "c" / "deals_edgelist.csv", OWN, [["ann", 1, "bob", 2]])
    own_folder(tmp_path / "d")
    (tmp_path / "d" / "more_edgelist.csv").write_text(OWN)
    for folder, code, words in (
        ("d", "several-leaderboard-tables", "deals, more"),
        ("a", "unknown-tgb-dataset", "deals_val_ns.pkl"),
        ("b", "wrong-columns", "no column 'src' and no column 'dst'"),
        ("c", "bad-node-number", "node names"),
    ):
        with raises(code, FileError) as caught:
            dm.read(tmp_path / folder)
        assert words in str(caught.value)


WRONG = (
    *("no such event", "a node that is none", "a word", "half a node", "cut", "empty", "names alone"),
    *("too few columns", "named nodes", "no time", "a node far away", "another set", "no table"),
)


def broken(folder):
    """What can be wrong with a folder, each as a change of a good one."""
    table, lists = folder / "tgbl-wiki_edgelist_v2.csv", folder / "tgbl-wiki_val_ns_v2.pkl"
    known = pickle.loads(lists.read_bytes())
    return {
        "no such event": lambda: lists.write_bytes(pickle.dumps({(1, 2, 3): [4]})),
        "a node that is none": lambda: lists.write_bytes(pickle.dumps({key: [99] for key in known})),
        "a word": lambda: lists.write_bytes(pickle.dumps({key: ["x"] for key in known})),
        "half a node": lambda: lists.write_bytes(pickle.dumps({key: [0.5] for key in known})),
        "cut": lambda: lists.write_bytes(lists.read_bytes()[:50]),
        "empty": lambda: table.write_text(""),
        "names alone": lambda: table.write_text(HEADERS["tgbl-wiki"] + "\n"),
        "too few columns": lambda: write_table(table, "a,b,c", [[0, 1, 2]]),
        "named nodes": lambda: write_table(table, HEADERS["tgbl-wiki"], [["ann", "bob", 1, 0, 1]]),
        "no time": lambda: write_table(table, HEADERS["tgbl-wiki"], [[0, 1, "soon", 0, 1]]),
        "a node far away": lambda: write_table(table, HEADERS["tgbl-wiki"], [[0, 10**12, 1, 0, 1]]),
        "another set": lambda: table.rename(folder / "tgbl-moon_edgelist.csv"),
        "no table": lambda: table.unlink(),
    }


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_folder_is_one_sentence(monkeypatch, capsys, tmp_path, name):
    """For all of these: exit code 2, one line, and no dataset."""
    tgb_folder(tmp_path / "wiki")
    broken(tmp_path / "wiki")[name]()
    words = (
        "data",
        "import",
        str(tmp_path / "wiki"),
        "--format",
        "tgb",
        "--data-dir",
        str(tmp_path / "data"),
    )
    code, _, error = invoke(monkeypatch, capsys, *words)
    assert (code, error.count("\n")) == (2, 1)
    assert not list(tmp_path.glob("data/*.safetensors"))


def test_what_is_wrong_with_the_others_is_one_sentence(monkeypatch, capsys, tmp_path):
    """TGB-Seq: periods out of order, an array of another length, of objects."""
    seq_folder(tmp_path / "order")
    (tmp_path / "order" / "GoogleLocal.csv").write_text("src,dst,time,split\n0,1,1,1\n0,1,2,0\n")
    seq_folder(tmp_path / "short")
    np.save(tmp_path / "short" / "GoogleLocal_test_ns.npy", np.zeros((3, 2), np.int64))
    seq_folder(tmp_path / "objects")
    np.save(tmp_path / "objects" / "GoogleLocal_test_ns.npy", np.array([[{}]], object), allow_pickle=True)
    (tmp_path / "nothing").mkdir()
    for folder in ("order", "short", "objects", "nothing"):
        words = ("data", "import", str(tmp_path / folder), "--data-dir", str(tmp_path / "data"))
        code, _, error = invoke(monkeypatch, capsys, *words)
        assert (code, error.count("\n")) == (2, 1), folder


@pytest.mark.parametrize("name", ["GoogleLocal", "tgbl-flight", "tgbl-coin"])
def test_features_stay_with_their_events_out_of_core(tmp_path, monkeypatch, name):
    """Rows that are not sorted by time and too many for memory: numbers and features are those of the file's rows."""
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 700)
    folder = tmp_path / name.replace("-", "_")
    if name == "GoogleLocal":
        seq_folder(folder)
        np.save(folder / f"{name}_edge_feat.npy", np.arange(200, dtype=np.float32).reshape(100, 2))
    else:
        tgb_folder(folder, name)
    (path,) = [*folder.glob(f"{name}.csv"), *folder.glob(f"{name}_edgelist*.csv")]
    first, *rows = path.read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(rows))
    path.write_text("\n".join([first, *(rows[k] for k in order)]) + "\n")
    memory, disk = (read_dataset(folder, ReadOptions(memory=size)) for size in (10**9, 5_000))
    assert memory.origin.out_of_order > 0
    assert memory.store.features.edge.any()
    assert disk.content == memory.content
    assert torch.equal(disk.store.features.edge, memory.store.features.edge)
