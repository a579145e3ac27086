"""The ranking study: both losses are trained and measured like any run, and the tables choose by validation."""

from argparse import Namespace

import pytest

import dygmamba as dm
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.lab.ranking_study import add_records, build_table, build_type_table, measure_job
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.tasks.metric_names import QUERY_TYPE_LABELS


def test_a_job_is_measured_like_its_run(tmp_path):
    """The first events of a stream, ranked with the loss that was asked for; its AP is that of the run."""
    made = dm.generate(nodes=40, events=900, communities=4).store
    columns = zip(made.src.tolist(), made.dst.tolist(), (made.time - made.time[0]).tolist(), strict=True)
    save_dataset(dm.read(list(columns), name="people"), tmp_path)
    options = Namespace(
        runs=tmp_path / "runs", data=tmp_path, device="cpu", threads=1, epochs=1, events=600, ranked=20
    )
    record = measure_job("people", "trees", "ranking", 0, options)
    assert (record.about, record.settings["loss"]) == ({"loss": "ranking", "events": 600}, "ranking")
    assert [row["split"] for row in record.rows] == ["val", "test"]
    (path,) = (tmp_path / "runs").rglob("metrics.jsonl")
    (entry,) = RunDirectory(path.parent).metrics()
    assert record.rows[0]["ap"] == pytest.approx(entry["val_ap"], abs=1e-9)
    types = record.rows[1]["by_type"].values()
    assert sum(one["n"] for one in types) == record.rows[1]["n"]
    assert sum(one["ranked"] for one in types) == record.rows[1]["ranked"] == 20


def test_tables_mark_the_loss_with_the_best_validation(tmp_path):
    """Records of the same job are replaced; the bold loss has the best validation MRR, not the best test."""

    def record(loss, seed, val, test):
        by_type = {name: {"n": 2, "ap": test, "mrr": None} for name in QUERY_TYPE_LABELS}
        rows = [
            {"split": split, "mrr": value, "hits@10": value, "ap": value, "by_type": by_type}
            for split, value in (("val", val), ("test", test))
        ]
        return ResultRecord("ranking", "uci", "trees", seed, {"loss": loss, "events": 1000}, rows)

    add_records(tmp_path, "first", [record("pairwise", 0, 0.1, 0.1)])
    runs = [record("pairwise", seed, 0.5, 0.6) for seed in (0, 1)] + [record("ranking", 0, 0.55, 0.4)]
    add_records(tmp_path, "second", runs)
    assert len(StudyResults.read(tmp_path / "ranking.json").records) == 3
    _, _, pairwise, ranking = build_table(tmp_path).split("\n")
    assert pairwise.startswith(
        "| UCI (messages) | 1,000 | `trees` | pairwise | 2 | 50.0 ± 0.0 | 60.0 ± 0.0 |"
    )
    assert ranking.startswith("| UCI (messages) | 1,000 | `trees` | **ranking** | 1 | 55.0 | 40.0 |")
    assert build_type_table(tmp_path).endswith("| ranking |" + " 2 | 40.0 | - |" * 3)
