"""Finished runs become stored records, and tables are built from them."""

import pyarrow as pa

import dygmamba as dm
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.lab.stored_runs import add_runs, build_activity_table, build_blend_table, build_node_table
from dygmamba.report.result_records import StudyResults
from node_cases import labelled_stream

TREES = {"trees": 4, "rounds": 2, "epochs": 1, "least": 5, "scales": 2, "neighbors": 2, "transitions": 0}


def test_a_run_is_stored_with_its_rows_and_replaced_by_a_newer_one(tmp_path):
    """Validation and test AP of every kind of negatives are in the tables as in the results of the run."""
    data = dm.generate(nodes=40, events=900, communities=4, name="uci")
    kinds = ["random", "historical", "inductive"]
    (factored,) = dm.train(
        data, "trees", out=tmp_path / "a", negatives=kinds, activity=True, protocol="time", **TREES
    )
    (plain,) = dm.train(data, "trees", out=tmp_path / "b", protocol="time", **TREES)
    folder = tmp_path / "results"
    folder.mkdir()
    for _ in range(2):
        add_runs(folder, [factored.path, plain.path])
    records = StudyResults.read(folder / "runs.json").records
    assert [(record.data, record.model, record.about["activity"]) for record in records] == [
        ("uci", "trees", False),
        ("uci", "trees", True),
    ]
    rows = {(row["split"], row["negatives"]): row["ap"] for row in factored.results.to_pylist()}
    table = build_activity_table(folder)
    for kind in kinds:
        assert f"{100 * rows['val', kind]:.2f} / {100 * rows['test', kind]:.2f}" in table
    assert build_blend_table(folder).count("UCI") == 1


def test_a_run_of_a_node_task_is_a_row_beside_the_published_value(tmp_path):
    """Its AUC and AP as in the results of the run, one row per model, and the best published AUC of the stream."""
    store = labelled_stream()
    data = Dataset.from_events("wikipedia", store, NodeIds(pa.array(range(store.num_nodes))))
    (run,) = dm.train(data, "trees", task="node", out=tmp_path / "a", device="cpu", **TREES)
    add_runs(tmp_path, [run.path])
    (row,) = build_node_table(tmp_path).splitlines()[2:]
    val, test = run.results.to_pylist()
    assert row.split(" | ")[2:5] == [f"{100 * value:.2f}" for value in (val["auc"], test["auc"], test["ap"])]
    assert "88.99 ± 1.05 JODIE" in row
