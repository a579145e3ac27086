"""Published files - JODIE CSV, DyGLib ml_*, npz - keep their node numbers and their rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dygmamba.core.errors import ConfigError
from dygmamba.data.readers import ReadOptions, detect_format, read_dataset
from dygmamba.data.readers.numpy_files import load_matrix
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.library import open_dataset
from raising import raises
from tables import table, write_csv

JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"


def test_jodie_files_have_more_columns_than_names(tmp_path):
    """Users come first, then items; columns after the label are features, dropped if zero throughout."""
    path = table(tmp_path / "wiki.csv", JODIE + "0,0,0.0,0,0.5,-1\n1,0,36.0,1,2,3e-1\n0,1,77.0,0,0,0\n")
    assert detect_format(path) == "jodie"
    dataset = read_dataset(path)
    store = dataset.store
    assert (store.src.tolist(), store.dst.tolist()) == ([0, 1, 0], [2, 2, 3])
    assert store.features.edge.tolist() == torch.tensor([[0.5, -1], [2, 0.3], [0, 0]]).tolist()
    assert store.label is not None
    assert (store.label.tolist(), store.bipartite, dataset.ids.sources) == ([0, 1, 0], True, 2)
    bare = read_dataset(table(tmp_path / "bare.csv", JODIE + "0,0,0.0,0,0,0\n0,1,1.0,0,0,0\n"))
    assert (bare.store.features.edge.shape, bare.store.label) == ((2, 0), None)
    with raises("option-not-applicable", kind=ConfigError) as caught:
        read_dataset(path, ReadOptions(src="user_id"))
    assert "`src`" in str(caught.value)


def write_dyglib(folder: Path, dataset: Dataset, edge: np.ndarray | None, node: np.ndarray | None) -> Path:
    store, path = dataset.store, folder / f"ml_{dataset.name}.csv"
    ids = [(column + 1).tolist() for column in (store.src, store.dst)]
    numbered = enumerate(zip(*ids, store.time.tolist(), strict=True))
    write_csv(
        path, ["", "u", "i", "ts", "label", "idx"], [[k, u, v, t, 0.0, k + 1] for k, (u, v, t) in numbered]
    )
    for suffix, array in (("", edge), ("_node", node)):
        if array is not None:
            np.save(folder / f"ml_{dataset.name}{suffix}.npy", array)
    return path


def test_a_dataset_is_the_same_in_every_format(tmp_path, real_data):
    """UCI as npz, as DyGLib's ml_ files with zero features, as CSV and as Parquet: one digest."""
    dataset = read_dataset(real_data / "uci.npz")
    store = dataset.store
    zeros = np.zeros((len(store) + 1, 3)), np.zeros((store.num_nodes + 1, 2))
    ml = read_dataset(write_dyglib(tmp_path, dataset, *zeros))
    assert (ml.name, ml.digest, ml.ids) == ("uci", dataset.digest, dataset.ids)
    columns = {"src": store.src.numpy(), "dst": store.dst.numpy(), "time": store.time.numpy()}
    pq.write_table(pa.table(columns), tmp_path / "u.parquet")
    write_csv(
        tmp_path / "u.csv", list(columns), list(zip(*(c.tolist() for c in columns.values()), strict=True))
    )
    for name in ("u.parquet", "u.csv"):
        other = read_dataset(tmp_path / name)
        assert (other.digest, other.ids) == (dataset.digest, dataset.ids)


def test_npz_keeps_the_rows_of_the_archive(real_data):
    """src, dst, t, label and edge_feat have the archive's values, in wider types."""
    for name in ("wikipedia", "CanParl"):
        store = read_dataset(real_data / f"{name}.npz").store
        with np.load(real_data / f"{name}.npz") as archive:
            assert np.array_equal(store.src, archive["src"])
            assert np.array_equal(store.dst, archive["dst"])
            assert np.array_equal(store.time, archive["t"])
            if store.label is not None:
                assert np.array_equal(store.label, archive["label"])
            if "edge_feat" in archive:
                assert np.array_equal(store.features.edge.flatten(), archive["edge_feat"].flatten())


def test_dyglib_features_are_indexed_by_idx_and_unused_ids_remain(tmp_path):
    """Edge features are row idx of the matrix, node features row id; a gap in the ids is an isolated node."""
    np.savez(tmp_path / "toy.npz", src=[0, 3], dst=[1, 1], t=[1.0, 2.0])
    toy = read_dataset(tmp_path / "toy.npz")
    edge, node = np.array([[0.0], [5.0], [7.0]]), np.arange(10.0).reshape(5, 2)
    dataset = read_dataset(write_dyglib(tmp_path, toy, edge, node))
    assert dataset.store.num_nodes == 4
    assert dataset.store.features.edge.tolist() == [[5.0], [7.0]]
    assert dataset.store.features.node.tolist() == node[1:].tolist()
    np.save(tmp_path / "ml_toy.npy", edge[:2])
    with raises("row-count-differs"):
        read_dataset(tmp_path / "ml_toy.csv")
    np.save(tmp_path / "ml_toy.npy", np.array([{}], dtype=object))
    with raises("file-damaged"):
        read_dataset(tmp_path / "ml_toy.csv")
    table(tmp_path / "ml_zero.csv", ",u,i,ts,label,idx\n0,0,1,0,0,1\n")
    with raises("bad-node-number") as caught:
        read_dataset(tmp_path / "ml_zero.csv")
    assert "data row 1, column 'u' is 0" in str(caught.value)


def test_every_form_of_a_dataset_is_found_by_its_name(tmp_path):
    """NAME.npz, ml_NAME.csv and NAME/ml_NAME.csv in the data folder, or the file itself."""
    np.savez(tmp_path / "one.npz", src=[0], dst=[1], t=[1.0])
    one = read_dataset(tmp_path / "one.npz")
    write_dyglib(tmp_path, replace(one, name="two"), None, None)
    (tmp_path / "three").mkdir()
    path = write_dyglib(tmp_path / "three", replace(one, name="three"), None, None)
    assert [open_dataset(name, tmp_path).name for name in ("one", "two", "three")] == ["one", "two", "three"]
    assert open_dataset(str(path)).digest == one.digest


def test_a_matrix_that_python_2_wrote_is_read_without_a_warning(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "old.npy").write_bytes(content + np.arange(6, dtype="<f4").tobytes())
    assert load_matrix(tmp_path / "old.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
