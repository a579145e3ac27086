"""Calibrated scores of a run: probabilities, ranking among candidates, only-new candidates, rank metrics."""

import hashlib
import json
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import dygmamba as dm
from dygmamba.cli import main
from dygmamba.config import build_config
from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.engine.evaluation import rank_evaluation_set, score_evaluation_set
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.runs.calibration import (
    CALIBRATION_FILE,
    SavedCalibration,
    build_calibration_set,
    load_calibration,
    load_link_calibration,
    load_saved_calibration,
    save_calibration,
)
from dygmamba.runs.evaluation import Ranking
from dygmamba.runs.final_evaluation import MIN_RANKED_EVENTS, count_affordable_events
from dygmamba.runs.opening import open_run
from dygmamba.tasks.calibration import Calibration, NewNodes, compute_reliability, fit_calibration
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import build_link_set
from raising import raises
from trained import copy_run

SETTINGS = {"epochs": 2, "trees": 6, "rounds": 3, "least": 5, "scales": 3, "neighbors": 4, "device": "cpu"}
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("rank_all_events")


@pytest.fixture(scope="module")
def people():
    """A small stream; names for ids, so that files of ids have something to tell."""
    made = dm.generate(nodes=40, events=900, communities=4).store
    rows = list(zip(made.src.tolist(), made.dst.tolist(), (made.time - made.time[0]).tolist(), strict=True))
    return dm.read([(f"p{u}", f"p{v}", t) for u, v, t in rows], name="people")


@pytest.fixture(scope="module")
def run(people, tmp_path_factory):
    """Trees on a small stream, all of whose nodes occur in training."""
    return dm.train(people, "trees", out=tmp_path_factory.mktemp("runs"), **SETTINGS)[0]


@pytest.fixture(scope="module")
def held_out(people, tmp_path_factory):
    """Trees on the same stream with nodes held out, so that there are new ones."""
    out = tmp_path_factory.mktemp("held-out")
    return dm.train(people, "trees", out=out, protocol="benchmark", **SETTINGS)[0]


@pytest.fixture
def copy(run, tmp_path):
    """The same run in a folder that may be spoilt, beside its data."""
    return copy_run(run, tmp_path).path


