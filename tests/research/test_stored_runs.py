"""Finished runs become stored records, and tables are built from them."""

import pyarrow as pa

import dygmamba as dm
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.result_records import ResultRecord, StudyResults
from node_cases import labelled_stream
from research.stored_runs import (
    add_runs,
    add_study,
    build_activity_table,
    build_blend_table,
    build_node_table,
)

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


def test_a_run_of_a_node_task_is_a_row_of_the_node_table(tmp_path):
    """Its AUC and AP as in the results of the run; models with a published AUC and no record have dashes."""
    store = labelled_stream()
    data = Dataset.from_events("wikipedia", store, NodeIds(pa.array(range(store.num_nodes))))
    (run,) = dm.train(data, "trees", task="node", out=tmp_path / "a", device="cpu", **TREES)
    add_runs(tmp_path, [run.path])
    table, _, note = build_node_table(tmp_path).partition("\n\n")
    row, *missing = table.splitlines()[2:]
    val, test = run.results.to_pylist()
    assert row.split(" | ")[2:5] == [f"{100 * value:.2f}" for value in (val["auc"], test["auc"], test["ap"])]
    assert row.split(" | ")[6] == "none"
    assert note == "Short training: 1 epoch, published 100 (`trees` on wikipedia)."
    assert len(missing) == 9  # the paper's table without EdgeBank, which has no AUC
    assert all(" | - | - | - | - | " in line for line in missing)


ROW = {"split": "test", "setting": "transductive", "negatives": "random", "visible": "strict", "batch": 200}


def write_study(path, study, command, *records, ceilings=None):
    StudyResults(study, command, records, ceilings or {}).write(path)
    return path


def make_record(work, data, seed=0, ap=0.9, settings=None, **about):
    return ResultRecord(work, data, "jodie", seed, about, [ROW | {"ap": ap, "auc": ap}], settings or {})


def test_records_of_a_study_are_added_once_and_replace_their_like(tmp_path):
    """For all records: same work, dataset, model, seed and labels replace in place; others are added; nothing twice."""
    folder = tmp_path / "results"
    old = (make_record("link", "uci", variant="full"), make_record("link", "uci", variant="no-skip"))
    write_study(folder / "ablation.json", "ablation", "dygmamba a", *old, ceilings={"uci": 0.99})
    new = (make_record("link", "uci", ap=0.8, variant="full"), make_record("link", "mooc", variant="full"))
    path = write_study(
        tmp_path / "new.json", "ablation", "dygmamba b --out /x --data-dir=/y --epochs 3", *new,
        ceilings={"mooc": 0.98},
    )  # fmt: skip
    for _ in range(2):
        add_study(folder, path)
    stored = StudyResults.read(folder / "ablation.json")
    assert stored.records == (new[0], old[1], new[1])
    assert stored.command == "dygmamba a (uci, mooc: dygmamba b --epochs 3)"
    assert stored.ceilings == {"uci": 0.99, "mooc": 0.98}


def test_node_records_of_a_study_are_labelled_as_those_of_runs(tmp_path):
    """The study `node` is stored in nodes.json with its backbones, and its heads are rows beside the published AUC."""
    rows = [
        {"split": split, "auc": auc, "ap": 0.1, "positives": 7, "visible": "strict", "batch": 200, "seed": 0}
        for split, auc in (("val", 0.7), ("test", 0.8))
    ]
    head = ResultRecord(
        "node", "wikipedia", "jodie", 0, {"model": "jodie"}, rows, {"epochs": 5, "target": "auto"}
    )
    backbone = make_record("link", "wikipedia", settings={"epochs": 5}, model="jodie")
    path = write_study(tmp_path / "new.json", "node", "dygmamba reproduce node", backbone, head)
    add_study(tmp_path, path)
    stored = StudyResults.read(tmp_path / "nodes.json")
    assert stored.records[0] == backbone
    assert stored.records[1].about == {"target": "binary", "balance": False, "labels": False}
    table = build_node_table(tmp_path)
    assert "| `jodie` | 70.00 | 80.00 | 10.00 | 7 | 88.99 ± 1.05 | 1 |" in table
    assert table.count("`jodie` |") == 1
    assert "Short training: 5 epochs, published 100 (`jodie` on wikipedia)" in table