@pytest.fixture
def ask(monkeypatch, capsys):
    """`dygmamba predict` in this process: exit code, stdout, stderr."""

    def call(path, *words):
        arguments = ("predict", path, *words, "--device", "cpu")
        monkeypatch.setattr(sys, "argv", ["dygmamba", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


def test_the_calibrations_are_fitted_on_the_validation_period(held_out):
    """One per setting, with random negatives; the reliability diagrams are those of the test period."""
    opened, kept = open_run(held_out.path, CPU), load_saved_calibration(held_out._folder)
    store, split = opened.stream.store, opened.stream.split
    new_nodes = NewNodes.from_events(store, split.train)
    for setting, found in (("transductive", kept.calibration), ("inductive", kept.new_nodes)):
        evaluation_set = build_calibration_set(store, split, setting)
        logit = score_evaluation_set(opened.scorer, opened.stream, evaluation_set, opened.rule, opened.seed)
        pairs = evaluation_set.pairs
        new_ends = new_nodes.find(pairs.src, pairs.dst, pairs.time)
        assert found == fit_calibration(logit, pairs.label, new_ends, opened.scorer.negatives)
        assert torch.equal(new_ends, split.new_nodes[torch.stack([pairs.src, pairs.dst], dim=1)])
        assert found.prior == 0.5
    for curve in (kept.before, kept.after):
        assert sum(curve.count) == 2 * len(split.test)
    for curve in (kept.new_nodes_before, kept.new_nodes_after):
        assert sum(curve.count) == 2 * len(split.touching_new_nodes(store, split.test))


def test_rows_have_calibration_errors_and_ranks(run):
    """Results, evaluation and diagrams agree; ranks are those of the test period, with their candidates."""
    kept, rows = load_saved_calibration(run._folder), run.results.to_pylist()
    (own,) = [row for row in rows if (row["split"], row["setting"]) == ("test", "transductive")]
    assert own["ece"] == pytest.approx(kept.after.ece)
    assert own["ece_raw"] == pytest.approx(kept.before.ece)
    again = run.evaluate(setting="transductive").to_pylist()
    assert {row["negatives"]: row["ece"] for row in again} == {
        "random": own["ece"],
        "historical": None,
        "inductive": None,
    }
    others = len(run.data.store.dst.unique()) - 1
    assert (own["candidates"], own["candidate_seed"]) == (min(100, others), 2)
    assert own["ranked"] == own["n"] < MIN_RANKED_EVENTS  # a short test period is ranked whole
    (ranks,) = run.evaluate(setting="transductive", metrics="mrr,hits@10").to_pylist()
    for name in ("mrr", "hits@10", "mrr_se", "hits@10_se"):
        assert own[name] == ranks[name]
    assert 0 < own["mrr"] < own["hits@10"] <= 1
    assert all(row["mrr"] is None for row in rows if row["split"] == "val")


@pytest.mark.parametrize(
    ("model", "settings", "events"),
    [
        ("trees", {"neighbors": 0, "transitions": 0}, 2_475),
        ("trees", {"neighbors": 32, "transitions": 0}, 1_237),
        ("trees", {}, 1_000),
        ("graphmixer", {}, 1_000),
    ],
)
def test_the_number_of_ranked_events_depends_on_the_model_alone(model, settings, events):
    """What two seconds allow by the entries that it looks up for a pair, never by a clock; at least 1,000."""
    spec = find_model(model)
    scorer = spec.build(build_config(spec.config, settings), DatasetFacts(40, 0, 0))
    assert count_affordable_events(scorer) == events


@pytest.mark.parametrize(
    ("destinations", "events"), [(297, 1_924), (1_862, 306), (20_000, 50), (100_000, 50), (200_000, 0)]
)
def test_fewer_events_are_ranked_among_more_destinations(destinations, events):
    """Ten seconds' worth by the stored cost of a pair, at least 50, and none if 50 take more than two minutes."""
    spec = find_model("trees")
    scorer = spec.build(build_config(spec.config, {}), DatasetFacts(40, 0, 0))
    assert count_affordable_events(scorer, destinations) == events


OFFSETS = {"new_source": 0.7, "new_destination": -1.1, "both_new": 0.4}


@pytest.fixture
def shifted(held_out, tmp_path):
    """The run with new nodes, with known curves and offsets instead of the fitted ones, in both settings."""
    copy, line = copy_run(held_out, tmp_path), Calibration(0.5, 0.25, 0.5, 100, 1.0, **OFFSETS)
    save_calibration(RunDirectory(copy.path), SavedCalibration(line, new_nodes=replace(line, bias=-2.0)))
    return copy


def test_rows_and_diagrams_of_new_nodes_agree(held_out):
    """The errors in the stored rows, in an evaluation of the run and of its diagrams are the same in both settings."""
    kept, rows = load_saved_calibration(held_out._folder), held_out.results.to_pylist()
    diagrams = {
        "transductive": (kept.before, kept.after),
        "inductive": (kept.new_nodes_before, kept.new_nodes_after),
    }
    for setting, expected in diagrams.items():
        (own,) = [row for row in rows if (row["split"], row["setting"]) == ("test", setting)]
        (again,) = held_out.evaluate("random", setting=setting).to_pylist()
        for row in (own, again):
            assert (row["ece_raw"], row["ece"]) == pytest.approx(tuple(one.ece for one in expected))


def test_predictions_use_the_offsets_of_new_nodes(shifted):
    """`score`, `rank` and `explain` give the probability of the logit and of what is new at the query time."""
    data, opened = shifted.data, open_run(shifted.path, CPU)
    split, line = opened.stream.split, load_calibration(shifted._folder)
    evaluation_set = build_link_set(data.store, split, "test", "inductive")
    pairs = evaluation_set.pairs
    logit = score_evaluation_set(opened.scorer, opened.stream, evaluation_set, opened.rule, opened.seed)
    is_new = split.new_nodes[torch.stack([pairs.src, pairs.dst], dim=1)]
    assert is_new.any(dim=0).all()
    odds = 0.5 * logit.double() + 0.25 + is_new[:, 0] * 0.7 - is_new[:, 1] * 1.1 + is_new.all(dim=1) * 0.4
    src, dst = (data.ids.to_user(column.numpy()).to_pylist() for column in (pairs.src, pairs.dst))
    found = shifted.score({"src": src, "dst": dst, "time": pairs.time.tolist()})["score"].to_pylist()
    assert found == pytest.approx(odds.sigmoid().tolist(), abs=1e-5)
    one = int(is_new[:, 1].nonzero()[0])
    at = float(pairs.time[one])
    if dst[one] != src[one]:
        ranked = shifted.rank([src[one]], k=99, at=at).to_pandas().set_index("dst")
        assert ranked["score"][dst[one]] == pytest.approx(found[one], abs=1e-5)
        share = ranked["score"] / (1 - ranked["score"])
        assert ranked["probability"].tolist() == pytest.approx((share / share.sum()).tolist(), rel=1e-4)
        assert ranked["rank"].tolist() == sorted(ranked["rank"])
    explained = shifted.explain((src[one], dst[one]), at=at)
    assert explained.score == pytest.approx(found[one], abs=1e-5)
    assert line.has_offsets


def test_before_its_first_training_event_a_node_is_new(shifted):
    """At the start of training both ends are new, at its end they are not: no later event is read."""
    store, train = shifted.data.store, open_run(shifted.path, CPU).stream.split.train
    first, last = (float(store.time[train[place]]) for place in (0, -1))
    ends = [
        shifted.data.ids.to_user(column[train[:1]].numpy()).to_pylist()[0]
        for column in (store.src, store.dst)
    ]
    predictor = shifted._predictor
    nodes = [column[train[:1]] for column in (store.src, store.dst)]
    for time, expected in ((first, [[True, True]]), (last, [[False, False]])):
        found = predictor.find_new_ends(*nodes, torch.tensor([time], dtype=torch.float64))
        assert found.tolist() == expected
    unknown = [("nobody", ends[1])]
    assert shifted.score(unknown, at=last)["score"].to_pylist() != pytest.approx(
        shifted.score([tuple(ends)], at=last)["score"].to_pylist()
    )


def test_rows_of_new_nodes_use_their_own_calibration(shifted):
    """With a bias of -2 in that setting only, the calibration error of its rows is the larger one of two fits."""
    opened = open_run(shifted.path, CPU)
    evaluation_set = build_link_set(shifted.data.store, opened.stream.split, "test", "inductive")
    score = score_evaluation_set(opened.scorer, opened.stream, evaluation_set, opened.rule, opened.seed)
    both = load_link_calibration(shifted._folder, opened.stream)
    (row,) = shifted.evaluate("random", setting="inductive").to_pylist()
    label = evaluation_set.pairs.label
    assert row["ece"] == pytest.approx(
        compute_reliability(both.probability(score, evaluation_set), label).ece
    )
    other = replace(both, inductive=None)  # as in a file without a calibration of new nodes
    assert row["ece"] != pytest.approx(
        compute_reliability(other.probability(score, evaluation_set), label).ece
    )


def test_a_file_without_a_calibration_of_new_nodes_is_read(copy):
    """Files from before it was fitted: one curve for both settings, and no offsets."""
    path = copy / CALIBRATION_FILE
    content = json.loads(path.read_text())
    old = {name: content[name] for name in ("weights", "calibration", "before", "after")}
    for name in OFFSETS:
        old["calibration"].pop(name)
    digest = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(old | {"sha256": digest}))
    kept = load_saved_calibration(RunDirectory(copy))
    assert (kept.new_nodes, kept.new_nodes_after) == (None, None)
    assert not kept.calibration.has_offsets
    both = load_link_calibration(RunDirectory(copy), open_run(copy, CPU).stream)
    assert both.select("inductive") == both.select("transductive") == kept.calibration


def test_the_rank_of_an_event_does_not_depend_on_the_others(run):
    """For any sample of events, each has the rank that it has among all."""
    opened = open_run(run.path, CPU)
    stream, evaluation_set = opened.stream, build_link_set(opened.stream.store, opened.stream.split, "test")
    among = SampledCandidates.create(stream.store, 5, 2)
    every = rank_evaluation_set(opened.scorer, stream, evaluation_set, among, opened.rule, opened.seed)
    chosen = torch.tensor([3, 40, 41, 100])
    some = rank_evaluation_set(
        opened.scorer, stream, evaluation_set, among, opened.rule, opened.seed, chosen=chosen
    )
    assert torch.equal(some, every[chosen])
    given = (opened.scorer, stream, evaluation_set, opened.rule, opened.seed)
    ranking = Ranking(("mrr",), 5, max_events=7)
    row = ranking.build_row(ranking.rank_events(*given))
    assert row["n"] == 7
    assert row == ranking.build_row(ranking.rank_events(*given))


def test_the_probabilities_of_all_candidates_sum_to_one(run):
    """For all destinations or given candidates; they are proportional to the odds of the scores."""
    for among in (None, ["p1", "p2", "p3"]):
        table = run.rank(["p5", "p9"], k=99, candidates=among).to_pandas()
        for _, own in table.groupby("src"):
            odds = own["score"] / (1 - own["score"])
            assert own["probability"].sum() == pytest.approx(1)
            assert own["probability"].tolist() == pytest.approx((odds / odds.sum()).tolist())
    head = run.rank(["p5", "p9"], k=2)["probability"].to_pylist()
    whole = run.rank(["p5", "p9"], k=99).to_pandas().groupby("src").head(2)["probability"].tolist()
    assert head == pytest.approx(whole)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_only_new_leaves_out_exactly_those_met_strictly_earlier(run, share):
    """At the time of an event its pair is still new; afterwards it is not, in either direction."""
    data = run.data
    row = int(share * (len(data.store) - 1))
    when = float(data.store.time[row])
    ids = [data.ids.to_user(column.numpy()).to_pylist() for column in (data.store.src, data.store.dst)]
    source = ids[0][row]
    for at in (when, when + 1e-3):
        events = zip(*ids, data.store.time.tolist(), strict=True)
        met = {v if u == source else u for u, v, t in events if t < at and source in (u, v)}
        every = set(run.rank(source, k=99, at=at)["dst"].to_pylist())
        new = run.rank(source, k=99, at=at, only_new=True).to_pydict()
        assert set(new["dst"]) == every - met
        assert sum(new["probability"]) == pytest.approx(1 if new["dst"] else 0)
    assert ids[1][row] not in new["dst"]


def test_candidates_come_from_a_list_a_table_or_the_line(run, ask, tmp_path):
    """Ids on the line, one per line, under a heading, or in a column of a CSV or Parquet file: the same."""
    expected = run.rank("p5", k=2, candidates=["p1", "p2", "p3"]).to_pylist()
    files = {
        "plain.txt": "p1\np2\n\np3\n",
        "headed.csv": "dst\np1\np2\np3\n",
        "two.csv": "w,dst\n1,p1\n2,p2\n3,p3\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    parquet.write_table(pa.table({"x": [1, 2, 3], "dst": ["p1", "p2", "p3"]}), tmp_path / "ids.parquet")
    for given in ("p1,p2,p3", *(tmp_path / name for name in (*files, "ids.parquet"))):
        code, out, err = ask(run.path, "--sources", "p5", "--top", 2, "--candidates", given, "--json")
        assert code == 0, err
        found = json.loads(out)["predictions"]
        assert [row["dst"] for row in found] == [row["dst"] for row in expected]
        assert [row["probability"] for row in found] == pytest.approx(
            [row["probability"] for row in expected]
        )
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with raises("column-not-recognized", NotFoundError) as caught:
        run.rank("p5", candidates=tmp_path / "other.csv")
    assert "a, b" in str(caught.value)


def test_a_source_without_a_new_candidate_is_named(run, ask):
    """--only-new with an old neighbor as the only candidate: no row, and a note about the source."""
    old = set(run.rank("p5", k=99)["dst"].to_pylist()) - set(
        run.rank("p5", k=99, only_new=True)["dst"].to_pylist()
    )
    code, out, err = ask(run.path, "--sources", "p5", "--top", 3, "--candidates", min(old), "--only-new")
    assert (code, out.splitlines()) == (0, ["src,dst,time,score,probability,rank"])
    assert "p5" in err
    assert "destination left" in err


def test_an_uncalibrated_run_has_another_column_and_a_note(copy, ask):
    """Without calibration.json: `uncalibrated_score`, no probabilities, and how to calibrate."""
    scores = dm.open(copy).score([("p1", "p2")]).column_names
    assert scores == ["src", "dst", "time", "score"]
    (copy / CALIBRATION_FILE).unlink()
    run = dm.open(copy, device="cpu")
    assert run.score([("p1", "p2")]).column_names == ["src", "dst", "time", "uncalibrated_score"]
    assert run.rank("p1").column_names == ["src", "dst", "time", "uncalibrated_score", "rank"]
    assert "ece" not in run.evaluate("random").column_names
    code, _, err = ask(copy, "--sources", "p1", "--top", 1)
    assert code == 0
    assert f"no probabilities; calibrate it with: dygmamba train --resume {copy}" in err
    again = dm.resume(copy, device="cpu")
    assert again.score([("p1", "p2")]).column_names == scores


def test_a_calibration_belongs_to_its_weights_and_has_a_checksum(copy, run):
    """With other weights there is none; a changed value is an error."""
    folder, path = RunDirectory(copy), copy / CALIBRATION_FILE
    assert load_calibration(folder) == load_calibration(run._folder)
    best = folder.best.read_bytes()
    folder.best.write_bytes(best.replace(best[40:50], b"0123456789", 1))
    assert load_calibration(folder) is None
    folder.best.write_bytes(best)
    whole = path.read_text()
    for text in (whole.replace('"slope": ', '"slope": 1'), whole[:-40], "[]", "[" * 99_999, ""):
        path.write_text(text)
        with raises("damaged-calibration", FileError):
            load_calibration(folder)
